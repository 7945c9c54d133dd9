"""Comparison of lines of a report: the paired difference of each to another one, and their ranking.

A line is a method: encoding, extension and scale. Two lines are compared on the seeds that both
have, by differences on the same targets. The interval is that of posbench.statistics.crossed where
sums over documents are known, else of the means of seeds.

Measures: `loss` compares losses on the same targets, so it counts as well how good a model is
inside its window; `rise` compares each loss minus its own floor; `accuracy` shares of right
answers.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.report.records import CurvePoint, Score, grouped
from posbench.report.references import Seed, compare
from posbench.report.report import Report
from posbench.statistics.crossed import Estimate, Sums, across, estimate
from posbench.statistics.verdict_rules import ALPHA, holm

LOSS = "loss"
RISE = "rise"
ACCURACY = "accuracy"
MEASURES = (LOSS, RISE, ACCURACY)
BEST = "best"
UNTOLD = "not told apart"
WORSE = "worse"
BETTER = "better"
NO_INTERVAL = "no interval"
REFERENCE = "compared with"
FROM_SUMS = "documents"
FROM_SEEDS = "means of seeds"
MOST_LISTED = 20  # names in an error


@dataclass(frozen=True)
class Line:
    """A method at one length, and the name by which tables and words call it: "rope|yarn"."""

    name: str
    record: CurvePoint | Score

    @property
    def seeds(self) -> dict[int, Seed]:
        """{seed: its row and references}, of a task those that learned it."""
        seeds = getattr(self.record, "learners", None) or self.record.seeds or ()
        return {seed.row["seed"]: seed for seed in seeds}

    @property
    def gate(self) -> str:
        """State of the gate: passed, failed, or "" if G is unknown; of a task if it was learned."""
        if isinstance(self.record, Score):
            return "passed" if self.record.learned else "failed"
        if self.record.gain_lower is None:
            return ""
        return "passed" if self.record.gain_lower > 0 else "failed"


class SectionName(NamedTuple):
    """Columns that lines must share to be compared."""

    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str | None
    task: str | None


@dataclass(frozen=True)
class Compared:
    """Line of a comparison at one length, in nats/token or as a share of answers.

    `value` is its mean over the seeds that all lines have, or over its own where there are none.
    `difference` is that to the line `against`, over the seeds that both have.
    """

    section: SectionName
    length: int
    line: Line
    rank: int
    value: float | None
    against: str
    difference: Estimate | None = None
    source: str = ""  # FROM_SUMS or FROM_SEEDS
    seeds: tuple[int, ...] = ()
    p: float | None = None  # two-sided, of no difference
    p_corrected: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Comparison:
    """All lines of a section at one length, the best first."""

    section: SectionName
    length: int
    measure: str
    correction: str
    lines: list[Compared]
    common_seeds: tuple[int, ...]

    @property
    def multiple(self) -> float:
        """Length over the training length."""
        return self.length / self.section.train_len


def lines_of(reports: Mapping[str, Report]) -> dict[SectionName, dict[int, list[Line]]]:
    """{section: {length: its lines}} of reports. Several reports give their names to the lines."""
    sections: dict[SectionName, dict[int, list[Line]]] = {}
    for report_name, report in reports.items():
        records = [point for section in report.sections for point in section]
        records += [score for section in report.scores for score in section]
        for record in records:
            if getattr(record, "window", None) is not None or getattr(record, "depth", None):
                continue  # a bin of positions, or a part of a task
            name = line_name(record)
            if len(reports) > 1:
                name = f"{report_name}: {name}"
            task = getattr(record, "task", None)
            section = SectionName(*record.section, task)
            lengths = sections.setdefault(section, {})
            lengths.setdefault(record.length, []).append(Line(name, record))
    return sections


def line_name(record: CurvePoint | Score) -> str:
    """Name of a line, without the parts that do nothing: "rope", "rope|yarn", "rope|none|log_n"."""
    parts = [record.encoding, record.extension, record.scale_attention]
    while len(parts) > 1 and parts[-1] == "none":
        parts.pop()
    name = "|".join(parts)
    return f"{record.source}: {name}" if record.source else name


def compare_lines(
    section: SectionName,
    length: int,
    lines: Sequence[Line],
    measure: str,
    against: str | None = None,
    correction: str = "holm",
) -> Comparison:
    """Compare the lines of a section at a length with the best of them, or with the line `against`.

    Raises RunError if no line has the measure.
    """
    value_of = VALUES[measure]
    common = _common_seeds(lines)
    values = {line.name: _mean(line, common or line.seeds, value_of) for line in lines}
    measured = [line for line in lines if values[line.name] is not None]
    if not measured:
        raise RunError(f"no line has a {measure} at length {length}: choose another measure.")
    higher_is_better = measure == ACCURACY
    measured.sort(key=lambda line: values[line.name], reverse=higher_is_better)
    reference = measured[0]
    for line in measured:
        if line.name == against:
            reference = line
    compared = []
    for rank, line in enumerate(measured, start=1):
        row = Compared(section, length, line, rank, values[line.name], reference.name)
        if line is not reference:
            row = _compared(row, reference, measure)
        compared.append(row)
    compared = _corrected(compared, correction)
    is_best = reference is measured[0]
    judged = [_judged(row, higher_is_better, is_best) for row in compared]
    return Comparison(section, length, measure, correction, judged, common)


def _common_seeds(lines: Iterable[Line]) -> tuple[int, ...]:
    seed_sets = [set(line.seeds) for line in lines if line.seeds]
    return tuple(sorted(set.intersection(*seed_sets))) if seed_sets else ()


def _mean(
    line: Line, seeds: Iterable[int], value_of: Callable[[Seed], float | None]
) -> float | None:
    """Mean of a line over seeds; None if one of them has no finite value."""
    values = [value_of(line.seeds[seed]) for seed in seeds if seed in line.seeds]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    return sum(values) / len(values)


def _loss(seed: Seed) -> float | None:
    return seed.row["nll"]


def _rise(seed: Seed) -> float | None:
    return None if seed.against_floor is None else seed.against_floor.difference


def _accuracy(seed: Seed) -> float | None:
    return seed.row["accuracy"]


VALUES: dict[str, Callable[[Seed], float | None]] = {
    LOSS: _loss,
    RISE: _rise,
    ACCURACY: _accuracy,
}


class SeedDifference(NamedTuple):
    """Difference of two lines under one seed, and the terms whose sum it is, if sums are known."""

    value: float
    terms: list[tuple[float, Sums]] | None


def _compared(row: Compared, reference: Line, measure: str) -> Compared:
    """`row` with its difference to the reference, if both have a seed that can be paired."""
    differences = {}
    for seed in sorted(set(row.line.seeds) & set(reference.seeds)):
        difference = DIFFERENCES[measure](row.line.seeds[seed], reference.seeds[seed])
        if difference is not None:
            differences[seed] = difference
    if not differences:
        return row
    over_seeds, source = estimate_over_seeds(list(differences.values()))
    p = min(over_seeds.p_above(0.0), over_seeds.p_below(0.0))
    if not math.isfinite(over_seeds.sem):
        p = None
    return replace(
        row, difference=over_seeds, source=source, seeds=tuple(differences), p=p, p_corrected=p
    )


def _loss_difference(seed: Seed, other: Seed) -> SeedDifference | None:
    try:
        paired = compare(seed.evaluation, seed.row, other.evaluation, other.row)
    except RunError:  # they scored different targets
        return None
    if paired is None:
        return None
    return SeedDifference(paired.difference, [(1.0, paired.sums)] if paired.sums else None)


def _rise_difference(seed: Seed, other: Seed) -> SeedDifference | None:
    rise = seed.against_floor
    other_rise = other.against_floor
    if rise is None or other_rise is None:
        return None
    terms = None
    if rise.sums and other_rise.sums:
        terms = [(1.0, rise.sums), (-1.0, other_rise.sums)]
    return SeedDifference(rise.difference - other_rise.difference, terms)


def _accuracy_difference(seed: Seed, other: Seed) -> SeedDifference | None:
    accuracy = seed.row["accuracy"]
    other_accuracy = other.row["accuracy"]
    if accuracy is None or other_accuracy is None:
        return None
    terms = None
    sums = seed.evaluation.sampled_sums(seed.row, "correct")
    other_sums = other.evaluation.sampled_sums(other.row, "correct")
    if sums and other_sums and across([sums, other_sums]):
        terms = [(1.0, sums), (-1.0, other_sums)]
    return SeedDifference(accuracy - other_accuracy, terms)


DIFFERENCES: dict[str, Callable[[Seed, Seed], SeedDifference | None]] = {
    LOSS: _loss_difference,
    RISE: _rise_difference,
    ACCURACY: _accuracy_difference,
}


def estimate_over_seeds(differences: Sequence[SeedDifference]) -> tuple[Estimate, str]:
    """Mean difference over seeds, and the source of its interval: FROM_SUMS or FROM_SEEDS."""
    if all(difference.terms for difference in differences):
        terms = []
        for seeds in zip(*(difference.terms for difference in differences), strict=True):
            weight = seeds[0][0]
            terms.append((weight, across([sums for _, sums in seeds])))
        if all(sums is not None for _, sums in terms):
            return estimate(terms), FROM_SUMS
    values = np.array([difference.value for difference in differences])
    n = len(values)
    sem = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    by_seed = tuple(map(float, values))
    return Estimate(float(values.mean()), sem, max(n - 1, 1), by_seed, 0, 0), FROM_SEEDS


def _corrected(rows: list[Compared], correction: str) -> list[Compared]:
    """Rows with their p corrected for the number of differences to the reference."""
    if correction != "holm":
        return rows
    with_p = [index for index, row in enumerate(rows) if row.p is not None]
    corrected = list(rows)
    for index, p in zip(with_p, holm([rows[index].p for index in with_p]), strict=True):
        corrected[index] = replace(rows[index], p_corrected=p)
    return corrected


def _judged(row: Compared, higher_is_better: bool, reference_is_best: bool) -> Compared:
    if row.line.name == row.against:
        return replace(row, verdict=BEST if reference_is_best else REFERENCE)
    if row.p_corrected is None:
        return replace(row, verdict=NO_INTERVAL)
    if row.p_corrected >= ALPHA:
        return replace(row, verdict=UNTOLD)
    is_better = (row.difference.value > 0) == higher_is_better
    return replace(row, verdict=BETTER if is_better else WORSE)


def tables_by(comparisons: Sequence[Comparison], column: str) -> dict[str, dict[object, Compared]]:
    """{line: {value of the column: its comparison}} at several lengths or in several sections."""
    rows: dict[str, dict[object, Compared]] = {}
    for comparison in comparisons:
        key = comparison.length if column == "length" else getattr(comparison.section, column)
        for row in comparison.lines:
            rows.setdefault(row.line.name, {})[key] = row
    return rows


def by_section(comparisons: Iterable[Comparison]) -> dict[SectionName, list[Comparison]]:
    """{section: its comparisons}, in their order."""
    return grouped(comparisons, lambda comparison: comparison.section)


@dataclass(frozen=True)
class Request:
    """Choice of what is compared: see `posbench compare --help`."""

    lines: tuple[str, ...] = ()  # names; () for all
    length: str | None = None  # "8x" or "512"; None for the longest, or for all with `by` length
    against: str | None = None
    measure: str | None = None  # of MEASURES; None: losses, of a task its accuracy
    by: str | None = None  # length, train_len or data
    correction: str = "holm"


def comparisons(reports: Mapping[str, Report], request: Request) -> list[Comparison]:
    """Comparisons that a request asks for, of each section apart.

    Raises ConfigError for lines and lengths that the reports do not have, and where nothing can be
    compared.
    """
    sections = lines_of(reports)
    if not sections:
        raise ConfigError("There is nothing to compare: no losses by length were found.")
    chosen = _chosen(sections, request)
    compared = []
    for section, lengths in chosen.items():
        for length in _lengths(section, lengths, request):
            lines = lengths.get(length, [])
            if len(lines) > 1:
                measure = request.measure or (ACCURACY if section.task else LOSS)
                against = _full_name(request.against, lines)
                with contextlib.suppress(RunError):
                    compared.append(
                        compare_lines(section, length, lines, measure, against, request.correction)
                    )
    if not compared:
        raise ConfigError(_nothing(chosen, request))
    return compared


def _chosen(
    sections: dict[SectionName, dict[int, list[Line]]], request: Request
) -> dict[SectionName, dict[int, list[Line]]]:
    """Sections with the lines that are named, in the order of the names.

    Raises ConfigError for a name that no section has.
    """
    names = request.lines
    if names and request.against and request.against not in names:
        names = (*names, request.against)
    names_of_lines = _names(sections)
    for name in (*names, *([request.against] if request.against else [])):
        if not any(_is_named(line, name) for line in names_of_lines):
            raise ConfigError(
                f"{name} is no line of these results{did_you_mean(name, names_of_lines)}: choose"
                " from"
                f" {', '.join(names_of_lines[:MOST_LISTED])}."
            )
    if not names:
        return sections
    chosen = {}
    for section, lengths in sections.items():
        of_section = {}
        for length, lines in lengths.items():
            named = [line for name in names for line in lines if _is_named(line.name, name)]
            of_section[length] = list(dict.fromkeys(named))
        chosen[section] = of_section
    return chosen


def _names(sections: dict[SectionName, dict[int, list[Line]]]) -> list[str]:
    names: dict[str, None] = {}
    for lengths in sections.values():
        for lines in lengths.values():
            names |= dict.fromkeys(line.name for line in lines)
    return list(names)


def _is_named(line: str, name: str) -> bool:
    """True for the line of a name, with or without the source in front: "headline: rope|yarn"."""
    parts = [part.strip() for part in re.split(r"\||\s\+\s", name)]
    while len(parts) > 1 and parts[-1] in ("none", "no extension"):
        parts.pop()
    plain = "|".join(parts)
    return plain in (line, line.rpartition(": ")[2])


def _full_name(name: str | None, lines: Sequence[Line]) -> str | None:
    if name is None:
        return None
    return next((line.name for line in lines if _is_named(line.name, name)), None)


def _lengths(
    section: SectionName, lengths: Mapping[int, list[Line]], request: Request
) -> list[int]:
    """Lengths of a section at which a request compares."""
    several = sorted(length for length, lines in lengths.items() if len(lines) > 1)
    if request.length is None:
        return several if request.by == "length" else several[-1:]
    length = token_length(request.length, section.train_len)
    return [length] if length in several else []


def token_length(text: str, train_len: int) -> int:
    """Tokens of "8x" or "512". Raises ConfigError for another text.

    >>> token_length("8x", 64), token_length("512", 64)
    (512, 512)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(x?)", text)
    if not match or float(match[1]) <= 0:
        raise ConfigError(
            f"length={text} must be tokens or a multiple of the training length, such as"
            " length=512 or length=8x."
        )
    return round(float(match[1]) * train_len) if match[2] else round(float(match[1]))


def _nothing(sections: Mapping[SectionName, Mapping[int, list[Line]]], request: Request) -> str:
    """Sentence on what can be compared where a request gives nothing."""
    most = max(
        (len(lines) for lengths in sections.values() for lines in lengths.values()), default=0
    )
    if most < 2:
        names = ", ".join(_names(dict(sections))[:MOST_LISTED]) or "none"
        return (
            f"There is nothing to compare: at no length two lines scored the same text (lines:"
            f" {names}); name results that have two of them."
        )
    if request.length is not None:
        measured = set()
        for section, lengths in sections.items():
            for length, lines in lengths.items():
                if len(lines) > 1:
                    measured.add(f"{length / section.train_len:g}x ({length})")
        return (
            f"length={request.length} was not measured for two lines: choose from"
            f" {', '.join(sorted(measured, key=_numeric))}."
        )
    return f"No two lines have a {request.measure or LOSS} there: choose another measure or length."


def _numeric(text: str) -> float:
    return float(text.partition("x")[0])
