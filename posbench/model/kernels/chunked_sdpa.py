"""`chunked_sdpa`: bands, windows and sinks by torch's fused kernel, for evaluation on a CPU.

Each band is cut into rectangles and triangles, which need no mask, and narrow diagonals. The kernel
returns the log-sum-exp of each query's scores, by which the pieces are merged into one softmax over
all keys. Memory grows with the length alone.

Letters: B batch, T tokens, H heads, G key heads, P query heads of a key head, D head width, W width
with columns, N pieces of a series (or key heads that run together), S queries and K keys of a
piece."""

import itertools
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
from posbench.position.products import with_whole_row_groups

# Most pairs of query and key, of all heads, in one call: seconds, so that Ctrl-C and progress need
# not wait.
CALL = 2**31
ROWS = 8192  # most queries of a piece, so that one key head takes seconds at most
# Queries that the kernel takes at once from long texts; triangles of other sizes are slower.
STEP = 256
# Widest interval that moves along with its query and is masked: two triangles are faster beyond (in
# float32 from 1,500 keys, in bf16 from 800).
NARROW = 1024
NOT_CHUNKED = Bias.DENSE | Bias.ROWS | Bias.CONTENT | Bias.GATES
# Queries of a masked piece: within 15 % of the fastest for every width.
MASKED = 128


@dataclass(frozen=True)
class Series:
    """`count` pieces of one size, the first with queries start..start+rows-1 and keys
    first..first+keys-1.

    In kind `all`, row r of a piece sees all its keys; in `lower` keys 0..r; in `upper` keys r and
    later (triangles, rows == keys); in `diagonal` keys r..r+keys-rows. From each piece to the next,
    queries move on by row_step and keys by key_step (0 for a single piece)."""

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
        moves = self.count - 1
        row_step = piece.start - (self.start + moves * self.row_step)
        key_step = piece.first - (self.first + moves * self.key_step)
        if row_step < 0 or key_step < 0:
            return None
        if self.count > 1 and (row_step, key_step) != (self.row_step, self.key_step):
            return None
        return replace(self, count=self.count + 1, row_step=row_step, key_step=key_step)


def can_chunk(layer: LayerPlan, first: int) -> bool:
    """True if `chunked_sdpa` can run queries `first` and later of this plan exactly."""
    if layer.changes_single_scores or layer.encoding.biases & NOT_CHUNKED:
        return False
    return all(foldable(layer, band) and _series(band, first) is not None for band in layer.bands)


