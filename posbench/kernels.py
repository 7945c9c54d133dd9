"""The two ways to attend; both take queries that already carry 1/sqrt(head_dim) and every factor on the logits.

`fused` runs torch's fused kernel for the plain causal triangle, with a low-rank bias folded into extra columns of q and k.
`rows` walks blocks of queries and touches only the keys that a band's intervals reach: any plan, any device, exact,
differentiable, O(T x block) memory.

Letters: B batch, T tokens, H heads, G key heads, D head width, R columns of a bias, S queries of a block, K keys of a slice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posbench.plan import BandPlan, LayerPlan

# Queries per block of `rows`. A CPU is fastest where a block's scores stay in its cache (32: 1.4 to 2.2 times plain attention for
# two bands, 256: 6 times); a GPU wants fewer and larger steps.
BLOCK = {"cpu": 32, "cuda": 512}
TERMS = ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0))  # products of bf16 pieces down to 2^-24 of the largest


def attend(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, last: int | None = None) -> Tensor:
    """Attention of one layer over all its bands: [B, H, T, D] in v's dtype, or of the `last` queries alone. q and k are float32."""
    length = q_BHTD.shape[2]
    last = last or length
    if layer.causal and 2 * last > length:
        return fused(layer, q_BHTD, k_BGTD, v_BGTD)[:, :, -last:]
    with torch.autocast(q_BHTD.device.type, enabled=False):
        return rows(layer, q_BHTD, k_BGTD, v_BGTD.float(), first=length - last).to(v_BGTD.dtype)


def band_inputs(layer: LayerPlan, band: BandPlan, q_BHTD: Tensor, k_BGTD: Tensor) -> tuple[Tensor, Tensor, tuple | None]:
    """q and k as this band sees them (turned, scaled), and its bias columns."""
    if band.q_table is not None:
        q_BHTD, k_BGTD = layer.encoding.rotate(q_BHTD, k_BGTD, band.q_table, band.k_table)
    if layer.factor is not None:
        q_BHTD = q_BHTD * layer.factor.unsqueeze(-1)
    pos = band.q_pos_T.to(q_BHTD.device), band.k_pos_T.to(q_BHTD.device)
    return q_BHTD, k_BGTD, layer.encoding.columns(*pos, row_constant=len(layer.bands) > 1)


def fused(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
    """The whole causal triangle in one kernel call."""
    q_BHTD, k_BGTD, columns = band_inputs(layer, layer.bands[0], q_BHTD, k_BGTD)
    width, kept = v_BGTD.shape[-1], v_BGTD.dtype
    # On a CPU the bf16 kernel gains nothing forward and its backward takes three times as long at 64 tokens.
    dtype = torch.float32 if v_BGTD.device.type == "cpu" else kept
    q_BHTD, k_BGTD, v_BGTD = q_BHTD.to(dtype), k_BGTD.to(dtype), v_BGTD.to(dtype)
    if columns is not None:
        q_BHTD, k_BGTD = fold(q_BHTD, k_BGTD, *columns)
        # The fused kernels want q, k and v equally wide, or torch silently builds the [T, T] matrix.
        v_BGTD = F.pad(v_BGTD, (0, q_BHTD.shape[-1] - width))
    grouped = q_BHTD.shape[1] != k_BGTD.shape[1]
    with torch.autocast(q_BHTD.device.type, enabled=False):
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BGTD, v_BGTD, is_causal=True, scale=1.0, enable_gqa=grouped)
    return y_BHTD[..., :width].to(kept)


