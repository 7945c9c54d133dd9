"""`tail`: attention of a text's last queries to all keys, for generation with a cache of unrotated
keys.

The plan is that of the whole text with `queries` (position/plan.py). Encodings that turn q and k,
add columns to the scores, or do nothing to them; any scale, sink and soft cap.

Letters: B batch, T tokens, S last queries, K last keys, H heads, G key heads, D head width.
"""

import torch
from torch import Tensor

from posbench.model.kernels.blocks import grouped
from posbench.position.layer_plan import BandPlan, LayerPlan

PAIRS = 2**24  # of query and key, of all heads: scores in memory at once


def tail(layer: LayerPlan, q_BHSD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor) -> Tensor:
    """Outputs of the last S queries, which see some of the last K keys alone: [B, H, S, D] in v's
    dtype. q and k are float32.
    """
    batch, heads, queries = q_BHSD.shape[:3]
    step = max(1, PAIRS // (batch * heads * k_BGKD.shape[2]))
    scaled_BHSD, sink_H = layer.scaled(q_BHSD, q_BHSD.shape[-1]), layer.sink(q_BHSD)
    gone = (
        len(layer.bands[0].k_pos_T) - k_BGKD.shape[2]
    )  # keys that the cache of a window has dropped
    done = []
    for rows in (slice(start, min(start + step, queries)) for start in range(0, queries, step)):
        scores, values = [], []
        for band in layer.bands:
            keys = band.keys(rows.start, rows.stop)
            keys = slice(max(gone, keys.start), keys.stop)
            if keys.stop > keys.start:
                here = slice(keys.start - gone, keys.stop - gone)
                scores.append(
                    _scores(layer, band, scaled_BHSD[:, :, rows], k_BGKD[:, :, here], rows, keys)
                )
                values.append(v_BGKD[:, :, here])
        sizes = [one.shape[-1] for one in scores]
        if sink_H is not None:
            scores.append(sink_H[:, None, None].expand(*scores[0].shape[:-1], 1))
        weights_BHSK = (
            (torch.cat(scores, dim=-1) if len(scores) > 1 else scores[0])
            .softmax(dim=-1)
            .to(v_BGKD.dtype)
        )
        parts = weights_BHSK[..., : sum(sizes)].split(sizes, dim=-1)
        done.append(sum(grouped(part, value.mT) for part, value in zip(parts, values, strict=True)))
    return torch.cat(done, dim=2)


def _scores(
    layer: LayerPlan, band: BandPlan, q_BHSD: Tensor, k_BGKD: Tensor, rows: slice, keys: slice
) -> Tensor:
    """Scores of a band, -inf where not visible: [B, H, S, K]."""
    if band.q_table is not None:
        q_BHSD, k_BGKD = layer.encoding.rotate(
            q_BHSD, k_BGKD, band.q_table[..., rows, :], band.k_table[..., keys, :]
        )
    if band.q_scale_T is not None:
        q_BHSD, k_BGKD = q_BHSD * band.q_scale_T[rows, None], k_BGKD * band.k_scale_T[keys, None]
    scores = grouped(q_BHSD, k_BGKD)
    key_K, count = torch.arange(keys.start, keys.stop, device=scores.device), len(band.k_pos_T)
    query_S = torch.arange(rows.start, rows.stop, device=scores.device)
    for rule in layer.distance_rules:
        delta_SK = (query_S + count - len(band.first_T))[:, None] - key_K
        multiply, add = (
            part.float().view(delta_SK.shape)
            for part in rule.distance(delta_SK.clamp(min=0).flatten().double())
        )
        scores = scores * multiply + add
    columns = layer.encoding.columns(
        band.q_pos_T[rows].to(scores.device),
        band.k_pos_T[keys].to(scores.device),
        row_constant=True,
    )
    if columns is not None:
        scores = scores + columns[0] @ columns[1].mT
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if len(query_S) == 1:  # its keys are the whole slice
        return scores
    return scores.masked_fill(~band.seen(query_S, key_K), -torch.inf)
