"""`attend_tail`: attention of a text's last queries to all keys, for a cache of unrotated keys.

The plan is that of the whole text with `queries` (position/plan.py). Encodings that turn q and k,
add columns to the scores, or do nothing to them; any scale, sink and soft cap.

Letters: B batch, T tokens, S last queries, K last keys, H heads, G key heads, D head width.
"""

import torch
from torch import Tensor

from posbench.model.kernels.blocks import grouped_product
from posbench.position.layer_plan import BandPlan, LayerPlan

PAIRS_AT_ONCE = 2**24  # of query and key, of all heads: scores in memory at once


def attend_tail(layer: LayerPlan, q_BHSD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor) -> Tensor:
    """Outputs of the last S queries, which see some of the last K keys alone: [B, H, S, D] in v's
    dtype. q and k are float32.
    """
    batch, heads, queries = q_BHSD.shape[:3]
    queries_at_once = max(1, PAIRS_AT_ONCE // (batch * heads * k_BGKD.shape[2]))
    scaled_BHSD = layer.scaled(q_BHSD, q_BHSD.shape[-1])
    sink_H = layer.sink(q_BHSD)
    outputs = []
    for start in range(0, queries, queries_at_once):
        rows = slice(start, min(start + queries_at_once, queries))
        outputs.append(_outputs_of_rows(layer, scaled_BHSD, k_BGKD, v_BGKD, sink_H, rows))
    return torch.cat(outputs, dim=2)


def _outputs_of_rows(
    layer: LayerPlan,
    q_BHSD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    sink_H: Tensor | None,
    rows: slice,
) -> Tensor:
    """Outputs of some rows of the scaled queries: [B, H, S, D]."""
    # Keys that a window's cache lacks.
    n_dropped_keys = len(layer.bands[0].k_pos_T) - k_BGKD.shape[2]
    scores = []
    values = []
    for band in layer.bands:
        keys = band.keys(rows.start, rows.stop)
        keys = slice(max(n_dropped_keys, keys.start), keys.stop)
        if keys.stop > keys.start:
            cached = slice(keys.start - n_dropped_keys, keys.stop - n_dropped_keys)
            q = q_BHSD[:, :, rows]
            scores.append(_band_scores(layer, band, q, k_BGKD[:, :, cached], rows, keys))
            values.append(v_BGKD[:, :, cached])
    # Every query sees itself, so some band has a key.
    sizes = [part.shape[-1] for part in scores]
    if sink_H is not None:
        scores.append(sink_H[:, None, None].expand(*scores[0].shape[:-1], 1))
    # torch.cat would copy a single tensor.
    all_scores_BHSK = torch.cat(scores, dim=-1) if len(scores) > 1 else scores[0]
    weights_BHSK = layer.weights(all_scores_BHSK)
    without_sink = slice(sum(sizes))  # the sink's weight is the last, and has no value
    weights = weights_BHSK.to(v_BGKD.dtype)[..., without_sink].split(sizes, dim=-1)
    # grouped_product(a, b) is a b^T.
    return sum(grouped_product(part, value.mT) for part, value in zip(weights, values, strict=True))


def _band_scores(
    layer: LayerPlan, band: BandPlan, q_BHSD: Tensor, k_BGKD: Tensor, rows: slice, keys: slice
) -> Tensor:
    """Scores of a band, -inf where not visible: [B, H, S, K]."""
    if band.q_table is not None:
        q_table = band.q_table[..., rows, :]
        k_table = band.k_table[..., keys, :]
        q_BHSD, k_BGKD = layer.encoding.rotate(q_BHSD, k_BGKD, q_table, k_table)
    if band.q_scale_T is not None:
        q_BHSD = q_BHSD * band.q_scale_T[rows, None]
        k_BGKD = k_BGKD * band.k_scale_T[keys, None]
    scores = grouped_product(q_BHSD, k_BGKD)
    device = scores.device
    query_S = torch.arange(rows.start, rows.stop, device=device)  # among the last queries
    key_K = torch.arange(keys.start, keys.stop, device=device)  # in the text
    first_query = len(band.k_pos_T) - len(band.first_T)  # of the last queries, in the text
    for rule in layer.distance_rules:
        delta_SK = (query_S + first_query)[:, None] - key_K
        factor, addend = rule.distance(delta_SK.clamp(min=0).flatten().double())
        factor_SK = factor.float().view(delta_SK.shape)
        scores = scores * factor_SK + addend.float().view(delta_SK.shape)
    q_pos_S = band.q_pos_T[rows].to(device)
    k_pos_K = band.k_pos_T[keys].to(device)
    columns = layer.encoding.columns(q_pos_S, k_pos_K, row_constant=True)
    if columns is not None:
        q_HSR, k_KR = columns
        scores = scores + q_HSR @ k_KR.mT
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if len(query_S) == 1:  # the slice holds the keys of this query alone
        return scores
    return scores.masked_fill(~band.seen(query_S, key_K), -torch.inf)