def fold(q_BHTD: Tensor, k_BGTD: Tensor, q_HTR: Tensor, k_TR: Tensor) -> tuple[Tensor, Tensor]:
    """q and k widened by a bias's columns, padded to a multiple of 8 (what CUDA's kernels take).

    One bf16 number cannot hold a position (257 is already rounded), so in bf16 each factor becomes three bf16 pieces, whose
    sum is exact, and their products down to 2^-24 of the largest become columns: the bias is as exact as in float32.
    """
    if q_BHTD.dtype == torch.bfloat16:
        q_pieces, k_pieces = split_bf16(q_HTR), split_bf16(k_TR)
        q_HTR = torch.cat([q_pieces[a] for a, _ in TERMS], dim=-1)
        k_TR = torch.cat([k_pieces[b] for _, b in TERMS], dim=-1)
    pad = -(q_BHTD.shape[-1] + q_HTR.shape[-1]) % 8
    q_extra = F.pad(q_HTR, (0, pad)).to(q_BHTD.dtype).expand(q_BHTD.shape[0], -1, -1, -1)
    k_extra = F.pad(k_TR, (0, pad)).to(k_BGTD.dtype).expand(*k_BGTD.shape[:2], -1, -1)
    return torch.cat((q_BHTD, q_extra), dim=-1), torch.cat((k_BGTD, k_extra), dim=-1)


def split_bf16(x: Tensor) -> list[Tensor]:
    """Three bf16 tensors whose sum is float32 `x` exactly (3 x 8 bits of mantissa)."""
    pieces = []
    for _ in range(3):
        pieces.append(x.to(torch.bfloat16))
        x = x - pieces[-1].float()
    return pieces


def rows(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, first: int = 0) -> Tensor:
    """Any plan: one softmax over all bands of each block of queries, from query `first` on."""
    groups = q_BHTD.shape[1] // k_BGTD.shape[1]
    inputs = []
    for band in layer.bands:
        q, k, columns = band_inputs(layer, band, q_BHTD, k_BGTD)
        if columns is not None:
            q, k = fold(q, k, *columns)
        inputs.append((q.unflatten(1, (-1, groups)), k.unsqueeze(2)))
    blocks = []
    step = BLOCK.get(q_BHTD.device.type, BLOCK["cuda"])
    # The longest block first: each later one then fits into memory just freed, where growing blocks would never fit and pile up.
    for start in reversed(range(first, q_BHTD.shape[2], step)):
        stop = min(start + step, q_BHTD.shape[2])
        slices = [_reach(band, start, stop) for band in layer.bands]
        if torch.is_grad_enabled() and v_BGTD.requires_grad:
            # Without this the backward pass keeps every block's probabilities, T x T of them.
            blocks.append(checkpoint(_block, layer.bands, inputs, v_BGTD, start, stop, slices, use_reentrant=False))
        else:
            blocks.append(_block(layer.bands, inputs, v_BGTD, start, stop, slices))
    return torch.cat(blocks[::-1], dim=3).flatten(1, 2)


def _reach(band: BandPlan, start: int, stop: int) -> slice:
    """The keys that queries start..stop-1 of a band reach; empty where the band has none for them."""
    first_S, last_S = band.first_T[start:stop], band.last_T[start:stop]
    some_S = last_S >= first_S
    if not some_S.any():
        return slice(0, 0)
    return slice(int(first_S[some_S].min()), int(last_S[some_S].max()) + 1)


def _block(bands: tuple, inputs: list, v_BGTD: Tensor, start: int, stop: int, slices: list[slice]) -> Tensor:
    scores, kept = [], [(i, keys) for i, keys in enumerate(slices) if keys.stop > keys.start]
    for i, keys in kept:
        q_BGNSD, k_BGNKD = inputs[i][0][:, :, :, start:stop], inputs[i][1][:, :, :, keys]
        index_K = torch.arange(keys.start, keys.stop)
        hidden_SK = (index_K < bands[i].first_T[start:stop, None]) | (index_K > bands[i].last_T[start:stop, None])
        scores.append((q_BGNSD @ k_BGNKD.mT).masked_fill_(hidden_SK.to(v_BGTD.device), -torch.inf))
    weights = torch.cat(scores, dim=-1).softmax(dim=-1).split([keys.stop - keys.start for _, keys in kept], dim=-1)
    return sum(w_BGNSK @ v_BGTD[:, :, None, keys] for w_BGNSK, (_, keys) in zip(weights, kept, strict=True))