def chunked_sdpa(
    layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, first: int = 0
) -> Tensor:
    """Attention of a plan that `can_chunk` accepts, for queries `first` and later: [B, H, T, D] in
    v's format. q and k are float32.
    """
    batch, heads, length = q_BHTD.shape[:3]
    groups, _, width = v_BGTD.shape[1:]
    # The order in memory in which the heads of a token lie side by side: the output projection
    # reads them so.
    y_BTGPD = q_BHTD.new_zeros(batch, length, groups, heads // groups, width)
    y_BGPTD = y_BTGPD.permute(0, 2, 3, 1, 4)
    lse_BGPT1 = q_BHTD.new_full((batch, groups, heads // groups, length, 1), -torch.inf)
    if layer.has_sink:  # a first piece of value 0
        lse_BGPT1.copy_(layer.sink(q_BHTD).view(groups, -1, 1, 1))
    total = sum(series.n_pairs for band in layer.bands for series in _series(band, first))
    done = 0
    dtype = of_fused(v_BGTD, gated=False)
    for band in layer.bands:
        q_BHTW, k_BGTW, v_BGTW = operands(layer, band, q_BHTD, k_BGTD, v_BGTD, dtype=dtype)
        q_BGPTW = q_BHTW.unflatten(1, (groups, -1))
        for series in _series(band, first):
            y_NBGPSD = series.of_queries(y_BGPTD)
            lse_NBGPS1 = series.of_queries(lse_BGPT1)
            q_NBGPSW = series.of_queries(q_BGPTW)
            k_NBGKW = series.of_keys(k_BGTW)
            v_NBGKW = series.of_keys(v_BGTW)
            for at, y, lse in _calls(series, q_NBGPSW, k_NBGKW, v_NBGKW):
                _merge_softmax(y_NBGPSD[at], lse_NBGPS1[at], y[..., :width], lse.unsqueeze(-1))
            done += series.n_pairs
            layer.tell(done / (total + 1))  # below 1: the MLP follows
    return y_BTGPD[:, first:].flatten(2, 3).transpose(1, 2).to(v_BGTD.dtype)


def _series(band: BandPlan, first: int) -> list[Series] | None:
    """Pieces of a band, made once for each plan; None if it cannot be cut, or has keys in its
    intervals that are not seen.
    """

    def cut() -> list[Series] | None:
        if band.lot_T is not None:
            return None
        pieces = cut_band(band.first_T, band.last_T, first)
        return None if pieces is None else joined(pieces)

    return band.made_once(("pieces", first), cut)


def _moving(x_TW: Tensor, start: int, size: int, step: int, count: int) -> Tensor:
    """Slices of rows of `size`, `step` rows apart, without a copy: [N, ..., S, W]."""
    *others, _, width = x_TW.shape
    row_stride = x_TW.stride(-2)
    return x_TW.as_strided(
        size=(count, *others, size, width),
        stride=(step * row_stride, *x_TW.stride()),
        storage_offset=x_TW.storage_offset() + start * row_stride,
    )


def _calls(
    series: Series, q_NBGPSW: Tensor, k_NBGKW: Tensor, v_NBGKW: Tensor
) -> Iterator[tuple[tuple, Tensor, Tensor]]:
    """Results of the kernel's calls: where they belong in [N, B, G, P, S], outputs and
    log-sum-exps.
    """
    count, batch, groups, heads = q_NBGPSW.shape[:4]
    pairs = series.rows * series.keys * heads
    # The kernel takes one dimension before the heads: a single piece has its key heads there.
    if count == 1 and pairs * batch * groups <= CALL:
        key_heads = (x[0].flatten(0, 1) for x in (q_NBGPSW, k_NBGKW, v_NBGKW))
        y, lse = _call(series.kind, *key_heads)
        yield (0,), y.unflatten(0, (batch, groups)), lse.unflatten(0, (batch, groups))
        return
    step = max(1, CALL // pairs)
    for b, g, n in itertools.product(range(batch), range(groups), range(0, count, step)):
        at = (slice(n, n + step), b, g)
        yield at, *_call(series.kind, q_NBGPSW[at], k_NBGKW[at], v_NBGKW[at])


def _call(kind: str, q_NPSW: Tensor, k_NKW: Tensor, v_NKW: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of N pieces: [N, P, S, W] and [N, P, S]."""
    heads, rows = q_NPSW.shape[1:3]
    keys = k_NKW.shape[1]
    triangle = kind in ("lower", "upper")
    mask = None
    if kind == "upper":  # the lower triangle, read backwards
        q_NPSW, k_NKW, v_NKW = (x.flip(-2) for x in (q_NPSW, k_NKW, v_NKW))
    if kind == "diagonal":
        ahead_SK = torch.arange(keys) - torch.arange(rows)[:, None]
        hidden_SK = (ahead_SK < 0) | (ahead_SK > keys - rows)
        mask = torch.zeros(rows, keys, dtype=q_NPSW.dtype).masked_fill(hidden_SK, -torch.inf)
        mask = mask.repeat(heads, 1).expand(len(q_NPSW), 1, -1, -1)
    if not triangle:
        # The query heads become further queries of their key head, whose keys the kernel then
        # prepares once.
        q_NPSW = q_NPSW.flatten(1, 2).unsqueeze(1)
    k, v = (x.unsqueeze(1).expand(-1, q_NPSW.shape[1], -1, -1) for x in (k_NKW, v_NKW))
    n_rows = q_NPSW.shape[2]
    q_NPSW, mask = with_whole_row_groups(q_NPSW, mask)
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_NPSW, k, v, dropout_p=0.0, is_causal=triangle, attn_mask=mask, scale=1.0
    )
    y = y[:, :, :n_rows]
    lse = lse[:, :, :n_rows]
    if kind == "upper":
        return y.flip(2), lse.flip(2)
    if kind == "lower":
        return y, lse
    return y.squeeze(1).unflatten(1, (heads, rows)), lse.squeeze(1).unflatten(1, (heads, rows))


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
    most_runs = 8 + len(first_T) // 64  # of 64 queries in the mean; a few may be short
    if len(runs) > most_runs:
        return None
    return [piece for start, stop in runs for piece in _pieces_of_run(first_T, last_T, start, stop)]


def _runs(first_T: Tensor, last_T: Tensor, begin: int) -> list[tuple[int, int]]:
    """Ranges of queries that see keys, in which both ends of the interval move by the same steps, 0
    or 1.
    """
    seen_T = (last_T >= first_T)[begin:]
    ends_2T = torch.stack((first_T, last_T))[:, begin:].where(seen_T, 0)
    step_2T = ends_2T.diff(dim=1, prepend=ends_2T[:, :1])
    # A run ends where an end of the interval jumps or no key is seen, and where a step changes.
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
    """Pieces of queries start..stop-1, whose interval's ends move by the same steps, 0 or 1."""
    low = int(first_T[start])
    high = int(last_T[start])
    second = min(start + 1, stop - 1)
    low_step = int(first_T[second]) - low
    high_step = int(last_T[second]) - high
    width = high - low + 1
    moves_along = low_step and high_step  # a sliding window
    if not moves_along:
        rows = ROWS
    elif width <= NARROW:
        yield from _diagonals(low, width, start, stop)
        return
    else:  # fewer queries than keys, so that both triangles fit into the interval
        rows = min(ROWS, (width - 1) // STEP * STEP)
    for at in range(start, stop, rows):
        size = min(rows, stop - at)
        begin = low + low_step * (at - start)
        end = high + high_step * (at - start)
        if low_step:
            yield Series("upper", at, size, begin, size)
        inner = begin + low_step * size  # keys from here to before `outer` are seen by all
        outer = end + 1 - high_step
        if outer > inner:
            yield Series("all", at, size, inner, outer - inner)
        if high_step:
            yield Series("lower", at, size, end, size)


def _diagonals(low: int, width: int, start: int, stop: int) -> Iterator[Series]:
    """Pieces of an interval of `width` keys that begins at `low` and moves along with its query."""
    for at in range(start, stop, MASKED):
        size = min(MASKED, stop - at)
        yield Series("diagonal", at, size, low + at - start, width + size - 1)


def joined(pieces: Iterable[Series]) -> list[Series]:
    """Series that hold the pieces, each of which one call can run."""
    all_series: list[Series] = []
    # Triangles and rectangles alternate, so each piece goes on with the latest series of its kind.
    latest: dict[tuple, int] = {}  # {kind and size of a piece: index of the latest such series}
    for piece in pieces:
        size = (piece.kind, piece.rows, piece.keys)
        longer = None
        if size in latest:
            longer = all_series[latest[size]].joined(piece)
        if longer is None:
            latest[size] = len(all_series)
            all_series.append(piece)
        else:
            all_series[latest[size]] = longer
    return all_series
