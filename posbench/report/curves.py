"""Points of tables and figures from rows and per-target losses: one per method and length, averaged over seeds.

The reference of every point is its own run's floor: the loss with exactly train_len tokens of context for every target. Both
are measured on the same targets, so the difference is paired.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from posbench.common.errors import RunError
from posbench.report import positions
from posbench.report.labels import Labels
from posbench.report.records import SECTION, CurvePoint, section_of
from posbench.report.references import Paired, References, Seed, compare, exact_context, plain, reference
from posbench.runs.evaluation import Evaluation
from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import Gain, across, estimate

MEANS = ("nll", "bpb", "accuracy")  # columns of a point that are means over seeds


def points(references: References, label: Labels, wide: bool = False) -> list[CurvePoint]:
    """Points of all methods and lengths, in the order of the evaluations, without the floor, the half window and the ladders.

    For a protocol by position they come from the longest window, one for each bin of positions; with `wide` only these, one for each
    stretch of several bins and one for the whole text of each length.
    Raises RunError if two evaluations have the same method, training and length.
    """
    found: dict[tuple, dict[int, Seed]] = defaultdict(dict)
    for evaluation in references.evaluations:
        first, key = evaluation.first, evaluation.key
        if reference(first) or key in references.ladders and (exact_context(first) or math.inf) <= first["train_len"]:
            continue
        by_position = first["position"] is not None
        if wide and not by_position:
            continue
        floor, others = references.floors.get((key, "floor")), {} if plain(first) else references.plain.get(key, {})
        rows = positions.spans(evaluation, wide) if by_position else (((row["length"], None), row) for row in evaluation.rows)
        for place, row in rows:
            seed = Seed(evaluation, row, *_compared(evaluation, row, floor, others.get(row["length"])))
            add_seed(found[(*section_of(evaluation), *label(row), evaluation.source, *place)], seed, label)
    return [_point(key, list(seeds.values()), label, references.gains) for key, seeds in found.items()]


def _compared(evaluation: Evaluation, row: dict, floor: Evaluation | None, other: Evaluation | None) -> tuple[Paired | None, ...]:
    """Differences of a row to the floor and to no extension, `other`.

    A further row of a length, such as the control of protocol repeat, has none: the losses of single targets are those of its first row.
    """
    length = row["length"]
    if row["position"] is not None:
        return None, compare(evaluation, row, other, other and positions.joined(other, length, row["start"], row["position"]))
    if row is not evaluation.row(length):
        return None, None
    against_floor = compare(evaluation, row, floor, floor and floor.exact_row(length))
    return against_floor, compare(evaluation, row, other, other and other.row(length))


def add_seed(seeds: dict[int, Seed], one: Seed, label: Labels) -> None:
    """Add a seed to those of a point. Raises RunError if another evaluation gave it already."""
    row = one.row
    other = seeds.setdefault(row["seed"], one).row
    if other["eval_id"] != row["eval_id"]:
        raise RunError(
            f"{row['run_id']} (evaluation {row['eval_id']}) and {other['run_id']} ({other['eval_id']}) both give "
            f"{' '.join(label(row))}, seed {row['seed']}, length {row['length']}: report them apart."
        )


def _point(key: tuple, seeds: list[Seed], label: Labels, gains: Mapping[tuple, Gain]) -> CurvePoint:
    rows, known = [one.row for one in seeds], [gains.get(one.evaluation.key) for one in seeds]
    first, floors = rows[0], [one.against_floor for one in seeds]
    difference, half_width, over = interval(floors, first["sem_unit"])
    change, change_half_width, changed_over = interval([one.against_plain for one in seeds], first["sem_unit"])
    return CurvePoint(
        **dict(zip((*SECTION, "encoding", "extension", "scale_attention", "source", "length", "window"), key, strict=True)),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **means(rows, MEANS),
        floor=_finite(np.mean([one.base for one in floors])) if all(floors) else None,
        difference=difference,
        half_width=half_width,
        over=over or changed_over,
        gain=_finite(np.mean([one.value for one in known])) if all(known) else None,
        gain_lower=_finite(min(one.lower for one in known)) if all(known) else None,
        change=change,
        change_half_width=change_half_width,
        facts=label.facts(first, seeds[0].evaluation.setting),
        seeds=seeds,
    )


def means(rows: Sequence[dict], names: Iterable[str]) -> dict[str, float | None]:
    """Mean of each column over the rows of several seeds; None if one of them has no number."""
    return {name: None if any(row[name] is None for row in rows) else sum(row[name] for row in rows) / len(rows) for name in names}


def interval(seeds: Sequence[tuple | None], unit: str) -> tuple[float | None, float | None, str | None]:
    """Mean over seeds, half width of its 95 % interval, and the interval's units; None for what is unknown.

    Each seed begins with its value and the sums over documents, which are None if only the mean is known (`Paired`).

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
