"""`chunked_sdpa`: bands, windows and sinks by torch's fused kernel, for evaluation on a CPU.

Each band is cut into rectangles and triangles, which need no mask, and narrow diagonals. The kernel
returns the log-sum-exp of each query's scores, by which the pieces are merged into one softmax over
all keys. Memory grows with the length alone.

Letters: B batch, T tokens, H heads, G key heads, P query heads of a key head, D head width, W width
with columns, N pieces of a series (or key heads that run together), S queries and K keys of a
piece."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from posbench.model.kernels.folding import foldable, operands
from posbench.model.precision import of_fused
from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.products import whole_groups

CALL = (
    2**31
    # most pairs of query and key, of all heads, in one call: seconds, so that Ctrl-C and progress need
    # not wait
)
ROWS = 8192  # most queries of a piece, so that one key head takes seconds at most
# queries that the kernel takes at once from long texts; triangles of other sizes are slower
STEP = 256
# Widest interval that moves along with its query and is masked: two triangles are faster beyond (in
# float32 from 1,500 keys, in bf16 from 800). Blocks of 128 queries are within 15 % of the fastest
# for every width.
NARROW, MASKED = 1024, 128


@dataclass(frozen=True)
class Series:
    """`count` pieces of one size, the first with queries start..start+rows-1 and keys
    first..first+keys-1. Of the keys row r sees

    all; in `lower` keys 0..r; in `upper` keys r and later (triangles, rows == keys); in `diagonal`
    keys r..r+keys-rows. From each piece to the next, queries move on by row_step and keys by
    key_step (0 for a single piece)."""

    kind: Literal["all", "lower", "upper", "diagonal"]
    start: int
    rows: int
    first: int
    keys: int
    count: int = 1
    row_step: int = 0
    key_step: int = 0

    @property
    def n_pairs(self) -> int:
        return self.count * self.rows * self.keys

    def of_queries(self, x_TW: Tensor) -> Tensor:
        """Rows of the queries of each piece, without a copy: [N, ..., S, W] of [..., T, W]."""
        return _moving(x_TW, self.start, self.rows, self.row_step, self.count)

    def of_keys(self, x_TW: Tensor) -> Tensor:
        return _moving(x_TW, self.first, self.keys, self.key_step, self.count)

    def joined(self, piece: "Series") -> "Series | None":
        """The series with one more piece of its size; None if that does not go on with it."""
        gone = self.count - 1
        steps = (
            piece.start - self.start - gone * self.row_step,
            piece.first - self.first - gone * self.key_step,
        )
        if min(steps) < 0 or (self.count > 1 and steps != (self.row_step, self.key_step)):
            return None
        return replace(self, count=self.count + 1, row_step=steps[0], key_step=steps[1])


def can_chunk(layer: LayerPlan, first: int) -> bool:
    """True if `chunked_sdpa` can run queries `first` and later of this plan exactly."""
    if layer.per_score or layer.encoding.biases & (Bias.DENSE | Bias.ROWS | Bias.GATES):
        return False
    return all(foldable(layer, band) and _series(band, first) is not None for band in layer.bands)


def chunked_sdpa(
    layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, first: int = 0
) -> Tensor:
    """Attention of a plan that `can_chunk` accepts, for queries `first` and later: [B, H, T, D] in
    v's format. q and k are float32.
    """
    (batch, heads, length), (groups, _, width) = q_BHTD.shape[:3], v_BGTD.shape[1:]
    # The order in memory in which the heads of a token lie side by side: the output projection
    # reads them so.
    y_BTGPD = q_BHTD.new_zeros(batch, length, groups, heads // groups, width)
    y_BGPTD, lse_BGPT1 = (
        y_BTGPD.permute(0, 2, 3, 1, 4),
        q_BHTD.new_full((batch, groups, heads // groups, length, 1), -torch.inf),
    )
    if layer.has_sink:  # a first piece of value 0
        lse_BGPT1.copy_(layer.sink(q_BHTD).view(groups, -1, 1, 1))
    total, done = sum(series.n_pairs for band in layer.bands for series in _series(band, first)), 0
    for band in layer.bands:
        q_BHTW, k_BGTW, v_BGTW = operands(
            layer, band, q_BHTD, k_BGTD, v_BGTD, dtype=of_fused(v_BGTD, gated=False)
        )
        q_BGPTW = q_BHTW.unflatten(1, (groups, -1))
        for series in _series(band, first):
            y_NBGPSD, lse_NBGPS1 = (series.of_queries(t) for t in (y_BGPTD, lse_BGPT1))
            for at, y, lse in _calls(
                series, series.of_queries(q_BGPTW), *(series.of_keys(t) for t in (k_BGTW, v_BGTW))
            ):
                _merge_softmax(y_NBGPSD[at], lse_NBGPS1[at], y[..., :width], lse.unsqueeze(-1))
            done += series.n_pairs
            layer.tell(done / (total + 1))
    return y_BTGPD[:, first:].flatten(2, 3).transpose(1, 2).to(v_BGTD.dtype)


def _series(band: BandPlan, first: int) -> list[Series] | None:
    """Pieces of a band, made once for each plan; None if it cannot be cut, or has keys in its
    intervals that are not seen.
    """

    def made() -> list[Series] | None:
        found = None if band.lot_T is not None else cut_band(band.first_T, band.last_T, first)
        return None if found is None else joined(found)

    return band.once(("pieces", first), made)


def _moving(x_TW: Tensor, start: int, size: int, step: int, count: int) -> Tensor:
    *others, _, width = x_TW.shape
    along = x_TW.stride(-2)
    return x_TW.as_strided(
        (count, *others, size, width),
        (step * along, *x_TW.stride()),
        x_TW.storage_offset() + start * along,
    )


def _calls(
    series: Series, q_NBGPSW: Tensor, k_NBGKW: Tensor, v_NBGKW: Tensor
) -> Iterator[tuple[tuple, Tensor, Tensor]]:
    """Results of the kernel's calls: where they belong in [N, B, G, P, S], outputs and
    log-sum-exps.
    """
    count, batch, groups, heads = q_NBGPSW.shape[:4]
    pairs = series.rows * series.keys * heads
    if count == 1 and pairs * batch * groups <= CALL:
        y, lse = _call(series.kind, *(t[0].flatten(0, 1) for t in (q_NBGPSW, k_NBGKW, v_NBGKW)))
        yield (0,), y.unflatten(0, (batch, groups)), lse.unflatten(0, (batch, groups))
        return
    step = max(1, CALL // pairs)
    for b, g, n in (
        (b, g, n) for b in range(batch) for g in range(groups) for n in range(0, count, step)
    ):
        at = slice(n, n + step), b, g
        yield at, *_call(series.kind, q_NBGPSW[at], k_NBGKW[at], v_NBGKW[at])


def _call(kind: str, q_NPSW: Tensor, k_NKW: Tensor, v_NKW: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of N pieces: [N, P, S, W] and [N, P, S]."""
    (heads, rows), keys = q_NPSW.shape[1:3], k_NKW.shape[1]
    triangle, mask = kind in ("lower", "upper"), None
    if kind == "upper":
        q_NPSW, k_NKW, v_NKW = (t.flip(-2) for t in (q_NPSW, k_NKW, v_NKW))
    if kind == "diagonal":
        ahead_SK = torch.arange(keys) - torch.arange(rows)[:, None]
        mask = torch.zeros(rows, keys, dtype=q_NPSW.dtype).masked_fill(
            (ahead_SK < 0) | (ahead_SK > keys - rows), -torch.inf
        )
        mask = mask.repeat(heads, 1).expand(len(q_NPSW), 1, -1, -1)
    if not triangle:
        # The query heads become further queries of their key head, whose keys the kernel then
        # prepares once.
        q_NPSW = q_NPSW.flatten(1, 2).unsqueeze(1)
    k, v = (t.unsqueeze(1).expand(-1, q_NPSW.shape[1], -1, -1) for t in (k_NKW, v_NKW))
    n_rows = q_NPSW.shape[2]
    q_NPSW, mask = whole_groups(q_NPSW, mask)
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_NPSW, k, v, 0.0, triangle, attn_mask=mask, scale=1.0
    )
    y, lse = y[:, :, :n_rows], lse[:, :, :n_rows]
    if not triangle:
        y, lse = (t.squeeze(1).unflatten(1, (heads, rows)) for t in (y, lse))
    return (y.flip(2), lse.flip(2)) if kind == "upper" else (y, lse)


