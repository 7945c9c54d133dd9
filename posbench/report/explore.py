"""The explore page: one HTML file that draws what its reader chooses of a report's points, without
network.

Observable Plot draws (templates/vendor: 0.6.17 with d3 7.9.2, ISC, unchanged from npm, 0.49 MB),
since it makes SVG with panels, log and symlog axes and evaluates no text; uPlot (0.05 MB) draws on
a canvas, and altair, bokeh and plotly take 1 to 5 MB a page.

The data are lines and where they come from, the points of `posbench.frame`, and sums over documents
for differences: those of posbench/results/evidence.py, a float32 for each document of each seed,
length and method: enough for every interval of posbench.statistics.crossed to six digits.
SUMS_BYTES bounds them; points beyond have no sums, which the page says."""

import base64
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from markupsafe import Markup

from posbench.common.defuse import printable
from posbench.common.files import finite
from posbench.report.figures.palette import BLACK, encoding_look, extension_look, foreign_pens
from posbench.report.figures.style import DASHES, FOREIGN, OKABE_ITO
from posbench.report.html_page import Sources
from posbench.report.html_parts import template
from posbench.report.published.reproduction import command
from posbench.report.records import SECTION, CurvePoint, SectionKey
from posbench.report.references import Seed
from posbench.report.report import Report
from posbench.results.bundle import shown_folder
from posbench.results.evaluation import Evaluation
from posbench.results.evidence import is_mean
from posbench.results.search import short_path

