"""Comparison of lines of a report: the paired difference of each to another one, and their ranking.

A line is a method: encoding, extension and scale. Two lines are compared on the seeds that both
have, by differences on the same targets. The interval is that of posbench.statistics.over_seeds,
as in tables and figures: of sums over documents where they are known, else of the means of seeds.

The explore page makes the same comparisons in the browser (templates/explore_compare.js).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from posbench.common.errors import RunError
from posbench.report.records import CurvePoint, Score
from posbench.report.references import Paired, Seed, paired_difference, sums_of_both
from posbench.statistics.crossed import Estimate
from posbench.statistics.over_seeds import SeedValue, over_seeds
from posbench.statistics.verdict_rules import ALPHA, holm

LOSS = "loss"  # losses on the same targets, which count how good a model is inside its window
RISE = "rise"  # each loss minus its own floor
CHANGE = "change"  # each loss minus that of the same trainings without an extension
ACCURACY = "accuracy"  # shares of right answers
MEASURES = (LOSS, RISE, CHANGE, ACCURACY)
CORRECTIONS = ("holm", "none")
# verdicts on a line
BEST = "best"
REFERENCE = "compared with"
NOT_TOLD_APART = "not told apart"
WORSE = "worse"
BETTER = "better"
NO_INTERVAL = "no interval"
# reasons for a difference without an interval, or for none
ONLY_MEANS = "only means are known, without their seeds"
NO_SHARED_SEED = "they share no seed"
OTHER_TARGETS = "they scored different targets"
NO_BASE = "the loss that is subtracted was not measured on the same targets"
ONE_SEED = "one seed, without sums over documents"
ONE_DOCUMENT = "a single document or example, also in a stratum"
# columns of a record for a line whose seeds are unknown
COLUMN_OF_MEASURE = {LOSS: "nll", RISE: "difference", CHANGE: "change", ACCURACY: "accuracy"}


@dataclass(frozen=True)
class Line:
    """A method at one length, and the name by which tables and words call it: "rope|yarn"."""

    name: str
    record: CurvePoint | Score

    @property
    def seeds(self) -> dict[int, Seed]:
        """{seed: its row and references}, of a task those that learned it; {} where only means are
        known.
        """
        return {seed.row["seed"]: seed for seed in seeds_of(self.record)}

    @property
    def gate(self) -> str:
        """State of the gate, as in `gate_state`."""
        return gate_state(self.record)


def seeds_of(record: CurvePoint | Score) -> Sequence[Seed]:
    """Seeds that a record is a mean over: of a task those that learned it."""
    return getattr(record, "learners", None) or record.seeds or ()


def gate_state(record: CurvePoint | Score) -> str:
    """State of the gate: passed, failed, or "" if G is unknown; of a task whether it was learned,
    "" if that was not asked inside the window.

    A line passes if every training demonstrably gains from the second half of its window."""
    if isinstance(record, Score):
        if record.inside is None:
            return ""
        return "passed" if record.learned else "failed"
    if getattr(record, "gain", None) is None:  # records by context or step have no G
        return ""
    return "passed" if record.passes_gate else "failed"


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
    value: float
    against: str
    difference: Estimate | None = None
    interval_source: str = ""  # FROM_SUMS or FROM_SEEDS
    seeds: tuple[int, ...] = ()  # of the difference
    p: float | None = None  # two-sided, of no difference
    p_corrected: float | None = None
    verdict: str = ""
    reason: str = ""  # why there is no interval


@dataclass(frozen=True)
class Comparison:
    """All lines of a section at one length, the best first."""

    section: SectionName
    length: int
    measure: str
    correction: str
    lines: list[Compared]
    common_seeds: tuple[int, ...]
    n_corrected: int  # differences that p is corrected for
    absent: tuple[str, ...] = ()  # lines without a finite value at this length

    @property
    def multiple(self) -> float:
        """Length over the training length."""
        return self.length / self.section.train_len

    @property
    def reference(self) -> Compared:
        """Line that all others are compared with."""
        return next(row for row in self.lines if row.line.name == row.against)


def name_of_line(record: CurvePoint | Score) -> str:
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

    The best is the best of those whose seeds are known, if there is one. Raises RunError if fewer
    than two lines have the measure, or `against` has not.
    """
    measured, values, common, absent = _ranked_by_mean(lines, measure, length)
    names = [line.name for line in measured]
    if against is not None and against not in names:
        raise RunError(
            f"{against} has no {measure} at length {length}: choose another line, length or"
            " measure."
        )
    with_seeds = [line for line in measured if line.seeds]
    reference = (with_seeds or measured)[0]
    if against is not None:
        reference = measured[names.index(against)]
    rows = []
    for rank, line in enumerate(measured, start=1):
        row = Compared(section, length, line, rank, values[line.name], reference.name)
        if line is not reference:
            row = _with_difference(row, reference, values[reference.name], measure)
        rows.append(row)
    n_corrected = sum(row.p is not None for row in rows)
    if correction == "holm":
        rows = _with_holm_p(rows)
    reference_verdict = BEST if against is None else REFERENCE
    higher_is_better = measure == ACCURACY  # all other measures are of losses
    judged = [_with_verdict(row, higher_is_better, reference_verdict) for row in rows]
    return Comparison(section, length, measure, correction, judged, common, n_corrected, absent)


