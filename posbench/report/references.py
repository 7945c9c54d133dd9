"""References among evaluations (floor, half window, no extension), and paired differences of their losses."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from posbench.common.errors import RunError
from posbench.evaluation.protocols import known
from posbench.runs.evaluation import Evaluation
from posbench.runs.setting import Setting
from posbench.statistics.crossed import Gain, Sums, gain


def exact_context(row: dict) -> int | None:
    """Tokens of context that recompute_window gives every target of a row; None for any other method."""
    return (row["extension_args"] or {}).get("window") or row["train_len"] if row["extension"] == "recompute_window" else None


def reference(row: dict) -> str | None:
    """`floor` or `half` for a row with exactly train_len or train_len // 2 tokens of context, None for any other."""
    return {row["train_len"]: "floor", row["train_len"] // 2: "half"}.get(exact_context(row))


def plain(row: dict) -> bool:
    """True if a row has no extension, and no scale but the one that the model was trained with."""
    return row["extension"] == "none" and row["scale_attention"] == (row["trained_scale"] or "none")


def references(evaluations: Iterable[Evaluation]) -> dict[tuple, Evaluation]:
    """{(key, "floor" | "half"): evaluation}. If several fit, one with the scale that the model was trained with is taken."""
    found: dict[tuple, Evaluation] = {}
    for evaluation in evaluations:
        row = evaluation.first
        kind = reference(row)
        if kind and ((evaluation.key, kind) not in found or row["scale_attention"] == row["trained_scale"]):
            found[evaluation.key, kind] = evaluation
    return found


def unextended(evaluations: Iterable[Evaluation]) -> dict[tuple, dict[int, Evaluation]]:
    """{key: {length: evaluation of the model as it is}}: several machines may have evaluated different lengths."""
    found: dict[tuple, dict[int, Evaluation]] = defaultdict(dict)
    for evaluation in evaluations:
        if plain(evaluation.first):
            found[evaluation.key] |= {row["length"]: evaluation for row in evaluation.rows}
    return found


def ladders(evaluations: Iterable[Evaluation]) -> dict[tuple, dict[int, Evaluation]]:
    """{key: {context: evaluation}} for trainings with three or more recompute_window sizes up to train_len.

    If several fit, one with the scale that the model was trained with is taken, as in `references`.
    """
    found: dict[tuple, dict[int, Evaluation]] = defaultdict(dict)
    for evaluation in evaluations:
        row, steps = evaluation.first, found[evaluation.key]
        context = exact_context(row)
        if context is None or context > row["train_len"] or not _whole(row["protocol"]) or not evaluation.exact_row():
            continue
        if context not in steps or row["scale_attention"] == row["trained_scale"]:
            steps[context] = evaluation
    return {key: steps for key, steps in found.items() if len(steps) >= 3}


def _whole(protocol: str) -> bool:
    """True if the protocol has its own floor: recompute_window then gives every target a full window, except near a document's start."""
    return getattr(known(protocol), "floor", None) == protocol


def pooled(evaluation: Evaluation, length: int, other: Evaluation, at: int) -> tuple[Sums, Sums] | None:
    """Sums over documents of both losses, on the same targets; None if one is unknown. Raises RunError if the targets are not the same."""
    rows = (evaluation.row(length), other.row(at))
    if None in rows:
        return None
    found = (evaluation.sums(rows[0]), other.sums(rows[1]))
    if None in found:
        return None
    check_targets(evaluation, other)
    return found


def check_targets(one: Evaluation, other: Evaluation) -> None:
    """Raise RunError if two evaluations cannot be paired, because they scored different targets."""
    if not one.same_targets(other):
        a, b = one.first, other.first
        raise RunError(
            f"{a['run_id']} {a['extension']} (evaluation {a['eval_id']}) and {b['run_id']} {b['extension']} ({b['eval_id']}) "
            "scored different targets: evaluate both with one evaluate.max_length, evaluate.windows and evaluate.targets."
        )


def check_one_set(evaluations: Iterable[Evaluation], section: Callable[[Evaluation], tuple]) -> None:
    """Raise RunError if evaluations of one `section`, whose seeds and methods are set side by side, scored different targets.

    Each task is a set of its own, and key tokens that each training chooses for itself may differ.
    """
    first: dict[tuple, Evaluation] = {}
    for one in evaluations:
        chosen = isinstance(one.setting, Setting) and one.setting.key_context and not one.setting.key_run
        if one.stored and one.stored.targets and not chosen:
            task = (one.first["task"] or "").partition(" ")[0]
            check_targets(one, first.setdefault((section(one), task), one))


PairedDifference = tuple[float, Sums | None, float]  # difference, its sums over documents (None if only means are known), loss of the other


def compare(evaluation: Evaluation, length: int, other: Evaluation | None, at: int | None) -> PairedDifference | None:
    """Loss at `length` minus that of `other` at `at`: of sums by document if both have them, else of the means in their rows.

    None if one of them does not exist, or if the rows differ in their numbers of targets, bytes or units.
    """
    if other is None or at is None:
        return None
    if summed := pooled(evaluation, length, other, at):
        difference = summed[0].minus(summed[1])
        return float(difference.means[0]), difference, float(summed[1].means[0])
    ours, theirs = evaluation.row(length), other.row(at)
    if not ours or not theirs or any(ours[name] != theirs[name] for name in ("n_targets", "n_bytes", "n_units")):
        return None
    a, b = (math.nan if row["nll"] is None else row["nll"] for row in (ours, theirs))
    return a - b, None, b


def gains(evaluations: list[Evaluation]) -> dict[tuple, Gain]:
    """{key: Gain from the second half of the window}, for trainings with arrays of both references."""
    found, result = references(evaluations), {}
    for (key, kind), full in found.items():
        half, length = found.get((key, "half")), full.exact_length(0)
        if kind != "floor" or not half or not length:
            continue
        if summed := pooled(half, half.exact_length(length), full, length):
            result[key] = gain(summed[1], summed[0])
    return result
