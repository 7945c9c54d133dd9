"""Points of tables and figures from rows and per-target losses: one per method and length, averaged over seeds.

The reference of every point is its own run's floor: the loss with exactly train_len tokens of context for every target. Both
are measured on the same targets, so the difference is paired.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from posbench.common.errors import RunError
from posbench.report.labels import labels
from posbench.report.points import SECTION, Point
from posbench.report.references import Compared, compare, exact_context, gains, ladders, plain, reference, references, same
from posbench.runs.evaluation import Evaluation
from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import across, estimate

MEANS = ("nll", "bpb", "accuracy")  # columns of a point that are means over seeds


def points(evaluations: list[Evaluation], variants: Mapping[str, str] | None = None) -> list[Point]:
    """Points of all methods and lengths, in the order of the evaluations, without the floor, the half window and `ladders`.

    For a protocol by position they come from the longest window, one for each position. `variants` is as in `labels`. If the floor was
    not evaluated at a length, its shortest exact length is used: from twice the training length on, all lengths give the same floor.

    Raises RunError if two evaluations have the same method, training and length.
    """
    found, known, inside = references(evaluations), gains(evaluations), ladders(evaluations)
    label = labels((row for evaluation in evaluations for row in evaluation.rows), variants)
    cells: dict[tuple, dict[int, tuple]] = defaultdict(dict)
    for evaluation in evaluations:
        longest = max(row["length"] for row in evaluation.rows)
        for row in evaluation.rows:
            by_position = row["position"] is not None
            if reference(row) or (exact_context(row) or math.inf) <= row["train_len"] and same(row) in inside:
                continue
            if by_position and row["length"] != longest:
                continue
            length, floor = row["length"], found.get((same(row), "floor"))
            key = (*(row[name] for name in SECTION), *label(row), evaluation.source)
            key += (row["position"], length) if by_position else (length, None)
            if row["seed"] in cells[key] and cells[key][row["seed"]][0]["eval_id"] != row["eval_id"]:
                other = cells[key][row["seed"]][0]
                raise RunError(
                    f"{row['run_id']} (evaluation {row['eval_id']}) and {other['run_id']} ({other['eval_id']}) both give "
                    f"{' '.join(label(row))}, seed {row['seed']}, length {length}: report them apart."
                )
            against_floor = compare(evaluation, length, floor, floor and floor.exact_length(length))
            against_plain = None if plain(row) else compare(evaluation, length, found.get((same(row), "plain")), length)
            cells[key][row["seed"]] = (row, against_floor, against_plain, known.get(same(row)))
    return [_point(key, list(seeds.values())) for key, seeds in cells.items()]


def _point(key: tuple, seeds: list[tuple]) -> Point:
    rows, against_floor, against_plain, known = zip(*seeds, strict=True)
    first = rows[0]
    difference, half_width, over = interval(against_floor, first["sem_unit"])
    change, change_half_width, _ = interval(against_plain, first["sem_unit"])
    return Point(
        **dict(zip((*SECTION, "encoding", "extension", "scale_attention", "source", "length", "window"), key, strict=True)),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **{name: None if any(row[name] is None for row in rows) else sum(row[name] for row in rows) / len(rows) for name in MEANS},
        floor=_finite(np.mean([base for *_, base in against_floor])) if all(against_floor) else None,
        difference=difference,
        half_width=half_width,
        over=over,
        gain=_finite(np.mean([one.value for one in known])) if all(known) else None,
        gain_lower=_finite(min(one.lower for one in known)) if all(known) else None,
        change=change,
        change_half_width=change_half_width,
    )


def interval(seeds: Sequence[Compared | None], unit: str) -> tuple[float | None, float | None, str | None]:
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
