"""`rows`: attention by blocks of queries that touch only the keys in a band's intervals.

It runs any plan on any device, is exact and differentiable, and takes O(T x block) memory.

Letters: B batch, T tokens, H heads, G key heads, N query heads of a key head, D head width, R columns of a bias,
S queries of a block, K keys of a slice, U index distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posbench.position.interfaces import Encoding, overrides
from posbench.position.plan import BandPlan, LayerPlan

# Queries per block. A CPU is fastest if a block's scores stay in its cache (two bands take 1.4 to 2.2 times as long as plain attention
# with 32 queries, 6 times with 256). A GPU needs fewer and larger steps.
BLOCK = {"cpu": 32, "cuda": 512}
MASKED = {"cpu": 64, "cuda": 512}  # for one band without gradients, whose blocks run in torch's fused kernel with a mask
WHOLE = 128  # texts of up to so many tokens are one block: training lengths of a small model


@dataclass
class _Band:
    """A band prepared for all blocks: q and k rotated and scaled, and the parts of its bias."""

    plan: BandPlan
    q_BHTD: Tensor
    k_BGTD: Tensor
    columns: tuple[Tensor, Tensor] | None  # not folded into q and k only if a scale by distance must not multiply them
    diagonal: Tensor | None  # [H, S, U] bias laid out by `diagonal`, if it depends on the index distance alone


def rows(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, gates_BHT: Tensor | None = None, first: int = 0) -> Tensor:
    """Attention of any plan for queries `first` and later: one softmax over all bands of each block. float32, gates float64."""
    length, learns = q_BHTD.shape[2], torch.is_grad_enabled() and any(t.requires_grad for t in (q_BHTD, k_BGTD, v_BGTD))
    sizes = BLOCK if learns or len(layer.bands) > 1 else MASKED
    step = length if length <= WHOLE else sizes.get(q_BHTD.device.type, sizes["cuda"])
    block = _Block(layer, q_BHTD, k_BGTD, v_BGTD, gates_BHT, step, learns)
    starts = range(first, length, step)
    keep = not learns or len(starts) == 1
    done = []
    # The block with the most keys first: each later one fits into memory just freed, while growing blocks never would.
    for start in reversed(starts):
        stop = min(start + step, length)
        # Without the checkpoint the backward pass would keep the probabilities of all blocks: [T, T].
        done.append(block(start, stop) if keep else checkpoint(block, start, stop, use_reentrant=False))
        layer.tell(len(done) / (len(starts) + 1))
    return torch.cat(done[::-1], dim=2)


class _Block:
    """One call's blocks: holds what they share, and computes one block when called."""

    def __init__(self, layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, gates_BHT: Tensor | None, step: int, learns: bool):
        self.layer, self.v_BGTD, self.gates_BHT = layer, v_BGTD, gates_BHT
        self.device, self.groups = q_BHTD.device, q_BHTD.shape[1] // k_BGTD.shape[1]
        encoding: Encoding = layer.encoding
        self.decay_D = encoding.decay()
        self.own_weights = overrides(encoding, "weights")
        self.factor = layer.factor if self.own_weights else None
        self.biased = overrides(encoding, "bias") or overrides(encoding, "profile")
        self.rules = [
            diagonal(lambda u, i=i, rule=rule: torch.stack(rule.distance(u))[i].float().to(self.device), step, q_BHTD.shape[2])
            for rule in layer.distance_rules
            for i in (0, 1)
        ]
        self.bands = [self._band(band, q_BHTD, k_BGTD, step) for band in layer.bands]
        # A mask that needs a gradient sends torch's kernel to its dense form.
        self.masked = not learns and len(self.bands) == 1 and not self.own_weights and not self.rules
        if self.masked:
            self.v_BGTW = F.pad(v_BGTD, (0, self.bands[0].k_BGTD.shape[-1] - v_BGTD.shape[-1]))

    def _band(self, band: BandPlan, q_BHTD: Tensor, k_BGTD: Tensor, step: int) -> _Band:
        encoding = self.layer.encoding
        q_BHTD, k_BGTD = self.layer.turned(band, q_BHTD, k_BGTD)
        if not self.own_weights:
            q_BHTD = self.layer.scaled(q_BHTD, self.v_BGTD.shape[-1])
        positions = band.q_pos_T.to(self.device), band.k_pos_T.to(self.device)
        columns = encoding.columns(*positions, row_constant=len(self.layer.bands) > 1)
        if columns is not None and not self.rules:
            q_HTR, k_TR = columns
            q_BHTD = torch.cat((q_BHTD, q_HTR.expand(len(q_BHTD), -1, -1, -1)), dim=-1)
            k_BGTD = torch.cat((k_BGTD, k_TR.expand(*k_BGTD.shape[:2], -1, -1)), dim=-1)
            columns = None
        toeplitz = None
        if overrides(encoding, "profile") and band.line is not None:
            toeplitz = diagonal(lambda delta_U: self.layer.profile(band, delta_U, self.device), step, q_BHTD.shape[2])
            if self.layer.causal and not self.own_weights:
                toeplitz = toeplitz.masked_fill(diagonal(lambda u: -u, step, q_BHTD.shape[2], clamp=False).to(self.device) > 0, -torch.inf)
        return _Band(band, q_BHTD, k_BGTD, columns, toeplitz)

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        reached = [(band, _reach(band.plan, start, stop)) for band in self.bands]
        reached = [(band, keys) for band, keys in reached if keys.stop > keys.start]
        if self.masked:
            return self._one_call(*reached[0], start, stop)
        if self.own_weights:
            ((band, keys),) = reached
            weights_BHSK = self._whole_rows(band, start, stop, keys)
        else:
            scores = [self._scores(band, start, stop, keys) for band, keys in reached]
            weights_BHSK = torch.cat(scores, dim=-1).softmax(dim=-1) if len(scores) > 1 else scores[0].softmax(dim=-1)
        parts = weights_BHSK.split([keys.stop - keys.start for _, keys in reached], dim=-1)
        return sum(self._grouped(part, self.v_BGTD[:, :, keys].mT) for part, (_, keys) in zip(parts, reached, strict=True))

    def _one_call(self, band: _Band, keys: slice, start: int, stop: int) -> Tensor:
        """Output of one band without gradients, by torch's fused kernel with a mask that holds every bias: [B, H, S, D]."""
        q_BHSD, k_BGKD = self._slices(band, start, stop, keys)
        mask = self._bias(band, start, stop, keys)[None] if self.biased else torch.zeros(1, 1, 1, 1, device=self.device)
        if self.gates_BHT is not None:
            mask = mask + self._gates(start, keys)
        if not self._hides(band):
            mask = torch.where(self._seen(band, start, stop, keys), mask, -torch.inf)
        if self.groups > 1:
            # The query heads of a group become further queries of one key head, so no key is copied.
            q_BHSD = q_BHSD.unflatten(1, (-1, self.groups)).flatten(2, 3)
            heads = mask.expand(-1, self.groups * k_BGKD.shape[1], -1, -1)
            mask = heads.unflatten(1, (-1, self.groups)).flatten(2, 3)
        y_BHSW = F.scaled_dot_product_attention(q_BHSD, k_BGKD, self.v_BGTW[:, :, keys], attn_mask=mask, scale=1.0)
        return y_BHSW.unflatten(2, (self.groups, -1)).flatten(1, 2)[..., : self.v_BGTD.shape[-1]]

    def _grouped(self, a_BHSX: Tensor, b_BGKX: Tensor) -> Tensor:
        """a b^T, with each key head used by its group of query heads: [B, H, S, K]."""
        if self.groups == 1:
            return a_BHSX @ b_BGKX.mT
        return (a_BHSX.unflatten(1, (-1, self.groups)).flatten(2, 3) @ b_BGKX.mT).unflatten(2, (self.groups, -1)).flatten(1, 2)

    def _scores(self, band: _Band, start: int, stop: int, keys: slice) -> Tensor:
        """Scores with every factor and bias, -inf where not visible: [B, H, S, K]."""
        q_BHSD, k_BGKD = self._slices(band, start, stop, keys)
        scores = self._grouped(q_BHSD, k_BGKD)
        for multiply, add in zip(self.rules[::2], self.rules[1::2], strict=True):
            scores = scores * _cut(multiply, start, stop, keys) + _cut(add, start, stop, keys)
        if band.columns is not None:
            scores = scores + band.columns[0][:, start:stop] @ band.columns[1][keys].mT
        if self.biased:
            scores = scores + self._bias(band, start, stop, keys)
        if self.gates_BHT is not None:
            scores = scores + self._gates(start, keys)
        return scores if self._hides(band) else scores.masked_fill_(~self._seen(band, start, stop, keys), -torch.inf)

    def _slices(self, band: _Band, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        q_BHSD, k_BGKD = band.q_BHTD[:, :, start:stop], band.k_BGTD[:, :, keys]
        if self.decay_D is None:
            return q_BHSD, k_BGKD
        q_pos_S, k_pos_K = band.plan.q_pos_T[start:stop].to(self.device), band.plan.k_pos_T[keys].to(self.device)
        return damp(q_BHSD, k_BGKD, self.decay_D, q_pos_S, k_pos_K, q_pos_S[0])

    def _bias(self, band: _Band, start: int, stop: int, keys: slice) -> Tensor:
        if band.diagonal is not None:
            return _cut(band.diagonal, start, stop, keys)
        q_pos_S, k_pos_K = band.plan.q_pos_T[start:stop].to(self.device), band.plan.k_pos_T[keys].to(self.device)
        return self.layer.encoding.bias(q_pos_S, k_pos_K, self.layer.index)

    def _gates(self, start: int, keys: slice) -> Tensor:
        """Sums of gates from each key to the block's first query, near which float32 is exact enough: [B, H, 1, K].

        The gates from there to each query are a constant per row, which softmax ignores.
        """
        return (self.gates_BHT[..., start, None] - self.gates_BHT[..., keys]).float()[:, :, None]

    def _hides(self, band: _Band) -> bool:
        """True if the band's `diagonal` is already -inf at keys that a query does not see."""
        return band.diagonal is not None and self.layer.causal and not self.own_weights

    def _seen(self, band: _Band, start: int, stop: int, keys: slice) -> Tensor:
        index_K = torch.arange(keys.start, keys.stop)
        first_S, last_S = band.plan.first_T[start:stop, None], band.plan.last_T[start:stop, None]
        return ((index_K >= first_S) & (index_K <= last_S)).to(self.device)

    def _whole_rows(self, band: _Band, start: int, stop: int, keys: slice) -> Tensor:
        q_BHSD, k_BGKD = self._slices(band, start, stop, keys)
        factor = 1.0 if self.factor is None else self.factor[..., start:stop].to(self.device).unsqueeze(-1)
        bias_HSK = self._bias(band, start, stop, keys) if self.biased else None
        seen_SK = self._seen(band, start, stop, keys)
        scores = self._grouped(q_BHSD, k_BGKD) * self.v_BGTD.shape[-1] ** -0.5
        return self.layer.encoding.weights(q_BHSD, scores, bias_HSK, seen_SK, factor, self.layer.index)


def damp(q_BHTD: Tensor, k_BGTD: Tensor, decay_D: Tensor, q_pos_T: Tensor, k_pos_T: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k whose products contain exp(-rate (q_pos - k_pos)); both positions are counted from `origin` to stay within float32."""
    q_TD = torch.exp(-decay_D.double() * (q_pos_T - origin)[:, None]).float()
    k_TD = torch.exp(decay_D.double() * (k_pos_T - origin)[:, None]).float()
    return q_BHTD * q_TD, k_BGTD * k_TD


def diagonal(value: Callable[[Tensor], Tensor], step: int, length: int, clamp: bool = True) -> Tensor:
    """Values of a function of the index distance, laid out so that every block of `step` queries is a slice of them: [..., S, U].

    Row s, column u holds the value at distance s - (u - length), so the columns of a block that starts at query i begin at length - i.
    Distances below 0 (later keys) hold value(0), unless clamp=False.
    """
    delta_U = torch.arange(length + step - 1, -step, -1, dtype=torch.float64)
    value_U = value(delta_U.clamp(min=0) if clamp else delta_U)
    # Window s of width length + step begins one element later for each earlier row.
    return value_U.unfold(-1, length + step, 1).flip(-2)


def _cut(diagonal_SU: Tensor, start: int, stop: int, keys: slice) -> Tensor:
    length = diagonal_SU.shape[-1] - diagonal_SU.shape[-2]
    return diagonal_SU[..., : stop - start, keys.start - start + length : keys.stop - start + length]


def _reach(band: BandPlan, start: int, stop: int) -> slice:
    """Slice of the keys that queries start..stop-1 see in a band; empty if they see none."""
    first_S, last_S = band.first_T[start:stop], band.last_T[start:stop]
    some_S = last_S >= first_S
    if not some_S.any():
        return slice(0, 0)
    return slice(int(first_S[some_S].min()), int(last_S[some_S].max()) + 1)
