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

from posbench.model.kernels.folding import (
    BIASES_BEYOND_COLUMNS,
    decay_fits_float32,
    fused_kernel_inputs,
)
from posbench.model.precision import dtype_of_fused_kernel
from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.products import with_whole_row_groups

# Most pairs of query and key, of all heads, in one call of a kernel: it takes seconds, so that
# Ctrl-C and progress need not wait.
PAIRS_PER_CALL = 2**31
MOST_PIECE_QUERIES = 8192  # most queries of a piece, so that one key head takes seconds at most
# Queries that the kernel takes at once from long texts: triangles whose size is no multiple of it
# are slower.
TRIANGLE_STEP = 256
# Widest interval that moves along with its query and is masked: two triangles are faster beyond (in
# float32 from 1,500 keys, in bf16 from 800).
WIDEST_MASKED_INTERVAL = 1024
# Columns of q and k could hold gates, but their sums lose digits in long texts.
UNCHUNKABLE_BIASES = BIASES_BEYOND_COLUMNS | Bias.GATES
# Queries of a masked piece: within 15 % of the fastest for every width.
MASKED_PIECE_QUERIES = 128


@dataclass(frozen=True)
class PieceSeries:
    """`n_pieces` pieces of one size, the first with queries first_query..first_query+n_queries-1
    and keys first_key..first_key+n_keys-1.

    In kind `all`, query i of a piece sees all its keys; in `lower` keys 0..i; in `upper` keys i and
    later (triangles, n_queries == n_keys); in `diagonal` keys i..i+n_keys-n_queries. From each
    piece to the next, queries move on by query_step and keys by key_step (0 for a single piece)."""

    kind: Literal["all", "lower", "upper", "diagonal"]
    first_query: int
    n_queries: int
    first_key: int
    n_keys: int
    n_pieces: int = 1
    query_step: int = 0
    key_step: int = 0

    @property
    def n_pairs(self) -> int:
        return self.n_pieces * self.n_queries * self.n_keys

    def query_slices(self, x_TW: Tensor) -> Tensor:
        """Rows of x for the queries of each piece, without a copy: [N, ..., S, W]."""
        return _equally_spaced_slices(
            x_TW, self.first_query, self.n_queries, self.query_step, self.n_pieces
        )

    def key_slices(self, x_TW: Tensor) -> Tensor:
        """Rows of x for the keys of each piece, without a copy: [N, ..., K, W]."""
        return _equally_spaced_slices(
            x_TW, self.first_key, self.n_keys, self.key_step, self.n_pieces
        )

    def with_piece(self, piece: "PieceSeries") -> "PieceSeries | None":
        """The series with one more piece of its size; None if that does not go on with it."""
        moves = self.n_pieces - 1
        query_step = piece.first_query - (self.first_query + moves * self.query_step)
        key_step = piece.first_key - (self.first_key + moves * self.key_step)
        if query_step < 0 or key_step < 0:
            return None
        if self.n_pieces > 1 and (query_step, key_step) != (self.query_step, self.key_step):
            return None
        return replace(self, n_pieces=self.n_pieces + 1, query_step=query_step, key_step=key_step)


def can_chunk(layer: LayerPlan, first_query: int) -> bool:
    """True if `chunked_sdpa` can run queries `first_query` and later of this plan exactly."""
    if layer.changes_single_scores or layer.encoding.biases & UNCHUNKABLE_BIASES:
        return False
    return all(
        decay_fits_float32(layer, band) and _series_of_band(band, first_query) is not None
        for band in layer.bands
    )


