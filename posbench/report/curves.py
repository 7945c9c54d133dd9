"""Points of tables and figures from rows and per-target losses: one per method and length, averaged over seeds.

The reference of every point is its own run's floor: the loss with exactly train_len tokens of context for every target. Both
are measured on the same targets, so the difference is paired.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posbench.common.errors import RunError
from posbench.report import positions
from posbench.report.labels import Labels
from posbench.report.records import SECTION, CurvePoint, section_of
from posbench.report.references import PairedDifference, compare, exact_context, gains, ladders, plain, reference, references, unextended
from posbench.runs.evaluation import Evaluation
from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import Gain, across, estimate

MEANS = ("nll", "bpb", "accuracy")  # columns of a point that are means over seeds


def points(evaluations: list[Evaluation], label: Labels, wide: bool = False) -> list[CurvePoint]:
    """Points of all methods and lengths, in the order of the evaluations, without the floor, the half window and `ladders`.

    For a protocol by position they come from the longest window, one for each bin of positions; with `wide` only these, one for each
    stretch of several bins and one for the whole text of each length.
    Raises RunError if two evaluations have the same method, training and length.
    """
    return [_point(key, list(seeds.values()), label) for key, seeds in cells(evaluations, label, wide).items()]


@dataclass(frozen=True)
class Entry:
    """One seed of a point: its row, the differences to the floor and to no extension, and the evaluations that all three come from."""

    row: dict
    against_floor: PairedDifference | None
    against_plain: PairedDifference | None
    gain: Gain | None
    evaluation: Evaluation
    floor: Evaluation | None
    plain: Evaluation | None


def cells(evaluations: list[Evaluation], label: Labels, wide: bool = False) -> dict[tuple, dict[int, Entry]]:
    """{(section, method, source, length, window): {seed: Entry}} of `points`, in their order; raises what they raise."""
    found, as_it_is, known, inside = references(evaluations), unextended(evaluations), gains(evaluations), ladders(evaluations)
    entries: dict[tuple, dict[int, Entry]] = defaultdict(dict)
    for evaluation in evaluations:
        first, key = evaluation.first, evaluation.key
        if reference(first) or key in inside and (exact_context(first) or math.inf) <= first["train_len"]:
            continue
        floor, others = found.get((key, "floor")), {} if plain(first) else as_it_is.get(key, {})
        by_position = first["position"] is not None
        if wide and not by_position:
            continue
        for place, *compared in _by_position(evaluation, others, wide) if by_position else _rows_by_length(evaluation, floor, others):
            row, seed = compared[0], first["seed"]
            seeds = entries[(*section_of(evaluation), *label(row), evaluation.source, *place)]
            other = seeds[seed].row if seed in seeds else row
            if other["eval_id"] != row["eval_id"]:
                raise RunError(
                    f"{row['run_id']} (evaluation {row['eval_id']}) and {other['run_id']} ({other['eval_id']}) both give "
                    f"{' '.join(label(row))}, seed {seed}, length {row['length']}: report them apart."
                )
            seeds[seed] = Entry(*compared, known.get(key), evaluation, floor, others.get(row["length"]))
    return entries


# (length, window), row, difference to the floor, difference to no extension
Compare = tuple[tuple[int, int | None], dict, PairedDifference | None, PairedDifference | None]


def _rows_by_length(evaluation: Evaluation, floor: Evaluation | None, others: Mapping[int, Evaluation]) -> Iterator[Compare]:
    """Rows of one evaluation; `others` has the evaluation without an extension for each length.

    If the floor was not evaluated at a length, its shortest exact length is used: from twice the training length on, all lengths give the
    same floor. A further row of a length, such as the control of protocol repeat, is compared with nothing: the losses of single targets
    are those of its first row.
    """
    for row in evaluation.rows:
        length, compared = row["length"], (None, None)
        if row is evaluation.row(length):
            against_floor = compare(evaluation, length, floor, floor and floor.exact_length(length))
            compared = against_floor, compare(evaluation, length, others.get(length), length)
        yield (length, None), row, *compared


def _by_position(evaluation: Evaluation, others: Mapping[int, Evaluation], wide: bool) -> Iterator[Compare]:
    for low, row in positions.spans(evaluation, wide):
        yield (row["position"], row["length"]), row, None, positions.compare_positions(evaluation, low, row, others.get(row["length"]))
    for row in positions.whole_texts(evaluation) if wide else ():
        yield (row["length"], None), row, None, positions.compare_positions(evaluation, 0, row, others.get(row["length"]))


def _point(key: tuple, seeds: list[Entry], label: Labels) -> CurvePoint:
    rows, against_floor, against_plain, known = zip(
        *((one.row, one.against_floor, one.against_plain, one.gain) for one in seeds), strict=True
    )
    first = rows[0]
    difference, half_width, over = interval(against_floor, first["sem_unit"])
    change, change_half_width, changed_over = interval(against_plain, first["sem_unit"])
    return CurvePoint(
        **dict(zip((*SECTION, "encoding", "extension", "scale_attention", "source", "length", "window"), key, strict=True)),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **means(rows, MEANS),
        floor=_finite(np.mean([base for *_, base in against_floor])) if all(against_floor) else None,
        difference=difference,
        half_width=half_width,
        over=over or changed_over,
        gain=_finite(np.mean([one.value for one in known])) if all(known) else None,
        gain_lower=_finite(min(one.lower for one in known)) if all(known) else None,
        change=change,
        change_half_width=change_half_width,
        facts=label.facts(first, seeds[0].evaluation.setting),
    )


def means(rows: Sequence[dict], names: Iterable[str]) -> dict[str, float | None]:
    """Mean of each column over the rows of several seeds; None if one of them has no number."""
    return {name: None if any(row[name] is None for row in rows) else sum(row[name] for row in rows) / len(rows) for name in names}


def interval(seeds: Sequence[PairedDifference | None], unit: str) -> tuple[float | None, float | None, str | None]:
    """Mean difference, half width of its 95 % interval, and the interval's units; None for what is unknown.

    The units are seeds crossed with documents, documents for one seed, or seeds if only means are known.
    """
    if not all(seeds):
        return None, None, None
    known = [one[1] for one in seeds]
    whole = across(known) if all(known) else None
    if whole is None:
        mean, half_width, n = student_interval([one[0] for one in seeds])
        return _finite(mean), _finite(half_width), "seeds" if n > 1 else unit
    found = estimate([(1.0, whole)])
    low, high = found.interval()
    return _finite(found.value), _finite((high - low) / 2), f"seeds x {unit}s" if len(seeds) > 1 else unit


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