def _merge_softmax(y_SD: Tensor, lse_S1: Tensor, more_SD: Tensor, more_S1: Tensor) -> None:
    """Take outputs over further keys into outputs so far. Before the first of a query, its
    log-sum-exp is -inf or the logit of a sink.
    """
    y_SD.lerp_(more_SD.float(), torch.sigmoid(more_S1 - lse_S1))
    lse_S1.copy_(torch.logaddexp(lse_S1, more_S1))


def cut_band(first_T: Tensor, last_T: Tensor, begin: int) -> list[Series] | None:
    """Pieces that together hold every pair of a band once, for queries `begin` and later, which see
    keys first_T..last_T.

    None unless there are long runs of queries in which each end of the interval stands still or
    moves along."""
    runs = _runs(first_T, last_T, begin)
    return (
        None
        if len(runs) > 8 + len(first_T) // 64
        else [piece for run in runs for piece in _pieces_of_run(first_T, last_T, *run)]
    )


def _runs(first_T: Tensor, last_T: Tensor, begin: int) -> list[tuple[int, int]]:
    """Ranges of queries that see keys, in which both ends of the interval move by the same steps, 0
    or 1.
    """
    seen_T = (last_T >= first_T)[begin:]
    ends_2T = torch.stack((first_T, last_T))[:, begin:].where(seen_T, 0)
    step_2T = ends_2T.diff(dim=1, prepend=ends_2T[:, :1])
    torn_T = ((step_2T < 0) | (step_2T > 1)).any(dim=0) | (seen_T != seen_T.roll(1))
    bent_T = (step_2T != step_2T.roll(1, dims=1)).any(dim=0)
    starts = [0]
    for at in (torn_T | bent_T)[1:].nonzero().flatten().add(1).tolist():
        # A bend right after a start is only the first step of that run.
        if torn_T[at] or at - 1 > starts[-1]:
            starts.append(at)
    return [
        (begin + start, begin + stop)
        for start, stop in pairwise([*starts, len(seen_T)])
        if seen_T[start]
    ]


