"""Reports: from eval files to rows.csv, curve.csv, tables, figures and a page. Nothing is trained or evaluated here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from posbench.common import defuse
from posbench.common.csv_records import to_csv
from posbench.common.errors import RunError
from posbench.common.files import write_atomic
from posbench.config.names import called
from posbench.report import context_loss as context
from posbench.report import limits
from posbench.report.context_loss import Step
from posbench.report.curves import points
from posbench.report.external_csv import adopt, place
from posbench.report.external_csv import read as read_foreign
from posbench.report.figures.draw import draw
from posbench.report.labels import labels
from posbench.report.latex import comments, latex, long
from posbench.report.points import Point, section_of, sections, write_points
from posbench.report.references import gains, same
from posbench.report.tables import Table, footer, number, tables
from posbench.runs.evaluation import Evaluation
from posbench.runs.origins import Origin, clean, read, told_apart, variants
from posbench.runs.rows import write_csv
from posbench.runs.stored_evaluations import load_all, once, without_stride
from posbench.runs.trainings import Training, trainings
from posbench.statistics.clustered import Gain

WAY_ON = (
    "gate failed: nothing shows that the model uses the second half of its window, and a comparison of methods then says little: train "
    "longer (train.steps) or a larger model (model.d_model, model.n_layer), until the lower bound of G lies above 0"
)
DRAWN = re.compile(r"(context|curve|position|heatmap|differences)(-\d+)?\.(png|svg)|context\.csv")


@dataclass(frozen=True)
class Report:
    """Contents of a report, and notes on what is missing."""

    title: str
    rows: list[dict]
    sections: list[list[Point]]
    gain_lines: dict[tuple, list[str]]  # section -> one line per encoding and seed
    notes: list[str]
    evaluations: list[Evaluation] = field(default_factory=list)
    origins: dict[Path, Origin] = field(default_factory=dict)  # of every run directory
    variants: dict[str, str] = field(default_factory=dict)  # run_id -> words that tell it from other trainings of its encoding
    contexts: list[list[Step]] = field(default_factory=list)  # loss against context inside the window, if measured

    def markdown(self) -> str:
        """Whole report as Markdown."""
        parts = [f"# {self.title}"]
        for found, said in self.shown():
            parts += [table.markdown() for table in found]
            parts.append("\n".join(f"- {line}" for line in said))
        return defuse.markdown("\n\n".join(parts + self.notes) + "\n")

    def latex(self) -> str:
        """Tables as LaTeX, with the lines below them as comments."""
        shown = self.shown()
        package = ["\\usepackage{longtable}"] * any(long(table) for found, _ in shown for table in found)
        parts = [comments([self.title, *package])]
        for found, said in shown:
            parts += [*map(latex, found), comments(said)]
        return "\n\n".join([*parts, *(comments([note]) for note in self.notes)]) + "\n"

    def table_text(self, width: int | None = None, colour: bool = False) -> str:
        """Whole report for a terminal `width` characters wide (None: any width).

        To fit, tables first lose the widths of intervals, then get tight columns, and are then divided: no line is longer.
        """
        from rich.console import Console

        console = Console(width=10_000, force_terminal=colour, no_color=not colour, highlight=False)
        with console.capture() as captured:
            for (found, said), (narrow, _) in zip(self.shown(), self.shown(intervals=False), strict=True):
                ways = ([table.rich() for table in found], [table.rich() for table in narrow], [table.rich(tight=True) for table in narrow])
                fitting = (one for one in ways if width is None or all(console.measure(table).maximum <= width for table in one))
                pieces = [piece.rich(tight=True) for table in narrow for piece in table.pieces(width or 0)]
                for table in next(fitting, pieces):
                    console.print(table, width=width)
                for line in said:
                    console.print(line, markup=False, width=width or 200)
            for note in self.notes:
                console.print(note, markup=False, width=width or 200)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"

    def shown(self, intervals: bool = True) -> list[tuple[list[Table], list[str]]]:
        """Tables of every section and the lines below them, loss against context first; with half widths if `intervals`."""
        inside = [([context.table(section, intervals)], context.below(section)) for section in self.contexts]
        return inside + [(tables(curve, intervals), self.below(curve)) for curve in self.sections]

    def below(self, curve: list[Point]) -> list[str]:
        """Lines below the tables of one section: protocol, counts, marks, arguments, the gate."""
        shown = [row for row in self.rows if section_of(row) == curve[0].section]
        return footer(curve) + _argument_line(shown) + self.gain_lines.get(curve[0].section, [])


def collect(
    paths: Iterable[Path | str],
    title: str,
    command: str,
    csvs: Sequence[Path] = (),
    skip_damaged: bool = False,
    lengths: Mapping[Path, Sequence[int]] | None = None,
) -> Report:
    """Collect the eval files that exist among `paths`, and `csvs` of losses. `command` is the one that makes missing evaluations.

    `lengths` restricts some files to these lengths, since another experiment may have added others. Raises RunError if no file exists
    or one is damaged (with `skip_damaged` a note instead), ConfigError for a CSV without losses.
    """
    wanted = list(dict.fromkeys(map(Path, paths)))
    present = [path for path in wanted if path.exists()]
    if not present and not csvs:
        raise RunError(f"None of the {len(wanted)} evaluations of this report exists yet: make them with `{command}`.")
    loaded, notes = load_all(present, skip_damaged)
    own = [kept for kept in (_at(evaluation, (lengths or {}).get(evaluation.path)) for evaluation in loaded) if kept.rows]
    names = told_apart(csvs)
    found = [read_foreign(path, name) for path, name in names.items()]
    beside = [adopt(evaluation, own) for evaluations, _ in found for evaluation in evaluations]
    alone = not own and len(names) == 1  # the report is of one CSV alone, so no line needs its name
    if alone:
        beside = [replace(evaluation, source=None) for evaluation in beside]
    evaluations, twice = once(own + beside)
    if len(present) < len(wanted):
        notes.insert(0, f"{len(wanted) - len(present)} of {len(wanted)} evaluations are not there yet: `{command}`")
    notes += twice + _csv_notes(found, names)
    origins = {folder: read(folder) for folder in dict.fromkeys(evaluation.origin for evaluation in evaluations)}
    words, keys = variants(evaluations, {evaluation.rows[0]["run_id"]: origins[evaluation.origin] for evaluation in reversed(evaluations)})
    if words:
        notes.append(f"Trainings of one encoding differ in {', '.join(keys)}; their names say as much of it as tells them apart.")
    curve = place((point for _, stated in found for point in stated), sections(points(evaluations, words)))
    if alone:
        curve = [[replace(point, source=None) for point in part] for part in curve]
    limits.check(curve)
    rows = [row for evaluation in evaluations for row in evaluation.rows]
    inside = sections(context.steps(evaluations, words))
    return Report(clean(title), rows, curve, _gain_lines(evaluations, words), notes, evaluations, origins, words, inside)


def _at(evaluation: Evaluation, lengths: Sequence[int] | None) -> Evaluation:
    return evaluation if lengths is None else replace(evaluation, rows=[row for row in evaluation.rows if row["length"] in lengths])


def _csv_notes(found: Sequence[tuple[list[Evaluation], list[Point]]], names: Mapping[Path, str]) -> list[str]:
    notes = []
    for name, (evaluations, others) in zip(names.values(), found, strict=True):
        if evaluations:
            notes.append(f"{name}: without the loss of each target G is unknown, and differences of means have intervals over seeds alone.")
        if others:
            notes.append(f"{name}: losses as the file states them; nothing here knows whether text, tokens and targets are the same.")
    return notes


def write(report: Report, out_dir: Path | str) -> list[Path]:
    """Write a report's rows, curve, tables, figures and page into `out_dir`, delete an older report's figures, and return the files."""
    import matplotlib

    from posbench.report.figures import context_loss as context_figure
    from posbench.report.page import page

    out_dir = Path(out_dir)
    write_csv(report.rows, out_dir / "rows.csv")
    label = labels(report.rows, report.variants)
    names = {row["run_id"]: label(row)[0] for row in report.rows}
    write_atomic(out_dir / "trainings.csv", to_csv(trainings(report.origins.values(), names), Training))
    write_points([point for curve in report.sections for point in curve], out_dir / "curve.csv")
    inside = [out_dir / "context.csv"] * bool(report.contexts)
    for path in inside:
        context.write_steps([step for section in report.contexts for step in section], path)
    write_atomic(out_dir / "table.md", report.markdown())
    write_atomic(out_dir / "table.tex", report.latex())
    with matplotlib.rc_context({"text.parse_math": False}):  # print dollar signs in names as they are
        pairs = [pair for path in inside for pair in context_figure.draw(path, out_dir, report.title)]
        drawn = draw(out_dir / "curve.csv", out_dir, report.title)
    figures = [path for pair in [*pairs, *(pair for section in drawn for pair in section.values())] for path in pair]
    if (out_dir / "report.html").exists():  # the folder holds an older report, whose other figures are out of date
        for path in out_dir.iterdir():
            if DRAWN.fullmatch(path.name) and path not in {*figures, *inside}:
                path.unlink()
    write_atomic(out_dir / "report.html", page(report, drawn, pairs))
    named = [out_dir / name for name in ("rows.csv", "trainings.csv", "curve.csv", "table.md", "table.tex")]
    return named + inside + figures + [out_dir / "report.html"]


def _gain_lines(evaluations: list[Evaluation], words: dict[str, str]) -> dict[tuple, list[str]]:
    held = (evaluation for evaluation in evaluations if not evaluation.rows_alone)
    rows = {(row["run_id"], section_of(row)): (row, one.full_from) for one in held for row in one.rows if row["position"] is None}
    known, label = gains(evaluations), labels((row for evaluation in evaluations for row in evaluation.rows), words)
    asked_alike: dict[tuple, tuple] = {}  # G by another protocol is taken only if its windows are the same
    for shared in known:
        asked_alike.setdefault((shared[0], without_stride(shared[2])), shared)
    lines: dict[tuple, list[str]] = {}
    failed: dict[tuple, list[str]] = {}
    for (_, section), (row, full_from) in sorted(rows.items(), key=lambda item: (item[1][0]["encoding"], item[1][0]["seed"])):
        own = same(row) if same(row) in known else asked_alike.get((row["run_id"], without_stride(row["setting"])))
        if own in known and not known[own].ok:
            failed[section] = [WAY_ON]
        whence = f" (by {own[1]})" if own and own != same(row) else ""
        said = _gate(known.get(own), row["train_len"], full_from)
        lines.setdefault(section, []).append(f"G {label(row)[0]} seed {row['seed']}{whence}: {said}")
    return {section: said + failed.get(section, []) for section, said in lines.items()}


def _argument_line(rows: list[dict]) -> list[str]:
    """Line with the arguments of each method, without those that are null. One method may have several sets."""
    found: dict[str, dict] = {}
    for row in rows:
        for group in ("encoding", "extension"):
            args = row[f"{group}_args"]
            text = ", ".join(f"{key}={value}" for key, value in (args or {}).items() if value is not None)
            if text and row[group] != "recompute_window":
                found.setdefault(called(group, row[group], args), {})[text] = None
    return ["arguments: " + "; ".join(f"{name} {' or '.join(texts)}" for name, texts in found.items())] if found else []


def _gate(found: Gain | None, train_len: int, full_from: int | None) -> str:
    if found is None:
        texts = f" in texts of {full_from} tokens or more (evaluate.max_length)" if full_from else ""
        return f"unknown, since it takes recompute_window at both windows{texts} and the loss of every target; gate: unknown"
    lower = "no interval (one document)" if found.lower != found.lower else f"95 % above {number(found.lower)}"
    half = f"{train_len // 2} -> {train_len} tokens of context bring {number(found.value)} +- {number(found.sem)} nats/token (s.e.)"
    if found.lower != found.lower:
        return f"{half}, {lower}; gate: failed, one document shows nothing: evaluate.windows for more"
    return f"{half}, {lower}; gate: {'ok' if found.ok else f'failed, {-found.lower:.2g} nats/token short'}"
