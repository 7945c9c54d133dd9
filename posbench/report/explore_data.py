"""Data of the explore page: lines and where they come from, the points of `posbench.frame`, and sums over documents for differences.

Sums are those of posbench/runs/evidence.py, a float32 for each document of each seed, length and method: enough for every interval of
posbench.statistics.crossed to six digits. SUMS_BYTES bounds them; points beyond have no sums, which the page says.
"""

import base64
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from posbench.report.curves import Entry, cells
from posbench.report.figures.palette import encoding_look, extension_look
from posbench.report.records import ContextPoint, CurvePoint, Score, SectionKey, section_of
from posbench.report.references import exact_context
from posbench.report.report import Report
from posbench.report.reproduction import command
from posbench.report.scores import PROTOCOL
from posbench.runs.bundle import shown_folder
from posbench.runs.evaluation import Evaluation
from posbench.runs.evidence import is_mean
from posbench.runs.search import short_path
from posbench.statistics.crossed import Sums

SUMS_BYTES = 6_000_000  # before base64, which takes a third more; those of headline are 1.3 MB, and its page 2.4 MB
MOST_POINTS = 20_000  # that a browser draws without a wait
VALUES = (
    "n_seeds", "n_targets", "n_units", "over", "nll", "bpb", "accuracy", "floor", "difference", "half_width", "change",
    "change_half_width", "low", "high",
)  # fmt: skip
SAID = ("protocol", "data", "tokenizer", "train_len", "setting")
KINDS = {"length": "loss by length", "position": "loss by position", "context": "loss by context", "task": "tasks"}