TEMPLATES = files("posbench.report") / "templates"
LIBRARIES = ("d3", "plot")
OWN = (
    "crossed.js",
    "explore_points.js",
    "explore_choice.js",
    "explore_figure.js",
    "explore_page.js",
)  # each uses those before it
WIDTH = 1.6  # of a line, the unit of DASHES
# before base64, which takes a third more; those of headline are 1.3 MB, and its page 2.4 MB
SUMS_BYTES = 6_000_000
MOST_POINTS = 20_000  # that a browser draws without a wait
VALUES = (
    "n_seeds", "n_targets", "n_units", "over", "nll", "bpb", "accuracy", "floor", "difference", "half_width", "change",
    "change_half_width", "low", "high",
)  # fmt: skip
FOLDER = re.compile(r"(?<![^\s=\[,'\"])/[^\s,\]'\"]+")  # an absolute path in a command
KINDS = {
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
    shown = finite(content(title, reports, notes))
    dashes = [
        "none" if dash == "-" else ",".join(f"{WIDTH * part:g}" for part in dash[1])
        for dash in DASHES
    ]
    shown["palette"] = {"colours": OKABE_ITO + FOREIGN, "black": BLACK, "dashes": dashes}
    data = json.dumps(shown, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    vendored = [
        f"/*\n{_text(f'vendor/{name}.LICENSE')}*/\n{_text(f'vendor/{name}.min.js')}"
        for name in LIBRARIES
    ]
    scripts = [Markup(text) for text in (*vendored, *map(_text, OWN))]
    trainings = [
        Sources(report, f"run-{number}").trainings()
        for number, report in enumerate(reports.values())
    ]
    every = replace(trainings[0], rows=[row for one in trainings for row in one.rows])
    return template("explore.html").render(
        title=title, data=Markup(data), scripts=scripts, trainings=every
    )


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


class SumTable:
    """Sums over documents, each once: `entries` are [number of the set of documents, place of the
    first total].
    """

    def __init__(self):
        self.entries: list[list[int]] = []
        self.sets: dict[
            tuple, int
        ] = {}  # {documents, their numbers of targets and their strata: number of the set}
        self.counts: list[list[int]] = []  # of targets, in each set
        self.strata: list[list[int] | None] = []
        self.nll, self.correct = [np.zeros(0, "<f4")], [np.zeros(0, "<u2")]
        self.numbers: dict[tuple, int] = {}  # of the entries of rows
        self.size, self.full = 0, False

    def add(self, evaluation: Evaluation, row: dict) -> int:
        """Number of the entry of a row, -1 if it has no sums or if there is no room."""
        key = evaluation.path, row["eval_id"], row["length"], row["position"], row["task"]
        if key in self.numbers:
            return self.numbers[key]
        self.numbers[key] = -1
        losses, right = (evaluation.sampled_sums(row, name) for name in ("nll", "correct"))
        if losses is None or right is None or not is_mean(losses, row):
            return -1
        if self.size + 5 * len(losses.counts) > SUMS_BYTES:
            self.full = True
            return -1
        strata = None if losses.strata is None else losses.strata.tolist()
        documents = (
            evaluation.stored.targets,
            losses.documents.tobytes(),
            losses.counts.tobytes(),
            str(strata),
        )
        number = self.sets.setdefault(documents, len(self.sets))
        if number == len(self.counts):
            self.counts.append(losses.counts.tolist())
            self.strata.append(strata)
        self.numbers[key] = len(self.entries)
        self.entries.append([number, self.size // 5])
        self.nll.append(losses.totals[0].astype("<f4"))
        self.correct.append(right.totals[0].astype("<u2"))
        self.size += 5 * len(losses.counts)
        return self.numbers[key]

    def packed(self) -> dict:
        """Content for the page: totals as base64 of little-endian numbers."""
        nll, correct = np.concatenate(self.nll), np.concatenate(self.correct)
        small = correct.astype("<u1" if correct.max(initial=0) < 256 else "<u2")
        totals = {
            name: base64.b64encode(array.tobytes()).decode()
            for name, array in (("nll", nll), ("correct", small))
        }
        sets = {"entries": self.entries, "sets": self.counts, "strata": self.strata}
        return {**sets, **totals, "correct_bytes": small.itemsize}


def content(title: str, reports: Mapping[str, Report], notes: Sequence[str] = ()) -> dict:
    """Everything that the page shows: title, notes on what was left out, lines, points in columns,
    and sums.

    The lines of a report with a name have it as their source.
    """
    sums, lines, columns, counts = SumTable(), [], defaultdict(list), Counter()
    told = list(notes)
    for name, report in reports.items():
        told += [f"{name}: {note}" if name else note for note in report.notes]
        lines += _lines(columns, name, report, sums, len(lines), counts)
    if left := counts["left"]:
        told.append(
            f"{left:,} of {left + MOST_POINTS:,} points are left out, since a page draws"
            f" {MOST_POINTS:,}: name fewer folders."
        )
    if lacking := counts["lacking"]:
        full = f"their sums take more than the {SUMS_BYTES / 1e6:.1f} MB of a page"
        why = full if sums.full else "their means alone are known"
        told.append(
            f"{lacking:,} of {counts['measured']:,} points have no paired difference to any line:"
            f" {why}."
        )
    return {
        "title": title,
        "notes": told,
        "kinds": KINDS,
        "lines": lines,
        "points": dict(columns),
        "sums": sums.packed(),
    }


def _lines(
    columns: dict[str, list], name: str, report: Report, sums: SumTable, first: int, counts: Counter
) -> list[dict]:
    """Add the points of a report to `columns` and their sums to `sums`, and return its lines,
    numbered from `first`.
    """
    lines: dict[
        tuple, tuple[int, list[SectionKey]]
    ] = {}  # with their numbers, in the order of their first points
    for kind, points in _kinds(report).items():
        for point in points:
            if len(columns["line"]) >= MOST_POINTS:
                counts["left"] += 1
                continue
            key = (kind, *point.section, *point.method, getattr(point, "task", None))
            number, points_of = lines.setdefault(key, (first + len(lines), []))
            points_of.append(point)
            whole = (
                isinstance(point, CurvePoint) or kind == "task" and point.n_seeds == point.n_trained
            )  # the mean is over all seeds
            seeds = [[one.row["seed"], *_numbers(one, sums)] for one in point.seeds or () if whole]
            values = {column: getattr(point, column, None) for column in VALUES}
            for column, value in {
                "line": number,
                "x": point.length,
                **values,
                "seeds": seeds,
            }.items():
                columns[column].append(value)
            counts["measured"] += bool(seeds)
            counts["lacking"] += any(numbers[1] < 0 for numbers in seeds)
    return [_line(name, key, points, report) for key, (_, points) in lines.items()]


def _kinds(report: Report) -> dict[str, list[SectionKey]]:
    """Points by what their x is: the frames curve (in two), context and accuracy. Scores by depth
    are in the tables of a report.
    """
    points = [point for section in report.sections for point in section]
    return {
        "length": [point for point in points if point.window is None],
        "position": [point for point in points if point.window is not None],
        "context": [point for section in report.contexts for point in section],
        "task": [score for section in report.scores for score in section if score.depth is None],
    }


def _numbers(one: Seed, sums: SumTable) -> list[int]:
    """Numbers of the sums of a seed: its own, those of its floor and those without an extension, -1
    for none.
    """
    row = one.row
    if one.evaluation.further(row):
        return [-1, -1, -1]
    others = (one.against_floor, one.against_plain)
    return [
        sums.add(one.evaluation, row),
        *(sums.add(other.other, other.row) if other and other.sums else -1 for other in others),
    ]


def _line(name: str, key: tuple, points: Sequence[SectionKey], report: Report) -> dict:
    """Columns of a line, and where it comes from: folders, commits and machines of its seeds, and
    the command that measures it again.
    """
    kind, (encoding, extension, scale, source, task) = key[0], key[6:]
    point, facts = points[0], points[0].behind
    told_apart = (
        encoding if facts.encoding == "served" else facts.encoding
    )  # settings of an engine have colours of their own
    colour, (of_extension, dash) = encoding_look(told_apart)[0], extension_look(facts.extension)
    if getattr(point, "foreign", False):
        colour = of_extension = len(OKABE_ITO) + FOREIGN.index(
            foreign_pens([point.method])[point.method].colour
        )
    own = list(
        {
            id(one.evaluation): one.evaluation for point in points for one in point.seeds or ()
        }.values()
    )
    folders, machines, commits = {}, {}, {}
    for one in own:
        origin = report.origins[one.origin]
        folders[short_path(shown_folder(one.origin if one.rows_alone else one.origin.parent))] = (
            None
        )
        for row in one.rows:
            commits[row["commit"] or "outside git"] = None
            machines[_machine(one.machines.get(str(row["length"])) or origin.provenance)] = None
    measured = (
        {point.length for point in points}
        if kind in ("length", "task")
        else {row["length"] for one in own for row in one.rows}
    )
    again = command(own, report.origins, sorted(measured)) if own else None
    return {
        "id": f"{zlib.crc32(repr((name, key)).encode()):08x}",
        "kind": kind,
        **{column: getattr(point, column) for column in SECTION},
        "unstated": getattr(point, "unstated", None),
        "encoding": encoding, "extension": extension, "scale_attention": scale,
        "source": source or name or None, "task": task,
        "trained_in": facts.trained_in, "tuned_from": facts.tuned_from, "untested": point.untested,
        "colours": [colour, of_extension], "dash": dash if extension != "none" else 0,
        "from": list(folders), "commits": list(commits), "machines": list(machines),
        "seeds": sorted({one.first["seed"] for one in own}),
        "command": again and FOLDER.sub(lambda path: short_path(path[0]), again),
    }  # fmt: skip


def _machine(said: Mapping) -> str:
    """Device, processor, platform and versions in one line."""
    versions = said["versions"] if isinstance(said.get("versions"), dict) else {}
    parts = [
        *(said.get(name) for name in ("device", "processor", "platform")),  # fmt: skip
        *(f"{name} {versions[name]}" for name in ("posbench", "torch") if name in versions),
    ]
    return ", ".join(str(part) for part in parts if part) or "unknown"