def compare_all_pairs(
    section: SectionName,
    length: int,
    lines: Sequence[Line],
    measure: str,
    correction: str = "holm",
) -> list[Comparison]:
    """Comparisons with each line in turn, the best first; p is corrected for all pairs together.

    Raises RunError if fewer than two lines have the measure.
    """
    best = compare_lines(section, length, lines, measure, correction="none")
    names = [row.line.name for row in best.lines]
    tables = [compare_lines(section, length, lines, measure, name, "none") for name in names]
    if correction != "holm":
        return tables
    pairs = {}  # {(line, reference): p}, each pair once
    for table in tables:
        for row in table.lines:
            if row.p is not None and (row.against, row.line.name) not in pairs:
                pairs[row.line.name, row.against] = row.p
    corrected = dict(zip(pairs, holm(list(pairs.values())), strict=True))
    higher_is_better = measure == ACCURACY
    result = []
    for table in tables:
        rows = []
        for row in table.lines:
            pair = (row.line.name, row.against)
            p = corrected.get(pair, corrected.get(pair[::-1]))  # whichever is the reference
            with_p = replace(row, p_corrected=p)
            rows.append(_with_verdict(with_p, higher_is_better, reference_verdict=REFERENCE))
        result.append(replace(table, lines=rows, correction=correction, n_corrected=len(pairs)))
    return result


class Measured(NamedTuple):
    """Lines that have a finite value, the best first, their values, and the seeds of all of them;
    names of those that have none.
    """

    lines: list[Line]
    values: dict[str, float]
    common_seeds: tuple[int, ...]
    absent: tuple[str, ...]


def _ranked_by_mean(lines: Sequence[Line], measure: str, length: int) -> Measured:
    """Lines ranked by their means over the seeds that all have, or else each over its own."""
    with_value = [line for line in lines if _mean_over_seeds(line, line.seeds, measure) is not None]
    if len(with_value) < 2:
        raise RunError(
            f"measure={measure} is known of fewer than two of these lines at length {length}:"
            " choose another measure, other lines or another length."
        )
    common = _seeds_of_all(with_value)
    values = {
        line.name: _mean_over_seeds(line, common or line.seeds, measure) for line in with_value
    }
    absent = tuple(line.name for line in lines if line not in with_value)
    ranked = sorted(with_value, key=lambda line: values[line.name], reverse=measure == ACCURACY)
    return Measured(ranked, values, common, absent)


def _seeds_of_all(lines: Iterable[Line]) -> tuple[int, ...]:
    seed_sets = [set(line.seeds) for line in lines if line.seeds]
    return tuple(sorted(set.intersection(*seed_sets))) if seed_sets else ()


def _mean_over_seeds(line: Line, seeds: Iterable[int], measure: str) -> float | None:
    """Mean of a line over seeds; None if one of them has no finite value."""
    if line.seeds:
        values = [VALUE_OF_SEED[measure](line.seeds[seed]) for seed in seeds]
    else:  # of a CSV that states the mean alone
        values = [getattr(line.record, COLUMN_OF_MEASURE[measure], None)]
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    return sum(values) / len(values)


def _seed_loss(seed: Seed) -> float | None:
    return seed.row["nll"]


def _seed_rise(seed: Seed) -> float | None:
    return None if seed.against_floor is None else seed.against_floor.difference


def _seed_change(seed: Seed) -> float | None:
    return None if seed.against_plain is None else seed.against_plain.difference


def _seed_accuracy(seed: Seed) -> float | None:
    return seed.row["accuracy"]


VALUE_OF_SEED: dict[str, Callable[[Seed], float | None]] = {
    LOSS: _seed_loss,
    RISE: _seed_rise,
    CHANGE: _seed_change,
    ACCURACY: _seed_accuracy,
}


