"""References among evaluations (floor, half window, no extension), and paired differences of their
losses.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from posbench.common.errors import RunError
from posbench.evaluation.protocol import known
from posbench.results.evaluation import Evaluation
from posbench.results.evidence import SAME_MEAN, is_mean
from posbench.runs.rows import same_number
from posbench.runs.setting import Setting
from posbench.statistics.crossed import Estimate, Sums, gain


class Paired(NamedTuple):
    """Loss of a row minus that of a row of another evaluation, on the same targets."""

    difference: float
    sums: Sums | None  # of the difference over documents; None if only means are known
    base: float  # loss of the other
    other: Evaluation
    row: dict  # of the other


class Seed(NamedTuple):
    """One seed of a point: its row, and the differences to the floor and to no extension."""

    evaluation: Evaluation
    row: dict
    against_floor: Paired | None = None
    against_plain: Paired | None = None


@dataclass(frozen=True)
class References:
    """Evaluations that others are compared with, by `Evaluation.key`."""

    evaluations: Sequence[Evaluation]

    @cached_property
    def floors(self) -> dict[tuple, Evaluation]:
        """{(key, "floor" | "half"): evaluation}. If several fit, one with the scale that the model
        was trained with is taken.
        """
        found: dict[tuple, Evaluation] = {}
        for evaluation in self.evaluations:
            row = evaluation.first
            kind = reference(row)
            if kind and (
                (evaluation.key, kind) not in found
                or row["scale_attention"] == row["trained_scale"]
            ):
                found[evaluation.key, kind] = evaluation
        return found

    @cached_property
    def plain(self) -> dict[tuple, dict[int, Evaluation]]:
        """{key: {length: evaluation of the model as it is}}: several machines may have evaluated
        different lengths.
        """
        found: dict[tuple, dict[int, Evaluation]] = defaultdict(dict)
        for evaluation in self.evaluations:
            if plain(evaluation.first):
                found[evaluation.key] |= {row["length"]: evaluation for row in evaluation.rows}
        return found

    @cached_property
    def ladders(self) -> dict[tuple, dict[int, Evaluation]]:
        """{key: {context: evaluation}} of three or more recompute_window sizes up to train_len; of
        several that fit, as in `floors`.
        """
        found: dict[tuple, dict[int, Evaluation]] = defaultdict(dict)
        for evaluation in self.evaluations:
            row, steps = evaluation.first, found[evaluation.key]
            context = exact_context(row)
            own_floor = (
                getattr(known(row["protocol"]), "floor", None) == row["protocol"]
            )  # every target has its window, but at a start
            if (
                context is None
                or context > row["train_len"]
                or not own_floor
                or not evaluation.exact_row()
            ):
                continue
            if context not in steps or row["scale_attention"] == row["trained_scale"]:
                steps[context] = evaluation
        return {key: steps for key, steps in found.items() if len(steps) >= 3}

    @cached_property
    def gains(self) -> dict[tuple, Estimate]:
        """{key: gain from the second half of the window}, for trainings with sums of both
        references.
        """
        found = {}
        for (key, kind), full in self.floors.items():
            half, row = self.floors.get((key, "half")), full.exact_row()
            if (
                kind == "floor"
                and half
                and row
                and (both := pooled(half, half.exact_row(row["length"]), full, row))
            ):
                found[key] = gain(both[1], both[0])
        return found


def exact_context(row: dict) -> int | None:
    """Tokens of context that recompute_window gives every target of a row; None for any other
    method.
    """
    return (
        (row["extension_args"] or {}).get("window") or row["train_len"]
        if row["extension"] == "recompute_window"
        else None
    )


def reference(row: dict) -> str | None:
    """`floor` or `half` for a row with exactly train_len or train_len // 2 tokens of context, None
    for any other.
    """
    return {row["train_len"]: "floor", row["train_len"] // 2: "half"}.get(exact_context(row))


def plain(row: dict) -> bool:
    """True if a row has no extension, and no scale but the one that the model was trained with."""
    return row["extension"] == "none" and row["scale_attention"] == (row["trained_scale"] or "none")


def pooled(
    evaluation: Evaluation, row: dict | None, other: Evaluation, at: dict | None
) -> tuple[Sums, Sums] | None:
    """Sums of the losses of two rows over documents, None if unknown or weighed. Raises RunError if
    the targets are not the same.
    """
    found = None if None in (row, at) else (evaluation.sums(row), other.sums(at))
    if not found or None in found or not (is_mean(found[0], row) and is_mean(found[1], at)):
        return None
    check_targets(evaluation, other)
    return found


def check_targets(one: Evaluation, other: Evaluation) -> None:
    """Raise RunError if two evaluations cannot be paired, because they scored different targets."""
    if not one.same_targets(other):
        a, b = one.first, other.first
        raise RunError(
            f"{a['run_id']} {a['extension']} (evaluation {a['eval_id']}) and {b['run_id']}"
            f" {b['extension']} ({b['eval_id']}) scored different targets: evaluate both with one"
            " evaluate.max_length, evaluate.windows and evaluate.targets."
        )


def check_losses(evaluation: Evaluation) -> None:
    """Raise RunError if a row of an eval json is not the mean of the losses that are kept beside
    it.

    A row that weighs its targets has no such mean, nor one of a protocol that is not known here.
    """
    if not getattr(known(evaluation.first["protocol"]), "plain", False):
        return
    for row in evaluation.rows:
        for column, name in (("nll", "nll"), ("accuracy", "correct")):
            mean = evaluation.mean(row, name)
            if mean is None or row[column] is None or not math.isfinite(mean):
                continue
            if not same_number(row[column], mean, SAME_MEAN):
                raise RunError(
                    f"{evaluation.path} was changed after it was written ({column} at length"
                    f" {row['length']} is {row[column]}, and the losses beside it give {mean}):"
                    " restore it, or delete it and evaluate again."
                )


def check_one_set(
    evaluations: Iterable[Evaluation], section: Callable[[Evaluation], tuple]
) -> None:
    """Raise RunError if evaluations of one `section`, whose seeds and methods are set side by side,
    scored different targets.

    Each task is a set of its own, and key tokens that each training chooses for itself may differ.
    """
    first: dict[tuple, Evaluation] = {}
    for one in evaluations:
        chosen = (
            isinstance(one.setting, Setting) and one.setting.key_context and not one.setting.key_run
        )
        if one.stored and one.stored.targets and not chosen:
            task = (one.first["task"] or "").partition(" ")[0]
            check_targets(one, first.setdefault((section(one), task), one))


def compare(
    evaluation: Evaluation, row: dict, other: Evaluation | None, at: dict | None
) -> Paired | None:
    """Loss of `row` minus that of another's row `at`, of sums if both have them, else of means of
    equally many targets; else None.
    """
    if other is None or at is None:
        return None
    if summed := pooled(evaluation, row, other, at):
        difference = summed[0].minus(summed[1])
        return Paired(float(difference.means[0]), difference, float(summed[1].means[0]), other, at)
    if any(row[name] != at[name] for name in ("n_targets", "n_bytes", "n_units")):
        return None
    a, b = (math.nan if one["nll"] is None else one["nll"] for one in (row, at))
    return Paired(a - b, None, b, other, at)
