"""`flex`: torch's FlexAttention on CUDA, without gradients, for what is no plain triangle: windows, several bands, biases by distance,
gates. It refuses whole rows, decays and biases that depend on more than the distance; `rows` runs these, and every training.

Each band is one call; a log-sum-exp merge of disjoint bands is the softmax over all of them.

Letters: B batch, T tokens, H heads, G key heads, D head width.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from posbench.interfaces import overrides
from posbench.plan import BandPlan, LayerPlan


def possible(layer: LayerPlan) -> bool:
    """Whether `flex` can run this plan exactly."""
    encoding = layer.encoding
    if encoding.decay() is not None or overrides(encoding, "weights") or overrides(encoding, "bias"):
        return False
    return not overrides(encoding, "profile") or all(band.line is not None for band in layer.bands)


def flex(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, gates_BHT: Tensor | None = None) -> Tensor:
    """All bands of a layer, merged: [B, H, T, D]. q, k and v are float32, gates float64 sums."""
    outs, sums = [], []
    for band in layer.bands:
        if band.seen_T.any():
            y_BHTD, lse_BHT = _band(layer, band, q_BHTD, k_BGTD, v_BGTD, gates_BHT)
            outs.append(y_BHTD)
            # A query that sees nothing of a band has no weight there, whatever its row of the kernel's output holds.
            sums.append(torch.where(band.seen_T.to(lse_BHT.device) > 0, lse_BHT, -torch.inf))
    if len(outs) == 1:
        return outs[0]
    share = torch.stack(sums).softmax(dim=0).unsqueeze(-1)
    return sum(part * y_BHTD for part, y_BHTD in zip(share, outs, strict=True))


def _band(
    layer: LayerPlan, band: BandPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, gates_BHT: Tensor | None
) -> tuple[Tensor, Tensor]:
    encoding, device = layer.encoding, q_BHTD.device
    q_BHTD, k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
    q_BHTD = layer.scaled(q_BHTD, v_BGTD.shape[-1])
    positions = band.q_pos_T.to(device), band.k_pos_T.to(device)
    mods = [*_rules(layer, device), *_columns(encoding.columns(*positions, row_constant=True)), *_profile(layer, band, device)]
    if gates_BHT is not None:
        mods.append(_gates(gates_BHT))

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for mod in mods:
            s = mod(s, b, h, i, j)
        return s

    from torch.nn.attention.flex_attention import AuxRequest

    grouped = q_BHTD.shape[1] != k_BGTD.shape[1]
    y_BHTD, aux = _attention(device.type)(
        q_BHTD, k_BGTD, v_BGTD, score_mod=score if mods else None, block_mask=_mask(band, device), scale=1.0, enable_gqa=grouped,
        return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    return y_BHTD, aux.lse


def _rules(layer: LayerPlan, device: torch.device) -> list[Callable]:
    delta_T = torch.arange(len(layer.n_T), dtype=torch.float64)
    mods = []
    for rule in layer.distance_rules:
        factor_T, add_T = (part.float().to(device) for part in rule.distance(delta_T))
        mods.append(lambda s, b, h, i, j, f=factor_T, a=add_T: s * f[(i - j).clamp(min=0)] + a[(i - j).clamp(min=0)])
    return mods


def _columns(columns: tuple[Tensor, Tensor] | None) -> list[Callable]:
    if columns is None:
        return []
    q_HTR, k_TR = columns
    # One number at a time: the kernel compiles what is said of a single pair.
    return [lambda s, b, h, i, j, r=r: s + q_HTR[h, i, r] * k_TR[j, r] for r in range(k_TR.shape[-1])]


def _profile(layer: LayerPlan, band: BandPlan, device: torch.device) -> list[Callable]:
    if not overrides(layer.encoding, "profile"):
        return []
    table_HT = layer.profile(band, torch.arange(len(layer.n_T), dtype=torch.float64), device)
    return [lambda s, b, h, i, j: s + table_HT[h, (i - j).clamp(min=0)]]


def _gates(gates_BHT: Tensor) -> Callable:
    # Two float32 numbers hold a float64 sum; the differences of each are exact where they matter.
    high_BHT = gates_BHT.float()
    low_BHT = (gates_BHT - high_BHT.double()).float()
    return lambda s, b, h, i, j: s + (high_BHT[b, h, i] - high_BHT[b, h, j]) + (low_BHT[b, h, i] - low_BHT[b, h, j])


def _mask(band: BandPlan, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    first_T, last_T = band.first_T.to(device), band.last_T.to(device)
    length = len(first_T)
    return create_block_mask(lambda b, h, i, j: (j >= first_T[i]) & (j <= last_T[i]), None, None, length, length, device=str(device))


@functools.cache
def _attention(device: str) -> Callable:
    """FlexAttention, compiled where the compiled form gives a log-sum-exp; on a CPU it does not, and the plain form builds [T, T]."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention


@functools.cache
def warn(reason: str) -> None:
    """Say once why `rows` runs instead."""
    print(f"FlexAttention failed ({reason}): the slower kernel runs instead", file=sys.stderr)