def _with_difference(
    row: Compared, reference: Line, reference_value: float, measure: str
) -> Compared:
    """`row` with its difference to the reference, or the reason why there is none."""
    unpaired = replace(row, difference=_estimate_without_interval(row.value - reference_value))
    if not row.line.seeds or not reference.seeds:
        return replace(unpaired, reason=ONLY_MEANS)
    shared = sorted(set(row.line.seeds) & set(reference.seeds))
    if not shared:
        return replace(unpaired, reason=NO_SHARED_SEED)
    differences = {}
    for seed in shared:
        difference = DIFFERENCE_OF_SEEDS[measure](row.line.seeds[seed], reference.seeds[seed])
        if difference is not None:
            differences[seed] = difference
    if not differences:
        return replace(row, reason=NO_BASE if measure in (RISE, CHANGE) else OTHER_TARGETS)
    result = over_seeds(list(differences.values()))
    row = replace(
        row, difference=result.estimate, interval_source=result.source, seeds=tuple(differences)
    )
    if not math.isfinite(result.estimate.sem):
        return replace(row, reason=ONE_DOCUMENT if result.estimate.n_documents else ONE_SEED)
    # Both are two-sided; that of the side on which the value does not lie is 1.
    p = min(result.estimate.p_above(0.0), result.estimate.p_below(0.0))
    return replace(row, p=p, p_corrected=p)


def _estimate_without_interval(value: float) -> Estimate:
    return Estimate(value, math.nan, 1, (), n_documents=0, n_targets=0)


def _loss_difference(seed: Seed, other: Seed) -> SeedValue | None:
    """Loss of a training minus that of another one; None if they are not of the same targets."""
    try:
        paired = paired_difference(seed.evaluation, seed.row, other.evaluation, other.row)
    except RunError:  # they scored different targets
        return None
    if paired is None:
        return None
    # One term, of weight 1; without sums, as of a CSV, only the means are known.
    return SeedValue(paired.difference, terms=[(1.0, paired.sums)] if paired.sums else None)


def _rise_difference(seed: Seed, other: Seed) -> SeedValue | None:
    return _difference_of_differences(seed.against_floor, other.against_floor)


def _change_difference(seed: Seed, other: Seed) -> SeedValue | None:
    return _difference_of_differences(seed.against_plain, other.against_plain)


def _difference_of_differences(paired: Paired | None, other: Paired | None) -> SeedValue | None:
    """Difference of two differences, each on its own targets; None if one of them is not known."""
    if paired is None or other is None:
        return None
    terms = None  # where means alone are known
    if paired.sums and other.sums:
        terms = [(1.0, paired.sums), (-1.0, other.sums)]
    return SeedValue(paired.difference - other.difference, terms)


def _accuracy_difference(seed: Seed, other: Seed) -> SeedValue | None:
    """Accuracy of a training minus that of another one; None if it is not of the same questions."""
    accuracy = seed.row["accuracy"]
    other_accuracy = other.row["accuracy"]
    if accuracy is None or other_accuracy is None:
        return None
    try:
        both = sums_of_both(seed.evaluation, seed.row, other.evaluation, other.row, "correct")
    except RunError:  # they were asked different questions
        return None
    terms = None  # a CSV has means alone
    if both:
        sums, other_sums = both
        terms = [(1.0, sums.minus(other_sums))]  # one term, of weight 1
    return SeedValue(accuracy - other_accuracy, terms)


DIFFERENCE_OF_SEEDS: dict[str, Callable[[Seed, Seed], SeedValue | None]] = {
    LOSS: _loss_difference,
    RISE: _rise_difference,
    CHANGE: _change_difference,
    ACCURACY: _accuracy_difference,
}


def _with_holm_p(rows: list[Compared]) -> list[Compared]:
    """Rows with Holm's p for the number of differences to the reference."""
    with_p = [index for index, row in enumerate(rows) if row.p is not None]
    corrected = list(rows)
    for index, p in zip(with_p, holm([rows[index].p for index in with_p]), strict=True):
        corrected[index] = replace(rows[index], p_corrected=p)
    return corrected


def _with_verdict(row: Compared, higher_is_better: bool, reference_verdict: str) -> Compared:
    """`row` with its verdict; the row that all are compared with has `reference_verdict`."""
    if row.line.name == row.against:
        return replace(row, verdict=reference_verdict)
    if row.p_corrected is None:
        return replace(row, verdict=NO_INTERVAL)
    if row.p_corrected >= ALPHA:
        return replace(row, verdict=NOT_TOLD_APART)
    is_better = (row.difference.value > 0) == higher_is_better
    return replace(row, verdict=BETTER if is_better else WORSE)
