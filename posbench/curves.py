"""From rows and per-target losses to the points of a table or a figure: one per method and length, averaged over seeds.

The reference of every point is its own run's floor: the loss with exactly train_len tokens of context for every target. Both
were measured on the same targets, so the difference is paired.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posbench.errors import RunError
from posbench.points import SECTION, Point
from posbench.statistics import Gain, clustered_mean, gain, paired_difference, student_interval, student_quantile

METHODS = (("encoding", "encoding_args"), ("extension", "extension_args"))


@dataclass(frozen=True)
class Evaluation:
    """One eval file: its rows, and its arrays by length (None where the npz is missing)."""

    rows: list[dict]
    arrays: dict[str, np.ndarray] | None
    path: Path | None = None  # of the json

    def losses(self, length: int) -> np.ndarray | None:
        """nll of every target [n_targets] at `length`, or None."""
        found = () if self.arrays is None else np.flatnonzero(self.arrays["length"] == length)
        return self.arrays["nll"][found[0]] if len(found) else None

    def exact_length(self, length: int) -> int | None:
        """`length`, or the shortest length of a reference at which every target has its full window."""
        known = () if self.arrays is None else [int(n) for n in self.arrays["length"] if n >= 2 * self.rows[0]["train_len"]]
        return length if length in known else min(known, default=None)


def reference(row: dict) -> str | None:
    """`floor` or `half` for a row with exactly train_len or train_len // 2 tokens of context, None for any other."""
    if row["extension"] != "recompute_window":
        return None
    window = (row["extension_args"] or {}).get("window")
    return {None: "floor", row["train_len"]: "floor", row["train_len"] // 2: "half"}.get(window)


def same(row: dict) -> tuple[str, str, str | None]:
    """What evaluations must share to be compared: training, protocol and setting."""
    return row["run_id"], row["protocol"], row["setting"]


def references(evaluations: Iterable[Evaluation]) -> dict[tuple, Evaluation]:
    """(`same` of its rows, floor | half) -> its evaluation, with the scale the model was trained with where there is a choice."""
    found: dict[tuple, Evaluation] = {}
    for evaluation in evaluations:
        row = evaluation.rows[0]
        key = (same(row), reference(row))
        if key[1] and (key not in found or row["scale_attention"] == row["trained_scale"]):
            found[key] = evaluation
    return found


def pair(evaluation: Evaluation, other: Evaluation | None, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(losses at `length`, losses of the reference `other`, documents) on the same targets, each [n_targets].

    A reference gives every target its full window from twice the training length on; there all its lengths agree, and the shortest is
    taken where it lacks `length`. None when either has no such arrays. Raises RunError when the targets are not the same.
    """
    if other is None or other.exact_length(length) is None or evaluation.losses(length) is None:
        return None
    losses = other.losses(other.exact_length(length))
    if any(not np.array_equal(evaluation.arrays[name], other.arrays[name]) for name in ("document", "offset")):
        a, b = evaluation.rows[0], other.rows[0]
        raise RunError(
            f"{a['extension']} (evaluation {a['eval_id']}) and {b['extension']} ({b['eval_id']}) of {a['run_id']} "
            "scored different targets: evaluate both with one evaluate.max_length, evaluate.windows and evaluate.targets."
        )
    return evaluation.losses(length), losses, evaluation.arrays["document"]


def gains(evaluations: list[Evaluation]) -> dict[tuple, Gain]:
    """`same` of its rows -> what that training gains from the second half of its window, where both references were evaluated."""
    found, result = references(evaluations), {}
    for (shared, kind), full in found.items():
        length = full.exact_length(0) if kind == "floor" else None
        both = pair(full, found.get((shared, "half")), length) if length else None
        if both:
            result[shared] = gain(*both)
    return result


def points(evaluations: list[Evaluation], variants: Mapping[str, str] | None = None) -> list[Point]:
    """Every method and length, in the order of the evaluations given; references themselves are left out.

    Of a protocol by position the longest window gives the points, one for each of its positions. `variants`: as in `labels`.

    Raises RunError when two trainings claim the same method, seed and length.
    """
    floors, known = references(evaluations), gains(evaluations)
    label = labels((row for evaluation in evaluations for row in evaluation.rows), variants)
    cells: dict[tuple, dict[int, tuple]] = defaultdict(dict)
    for evaluation in evaluations:
        longest = max(row["length"] for row in evaluation.rows)
        for row in evaluation.rows:
            by_position = row["position"] is not None
            if reference(row) or by_position and row["length"] != longest:
                continue
            at = (row["position"], row["length"]) if by_position else (row["length"], None)
            key = (*(row[name] for name in SECTION), *label(row), *at)
            if row["seed"] in cells[key] and cells[key][row["seed"]][0]["eval_id"] != row["eval_id"]:
                other = cells[key][row["seed"]][0]
                raise RunError(
                    f"{row['run_id']} (evaluation {row['eval_id']}) and {other['run_id']} ({other['eval_id']}) both give "
                    f"{' '.join(label(row))}, seed {row['seed']}, length {row['length']}: report them apart."
                )
            floor = floors.get((same(row), "floor"))
            cells[key][row["seed"]] = (row, pair(evaluation, floor, row["length"]), known.get(same(row)))
    return [_point(key, list(seeds.values())) for key, seeds in cells.items()]


def _point(key: tuple, seeds: list[tuple]) -> Point:
    rows, pairs, known = zip(*seeds, strict=True)
    difference = half_width = over = floor = None
    if all(pairs):
        each = [paired_difference(*both) for both in pairs]
        floor = _finite(np.mean([clustered_mean(both[1], both[2])[0] for both in pairs]))
        difference, half_width, n = student_interval([mean for mean, _, _ in each])
        over = "seeds" if n > 1 else rows[0]["sem_unit"]
        if n == 1 and each[0][2] > 1:
            half_width = student_quantile(0.975, each[0][2] - 1) * each[0][1]
    first = rows[0]
    return Point(
        **dict(zip((*SECTION, "encoding", "extension", "scale_attention", "length", "window"), key, strict=True)),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **{name: None if any(row[name] is None for row in rows) else sum(row[name] for row in rows) / len(rows) for name in ("nll", "bpb")},
        floor=floor,
        difference=_finite(difference),
        half_width=_finite(half_width),
        over=over,
        gain=_finite(np.mean([one.value for one in known])) if all(known) else None,
        gain_lower=_finite(min(one.lower for one in known)) if all(known) else None,
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def labels(rows: Iterable[dict], variants: Mapping[str, str] | None = None):
    """A function row -> (encoding, extension, scale_attention) in words: a method's arguments appear only where they tell two apart.

    `variants` (run_id -> words) is what else tells trainings of one encoding apart.
    """
    known: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in rows:
        for name, args in METHODS:
            if (row[args] or {}) not in known[name, row[name]]:
                known[name, row[name]].append(row[args] or {})
    absent = object()

    def telling(name: str, method: str, args: dict) -> str:
        differ = [key for key in sorted(args) if any(other.get(key, absent) != args[key] for other in known[name, method])]
        return " ".join([method, *(f"{key}={args[key] if isinstance(args[key], str) else json.dumps(args[key])}" for key in differ)])

    def label(row: dict) -> tuple[str, str, str]:
        encoding, extension = (telling(name, row[name], row[args] or {}) for name, args in METHODS)
        trained = "" if row["trained_scale"] in (None, "none") else f" trained with {row['trained_scale']}"
        tuned = f" tuned from {row['finetune']}" if row["finetune"] else ""
        return encoding + trained + tuned + (variants or {}).get(row["run_id"], ""), extension, row["scale_attention"]

    return label
