"""Losses by position in the longest window: bins of positions for figures, stretches of several bins for tables.

Every method reads the same windows, so each token is paired with itself read without an extension.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from posbench.report.records import CurvePoint, methods, tick_lengths
from posbench.report.references import PairedDifference, check_targets
from posbench.report.tables import METHOD, Table, by_method, heading, of_methods, perplexity
from posbench.runs.evaluation import Evaluation
from posbench.runs.target_losses import TargetLosses, units
from posbench.statistics.crossed import Sums, sums

TOTALS = ("n_targets", "n_bytes")


def spans(evaluation: Evaluation, wide: bool) -> list[tuple[int, dict]]:
    """(positions before it, row) of each bin of the longest window; with `wide` of each stretch, whose row is the mean over its bins."""
    length = max(row["length"] for row in evaluation.rows)
    rows = sorted((row for row in evaluation.rows if row["length"] == length), key=lambda row: row["position"])
    starts = [0, *(row["position"] for row in rows)]
    if not wide:
        return list(zip(starts, rows, strict=False))
    ends = stretch_ends(starts[1:], rows[0]["train_len"])
    groups = [[row for row in rows if low < row["position"] <= high] for low, high in zip([0, *ends], ends, strict=False)]
    return [(low, _joined_bins(own)) for low, own in zip([0, *ends], groups, strict=False)]


def whole_texts(evaluation: Evaluation) -> list[dict]:
    """Row of every token of the texts of each length, if there are several: the mean over the bins of that length."""
    texts = {}
    for row in evaluation.rows:
        texts.setdefault(row["length"], []).append(row)
    return [_joined_bins(texts[length]) for length in sorted(texts)] if len(texts) > 1 else []


def stretch_ends(positions: list[int], train_len: int) -> list[int]:
    """Last positions of the stretches, each one of the bins' last `positions`: quarters and halves of the training length inside of it,
    half octaves beyond it to four times its length, then whole ones."""
    beyond = [train_len * 2 ** (k / 2) for k in (1, 2, 3, 4)] + [train_len * 2.0**k for k in range(3, 40)]
    wanted = [train_len / 4, train_len / 2, train_len, *beyond, positions[-1]]
    found = {max((one for one in positions if one <= round(edge)), default=positions[0]) for edge in wanted if edge <= positions[-1]}
    return sorted(found)


def _joined_bins(rows: list[dict]) -> dict:
    """Row of the tokens of several bins."""
    total = sum(row["n_targets"] for row in rows)
    found = {name: sum(row[name] for row in rows) for name in TOTALS}
    for name in ("nll", "accuracy"):
        found[name] = None if any(row[name] is None for row in rows) else sum(row[name] * row["n_targets"] for row in rows) / total
    nats = None if found["nll"] is None else found["nll"] * total
    return {**rows[-1], **found, "bpb": None if nats is None or not found["n_bytes"] else nats / math.log(2) / found["n_bytes"]}


def compare_positions(evaluation: Evaluation, low: int, row: dict, other: Evaluation | None) -> PairedDifference | None:
    """Loss of a row minus that of `other` at the same positions, above `low`: token by token if both have arrays, else of the means.

    None if the other does not exist or holds no such window. Raises RunError if their windows are not the same.
    """
    if other is None:
        return None
    high = row["position"]
    ours, theirs = (_token_losses(one.stored, row["length"]) if one.arrays else None for one in (evaluation, other))
    if ours is not None and theirs is not None:
        check_targets(evaluation, other)
        with np.errstate(invalid="ignore"):
            difference_NS = (ours - theirs)[:, low:high]
        found = sums([difference_NS.ravel()], np.repeat(units(evaluation.arrays), difference_NS.shape[1]))
        return float(found.means[0]), found, float(theirs[:, low:high].mean())
    bins = _bins(other, low, row)
    if not bins or sum(one["n_targets"] for one in bins) != row["n_targets"]:
        return None
    summed = [_bin_sums(one, low, row) for one in (evaluation, other)]
    if None not in summed:
        check_targets(evaluation, other)
        difference = summed[0].minus(summed[1])
        return float(difference.means[0]), difference, float(summed[1].means[0])
    base = _joined_bins(bins)["nll"]
    values = (math.nan if value is None else value for value in (row["nll"], base))
    return float(np.subtract(*values)), None, math.nan if base is None else base


def _bins(evaluation: Evaluation, low: int, row: dict) -> list[dict]:
    """Rows of the bins that make up a row of the positions above `low`."""
    return [one for one in evaluation.rows if one["length"] == row["length"] and low < one["position"] <= row["position"]]


def _bin_sums(evaluation: Evaluation, low: int, row: dict) -> Sums | None:
    """Sums by document of the tokens of several bins, or None."""
    found = [evaluation.sums(one) for one in _bins(evaluation, low, row)]
    if not found or None in found:
        return None
    return Sums(found[0].documents, sum(one.counts for one in found), sum(one.totals for one in found))


def _token_losses(stored: TargetLosses, length: int) -> np.ndarray | None:
    """Loss of every token [N, length] of the windows, or None."""
    loss_NS = stored.at("nll", length)
    return loss_NS if loss_NS is not None and loss_NS.shape[1] == length else None


def tables(stretches: Sequence[CurvePoint], intervals: bool = True) -> list[Table]:
    """Tables of the stretches of positions, and of whole texts if texts of several lengths were read.

    Of stretches: the loss, the difference to no extension, and other units at the end of the window. Of whole texts: the perplexity.
    """
    texts, stretches = [point for point in stretches if point.window is None], [point for point in stretches if point.window]
    ends = sorted({point.length for point in stretches})
    heads = {end: f"{start + 1} to {end}" for start, end in itertools.pairwise([0, *ends])}
    change = "Loss minus that of the same tokens without an extension (nats/token)"
    titles = f"Loss by position in windows of {stretches[0].window} tokens (nats/token)", change, f"At positions {heads[ends[-1]]}"
    loss, *changed, last = of_methods(methods(stretches), heads, titles, lambda one: (one.change, one.change_half_width), intervals)
    # The methods without an extension have no change.
    told = [
        replace(table, rows=[row for row in table.rows if any(cell.value is not None for cell in row[table.names :])]) for table in changed
    ]
    return [loss, *told, last, *_of_texts(texts)]


def _of_texts(texts: Sequence[CurvePoint]) -> list[Table]:
    if not texts:
        return []
    heads = {length: heading(length, texts[0].train_len) for length in tick_lengths(point.length for point in texts)}
    rows = by_method(methods(texts), heads, perplexity)
    return [Table("Perplexity over every token of texts of each length", [*METHOD, *heads.values()], rows)]
