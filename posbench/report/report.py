"""Reports: from eval files to sections of points and scores, and their tables. Nothing is trained
or evaluated here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from posbench.common import defuse
from posbench.common.errors import RunError
from posbench.report import footnotes
from posbench.report import scores as asked
from posbench.report.curves import context_points, points
from posbench.report.external_csv import match_setting, place, read_foreign, stated
from posbench.report.labels import STEPS, Labels
from posbench.report.ranks import RANKED, MethodRank, method_ranks, rank_table
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    Score,
    check_size,
    section_of,
    sections,
)
from posbench.report.references import References, check_losses, check_one_set
from posbench.report.tables import (
    Table,
    context_table,
    position_tables,
    printed,
    score_tables,
    tables,
)
from posbench.results.evaluation import Evaluation, load_evaluations
from posbench.results.evidence import pool
from posbench.results.run_metadata import RunMetadata, variants
from posbench.results.search import shortest_endings
from posbench.runs.rows import SETTING

ROWS_ALONE = (
    "without the loss of each target, intervals and G are those of a curve.csv beside it; where"
    " there is none, G is unknown, and differences of means have intervals over seeds alone."
)
AS_STATED = (
    "losses as the file states them; nothing here knows whether text, tokens and targets are the"
    " same."
)


@dataclass(frozen=True)
class Part:
    """Section of a report, its evaluations, its tables and the lines below them. `kind` is context,
    tasks or section.
    """

    kind: str
    points: list[CurvePoint] | list[ContextPoint] | list[Score]
    evaluations: list[Evaluation]
    tables: list[Table]
    lines: list[str]


@dataclass(frozen=True)
class Report:
    """Contents of a report, and notes on what is missing."""

    title: str
    notes: list[str]
    evaluations: list[Evaluation]
    origins: dict[Path, RunMetadata]  # of every run directory
    references: References  # of texts
    label: Labels
    sections: list[list[CurvePoint]]
    stretches: dict[
        tuple, list[CurvePoint]
    ]  # {section: points of wide stretches} of protocols by position
    contexts: list[list[ContextPoint]]  # loss against context inside the window, if measured
    scores: list[list[Score]]  # accuracy in tasks, if measured
    ranked: bool = True  # False: without mean reciprocal ranks, as in folders of earlier versions

    @property
    def rows(self) -> list[dict]:
        """Rows of all evaluations, with their settings in words."""
        return [
            {**row, SETTING: evaluation.words}
            for evaluation in self.evaluations
            for row in evaluation.rows
        ]

    @cached_property
    def ranks(self) -> list[MethodRank]:
        """Mean reciprocal ranks over all tasks; empty for too few tasks or methods."""
        return method_ranks(self.scores) if self.ranked else []

    @cached_property
    def parts(self) -> list[Part]:
        """Loss against context first, then tasks, then losses by length or position."""
        rungs, parts = (
            [
                ladder[context]
                for ladder in self.references.ladders.values()
                for context in sorted(ladder)
            ],
            [],
        )
        for section in self.contexts:
            parts.append(
                Part(
                    "context",
                    section,
                    _of(section, rungs),
                    [context_table(section)],
                    footnotes.below_contexts(section),
                )
            )
        for section in self.scores:
            own = _of(section, self.evaluations)
            lines = footnotes.below_scores(section) + footnotes.training_lines(
                own, self.origins, self.label
            )
            made = score_tables(section)
            if section is self.scores[-1] and self.ranks:
                made.append(rank_table(self.ranks))
                lines.append(f"mean reciprocal rank: {RANKED}")
            parts.append(Part("tasks", section, own, made, lines))
        for section in self.sections:
            own, wide = _of(section, self.evaluations), self.stretches.get(section[0].section)
            lines = footnotes.below_curve(section) + footnotes.checkpoint_lines(own, self.origins)
            lines += footnotes.training_lines(
                own, self.origins, self.label
            ) + footnotes.argument_line(own)
            lines += footnotes.gain_lines(own, self.references, self.label, self.origins)
            parts.append(
                Part(
                    "section",
                    section,
                    own,
                    position_tables(wide) if wide else tables(section),
                    lines,
                )
            )
        return parts

    def markdown(self) -> str:
        texts = [f"# {self.title}"]
        for part in self.parts:
            texts += [table.markdown() for table in part.tables]
            texts.append("\n".join(f"- {line}" for line in part.lines))
        return defuse.markdown("\n\n".join(texts + self.notes) + "\n")

    def latex(self) -> str:
        """Tables as LaTeX, with the lines below them as comments."""

        def comments(lines: Iterable[str]) -> str:
            return "\n".join(f"% {printed(line)}" for line in lines)

        package = ["\\usepackage{longtable}"] * any(
            table.long for part in self.parts for table in part.tables
        )
        texts = [comments([self.title, *package])]
        for part in self.parts:
            texts += [*(table.latex() for table in part.tables), comments(part.lines)]
        return "\n\n".join([*texts, *(comments([note]) for note in self.notes)]) + "\n"

    def table_text(self, width: int | None = None, colour: bool = False) -> str:
        """Whole report for a terminal `width` characters wide (None: any). Tables that do not fit
        lose their intervals and are divided.
        """
        from rich.console import Console

        console = Console(width=10_000, force_terminal=colour, no_color=not colour, highlight=False)
        with console.capture() as captured:
            for part in self.parts:
                shown = [table.rich() for table in part.tables]
                if width is not None and any(
                    console.measure(table).maximum > width for table in shown
                ):
                    shown = [
                        piece.rich(tight=True)
                        for table in part.tables
                        for piece in table.pieces(width)
                    ]
                for table in shown:
                    console.print(table, width=width)
                for line in part.lines:
                    console.print(line, markup=False, width=width or 200)
            for note in self.notes:
                console.print(note, markup=False, width=width or 200)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _of(
    section: list[CurvePoint] | list[ContextPoint] | list[Score], evaluations: Iterable[Evaluation]
) -> list[Evaluation]:
    return [
        evaluation for evaluation in evaluations if section_of(evaluation) == section[0].section
    ]


def collect(
    paths: Iterable[Path | str],
    title: str,
    command: str,
    csvs: Sequence[Path] = (),
    skip_damaged: bool = False,
    lengths: Mapping[Path, Sequence[int]] | None = None,
    evidence: Sequence[Path] = (),
) -> Report:
    """Collect the eval files that exist among `paths`, folders of `evidence`, and `csvs` of losses.

    `command` is the one that makes missing evaluations. `lengths` restricts some files to these
    lengths, since another experiment may have added others. Raises RunError if no file exists or
    one is damaged (with `skip_damaged` a note instead), ConfigError for a CSV without losses."""
    wanted = list(dict.fromkeys(map(Path, paths)))
    present = [path for path in wanted if path.exists()]
    if not present and not csvs and not evidence:
        raise RunError(
            f"None of the {len(wanted)} evaluations of this report exists yet: make them with"
            f" `{command}`."
        )
    loaded, notes = load_evaluations(present, skip_damaged, check_losses)
    if lengths is not None:
        kept = (
            replace(
                one,
                rows=[
                    row
                    for row in one.rows
                    if row["length"] in lengths.get(one.path, [row["length"]])
                ],
            )
            for one in loaded
        )
        loaded = [one for one in kept if one.rows]
    names, foreign, others = shortest_endings(csvs), [], []
    alone = (
        not loaded and not evidence and len(names) == 1
    )  # the report is of one CSV alone, so no line needs its name
    sources = {path: None if alone else name for path, name in names.items()}
    for path, source in sources.items():
        with_rows, without = read_foreign(path, source)
        foreign, others = foreign + with_rows, others + without
    evaluations, origins, twice = pool(
        loaded, evidence, lambda measured: [match_setting(one, measured) for one in foreign]
    )
    check_one_set(evaluations, section_of)
    if len(present) < len(wanted):
        notes.insert(
            0,
            f"{len(wanted) - len(present)} of {len(wanted)} evaluations are not there yet:"
            f" `{command}`",
        )
    read = {one.path for one in foreign}
    notes += [
        *twice,
        *(f"{name}: {ROWS_ALONE if path in read else AS_STATED}" for path, name in names.items()),
    ]
    runs = {
        evaluation.first["run_id"]: origins[evaluation.origin]
        for evaluation in reversed(evaluations)
    }
    words, keys = variants(evaluations, runs)
    if words:
        notes.append(
            f"Trainings of one encoding differ in {', '.join(keys)}; their names say as much of it"
            " as tells them apart."
        )
    steps = {run_id: origin.training.get(STEPS) for run_id, origin in runs.items()}
    label = Labels((evaluation.first for evaluation in evaluations), words, steps)
    tasks = [one for one in evaluations if one.first["protocol"] == asked.PROTOCOL]
    texts = [one for one in evaluations if one.first["protocol"] != asked.PROTOCOL]
    compared = References(texts)
    measured = points(compared, label)
    for path, source in sources.items():
        measured = stated(measured, path, source)
    curve = place(others, sections(measured), next(iter(sources), None))
    check_size(curve)
    inside, scores = (
        sections(context_points(compared, label)),
        sections(asked.scores(tasks, label, runs)),
    )
    stretches = {part[0].section: part for part in sections(points(compared, label, wide=True))}
    return Report(
        defuse.printable(title),
        notes,
        evaluations,
        origins,
        compared,
        label,
        curve,
        stretches,
        inside,
        scores,
    )
