"""The explore page: one HTML file that draws what its reader chooses of a report's points.

It needs no network. Observable Plot draws (templates/vendor: 0.6.17 with d3 7.9.2, ISC, unchanged
from npm, 0.49 MB), since it makes SVG with panels, log and symlog axes and evaluates no text; uPlot
(0.05 MB) draws on a canvas, and altair, bokeh and plotly take 1 to 5 MB a page.

The data are lines and where they come from, the points of `posbench.frame`, and sums over documents
for differences: those of posbench/results/evidence.py, a float32 for each document of each seed,
length and method: enough for every interval of posbench.statistics.crossed to six digits.
MOST_SUMS_BYTES bounds them; points beyond have no sums, which the page says."""

import base64
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from posbench.common.defuse import printable
from posbench.common.files import nan_as_none
from posbench.report.comparison import MEASURES, gate_state, seeds_of
from posbench.report.comparison import VALUE_OF_SEED as VALUE_OF
from posbench.report.comparison_words import all_words
from posbench.report.figures.captions import LINEAR, LINEAR_THEN_LOG, LOG
from posbench.report.figures.palette import (
    BLACK,
    LEAST_COLOUR_DISTANCE,
    encoding_look,
    extension_look,
    foreign_pens,
    shades,
)
from posbench.report.figures.style import DASHES, FOREIGN_COLOURS, OKABE_ITO, colour_distance
from posbench.report.figures.uncertainty import (
    COLUMN_WORDS,
    COMPARE_PAIRED,
    ONE_SEED,
    ONE_SEED_NO_TARGETS,
    ONE_SEED_ONE_UNIT,
)
from posbench.report.html_page import Sources
from posbench.report.html_parts import template
from posbench.report.published.reproduction import command_to_repeat
from posbench.report.records import SECTION_COLUMNS, SectionKey
from posbench.report.references import Seed
from posbench.report.report import Report
from posbench.results.bundle import shown_folder
from posbench.results.evaluation import Evaluation
from posbench.results.evidence import is_mean
from posbench.results.search import short_path
from posbench.statistics.crossed import Sums

TEMPLATES = files("posbench.report") / "templates"
LIBRARIES = ("d3", "plot")
# each uses those before it
SCRIPTS = (
    "crossed.js",
    "explore_points.js",
    "explore_compare.js",
    "explore_bars.js",
    "explore_choice.js",
    "explore_figure.js",
    "explore_page.js",
)
LINE_WIDTH = 1.6  # of a line, the unit of DASHES
# before base64, which takes a third more; those of headline are 1.3 MB, and its page 2.4 MB
MOST_SUMS_BYTES = 6_000_000
MOST_RIGHT_TARGETS = 65_535  # of a document: the page stores them in 16 bits
MOST_POINTS = 20_000  # that a browser draws without a wait
VALUE_COLUMNS = (
    "n_seeds", "n_targets", "n_units", "n_texts", "over", "nll", "bpb", "accuracy", "floor",
    "difference", "half_width", "change", "change_half_width", "low", "high", "nll_half_width",
    "accuracy_half_width", "nll_over",
)  # fmt: skip
BAR_WORDS = {  # of the line below the figure, as below those of posbench plot
    "log": LOG, "linear": LINEAR, "symlog": LINEAR_THEN_LOG, "names": COLUMN_WORDS, "paired":
    COMPARE_PAIRED, "way_out": ONE_SEED_NO_TARGETS, "one_unit": ONE_SEED_ONE_UNIT, "alone":
    ONE_SEED,
}  # fmt: skip
BYTES_OF_DOCUMENT = 5  # in each sum: a float32 of losses, and a count of right answers
ABSOLUTE_PATH = re.compile(r"(?<![^\s=\[,'\"])/[^\s,\]'\"]+")  # an absolute path in a command
KIND_WORDS = {
    "length": "loss by length",
    "position": "loss by position",
    "context": "loss by context",
    "task": "tasks",
}


