"""Report as one HTML page: figures, tables that sort, the source of each number, and the
differences between trainings.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from posbench.report.figures.registry import report_figures
from posbench.report.html_parts import (
    NO_VALUE_TEXTS,
    NUMBER_AT_START,
    Grid,
    anchored,
    inlined_svg,
    link,
    template,
)
from posbench.report.method_words import source_suffix
from posbench.report.records import SectionKey, grouped
from posbench.report.references import reference_kind
from posbench.report.table_formats import METHOD_COLUMNS, Table
from posbench.report.tables import number_text
from posbench.results.bundle import shown_folder
from posbench.results.distinguish import values_of_differing_keys
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import ABSENT_WORD, RunMetadata, training_settings

if TYPE_CHECKING:
    from posbench.report.report import Part, Report

REFERENCE_WORDS = {"floor": " (the floor)", "half": " (half the window, for G)"}
COLOURS_LINE = (
    "colours: green below {}, orange above it, grey where zero lies inside the interval; the deeper"
    " the further"
)


@dataclass(frozen=True)
class PagePart:
    """Part of a report as the page shows it."""

    anchor: str
    heading: str
    figures: dict[str, Markup]  # {name: svg}
    tables: list[Grid]
    lines: list[str]
    evaluations: Grid


def report_html(report: "Report", drawn: Iterable[Mapping[str, Sequence[Path]]]) -> str:
    """HTML of the whole page, equal for equal input. `drawn`: {name: png and svg} of the figures of
    each part.
    """
    sources = Sources(report)
    page_headings = [  # in the order of report.parts
        *(f"Inside the window: {heading}" for heading in section_headings(report.contexts)),
        *section_headings(report.scores),
        *section_headings(report.sections),
        *section_headings(report.validations),
    ]
    counts = Counter()
    parts = []
    for part, figures, heading in zip(report.parts, drawn, page_headings, strict=True):
        anchor = f"{part.kind}-{counts[part.kind]}"
        counts[part.kind] += 1
        tables = [sources.results(table, part.evaluations) for table in part.tables]
        evaluations = sources.evaluations(part.evaluations)
        drawings = _inlined_figures(figures, anchor, report.title)
        parts.append(
            PagePart(anchor, heading, drawings, tables, _lines_below_tables(part), evaluations)
        )
    readable = [origin for origin in report.origins.values() if origin.config]
    values = values_of_differing_keys([training_settings(origin) for origin in readable])
    names = [link(origin.path.name, sources.anchors[origin.path]) for origin in readable]
    return template("page.html").render(
        report=report,
        titles=_figure_titles(),
        parts=parts,
        trainings=sources.trainings(),
        readable=readable,
        differing=values,
        differences=differences_grid(names, values),
        absent=ABSENT_WORD,
    )


def _figure_titles() -> dict[str, str]:
    return {figure.name: figure.title for figure in report_figures()}


def _inlined_figures(
    figures: Mapping[str, Sequence[Path]], anchor: str, title: str
) -> dict[str, Markup]:
    """{name: svg to stand in the page} of {name: png and svg}."""
    drawings = {}
    for name, (_, path) in figures.items():
        text = path.read_text(encoding="utf-8")
        drawings[name] = inlined_svg(
            text, f"{anchor}-{name}-", f"{_figure_titles()[name]}: {title}"
        )
    return drawings


def _lines_below_tables(part: "Part") -> list[str]:
    """Lines below the tables of a part: the report's, and the page's own on colours and links."""
    lines = list(part.lines)
    if part.kind == "section":
        by_position = bool(part.points[0].window)
        half_width = "change_half_width" if by_position else "half_width"
        if any(getattr(point, half_width) is not None for point in part.points):
            reference_name = "the loss without extension" if by_position else "the floor"
            lines.append(COLOURS_LINE.format(reference_name))
    if part.evaluations:
        lines.append("seeds: each leads to its training")
    return [_with_plus_minus_sign(line) for line in lines]


def section_headings(sections: Sequence[Sequence[SectionKey]]) -> list[str]:
    """Headings of the sections: protocol, training length and corpus, and what else differs between
    sections alike in these.
    """
    alike: dict[str, list[list[str]]] = defaultdict(list)  # {start of a heading: details of each}
    starts_and_details = []
    for section in sections:
        first = section[0]
        start = f"{first.protocol}, trained at {first.train_len}, {first.data}"
        setting = first.label_facts.setting
        # A setting of rows has parts; that of a CSV is a text or None.
        details = [first.tokenizer, *getattr(setting, "parts", [setting or "no setting"])]
        alike[start].append(details)
        starts_and_details.append((start, details))
    result = []
    for start, details in starts_and_details:
        distinct = [
            detail for detail in details if not all(detail in other for other in alike[start])
        ]
        result.append(f"{start}: {', '.join(distinct)}" if distinct else start)
    return result


class Sources:
    """Trainings and evaluations behind a report, and the links from each number to them."""

    def __init__(self, report: "Report", anchor: str = "run"):
        self.report = report
        self.anchors = {path: f"{anchor}-{index}" for index, path in enumerate(report.origins)}

    def results(self, table: Table, evaluations: Iterable[Evaluation]) -> Grid:
        """Table of the report, with a link to each training behind a row."""
        links: dict[tuple, dict[Markup, None]] = defaultdict(dict)  # {names of a row: links}
        for evaluation in evaluations:
            encoding, *others = self.report.label(evaluation.first)
            names = (encoding + source_suffix(evaluation.source), *others)[: table.name_columns]
            links[names][link(evaluation.first["seed"], self.anchors[evaluation.origin])] = None
        rows = []
        for row in table.rows:
            names = tuple(cell.text for cell in row[: table.name_columns])
            cells = [replace(cell, interval=_with_plus_minus_sign(cell.interval)) for cell in row]
            rows.append([*cells, Markup(" ").join(links[names])])
        numeric = range(table.name_columns, len(table.columns))
        return Grid([*table.columns, "seeds"], rows, numeric, table.title)

    def evaluations(self, evaluations: Iterable[Evaluation]) -> Grid:
        """Table of evaluations, with their commits, G and lengths."""
        columns = [
            *(*METHOD_COLUMNS, "seed", "training", "evaluation", "commit of the evaluation"),
            *("G", "gate", "lengths"),
        ]
        return Grid(columns, list(map(self._evaluation_row, evaluations)), numeric=(3, 7))

    def _evaluation_row(self, evaluation: Evaluation) -> list[object]:
        """Cells of an evaluation: its method, ids, commits, gate and lengths."""
        first = evaluation.first
        encoding, extension, scale = self.report.label(first)
        commits = dict.fromkeys(row["commit"] or "outside git" for row in evaluation.rows)
        lengths = dict.fromkeys(str(row["length"]) for row in evaluation.rows)
        gain, gate = "-", "unknown"
        estimate = self.report.references.gains.get(evaluation.key)
        if estimate:
            gain = number_text(estimate.value)
            gate = "ok" if estimate.lower > 0 else "failed"
        return [
            encoding,
            extension + REFERENCE_WORDS.get(reference_kind(first), ""),
            scale,
            first["seed"],
            link(first["run_id"], self.anchors[evaluation.origin]),
            first["eval_id"],
            ", ".join(commits),
            gain,
            gate,
            ", ".join(lengths),
        ]

    def trainings(self) -> Grid:
        """Table of trainings and their provenance."""
        evaluations = grouped(self.report.evaluations, lambda evaluation: evaluation.origin)
        rows = []
        for path, origin in self.report.origins.items():
            of_training = evaluations.get(path, ())
            seeds = dict.fromkeys(str(evaluation.first["seed"]) for evaluation in of_training)
            name = anchored(path.name, self.anchors[path])
            rows.append([name, ", ".join(seeds), *_provenance_cells(origin), shown_folder(path)])
        columns = [
            *("training", "seed", "commit", "machine", "threads", "torch", "data fingerprint"),
            *("parameters", "started", "folder"),
        ]
        return Grid(columns, rows, numeric=(1, 4, 7))  # seed, threads and parameters


def _provenance_cells(origin: RunMetadata) -> list[object]:
    """Commit, machine, threads, torch, data fingerprint, parameters and start of a training."""
    provenance = origin.provenance
    commit = str(provenance.get("commit") or "unknown")[:12]
    if provenance.get("dirty_diff"):
        commit += f" + changes {provenance['dirty_diff']}"
    machine = [
        str(provenance[key]) for key in ("device", "processor", "platform") if provenance.get(key)
    ]
    return [
        commit,
        ", ".join(machine) or "unknown",
        provenance.get("threads", "-"),
        origin.versions.get("torch", "-"),
        origin.fingerprint[:16] or "unknown",
        provenance.get("n_parameters", "-"),
        provenance.get("started", "-"),
    ]


def differences_grid(names: Sequence[Markup], values: Mapping[str, Sequence[str]]) -> Grid:
    """Table of {key: its value in each of the trainings `names`}. The more numerous of keys and
    trainings are its rows.
    """
    if len(values) > len(names):
        columns = ["key", *names]
        rows = [[key, *of_key] for key, of_key in values.items()]
    else:
        columns = ["training", *values]
        rows = [list(row) for row in zip(names, *values.values(), strict=True)]
    numeric = [
        index
        for index in range(1, len(columns))
        if all(NUMBER_AT_START.match(row[index]) or row[index] in NO_VALUE_TEXTS for row in rows)
    ]
    return Grid(columns, rows, numeric)


def _with_plus_minus_sign(text: str) -> str:
    return text.replace("+-", "\u00b1")
