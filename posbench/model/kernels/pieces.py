"""`pieces`: bands, windows and sinks by torch's fused kernel, for evaluation on a CPU.

Each band is cut into rectangles and triangles, which need no mask, and narrow diagonals (cutting.py). The kernel returns the log-sum-exp
of each query's scores, by which the pieces are merged into one softmax over all keys. Memory grows with the length alone.

Letters: B batch, T tokens, H heads, G key heads, P query heads of a key head, D head width, W width with columns, N pieces of a series
(or key heads that run together), S queries and K keys of a piece.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from posbench.model.kernels.cutting import Series, cut, joined
from posbench.model.kernels.folding import foldable, operands
from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan

CALL = 2**31  # most pairs of query and key, of all heads, in one call: seconds, so that Ctrl-C and progress need not wait


def possible(layer: LayerPlan, first: int) -> bool:
    """True if `pieces` can run queries `first` and later of this plan exactly."""
    if layer.per_score or layer.encoding.biases & (Bias.DENSE | Bias.ROWS | Bias.GATES):
        return False
    return all(foldable(layer, band) and _series(band, first) is not None for band in layer.bands)


def pieces(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, first: int = 0) -> Tensor:
    """Attention of a plan that is `possible`, for queries `first` and later: [B, H, T, D] in v's format. q and k are float32."""
    (batch, heads, length), (groups, _, width) = q_BHTD.shape[:3], v_BGTD.shape[1:]
    # The order in memory in which the heads of a token lie side by side: the output projection reads them so.
    y_BTGPD = q_BHTD.new_zeros(batch, length, groups, heads // groups, width)
    y_BGPTD, lse_BGPT1 = y_BTGPD.permute(0, 2, 3, 1, 4), q_BHTD.new_full((batch, groups, heads // groups, length, 1), -torch.inf)
    if layer.has_sink:  # a first piece of value 0
        lse_BGPT1.copy_(layer.sink(q_BHTD).view(groups, -1, 1, 1))
    total, done = sum(_pairs(series) for band in layer.bands for series in _series(band, first)), 0
    for band in layer.bands:
        q_BHTW, k_BGTW, v_BGTW = operands(layer, band, q_BHTD, k_BGTD, v_BGTD, row_constant=len(layer.bands) > 1 or layer.has_sink)
        q_BGPTW = q_BHTW.unflatten(1, (groups, -1))
        for series in _series(band, first):
            y_NBGPSD, lse_NBGPS1 = (_queries(series, t) for t in (y_BGPTD, lse_BGPT1))
            for at, y, lse in _calls(series, _queries(series, q_BGPTW), *(_keys(series, t) for t in (k_BGTW, v_BGTW))):
                _merge(y_NBGPSD[at], lse_NBGPS1[at], y[..., :width], lse.unsqueeze(-1))
            done += _pairs(series)
            layer.tell(done / (total + 1))
    return y_BTGPD[:, first:].flatten(2, 3).transpose(1, 2).to(v_BGTD.dtype)


def _series(band: BandPlan, first: int) -> list[Series] | None:
    """Pieces of a band, made once for each plan; None if it cannot be cut, or has keys in its intervals that are not seen."""

    def made() -> list[Series] | None:
        found = None if band.lot_T is not None else cut(band.first_T, band.last_T, first)
        return None if found is None else joined(found)

    return band.once(("pieces", first), made)


def _pairs(series: Series) -> int:
    return series.count * series.piece.rows * series.piece.keys


def _queries(series: Series, x_TW: Tensor) -> Tensor:
    """Rows of the queries of each piece, without a copy: [N, ..., S, W] of [..., T, W]."""
    return _moving(x_TW, series.piece.start, series.piece.rows, series.row_step, series.count)


def _keys(series: Series, x_TW: Tensor) -> Tensor:
    return _moving(x_TW, series.piece.first, series.piece.keys, series.key_step, series.count)


def _moving(x_TW: Tensor, start: int, size: int, step: int, count: int) -> Tensor:
    *others, _, width = x_TW.shape
    along = x_TW.stride(-2)
    return x_TW.as_strided((count, *others, size, width), (step * along, *x_TW.stride()), x_TW.storage_offset() + start * along)


def _calls(series: Series, q_NBGPSW: Tensor, k_NBGKW: Tensor, v_NBGKW: Tensor) -> Iterator[tuple[tuple, Tensor, Tensor]]:
    """Results of the kernel's calls: where they belong in [N, B, G, P, S], outputs and log-sum-exps."""
    count, batch, groups, heads = q_NBGPSW.shape[:4]
    pairs = series.piece.rows * series.piece.keys * heads
    if count == 1 and pairs * batch * groups <= CALL:
        y, lse = _call(series.piece.kind, *(t[0].flatten(0, 1) for t in (q_NBGPSW, k_NBGKW, v_NBGKW)))
        yield (0,), y.unflatten(0, (batch, groups)), lse.unflatten(0, (batch, groups))
        return
    step = max(1, CALL // pairs)
    for b, g, n in ((b, g, n) for b in range(batch) for g in range(groups) for n in range(0, count, step)):
        at = slice(n, n + step), b, g
        yield at, *_call(series.piece.kind, q_NBGPSW[at], k_NBGKW[at], v_NBGKW[at])


def _call(kind: str, q_NPSW: Tensor, k_NKW: Tensor, v_NKW: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of N pieces: [N, P, S, W] and [N, P, S]."""
    (heads, rows), keys = q_NPSW.shape[1:3], k_NKW.shape[1]
    triangle, mask = kind in ("lower", "upper"), None
    if kind == "upper":
        q_NPSW, k_NKW, v_NKW = (t.flip(-2) for t in (q_NPSW, k_NKW, v_NKW))
    if kind == "diagonal":
        ahead_SK = torch.arange(keys) - torch.arange(rows)[:, None]
        mask = torch.zeros(rows, keys, dtype=q_NPSW.dtype).masked_fill((ahead_SK < 0) | (ahead_SK > keys - rows), -torch.inf)
        mask = mask.repeat(heads, 1).expand(len(q_NPSW), 1, -1, -1)
    if not triangle:
        # The query heads become further queries of their key head, whose keys the kernel then prepares once.
        q_NPSW = q_NPSW.flatten(1, 2).unsqueeze(1)
    k, v = (t.unsqueeze(1).expand(-1, q_NPSW.shape[1], -1, -1) for t in (k_NKW, v_NKW))
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q_NPSW, k, v, 0.0, triangle, attn_mask=mask, scale=1.0)
    if not triangle:
        y, lse = (t.squeeze(1).unflatten(1, (heads, rows)) for t in (y, lse))
    return (y.flip(2), lse.flip(2)) if kind == "upper" else (y, lse)


def _merge(y_SD: Tensor, lse_S1: Tensor, more_SD: Tensor, more_S1: Tensor) -> None:
    """Take outputs over further keys into outputs so far. Before the first of a query, its log-sum-exp is -inf or the logit of a sink."""
    y_SD.lerp_(more_SD.float(), torch.sigmoid(more_S1 - lse_S1))
    lse_S1.copy_(torch.logaddexp(lse_S1, more_S1))