def explore_page(title: str, reports: Mapping[str, Report], notes: Sequence[str] = ()) -> str:
    """HTML of the page of one report, named "", or of several, whose names tell their lines apart.

    Equal input gives equal text.
    """
    title = str(printable(title))
    shown = nan_as_none(page_content(title, reports, notes))
    # matplotlib's dash is "-" or (offset, lengths)
    dashes = ["none" if dash == "-" else _dash_array(dash[1]) for dash in DASHES]
    shown["palette"] = {
        "colours": OKABE_ITO + FOREIGN_COLOURS,
        "black": BLACK,
        "dashes": dashes,
        "shades": [_shades_with_near_colours(colour) for colour in range(len(OKABE_ITO))],
    }
    # Without "<" no text of the data can end the script that holds it.
    data = json.dumps(shown, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    libraries = []
    for name in LIBRARIES:
        license_text = _template_text(f"vendor/{name}.LICENSE")
        libraries.append(f"/*\n{license_text}*/\n{_template_text(f'vendor/{name}.min.js')}")
    scripts = [Markup(text) for text in (*libraries, *map(_template_text, SCRIPTS))]
    tables = [
        Sources(report, f"run-{number}").trainings()
        for number, report in enumerate(reports.values())
    ]
    trainings = replace(tables[0], rows=[row for table in tables for row in table.rows])
    return template("explore.html").render(
        title=title, data=Markup(data), scripts=scripts, trainings=trainings
    )


def _shades_with_near_colours(colour: int) -> list[dict]:
    """Shades of a colour by its number, the colour first, each with the colours too near to it."""
    return [
        {
            "colour": shade,
            "near": [
                other
                for other, of_other in enumerate(OKABE_ITO)
                if other != colour and colour_distance(shade, of_other) < LEAST_COLOUR_DISTANCE
            ],
        }
        for shade in shades(colour)
    ]


def _dash_array(lengths: Sequence[float]) -> str:
    """Dashes and gaps as SVG has them, such as "8,2.56"."""
    return ",".join(f"{LINE_WIDTH * length:g}" for length in lengths)


def _template_text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


class SumTable:
    """Sums over documents, each once.

    `entries` are [number of the set of documents, place of the first total].
    """

    def __init__(self):
        # [number of the set of documents, place of its first document in the totals]
        self.entries: list[list[int]] = []
        # {documents, their numbers of targets and their strata: number of the set}
        self.sets: dict[tuple, int] = {}
        self.counts: list[list[int]] = []  # of targets, in each set
        self.strata: list[list[int] | None] = []  # of each set
        # Totals of the documents of each entry. The empty first array is for np.concatenate, which
        # takes no empty list.
        self.nll = [np.zeros(0, "<f4")]
        self.correct = [np.zeros(0, "<u2")]
        # {row: number of its entry, -1 for one without sums or room}
        self.numbers: dict[tuple, int] = {}
        self.size = 0  # in bytes, at most MOST_SUMS_BYTES
        self.is_full = False  # True once a row found no room
        self.has_overflow = False  # True once a document had more than MOST_RIGHT_TARGETS

    def add(self, evaluation: Evaluation, row: dict) -> int:
        """Number of the entry of a row, -1 if it has no sums or if there is no room."""
        key = evaluation.path, row["eval_id"], row["length"], row["position"], row["task"]
        if key not in self.numbers:
            self.numbers[key] = self._new_entry(evaluation, row)
        return self.numbers[key]

    def _new_entry(self, evaluation: Evaluation, row: dict) -> int:
        """Number of the entry that is added for a row, -1 without sums that the page can hold."""
        losses = evaluation.sampled_sums(row, "nll")
        correct = evaluation.sampled_sums(row, "correct")
        # The page computes losses from sums, which a row that is no mean of them would contradict.
        if losses is None or correct is None or not is_mean(losses, row):
            return -1
        if correct.totals[0].max() > MOST_RIGHT_TARGETS:
            self.has_overflow = True
            return -1
        size = BYTES_OF_DOCUMENT * len(losses.counts)
        if self.size + size > MOST_SUMS_BYTES:
            self.is_full = True
            return -1
        self.entries.append(
            [self._number_of_set(evaluation, losses), self.size // BYTES_OF_DOCUMENT]
        )
        # Totals are [seeds, documents], and an evaluation is of one seed.
        self.nll.append(losses.totals[0].astype("<f4"))
        self.correct.append(correct.totals[0].astype("<u2"))
        self.size += size
        return len(self.entries) - 1

    def _number_of_set(self, evaluation: Evaluation, losses: Sums) -> int:
        """Number of the set of documents of these sums, which is added if it is new."""
        strata = None if losses.strata is None else losses.strata.tolist()
        documents = losses.documents.tobytes()
        counts = losses.counts.tobytes()
        key = evaluation.stored.targets, documents, counts, str(strata)
        if key not in self.sets:
            self.sets[key] = len(self.sets)
            self.counts.append(losses.counts.tolist())
            self.strata.append(strata)
        return self.sets[key]

    def reason_of_lack(self) -> str:
        """Reason, for a note, why rows have no sums on the page."""
        reasons = []
        if self.is_full:
            reasons.append(
                f"their sums take more than the {MOST_SUMS_BYTES / 1e6:.1f} MB of a page"
            )
        if self.has_overflow:
            reasons.append(f"a document has more than {MOST_RIGHT_TARGETS:,} right answers")
        return " or ".join(reasons) or "sums over documents are not known"

    def packed(self) -> dict:
        """Content for the page: totals as base64 of little-endian numbers."""
        nll = np.concatenate(self.nll)  # of 4 bytes each, "<f4"
        correct = np.concatenate(self.correct)
        # One byte for each number where all fit in it; "correct_bytes" tells the page.
        correct = correct.astype("<u1" if correct.max(initial=0) < 256 else "<u2")
        return {
            "entries": self.entries,
            "sets": self.counts,
            "strata": self.strata,
            "nll": base64.b64encode(nll.tobytes()).decode(),
            "correct": base64.b64encode(correct.tobytes()).decode(),
            "correct_bytes": correct.itemsize,
        }


class LineKey(NamedTuple):
    """Key of a line of the page; `section`: values of SECTION_COLUMNS."""

    kind: str
    section: tuple
    encoding: str
    extension: str
    scale: str
    source: str | None
    task: str | None


class PointTable:
    """Points of the page in columns, up to MOST_POINTS, and how many of them have sums."""

    def __init__(self):
        self.columns: dict[str, list] = defaultdict(list)
        self.sums = SumTable()
        self.texts: dict[tuple, int] = {}  # {numbers of targets, bytes and units: number}
        self.size = 0  # points in the columns
        self.left_out = 0  # points beyond MOST_POINTS
        self.of_seeds = 0  # points whose seeds are known
        self.without_sums = 0  # of these

    def add(self, line: int, point: SectionKey) -> None:
        """Add a point of the line of this number, with sums of the seeds that it is a mean of."""
        seeds = seeds_of(point)
        columns = {column: getattr(point, column, None) for column in VALUE_COLUMNS}
        columns |= {"line": line, "x": point.length, "gate": gate_state(point)}
        columns["texts"] = self._texts(seeds[0].row) if seeds else None
        columns["sem_unit"] = seeds[0].row["sem_unit"] if seeds else None
        columns["seeds"] = [[seed.row["seed"], *self._numbers_of(seed)] for seed in seeds]
        for column, value in columns.items():
            self.columns[column].append(value)
        self.size += 1
        if seeds:
            self.of_seeds += 1
        # -1: the sums of a seed are not on the page.
        if any(number < 0 for _, number, *_ in columns["seeds"]):
            self.without_sums += 1

    def _texts(self, row: dict) -> int:
        """Number that rows share whose means may be compared without their sums."""
        key = row["n_targets"], row["n_bytes"], row["n_units"]
        return self.texts.setdefault(key, len(self.texts))

    def _numbers_of(self, seed: Seed) -> list[int | float | None]:
        """Entries of the sums of a seed, of its floor and without an extension, -1 for none; then,
        where such sums are not known, the values of MEASURES.
        """
        bases = (seed.against_floor, seed.against_plain)
        entries = [-1, -1, -1]  # of the seed, of its floor, and without an extension
        if not seed.evaluation.lacks_stored_losses(seed.row):
            entries = [self.sums.add(seed.evaluation, seed.row)]
            for paired in bases:
                has_sums = paired and paired.sums
                entries.append(self.sums.add(paired.other, paired.row) if has_sums else -1)
        # Where there is no such difference, no sums of it are lacking.
        lacks_sums = any(
            paired is not None and entry < 0
            for paired, entry in zip(bases, entries[1:], strict=True)
        )
        if entries[0] >= 0 and not lacks_sums:
            return entries
        return [*entries, *(VALUE_OF[measure](seed) for measure in MEASURES)]

    def notes(self) -> list[str]:
        """Sentences on the points that are left out, and on those without sums."""
        notes = []
        if self.left_out:
            notes.append(
                f"{self.left_out:,} of {self.left_out + MOST_POINTS:,} points are left out, since a"
                f" page draws {MOST_POINTS:,}: name fewer folders."
            )
        if self.without_sums:
            notes.append(
                f"{self.without_sums:,} of {self.of_seeds:,} points are compared by the means of"
                f" their seeds: {self.sums.reason_of_lack()}."
            )
        return notes


def page_content(title: str, reports: Mapping[str, Report], notes: Sequence[str] = ()) -> dict:
    """All that the page shows: title, notes on what was left out, lines, points and sums.

    The lines of a report with a name have it as their source.
    """
    table = PointTable()
    lines: list[dict] = []
    notes = list(notes)
    for name, report in reports.items():
        notes += [f"{name}: {note}" if name else note for note in report.notes]
        lines += _page_lines(table, name, report, len(lines))
    return {
        "title": title,
        "notes": notes + table.notes(),
        "kinds": KIND_WORDS,
        "words": all_words() | {"bars": BAR_WORDS},
        "lines": lines,
        "points": dict(table.columns),
        "sums": table.sums.packed(),
    }


def _page_lines(table: PointTable, name: str, report: Report, first: int) -> list[dict]:
    """Lines of a report, numbered from `first`; their points are added to the table."""
    points_of: dict[LineKey, list[SectionKey]] = {}
    numbers: dict[LineKey, int] = {}
    for kind, points in _points_by_kind(report).items():
        for point in points:
            if table.size >= MOST_POINTS:
                table.left_out += 1
                continue
            key = LineKey(kind, point.section, *point.method, getattr(point, "task", None))
            number = numbers.setdefault(key, first + len(numbers))
            points_of.setdefault(key, []).append(point)
            table.add(number, point)
    return [_line_columns(name, key, points, report) for key, points in points_of.items()]


def _points_by_kind(report: Report) -> dict[str, list[SectionKey]]:
    """{kind of KIND_WORDS: points}. Scores by depth are in the tables of a report."""
    points = [point for section in report.sections for point in section]
    return {
        "length": [point for point in points if point.window is None],
        "position": [point for point in points if point.window is not None],
        "context": [point for section in report.contexts for point in section],
        "task": [score for section in report.scores for score in section if score.depth is None],
    }


def _line_columns(name: str, key: LineKey, points: Sequence[SectionKey], report: Report) -> dict:
    """Columns of a line, and its origin: folders, commits, machines and seeds, and a command.

    The command measures it again."""
    point = points[0]
    facts = point.label_facts
    looks = _look_numbers(point)
    evaluations = list(
        {
            id(seed.evaluation): seed.evaluation for each in points for seed in each.seeds or ()
        }.values()
    )
    origins = _origins_of(evaluations, report)
    if key.kind in ("length", "task"):
        lengths = {each.length for each in points}  # that the line shows
    else:  # a point's length is a position or a context, not that of the texts
        lengths = {row["length"] for evaluation in evaluations for row in evaluation.rows}
    again = None
    if evaluations:
        again = command_to_repeat(evaluations, report.origins, sorted(lengths))
        # A page that is passed on does not say where folders lie on this machine.
        again = again and ABSOLUTE_PATH.sub(lambda path: short_path(path[0]), again)
    # the id of a line is written into links, so its text stays
    _, _, *method_and_task = key
    text = repr((name, (key.kind, *key.section, *method_and_task)))
    return {
        "id": f"{zlib.crc32(text.encode()):08x}",
        "kind": key.kind,
        **{column: getattr(point, column) for column in SECTION_COLUMNS},
        "unstated": getattr(point, "unstated", None),
        "encoding": key.encoding,
        "extension": key.extension,
        "scale_attention": key.scale,
        "source": key.source or name or None,
        "task": key.task,
        "trained_in": facts.trained_in,
        "tuned_from": facts.tuned_from,
        "untested": point.untested,
        "colours": [looks.encoding, looks.extension],
        "dash": looks.dash if key.extension != "none" else 0,
        "from": origins.folders,
        "commits": origins.commits,
        "machines": origins.machines,
        "seeds": sorted({evaluation.first["seed"] for evaluation in evaluations}),
        "command": again,
    }


class LookNumbers(NamedTuple):
    """Numbers of the colours of an encoding and of an extension, and of a dash."""

    encoding: int
    extension: int
    dash: int


def _look_numbers(point: SectionKey) -> LookNumbers:
    """Colours and dash of a point, by their numbers on the page; those of FOREIGN_COLOURS come
    last.
    """
    facts = point.label_facts
    extension, dash = extension_look(facts.extension)
    if getattr(point, "foreign", False):
        pen = foreign_pens([point.method])[point.method]
        foreign = len(OKABE_ITO) + FOREIGN_COLOURS.index(pen.colour)
        return LookNumbers(foreign, foreign, dash)
    # settings of an engine have colours of their own
    name = point.encoding if facts.encoding == "served" else facts.encoding
    encoding, _ = encoding_look(name)
    return LookNumbers(encoding, extension, dash)


class Origins(NamedTuple):
    """Folders of a line's trainings, commits and machines, each once."""

    folders: list[str]
    commits: list[str]
    machines: list[str]


def _origins_of(evaluations: Sequence[Evaluation], report: Report) -> Origins:
    """Folders, commits and machines of evaluations, each once, in their order."""
    folders: dict[str, None] = {}
    commits: dict[str, None] = {}
    machines: dict[str, None] = {}
    for evaluation in evaluations:
        # A CSV is named itself; of runs their common folder, since there may be hundreds.
        path = evaluation.origin if evaluation.rows_alone else evaluation.origin.parent
        folders[short_path(shown_folder(path))] = None
        provenance = report.origins[evaluation.origin].provenance
        for row in evaluation.rows:
            commits[row["commit"] or "outside git"] = None
            machines[_machine_words(evaluation.machines.get(str(row["length"])) or provenance)] = (
                None
            )
    return Origins(list(folders), list(commits), list(machines))


def _machine_words(provenance: Mapping) -> str:
    """Device, processor, platform and versions in one line."""
    versions = provenance.get("versions")
    if not isinstance(versions, dict):
        versions = {}
    parts = [provenance.get(name) for name in ("device", "processor", "platform")]
    parts += [f"{name} {versions[name]}" for name in ("posbench", "torch") if name in versions]
    return ", ".join(str(part) for part in parts if part) or "unknown"
