"""From eval files to rows.csv, curve.csv, tables, figures and a page; nothing is trained or evaluated here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from posbench.curves import Evaluation, gains, points, same
from posbench.errors import RunError
from posbench.figures import draw
from posbench.files import read_json, write_atomic
from posbench.latex import comments, latex
from posbench.origins import Origin, clean, read, variants
from posbench.points import Point, sections, write_points
from posbench.rows import VOLATILE, eval_rows, write_csv
from posbench.statistics import Gain
from posbench.tables import footer, number, tables


@dataclass(frozen=True)
class Report:
    """What was found, and what is missing."""

    title: str
    rows: list[dict]
    sections: list[list[Point]]
    gain_lines: dict[tuple, list[str]]  # (protocol, setting) -> one line per encoding and seed
    notes: list[str]
    evaluations: list[Evaluation] = field(default_factory=list)
    origins: dict[Path, Origin] = field(default_factory=dict)  # of every run directory
    variants: dict[str, str] = field(default_factory=dict)  # run_id -> what tells it from other trainings of its encoding

    def markdown(self) -> str:
        """The whole report as Markdown."""
        parts = [f"# {self.title}"]
        for curve in self.sections:
            parts += [table.markdown() for table in tables(curve)]
            parts.append("\n".join(f"- {line}" for line in self.below(curve)))
        return "\n\n".join(parts + self.notes) + "\n"

    def latex(self) -> str:
        """The tables as LaTeX; what is to be said below them as comments."""
        parts = [comments([self.title])]
        for curve in self.sections:
            parts += [*map(latex, tables(curve)), comments(self.below(curve))]
        return "\n\n".join([*parts, *(comments([note]) for note in self.notes)]) + "\n"

    def table_text(self, width: int | None = None, colour: bool = False) -> str:
        """The same for a terminal `width` characters wide (None: any), where a narrow one goes without the intervals' widths."""
        from rich.console import Console

        console = Console(width=max(width or 0, 200), force_terminal=colour, no_color=not colour, highlight=False)
        with console.capture() as captured:
            for curve in self.sections:
                wide = [table.rich() for table in tables(curve)]
                fits = width is None or all(console.measure(table).maximum <= width for table in wide)
                for table in wide if fits else [table.rich() for table in tables(curve, intervals=False)]:
                    console.print(table)
                for line in self.below(curve):
                    console.print(line, markup=False)
            for note in self.notes:
                console.print(note, markup=False)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"

    def below(self, curve: list[Point]) -> list[str]:
        """What is to be said of the tables of one section: protocol, counts, marks, arguments, the gate."""
        key = curve[0].protocol, curve[0].setting
        shown = [row for row in self.rows if (row["protocol"], row["setting"]) == key]
        return footer(curve) + _argument_line(shown) + self.gain_lines.get(key, [])


def load(path: Path | str) -> Evaluation:
    """One eval json and the npz beside it. Raises RunError when either is damaged, or the npz speaks of other lengths."""
    path = Path(path)
    content, beside = clean(read_json(path)), path.with_suffix(".npz")
    rows = eval_rows(content, path)
    rows = [{**row, "setting": _setting(content.get("config", {}).get("evaluate"))} for row in rows]
    if not rows:
        raise RunError(f"{path} holds no rows: delete it and evaluate again.")
    if not beside.exists():
        return Evaluation(rows, None, path)
    try:
        with np.load(beside, allow_pickle=False) as stored:
            if "nll" not in stored:  # a protocol whose lengths have different targets: nothing to pair
                return Evaluation(rows, None, path)
            arrays = {name: stored[name] for name in ("length", "nll", "document", "offset")}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise RunError(f"{beside} is damaged ({error}): delete it and {path.name}, and evaluate again.") from error
    return Evaluation(rows, arrays, path)


def _setting(evaluate: dict | None) -> str | None:
    """The configuration behind an evaluation in words; two that differ are never in one table."""
    if not evaluate:
        return None
    windows = f"{evaluate['windows']} windows asked for, {evaluate['targets']} targets each, room for {evaluate['max_length']} tokens"
    return f"{windows}, {evaluate['split']} split, {evaluate['dtype']}, seed {evaluate['seed']} of the windows"


