"""Reports: from eval files to sections of points and scores, and their tables. Nothing is trained
or evaluated here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from posbench.common import defuse
from posbench.common.errors import RunError
from posbench.report.curves import context_points, curve_points
from posbench.report.external_csv import (
    in_sections,
    read_others_csv,
    with_matching_setting,
    with_stated_intervals,
)
from posbench.report.footnotes import below_contexts, below_curve, below_scores, below_steps
from posbench.report.gain_lines import gain_lines
from posbench.report.labels import STEP_KEY, STEPS_KEY, Labels
from posbench.report.ranks import RANKS_LINE, MethodRank, method_ranks, rank_table
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    Score,
    StepPoint,
    check_size,
    grouped_by_section,
    section_values,
)
from posbench.report.references import References, check_losses, check_targets_of_sections
from posbench.report.scores import TASK_PROTOCOL as TASKS
from posbench.report.scores import task_scores
from posbench.report.setting_lines import argument_lines, checkpoint_lines, training_lines
from posbench.report.step_points import step_points
from posbench.report.table_formats import Table, printable_line
from posbench.report.tables import (
    context_table,
    curve_tables,
    position_tables,
    score_tables,
    validation_table,
)
from posbench.results.distinguish import words_by_run
from posbench.results.evaluation import Evaluation, load_evaluations
from posbench.results.evidence import pooled_evaluations
from posbench.results.run_metadata import RunMetadata
from posbench.results.search import shortest_endings
from posbench.runs.rows import SETTING

ROWS_ALONE_NOTE = (
    "without the loss of each target, intervals and G are those of a curve.csv beside it; where"
    " there is none, G is unknown, and differences of means have intervals over seeds alone."
)
AS_STATED_NOTE = (
    "losses as the file states them; nothing here knows whether text, tokens and targets are the"
    " same."
)


@dataclass(frozen=True)
class Part:
    """Section of a report, its evaluations, its tables and the lines below them. `kind` is context,
    tasks, section or validation.
    """

    kind: str
    points: list[CurvePoint] | list[ContextPoint] | list[Score] | list[StepPoint]
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
    # {section: points of several bins of positions each} of protocols by position
    stretches: dict[tuple, list[CurvePoint]]
    contexts: list[list[ContextPoint]]  # loss against context inside the window, if measured
    scores: list[list[Score]]  # accuracy in tasks, if measured
    # losses by length while the models trained, if measured
    validations: list[list[StepPoint]]
    ranked: bool = True  # False: without mean reciprocal ranks, as in folders of earlier versions

    @property
    def rows(self) -> list[dict]:
        """Rows of all evaluations, with their settings in words."""
        return [
            {**row, SETTING: evaluation.setting_in_words}
            for evaluation in self.evaluations
            for row in evaluation.rows
        ]

    @cached_property
    def ranks(self) -> list[MethodRank]:
        """Mean reciprocal ranks over all tasks; empty for too few tasks or methods."""
        return method_ranks(self.scores) if self.ranked else []

    @cached_property
    def parts(self) -> list[Part]:
        """Loss against context first, then tasks, then losses by length or position, and those of
        validations.
        """
        parts = [self._context_part(section) for section in self.contexts]
        parts += [self._task_part(section) for section in self.scores]
        parts += [self._curve_part(section) for section in self.sections]
        return parts + [self._validation_part(section) for section in self.validations]

    def _context_part(self, section: list[ContextPoint]) -> Part:
        """Table of the loss against context, made of the evaluations of all steps of ladders."""
        steps = [
            ladder[context]
            for ladder in self.references.ladders.values()
            for context in sorted(ladder)
        ]
        lines = below_contexts(section)
        return Part(
            "context",
            section,
            _evaluations_of_section(section, steps),
            [context_table(section)],
            lines,
        )

    def _task_part(self, section: list[Score]) -> Part:
        """Tables of tasks; below those of the last section the ranks, which are over all."""
        evaluations = _evaluations_of_section(section, self.evaluations)
        shown = score_tables(section)
        lines = below_scores(section) + training_lines(evaluations, self.origins, self.label)
        if section is self.scores[-1] and self.ranks:
            shown.append(rank_table(self.ranks))
            lines.append(f"mean reciprocal rank: {RANKS_LINE}")
        return Part("tasks", section, evaluations, shown, lines)

    def _curve_part(self, section: list[CurvePoint]) -> Part:
        """Tables of losses by length, or by stretches of positions for a protocol that has any."""
        evaluations = _evaluations_of_section(section, self.evaluations)
        stretches = self.stretches.get(section[0].section)
        lines = [
            *below_curve(section),
            *checkpoint_lines(evaluations, self.origins),
            *training_lines(evaluations, self.origins, self.label),
            *argument_lines(evaluations),
            *gain_lines(evaluations, self.references, self.label, self.origins),
        ]
        shown = position_tables(stretches) if stretches else curve_tables(section)
        return Part("section", section, evaluations, shown, lines)

    def _validation_part(self, section: list[StepPoint]) -> Part:
        return Part("validation", section, [], [validation_table(section)], below_steps(section))

    def markdown(self) -> str:
        texts = [f"# {self.title}"]
        for part in self.parts:
            texts += [table.markdown() for table in part.tables]
            texts.append("\n".join(f"- {line}" for line in part.lines))
        return defuse.markdown("\n\n".join(texts + self.notes) + "\n")

    def latex(self) -> str:
        """Tables as LaTeX, with the lines below them as comments."""

        title = [self.title]
        if any(table.long for part in self.parts for table in part.tables):
            title.append("\\usepackage{longtable}")
        texts = [_latex_comments(title)]
        for part in self.parts:
            texts += [*(table.latex() for table in part.tables), _latex_comments(part.lines)]
        texts += [_latex_comments([note]) for note in self.notes]
        return "\n\n".join(texts) + "\n"

    def table_text(self, width: int | None = None, colour: bool = False) -> str:
        """Whole report for a terminal `width` characters wide (None: any). Tables that do not fit
        lose their intervals and are divided.
        """
        from rich.console import Console

        # 10,000 characters: so wide that the console itself never cuts a table.
        console = Console(width=10_000, force_terminal=colour, no_color=not colour, highlight=False)
        line_width = width or 200  # characters of a line of text where any width is allowed
        with console.capture() as captured:
            for part in self.parts:
                shown = [table.rich() for table in part.tables]
                if width and any(console.measure(table).maximum > width for table in shown):
                    pieces = [piece for table in part.tables for piece in table.pieces(width)]
                    shown = [piece.rich(tight=True) for piece in pieces]
                for table in shown:
                    console.print(table, width=width)
                for line in part.lines:
                    console.print(line, markup=False, width=line_width)
            for note in self.notes:
                console.print(note, markup=False, width=line_width)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _latex_comments(lines: Iterable[str]) -> str:
    return "\n".join(f"% {printable_line(line)}" for line in lines)


def _evaluations_of_section(
    section: list[CurvePoint] | list[ContextPoint] | list[Score], evaluations: Iterable[Evaluation]
) -> list[Evaluation]:
    """Evaluations of a section."""
    return [
        evaluation for evaluation in evaluations if section_values(evaluation) == section[0].section
    ]


def collect_report(
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
    paths = list(dict.fromkeys(map(Path, paths)))
    present = [path for path in paths if path.exists()]
    if not present and not csvs and not evidence:
        raise RunError(
            f"None of the {len(paths)} evaluations of this report exists yet: make them with"
            f" `{command}`."
        )
    loaded, damaged = load_evaluations(present, skip_damaged, check_losses)
    if lengths is not None:
        loaded = _restricted_to_lengths(loaded, lengths)
    foreign = _read_csvs(csvs, alone=not loaded and not evidence)
    evaluations, origins, repeated = pooled_evaluations(
        loaded,
        evidence,
        lambda measured: [with_matching_setting(rows, measured) for rows in foreign.with_rows],
    )
    check_targets_of_sections(evaluations, section_values)
    notes = [*damaged, *repeated, *foreign.notes]
    n_missing = len(paths) - len(present)
    if n_missing:
        missing = f"{n_missing} of {len(paths)} evaluations are not there yet: `{command}`"
        notes.insert(0, missing)
    return _report_of(defuse.printable(title), notes, evaluations, origins, foreign, evidence)


def _report_of(
    title: str,
    notes: list[str],
    evaluations: list[Evaluation],
    origins: dict[Path, RunMetadata],
    foreign: "ForeignCsvs",
    folders: Sequence[Path],
) -> Report:
    """Points and scores of evaluations, of CSVs of losses, and of validations: those of the
    trainings, and those that `folders` of earlier reports hold.
    """
    # By run_id. Of several origins the first counts: reversed, it replaces the others.
    runs = {
        evaluation.first["run_id"]: origins[evaluation.origin]
        for evaluation in reversed(evaluations)
    }
    words, keys = words_by_run(evaluations, runs)
    if words:
        notes.append(
            f"Trainings of one encoding differ in {', '.join(keys)}; their names say as much of it"
            " as tells them apart."
        )
    steps = {
        run_id: origin.training.get(STEP_KEY) or origin.training.get(STEPS_KEY)
        for run_id, origin in runs.items()
    }
    label = Labels((evaluation.first for evaluation in evaluations), words, steps)
    of_tasks, of_texts = _divided_into_tasks_and_texts(evaluations)
    references = References(of_texts)
    # CSVs of rows may have the intervals and G of their points in a curve.csv beside them.
    measured = foreign.add_stated(curve_points(references, label))
    # Points without a source are of the only CSV, which an error then names.
    first_csv = next(iter(foreign.sources), None)
    curve = in_sections(foreign.without_rows, grouped_by_section(measured), csv_path=first_csv)
    check_size(curve)
    # Protocols that score every position have points for stretches of positions beside the curve.
    stretches = grouped_by_section(curve_points(references, label, stretches=True))
    return Report(
        title,
        notes,
        evaluations,
        origins,
        references,
        label,
        sections=curve,
        stretches={section[0].section: section for section in stretches},
        contexts=grouped_by_section(context_points(references, label)),
        scores=grouped_by_section(task_scores(of_tasks, label, runs)),
        validations=grouped_by_section(step_points(evaluations, origins, label, folders)),
    )


def _divided_into_tasks_and_texts(
    evaluations: Iterable[Evaluation],
) -> tuple[list[Evaluation], list[Evaluation]]:
    """(evaluations of tasks, those of texts)."""
    of_tasks, of_texts = [], []
    for evaluation in evaluations:
        is_task = evaluation.first["protocol"] == TASKS
        (of_tasks if is_task else of_texts).append(evaluation)
    return of_tasks, of_texts


def _restricted_to_lengths(
    evaluations: Iterable[Evaluation], lengths: Mapping[Path, Sequence[int]]
) -> list[Evaluation]:
    """Evaluations, those whose path is in {path: lengths} with the rows of these lengths alone, and
    without those that have no rows left.
    """
    result = []
    for evaluation in evaluations:
        rows = evaluation.rows
        if evaluation.path in lengths:
            rows = [row for row in rows if row["length"] in lengths[evaluation.path]]
        if rows:
            result.append(replace(evaluation, rows=rows))
    return result


@dataclass(frozen=True)
class ForeignCsvs:
    """Contents of CSVs of losses."""

    names: dict[Path, str]  # that tell the files apart
    sources: dict[Path, str | None]  # that lines show
    with_rows: list[Evaluation]
    without_rows: list[CurvePoint]

    @property
    def notes(self) -> list[str]:
        """Notes on what is not known of their losses."""
        with_rows = {evaluation.path for evaluation in self.with_rows}
        return [
            f"{name}: {ROWS_ALONE_NOTE if path in with_rows else AS_STATED_NOTE}"
            for path, name in self.names.items()
        ]

    def add_stated(self, measured: list[CurvePoint]) -> list[CurvePoint]:
        """Points of rows with the intervals and G of a curve.csv beside them."""
        for path, source in self.sources.items():
            measured = with_stated_intervals(measured, path, source)
        return measured


def _read_csvs(csvs: Sequence[Path], alone: bool) -> ForeignCsvs:
    """CSVs of losses. No line needs the name of a single CSV if the report is of it `alone`."""
    names = shortest_endings(csvs)
    named = not alone or len(names) > 1
    sources = {path: name if named else None for path, name in names.items()}
    with_rows: list[Evaluation] = []
    without_rows: list[CurvePoint] = []
    for path, source in sources.items():
        evaluations, points_alone = read_others_csv(path, source)
        with_rows += evaluations
        without_rows += points_alone
    return ForeignCsvs(names, sources, with_rows, without_rows)
