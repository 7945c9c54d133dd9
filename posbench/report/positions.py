"""Losses by position in the longest window: bins of positions for figures, stretches of several bins for tables.

Every method reads the same windows, so each token is paired with itself read without an extension.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from posbench.report.records import CurvePoint, methods, tick_lengths
from posbench.report.tables import METHOD, Table, by_method, heading, of_methods, perplexity
from posbench.runs.evaluation import Evaluation


def spans(evaluation: Evaluation, wide: bool) -> Iterator[tuple[tuple[int, int | None], dict]]:
    """((position, window), row) of each bin of the longest window; with `wide` of each stretch, whose row is the mean over its bins.

    With `wide` also ((length, None), row) of the texts of each length, if there are several.
    """
    lengths = sorted({row["length"] for row in evaluation.rows})
    window = lengths[-1]
    ends = sorted(row["position"] for row in evaluation.rows if row["length"] == window)
    if wide:
        ends = stretch_ends(ends, evaluation.first["train_len"])
    for start, end in itertools.pairwise([0, *ends]):
        yield (end, window), joined(evaluation, window, start, end)
    for length in lengths if wide and len(lengths) > 1 else ():
        yield (length, None), joined(evaluation, length, 0, length)


def stretch_ends(positions: list[int], train_len: int) -> list[int]:
    """Last positions of the stretches, each one of the bins' last `positions`: quarters and halves of the training length inside of it,
    half octaves beyond it to four times its length, then whole ones."""
    beyond = [train_len * 2 ** (k / 2) for k in (1, 2, 3, 4)] + [train_len * 2.0**k for k in range(3, 40)]
    wanted = [train_len / 4, train_len / 2, train_len, *beyond, positions[-1]]
    found = {max((one for one in positions if one <= round(edge)), default=positions[0]) for edge in wanted if edge <= positions[-1]}
    return sorted(found)


def joined(evaluation: Evaluation, length: int, start: int, end: int) -> dict | None:
    """Row of the tokens at positions above `start` up to `end` in the windows of a length: the mean over its bins, None without any."""
    rows = [row for row in evaluation.rows if row["length"] == length and start < row["position"] <= end]
    if len(rows) <= 1:
        return {**rows[0], "start": start} if rows else None
    found = {name: sum(row[name] for row in rows) for name in ("n_targets", "n_bytes")}
    for name in ("nll", "accuracy"):
        values = [row[name] for row in rows]
        sums = None if None in values else sum(value * row["n_targets"] for value, row in zip(values, rows, strict=True))
        found[name] = None if sums is None else sums / found["n_targets"]
    nats = None if found["nll"] is None else found["nll"] * found["n_targets"]
    found["bpb"] = None if nats is None or not found["n_bytes"] else nats / math.log(2) / found["n_bytes"]
    return {**max(rows, key=lambda row: row["position"]), **found, "start": start}


def tables(stretches: Sequence[CurvePoint]) -> list[Table]:
    """Tables of the stretches of positions, and of whole texts if texts of several lengths were read.

    Of stretches: the loss, the difference to no extension, and other units at the end of the window. Of whole texts: the perplexity.
    """
    texts, stretches = [point for point in stretches if point.window is None], [point for point in stretches if point.window]
    ends = sorted({point.length for point in stretches})
    heads = {end: f"{start + 1} to {end}" for start, end in itertools.pairwise([0, *ends])}
    change = "Loss minus that of the same tokens without an extension (nats/token)"
    titles = f"Loss by position in windows of {stretches[0].window} tokens (nats/token)", change, f"At positions {heads[ends[-1]]}"
    loss, *changed, last = of_methods(methods(stretches), heads, titles, lambda one: (one.change, one.change_half_width))
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
