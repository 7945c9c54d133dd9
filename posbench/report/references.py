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
from posbench.evaluation.registry import find_protocol
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
        """{(key, "floor" | "half"): evaluation}. If several fit, one without a further scale is
        taken.
        """
        floors: dict[tuple, Evaluation] = {}
        for evaluation in self.evaluations:
            kind = reference_kind(evaluation.first)
            if kind is None:
                continue
            if (evaluation.key, kind) not in floors or _as_trained(evaluation.first):
                floors[evaluation.key, kind] = evaluation
        return floors

    @cached_property
    def plain(self) -> dict[tuple, dict[int, Evaluation]]:
        """{key: {length: evaluation of the model as it is}}: several machines may have evaluated
        different lengths.
        """
        by_key: dict[tuple, dict[int, Evaluation]] = defaultdict(dict)
        for evaluation in self.evaluations:
            if is_plain(evaluation.first):
                for row in evaluation.rows:
                    by_key[evaluation.key][row["length"]] = evaluation
        return by_key

    @cached_property
    def ladders(self) -> dict[tuple, dict[int, Evaluation]]:
        """{key: {context: evaluation}} of three or more recompute_window sizes up to train_len; of
        several that fit, the last one without another scale, else the first.
        """
        ladders: dict[tuple, dict[int, Evaluation]] = defaultdict(dict)
        for evaluation in self.evaluations:
            row = evaluation.first
            ladder = ladders[evaluation.key]
            context = exact_context(row)
            if context is None or context > row["train_len"]:
                continue
            if not _is_own_floor(row["protocol"]) or not evaluation.exact_row():
                continue
            if context not in ladder or _as_trained(row):
                ladder[context] = evaluation
        # Two windows are those of G; only more of them are a curve.
        return {key: ladder for key, ladder in ladders.items() if len(ladder) >= 3}

    @cached_property
    def gains(self) -> dict[tuple, Estimate]:
        """{key: gain from the second half of the window}, for trainings with sums of both
        references.
        """
        gains = {}
        for (key, kind), full in self.floors.items():
            half = self.floors.get((key, "half"))
            row = full.exact_row()
            if kind == "half" or not half or not row:
                continue
            sums = sums_of_both(half, half.exact_row(row["length"]), full, row)
            if sums:
                of_half, of_full = sums
                gains[key] = gain(of_full, of_half)
        return gains


def _as_trained(row: dict) -> bool:
    """True if a row was read without a scale beside the one that its model was trained with."""
    return row["scale_attention"] == "none"


def _is_own_floor(protocol: str) -> bool:
    """True for a protocol that gives every target its window, except where a document begins."""
    return getattr(find_protocol(protocol), "floor", None) == protocol


def exact_context(row: dict) -> int | None:
    """Tokens of context that recompute_window gives every target of a row; None for any other
    method.
    """
    if row["extension"] != "recompute_window":
        return None
    return (row["extension_args"] or {}).get("window") or row["train_len"]


def reference_kind(row: dict) -> str | None:
    """`floor` or `half` for a row with exactly train_len or train_len // 2 tokens of context, None
    for any other.
    """
    kinds = {row["train_len"]: "floor", row["train_len"] // 2: "half"}
    return kinds.get(exact_context(row))


def is_plain(row: dict) -> bool:
    """True if a row has no extension, and no scale but the one that the model was trained with."""
    return row["extension"] == "none" and _as_trained(row)


def sums_of_both(
    evaluation: Evaluation,
    row: dict | None,
    other: Evaluation,
    other_row: dict | None,
    name: str = "nll",
) -> tuple[Sums, Sums] | None:
    """Sums over documents of the losses of two rows, or of another array of their targets such as
    `correct`; None if unknown or weighed. Raises RunError if the targets are not the same.
    """
    if row is None or other_row is None:
        return None
    sums = _sums_of_equal_weights(evaluation, row, name)
    other_sums = _sums_of_equal_weights(other, other_row, name)
    if sums is None or other_sums is None:
        return None
    check_targets(evaluation, other)
    return sums, other_sums


def _sums_of_equal_weights(evaluation: Evaluation, row: dict, name: str) -> Sums | None:
    """Sums of a row whose targets weigh alike, else None."""
    sums = evaluation.sampled_sums(row, name)
    losses = sums if name == "nll" else evaluation.sums(row)
    if sums is None or losses is None or not is_mean(losses, row):
        return None
    return sums


def check_targets(evaluation: Evaluation, other: Evaluation) -> None:
    """Raise RunError if two evaluations cannot be paired, because they scored different targets."""
    if not evaluation.same_targets(other):
        a, b = evaluation.first, other.first
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
    if not getattr(find_protocol(evaluation.first["protocol"]), "plain_mean", False):
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


def check_targets_of_sections(
    evaluations: Iterable[Evaluation], section: Callable[[Evaluation], tuple]
) -> None:
    """Raise RunError if evaluations of one `section`, whose seeds and methods are set side by side,
    scored different targets.

    Each task is a set of its own, and key tokens that each training chooses for itself may differ.
    """
    first_of_set: dict[tuple, Evaluation] = {}
    for evaluation in evaluations:
        setting = evaluation.setting
        # Key tokens are chosen by the gain from key_context tokens, by the model of key_run or else
        # by each training for itself.
        trainings_choose = (
            isinstance(setting, Setting) and setting.key_context and not setting.key_run
        )
        if trainings_choose or not evaluation.stored or not evaluation.stored.targets:
            continue
        task = (evaluation.first["task"] or "").partition(" ")[0]  # without its part
        check_targets(evaluation, first_of_set.setdefault((section(evaluation), task), evaluation))


def paired_difference(
    evaluation: Evaluation, row: dict, other: Evaluation | None, other_row: dict | None
) -> Paired | None:
    """Loss of `row` minus that of `other_row`, of sums if both have them, else of means of
    equally many targets; else None.
    """
    if other is None or other_row is None:
        return None
    if both := sums_of_both(evaluation, row, other, other_row):
        sums, other_sums = both
        differences = sums.minus(other_sums)
        mean = float(differences.means[0])
        base = float(other_sums.means[0])
        return Paired(mean, sums=differences, base=base, other=other, row=other_row)
    if any(row[name] != other_row[name] for name in ("n_targets", "n_bytes", "n_units")):
        return None
    nll = _or_nan(row["nll"])
    base = _or_nan(other_row["nll"])
    return Paired(nll - base, sums=None, base=base, other=other, row=other_row)


def _or_nan(loss: float | None) -> float:
    return math.nan if loss is None else loss