@dataclass
class SumTable:
    """Sums over documents, each once: `entries` are [number of the set of documents, place of the first total]."""

    entries: list[list[int]] = field(default_factory=list)
    sets: list[list[int]] = field(default_factory=list)  # numbers of targets
    nll: list[np.ndarray] = field(default_factory=list)
    correct: list[np.ndarray] = field(default_factory=list)
    size: int = 0
    full: bool = False
    _known: dict = field(default_factory=dict)
    _sets: dict = field(default_factory=dict)

    def add(self, evaluation: Evaluation | None, row: dict | None) -> int:
        """Number of the entry of a row, -1 if it has no sums or if there is no room."""
        if evaluation is None or row is None:
            return -1
        key = evaluation.path, row["eval_id"], row["length"], row["position"]
        if key not in self._known:
            self._known[key] = self._entry(evaluation, row)
        return self._known[key]

    def _entry(self, evaluation: Evaluation, row: dict) -> int:
        losses, right = (evaluation.sums(row, name) for name in ("nll", "correct"))
        if losses is None or right is None or not is_mean(losses, row):
            return -1
        if self.size + 5 * len(losses.counts) > SUMS_BYTES:
            self.full = True
            return -1
        self.entries.append([self._set(evaluation.stored.targets, losses), self.size // 5])
        self.nll.append(losses.totals[0].astype("<f4"))
        self.correct.append(right.totals[0].astype("<u2"))
        self.size += 5 * len(losses.counts)
        return len(self.entries) - 1

    def _set(self, targets: str | None, losses: Sums) -> int:
        key = targets, losses.documents.tobytes(), losses.counts.tobytes()
        if key not in self._sets:
            self._sets[key] = len(self.sets)
            self.sets.append(losses.counts.tolist())
        return self._sets[key]

    def packed(self) -> dict:
        """Content for the page: totals as base64 of little-endian numbers."""
        nll, correct = (np.concatenate(parts) if parts else np.zeros(0) for parts in (self.nll, self.correct))
        small = correct.astype("<u1" if not correct.size or correct.max() < 256 else "<u2")
        return {
            "entries": self.entries,
            "sets": self.sets,
            "nll": base64.b64encode(nll.astype("<f4").tobytes()).decode(),
            "correct": base64.b64encode(small.tobytes()).decode(),
            "correct_bytes": small.itemsize,
        }


def content(title: str, reports: Mapping[str, Report], notes: Sequence[str] = ()) -> dict:
    """Everything that the page shows: title, notes on what was left out, lines, points in columns, and sums.

    The lines of a report with a name have it as their source.
    """
    sums, lines, columns, counts = SumTable(), [], defaultdict(list), Counter()
    told = list(notes)
    for name, report in reports.items():
        told += [f"{name}: {note}" if name else note for note in report.notes]
        lines += _fill(columns, name, report, sums, len(lines), counts)
    if left := counts["left"]:
        told.append(f"{left:,} of {left + MOST_POINTS:,} points are left out, since a page draws {MOST_POINTS:,}: name fewer folders.")
    if lacking := counts["lacking"]:
        full = f"their sums take more than the {SUMS_BYTES / 1e6:.1f} MB of a page"
        why = full if counts["full"] else "their means alone are known"
        told.append(f"{lacking:,} of {counts['measured']:,} points have no paired difference to any line: {why}.")
    return {"title": title, "notes": told, "kinds": KINDS, "lines": lines, "points": dict(columns), "sums": sums.packed()}


def _fill(columns: dict[str, list], name: str, report: Report, sums: SumTable, first: int, counts: Counter) -> list[dict]:
    """Add the points of a report to `columns` and their sums to `sums`, and return its lines, numbered from `first`."""
    found, lengths = _Lines(report, name), defaultdict(set)
    entries = cells([one for one in report.evaluations if one.first["protocol"] != PROTOCOL], report.label)
    for kind, points in _kinds(report).items():
        for point in points:
            if len(columns["line"]) >= MOST_POINTS:
                counts["left"] += 1
                continue
            x, number = point.context if kind == "context" else point.length, found.of(kind, point)
            lengths[number].add(x)
            curve = isinstance(point, CurvePoint)
            own = entries.get((*point.section, *point.method, x, point.window), {}) if curve else {}
            seeds = [[seed, *_numbers(one, sums)] for seed, one in own.items()]
            values = {column: getattr(point, column, None) for column in ("window", *VALUES)}
            for column, value in {"line": first + number, "x": x, **values, "seeds": seeds}.items():
                columns[column].append(value)
            measured = curve and not point.foreign and bool(own)
            counts["measured"] += measured
            counts["lacking"] += measured and any(numbers[1] < 0 for numbers in seeds)
    counts["full"] += sums.full
    return found.told(lengths)


def _kinds(report: Report) -> dict[str, list[SectionKey]]:
    """Points by what their x is: the frames curve (in two), context and accuracy. Scores by depth are in the tables of a report."""
    points = [point for section in report.sections for point in section]
    scores = [score for section in report.scores for score in section]
    return {
        "length": [point for point in points if point.window is None],
        "position": [point for point in points if point.window is not None],
        "context": [point for section in report.contexts for point in section],
        "task": [score for score in scores if score.depth is None],
    }


def _numbers(one: Entry, sums: SumTable) -> list[int]:
    """Numbers of the sums of a seed: its own, those of its floor and those without an extension, -1 for none."""
    row = one.row
    if row["position"] is not None:
        plain = one.plain and next(
            (each for each in one.plain.rows if (each["length"], each["position"]) == (row["length"], row["position"])), None
        )
        return [sums.add(one.evaluation, row), -1, sums.add(one.plain, plain)]
    if row is not one.evaluation.row(row["length"]):  # a further row of its length: the losses are those of the first
        return [-1, -1, -1]
    floor = one.floor and one.floor.row(one.floor.exact_length(row["length"]) or 0)
    return [
        sums.add(one.evaluation, row),
        sums.add(one.floor, floor) if one.against_floor and one.against_floor[1] else -1,
        sums.add(one.plain, one.plain and one.plain.row(row["length"])) if one.against_plain and one.against_plain[1] else -1,
    ]


class _Lines:
    """Lines of the page in the order of their first point."""

    def __init__(self, report: Report, name: str):
        self.report, self.name, self.numbers, self.records = report, name, {}, []
        self.by_method: dict[tuple, list[Evaluation]] = defaultdict(list)
        for one in report.evaluations:
            encoding, *rest = report.label(one.first)
            self.by_method[(*section_of(one), encoding, *rest, one.source)].append(one)
            self.by_method[(*section_of(one), encoding, one.source)].append(one)

    def of(self, kind: str, point: CurvePoint | ContextPoint | Score) -> int:
        """Number of the line of a point."""
        method = (point.encoding, "none", "none", point.source) if kind == "context" else point.method
        key = (kind, *point.section, *method, getattr(point, "task", None))
        if key not in self.numbers:
            self.numbers[key] = len(self.records)
            self.records.append((key, point))
        return self.numbers[key]

    def told(self, lengths: Mapping[int, Iterable[int]]) -> list[dict]:
        """Columns of each line, and where it comes from."""
        found = []
        for number, (key, point) in enumerate(self.records):
            kind, facts = key[0], point.behind
            encoding, extension, scale, source = key[6:10]
            method = (encoding, source) if kind == "context" else (encoding, extension, scale, source)
            own = self.by_method.get((*point.section, *method), [])
            own = [one for one in own if kind != "context" or exact_context(one.first)]
            colour, (of_extension, dash) = encoding_look(facts.encoding)[0], extension_look(facts.extension)
            found.append({
                "id": f"{zlib.crc32(repr((self.name, key)).encode()):08x}",
                "kind": kind,
                **{name: getattr(point, name) for name in SAID},
                "encoding": encoding, "extension": extension, "scale_attention": scale,
                "source": source or self.name or None, "task": key[10],
                "trained_in": facts.trained_in, "tuned_from": facts.tuned_from, "untested": bool(getattr(point, "untested", False)),
                "colours": [colour, of_extension], "dash": dash if extension != "none" else 0,
                **self._origin(own, sorted({*lengths.get(number, ())}) if kind in ("length", "task") else []),
            })  # fmt: skip
        return found

    def _origin(self, own: list[Evaluation], lengths: list[int]) -> dict:
        """Folders, commits and machines of the evaluations of a line, its seeds, and the command that measures it again."""
        folders, machines, commits = {}, {}, {}
        for one in own:
            origin = self.report.origins.get(one.origin)
            folders[short_path(shown_folder(one.origin if one.rows_alone else one.origin.parent))] = None
            for row in one.rows:
                commits[row["commit"] or "outside git"] = None
                said = one.machines.get(str(row["length"])) or (origin.provenance if origin else {}) or {}
                versions = said.get("versions") if isinstance(said.get("versions"), dict) else {}
                parts = [
                    *(said.get(name) for name in ("device", "processor", "platform")),
                    *(f"{k} {versions[k]}" for k in ("posbench", "torch") if k in versions),
                ]
                machines[", ".join(str(part) for part in parts if part) or "unknown"] = None
        every = sorted({row["length"] for one in own for row in one.rows})
        return {
            "from": list(folders), "commits": list(commits), "machines": list(machines),
            "seeds": sorted({one.first["seed"] for one in own}),
            "command": command(own, self.report.origins, lengths or every) if own else None,
        }  # fmt: skip