def chunked_sdpa(
    layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, first_query: int = 0
) -> Tensor:
    """Attention of a plan that `can_chunk` accepts, for queries `first_query` and later: [B, H, T,
    D] in v's format. q and k are float32.

    Letters: P query heads of a key head, W width with the kernel's further columns, N pieces of a
    series, S and K their queries and keys."""
    batch, heads, length = q_BHTD.shape[:3]
    groups, _, width = v_BGTD.shape[1:]
    # The order in memory in which the heads of a token lie side by side: the output projection
    # reads them so.
    y_BTGPD = q_BHTD.new_zeros(batch, length, groups, heads // groups, width)
    y_BGPTD = y_BTGPD.permute(0, 2, 3, 1, 4)
    lse_BGPT1 = q_BHTD.new_full((batch, groups, heads // groups, length, 1), -torch.inf)
    if layer.has_sink:  # a first piece of value 0
        lse_BGPT1.copy_(layer.sink(q_BHTD).view(groups, -1, 1, 1))
    total_pairs = sum(
        series.n_pairs for band in layer.bands for series in _series_of_band(band, first_query)
    )
    done_pairs = 0
    dtype = dtype_of_fused_kernel(v_BGTD, gated=False)
    for band in layer.bands:
        q_BHTW, k_BGTW, v_BGTW = fused_kernel_inputs(
            layer, band, q_BHTD, k_BGTD, v_BGTD, dtype=dtype
        )
        q_BGPTW = q_BHTW.unflatten(1, (groups, -1))
        for series in _series_of_band(band, first_query):
            y_NBGPSD = series.query_slices(y_BGPTD)
            lse_NBGPS1 = series.query_slices(lse_BGPT1)
            q_NBGPSW = series.query_slices(q_BGPTW)
            k_NBGKW = series.key_slices(k_BGTW)
            v_NBGKW = series.key_slices(v_BGTW)
            for place, y, lse in _results_of_calls(series, q_NBGPSW, k_NBGKW, v_NBGKW):
                # Columns behind v's own width are padding.
                _merge_softmax(
                    y_NBGPSD[place], lse_NBGPS1[place], y[..., :width], lse.unsqueeze(-1)
                )
            done_pairs += series.n_pairs
            layer.report_progress(done_pairs / (total_pairs + 1))  # below 1: the MLP follows
    return y_BTGPD[:, first_query:].flatten(2, 3).transpose(1, 2).to(v_BGTD.dtype)


def _series_of_band(band: BandPlan, first_query: int) -> list[PieceSeries] | None:
    """Pieces of a band, made once for each plan; None if it cannot be cut, or has keys in its
    intervals that are not seen.
    """

    def cut() -> list[PieceSeries] | None:
        if band.lot_T is not None:
            return None
        pieces = pieces_of_band(band.first_T, band.last_T, first_query)
        return None if pieces is None else joined_into_series(pieces)

    return band.made_once(("pieces", first_query), cut)


def _equally_spaced_slices(x_TW: Tensor, start: int, size: int, step: int, count: int) -> Tensor:
    """The `count` slices of `size` rows whose first rows are `step` apart, the first at `start`,
    without a copy: [N, ..., S, W].
    """
    *others, _, width = x_TW.shape
    row_stride = x_TW.stride(-2)
    return x_TW.as_strided(
        size=(count, *others, size, width),
        stride=(step * row_stride, *x_TW.stride()),
        storage_offset=x_TW.storage_offset() + start * row_stride,
    )


def _results_of_calls(
    series: PieceSeries, q_NBGPSW: Tensor, k_NBGKW: Tensor, v_NBGKW: Tensor
) -> Iterator[tuple[tuple, Tensor, Tensor]]:
    """Results of the kernel's calls: where they belong in [N, B, G, P, S], outputs and
    log-sum-exps.
    """
    count, batch, groups, heads = q_NBGPSW.shape[:4]
    pairs = series.n_queries * series.n_keys * heads
    # The kernel takes one dimension before the heads: a single piece has its key heads there.
    if count == 1 and pairs * batch * groups <= PAIRS_PER_CALL:
        key_heads = (x[0].flatten(0, 1) for x in (q_NBGPSW, k_NBGKW, v_NBGKW))
        y, lse = _piece_outputs(series.kind, *key_heads)
        yield (0,), y.unflatten(0, (batch, groups)), lse.unflatten(0, (batch, groups))
        return
    step = max(1, PAIRS_PER_CALL // pairs)
    for b, g, n in itertools.product(range(batch), range(groups), range(0, count, step)):
        place = (slice(n, n + step), b, g)
        yield place, *_piece_outputs(series.kind, q_NBGPSW[place], k_NBGKW[place], v_NBGKW[place])


def _piece_outputs(
    kind: str, q_NPSW: Tensor, k_NKW: Tensor, v_NKW: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of N pieces: [N, P, S, W] and [N, P, S].

    `kind`: all keys are seen, those of the lower or upper triangle, or along a diagonal: keys s to
    s + K - S of query s."""
    heads, rows = q_NPSW.shape[1:3]
    keys = k_NKW.shape[1]
    triangle = kind in ("lower", "upper")
    mask = None
    if kind == "upper":  # the lower triangle, read backwards
        q_NPSW, k_NKW, v_NKW = (x.flip(-2) for x in (q_NPSW, k_NKW, v_NKW))
    if kind == "diagonal":  # a sliding window
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


def _merge_softmax(
    y_SD: Tensor, lse_S1: Tensor, further_y_SD: Tensor, further_lse_S1: Tensor
) -> None:
    """Take outputs over further keys into outputs so far. Before the first of a query, its
    log-sum-exp is -inf or the logit of a sink.
    """
    # The share of the softmax that the further keys have. Queries of a piece see a key, so the
    # further log-sum-exp is finite.
    y_SD.lerp_(further_y_SD.float(), torch.sigmoid(further_lse_S1 - lse_S1))
    lse_S1.copy_(torch.logaddexp(lse_S1, further_lse_S1))


def pieces_of_band(first_T: Tensor, last_T: Tensor, first_query: int) -> list[PieceSeries] | None:
    """Pieces that together hold every pair of a band once, for queries `first_query` and later,
    which see keys first_T..last_T.

    None unless there are long runs of queries in which each end of the interval stands still or
    moves along."""
    runs = _runs_of_queries(first_T, last_T, first_query)
    most_runs = 8 + len(first_T) // 64  # of 64 queries in the mean; a few may be short
    if len(runs) > most_runs:
        return None
    return [piece for start, stop in runs for piece in _pieces_of_run(first_T, last_T, start, stop)]


def _runs_of_queries(first_T: Tensor, last_T: Tensor, first_query: int) -> list[tuple[int, int]]:
    """Ranges of queries that see keys, in which both ends of the interval move by the same steps, 0
    or 1.
    """
    seen_T = (last_T >= first_T)[first_query:]
    ends_2T = torch.stack((first_T, last_T))[:, first_query:]
    ends_2T = ends_2T.where(seen_T, 0)  # ends without a key between them mean nothing
    step_2T = ends_2T.diff(dim=1, prepend=ends_2T[:, :1])
    # A run ends where an end of the interval jumps, where queries begin or cease to see keys, and
    # where a step changes. `roll` compares index 0 with the last, but a run starts there anyway.
    breaks_T = ((step_2T < 0) | (step_2T > 1)).any(dim=0) | (seen_T != seen_T.roll(1))
    changes_step_T = (step_2T != step_2T.roll(1, dims=1)).any(dim=0)
    starts = [0]
    for at in (breaks_T | changes_step_T)[1:].nonzero().flatten().add(1).tolist():
        # A bend right after a start is only the first step of that run.
        if breaks_T[at] or at - 1 > starts[-1]:
            starts.append(at)
    return [
        (first_query + start, first_query + stop)
        for start, stop in pairwise([*starts, len(seen_T)])
        if seen_T[start]
    ]


def _pieces_of_run(first_T: Tensor, last_T: Tensor, start: int, stop: int) -> Iterator[PieceSeries]:
    """Pieces of queries start..stop-1, whose interval's ends move by the same steps, 0 or 1.

    Where the first key moves, the earliest keys are an upper triangle; where the last one moves,
    the latest are a lower triangle. All queries of a piece see the keys between."""
    low = int(first_T[start])
    high = int(last_T[start])
    second = min(start + 1, stop - 1)
    low_step = int(first_T[second]) - low
    high_step = int(last_T[second]) - high
    width = high - low + 1
    moves_along = low_step and high_step  # a sliding window
    if not moves_along:
        rows = MOST_PIECE_QUERIES
    elif width <= WIDEST_MASKED_INTERVAL:
        yield from _masked_pieces(low, width, start, stop)
        return
    else:  # fewer queries than keys, so that both triangles fit into the interval
        rows = min(MOST_PIECE_QUERIES, (width - 1) // TRIANGLE_STEP * TRIANGLE_STEP)
    for at in range(start, stop, rows):
        size = min(rows, stop - at)
        begin = low + low_step * (at - start)
        end = high + high_step * (at - start)
        if low_step:
            yield PieceSeries("upper", at, size, first_key=begin, n_keys=size)
        inner = begin + low_step * size  # keys from here to before `outer` are seen by all
        outer = end if high_step else end + 1  # the lower triangle begins with key `end`
        if outer > inner:
            yield PieceSeries("all", at, size, first_key=inner, n_keys=outer - inner)
        if high_step:
            yield PieceSeries("lower", at, size, first_key=end, n_keys=size)


def _masked_pieces(low: int, width: int, start: int, stop: int) -> Iterator[PieceSeries]:
    """Pieces of an interval of `width` keys that begins at `low` and moves along with its query."""
    for at in range(start, stop, MASKED_PIECE_QUERIES):
        size = min(MASKED_PIECE_QUERIES, stop - at)
        first_key = low + at - start
        yield PieceSeries("diagonal", at, size, first_key=first_key, n_keys=width + size - 1)


def joined_into_series(pieces: Iterable[PieceSeries]) -> list[PieceSeries]:
    """Series that hold the pieces, each of which one call can run."""
    all_series: list[PieceSeries] = []
    # Triangles and rectangles alternate, so each piece goes on with the latest series of its kind.
    latest: dict[tuple, int] = {}  # {kind and size of a piece: index of the latest such series}
    for piece in pieces:
        size = (piece.kind, piece.n_queries, piece.n_keys)
        longer = None
        if size in latest:
            longer = all_series[latest[size]].with_piece(piece)
        if longer is None:
            latest[size] = len(all_series)
            all_series.append(piece)
        else:
            all_series[latest[size]] = longer
    return all_series