def collect(paths: Iterable[Path | str], title: str, command: str) -> Report:
    """What the eval files that exist among `paths` say; `command` is what would make the missing ones. Writes nothing.

    Raises RunError when none exists or one is damaged.
    """
    wanted = list(dict.fromkeys(map(Path, paths)))
    present = [path for path in wanted if path.exists()]
    if not present:
        raise RunError(f"None of the {len(wanted)} evaluations of this report exists yet: make them with `{command}`.")
    evaluations, notes = _once([load(path) for path in present])
    if len(present) < len(wanted):
        notes = [f"{len(wanted) - len(present)} of {len(wanted)} evaluations are missing: `{command}`", *notes]
    rows = [row for evaluation in evaluations for row in evaluation.rows]
    origins = {folder: read(folder) for folder in dict.fromkeys(map(directory, evaluations))}
    words, keys = variants(rows, {evaluation.rows[0]["run_id"]: origins[directory(evaluation)] for evaluation in reversed(evaluations)})
    if words:
        notes.append(f"Trainings of one encoding differ in {', '.join(keys)}; their names say as much of it as tells them apart.")
    lines = _gain_lines(evaluations, words)
    return Report(clean(title), rows, sections(points(evaluations, words)), lines, notes, evaluations, origins, words)


def directory(evaluation: Evaluation) -> Path:
    """Of the run that an evaluation hangs off: RUN/evals/PROTOCOL/NAME.json."""
    return evaluation.path.parents[2]


def _once(evaluations: list[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """Evaluations without the rows that an earlier one holds as well (a run that lies in two folders), and what to say of that."""
    known: dict[tuple, dict] = {}
    kept, twice, other = [], 0, 0
    for evaluation in evaluations:
        keys = [tuple(row[name] for name in ("run_id", "eval_id", "length", "position", "task", "depth")) for row in evaluation.rows]
        new = [row for key, row in zip(keys, evaluation.rows, strict=True) if key not in known]
        again = [(known[key], row) for key, row in zip(keys, evaluation.rows, strict=True) if key in known]
        twice += len(again)
        other += sum(any(one[name] != two[name] for name in one if name not in VOLATILE) for one, two in again)
        known = {**dict(zip(keys, evaluation.rows, strict=True)), **known}
        kept += [replace(evaluation, rows=new)] if new else []
    differ = f", {other} of them with other numbers" if other else ", with the same numbers"
    return kept, [f"{twice} rows are in more than one folder{differ}: the first found counts."] if twice else []


def write(report: Report, out_dir: Path | str) -> list[Path]:
    """Write a report's rows, curve, tables, figures and page into `out_dir`; returns the files."""
    import matplotlib

    from posbench.report_html import page

    out_dir = Path(out_dir)
    write_csv(report.rows, out_dir / "rows.csv")
    write_points([point for curve in report.sections for point in curve], out_dir / "curve.csv")
    write_atomic(out_dir / "table.md", report.markdown())
    write_atomic(out_dir / "table.tex", report.latex())
    with matplotlib.rc_context({"text.parse_math": False}):  # a dollar sign in a name is a dollar sign
        drawn = draw(out_dir / "curve.csv", out_dir, report.title)
    figures = [path.read_text(encoding="utf-8") for path in drawn if path.suffix == ".svg"]
    write_atomic(out_dir / "report.html", page(report, figures))
    return [out_dir / name for name in ("rows.csv", "curve.csv", "table.md", "table.tex")] + drawn + [out_dir / "report.html"]


def _gain_lines(evaluations: list[Evaluation], words: dict[str, str]) -> dict[tuple, list[str]]:
    rows = {same(row): row for evaluation in evaluations for row in evaluation.rows if row["position"] is None}
    known = gains(evaluations)
    lines: dict[tuple, list[str]] = {}
    for shared, row in sorted(rows.items(), key=lambda item: (item[1]["encoding"], item[1]["seed"])):
        name = row["encoding"] + words.get(row["run_id"], "")
        text = f"G {name} seed {row['seed']}: {_gate(known.get(shared), row['train_len'])}"
        lines.setdefault(shared[1:], []).append(text)
    return lines


def _argument_line(rows: list[dict]) -> list[str]:
    """Each method's arguments, without those left to their default rule (null); one method may come with several."""
    found: dict[str, dict] = {}
    for row in rows:
        for name, args in ((row["encoding"], row["encoding_args"]), (row["extension"], row["extension_args"])):
            text = ", ".join(f"{key}={value}" for key, value in (args or {}).items() if value is not None)
            if text and name != "recompute_window":
                found.setdefault(name, {})[text] = None
    return ["arguments: " + "; ".join(f"{name} {' or '.join(texts)}" for name, texts in found.items())] if found else []


def _gate(found: Gain | None, train_len: int) -> str:
    if found is None:
        return "unknown, since recompute_window was not evaluated at both windows; gate: unknown"
    lower = "no interval (one document)" if found.lower != found.lower else f"95 % above {number(found.lower)}"
    half = f"{train_len // 2} -> {train_len} tokens of context bring {number(found.value)} +- {number(found.sem)} nats/token (s.e.)"
    return f"{half}, {lower}; gate: {'ok' if found.ok else 'failed'}"