def _pieces_of_run(first_T: Tensor, last_T: Tensor, start: int, stop: int) -> Iterator[Series]:
    low, high, second = int(first_T[start]), int(last_T[start]), min(start + 1, stop - 1)
    left, right = int(first_T[second]) - low, int(last_T[second]) - high
    width, rows = high - low + 1, ROWS
    narrow = left and right and width <= NARROW
    if left and right:
        rows = MASKED if narrow else min(ROWS, (width - 1) // STEP * STEP)
    for at in range(start, stop, rows):
        size, moved = min(rows, stop - at), at - start
        if narrow:
            yield Series("diagonal", at, size, low + moved, width + size - 1)
            continue
        begin, end = low + left * moved, high + right * moved
        if left:
            yield Series("upper", at, size, begin, size)
        inner, outer = begin + left * size, end + 1 - right
        if outer > inner:
            yield Series("all", at, size, inner, outer - inner)
        if right:
            yield Series("lower", at, size, end, size)


def joined(pieces: Iterable[Series]) -> list[Series]:
    """Series that hold the pieces, each of which one call can run."""
    found: list[Series] = []
    latest: dict[tuple, int] = {}
    for piece in pieces:
        size = piece.kind, piece.rows, piece.keys
        longer = found[latest[size]].joined(piece) if size in latest else None
        if longer is None:
            latest[size] = len(found)
            found.append(piece)
        else:
            found[latest[size]] = longer
    return found
