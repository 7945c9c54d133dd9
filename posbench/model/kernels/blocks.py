"""`rows`: attention by blocks of queries that touch only the keys in a band's intervals.

It runs any plan on any device, is exact and differentiable, and takes O(T x block) memory. There are three kinds of blocks, which take
everything that is added to the scores from `PreparedBand.bias`: `Masked`, `Banded` and `WholeRows`. The last two can also tell the weights
themselves (`weights`).

Letters: B batch, T tokens, H heads, G key heads, D head width, S queries of a block, K keys of a slice, W width of q and k with columns.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posbench.model.kernels.bands import PreparedBand, cut, diagonal
from posbench.model.kernels.folding import padded
from posbench.position.geometry import Bias
from posbench.position.layer_plan import LayerPlan

# Queries per block. A CPU is fastest if a block's scores stay in its cache (two bands take 1.4 to 2.2 times as long as plain attention
# with 32 queries, 6 times with 256). A GPU needs fewer and larger steps.
BLOCK = {"cpu": 32, "cuda": 512}
MASKED = {"cpu": 64, "cuda": 512}  # for one band without gradients, whose blocks run in torch's fused kernel with a mask
WHOLE = 128  # texts of up to so many tokens are one block: training lengths of a small model


def rows(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, gates_BHT: Tensor | None = None, first: int = 0) -> Tensor:
    """Attention of any plan for queries `first` and later: one softmax over all bands of each block. float32, gates float64."""
    length, learns = q_BHTD.shape[2], torch.is_grad_enabled() and any(t.requires_grad for t in (q_BHTD, k_BGTD, v_BGTD))
    # A mask that needs a gradient sends torch's kernel to its dense form.
    plain = not learns and len(layer.bands) == 1
    kind = WholeRows if Bias.ROWS in layer.encoding.biases else Masked if plain and not layer.per_score else Banded
    step = _step(q_BHTD, MASKED if plain else BLOCK)
    block = kind(layer, [PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, step) for band in layer.bands], v_BGTD, step)
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


def weights(
    layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, gates_BHT: Tensor | None = None, first: int = 0
) -> Iterator[tuple[int, list[tuple[slice, Tensor]]]]:
    """Attention weights of any plan for queries `first` and later, by blocks: its first query, and of each band (keys, [B, H, S, K]).

    A key is seen in one band at most, and weighs 0 in the others. What is missing to a sum of 1 is the share of a sink, or of no key.
    """
    kind, step = WholeRows if Bias.ROWS in layer.encoding.biases else Banded, _step(q_BHTD, BLOCK)
    block = kind(layer, [PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, step) for band in layer.bands], k_BGTD, step)
    for start in range(first, q_BHTD.shape[2], step):
        yield start, block.weights(start, min(start + step, q_BHTD.shape[2]))


def _step(q_BHTD: Tensor, sizes: dict[str, int]) -> int:
    length = q_BHTD.shape[2]
    return length if length <= WHOLE else sizes.get(q_BHTD.device.type, sizes["cuda"])


class Masked:
    """Blocks of one band without gradients: torch's fused kernel, with the bias as its mask."""

    def __init__(self, layer: LayerPlan, bands: list[PreparedBand], v_BGTD: Tensor, step: int):
        (self.band,), self.width = bands, v_BGTD.shape[-1]
        self.v_BGTW = padded(v_BGTD, self.band.k_BGTD.shape[-1])

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        keys = self.band.keys(start, stop)
        q_BHSW, k_BGKW = self.band.slices(start, stop, keys)
        groups, mask = q_BHSW.shape[1] // k_BGKW.shape[1], self.band.bias(start, stop, keys)
        if not self.band.hides:
            mask = torch.zeros(1, 1, 1, 1, device=q_BHSW.device) if mask is None else mask
            mask = torch.where(self.band.seen(start, stop, keys), mask, -torch.inf)
        v_BGKW = self.v_BGTW[:, :, keys]
        if (sink := self.band.sink(start, stop)) is not None:
            k_BGKW, v_BGKW = (F.pad(t, (0, 0, 0, 1)) for t in (k_BGKW, v_BGKW))
            wide = torch.broadcast_shapes(mask.shape[:-1], sink.shape[:-1])
            mask = torch.cat((mask.expand(*wide, -1), sink.expand(*wide, -1)), dim=-1)
        if groups > 1:
            # The query heads of a group become further queries of one key head, so no key is copied.
            mask = mask.expand(-1, q_BHSW.shape[1], -1, -1)
            q_BHSW, mask = (t.unflatten(1, (-1, groups)).flatten(2, 3) for t in (q_BHSW, mask))
        y_BHSW = F.scaled_dot_product_attention(q_BHSW, k_BGKW, v_BGKW, attn_mask=mask, scale=1.0)
        return y_BHSW.unflatten(2, (groups, -1)).flatten(1, 2)[..., : self.width]


class Banded:
    """Blocks of any number of bands: one softmax over the scores of all."""

    def __init__(self, layer: LayerPlan, bands: list[PreparedBand], v_BGTD: Tensor, step: int):
        self.bands, self.v_BGTD, self.softcap = bands, v_BGTD, layer.softcap
        self.rules = [
            diagonal(lambda u, rule=rule: torch.stack(rule.distance(u)).float(), step, v_BGTD.shape[2], v_BGTD.device)
            for rule in layer.distance_rules
        ]

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        return sum(grouped(part, self.v_BGTD[:, :, keys].mT) for keys, part in self.weights(start, stop))

    def weights(self, start: int, stop: int) -> list[tuple[slice, Tensor]]:
        """Weights of queries start..stop-1 in each band: its keys, [B, H, S, K]."""
        reached = [(band, band.keys(start, stop)) for band in self.bands]
        reached = [(band, keys) for band, keys in reached if keys.stop > keys.start]
        scores = [self._scores(band, start, stop, keys) for band, keys in reached]
        if (sink := self.bands[0].sink(start, stop)) is not None:
            scores.append(sink.expand(*scores[0].shape[:-1], -1))
        weights_BHSK = torch.cat(scores, dim=-1).softmax(dim=-1) if len(scores) > 1 else scores[0].softmax(dim=-1)
        parts = weights_BHSK.split([one.shape[-1] for one in scores], dim=-1)
        return [(keys, part) for part, (_, keys) in zip(parts, reached, strict=False)]

    def _scores(self, band: PreparedBand, start: int, stop: int, keys: slice) -> Tensor:
        """Scores with every factor and bias, -inf where not visible: [B, H, S, K]."""
        scores, bias = grouped(*band.slices(start, stop, keys)), band.bias(start, stop, keys)
        for rule in self.rules:
            multiply, add = cut(rule, start, stop, keys)
            scores = scores * multiply + add
        if bias is not None:
            scores = scores + bias
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)  # -inf where the bias hides becomes -cap, so it is hidden again
            return scores.masked_fill_(~band.seen(start, stop, keys), -torch.inf)
        return scores if band.hides else scores.masked_fill_(~band.seen(start, stop, keys), -torch.inf)


class WholeRows:
    """Blocks of an encoding that makes weights from whole rows of scores itself, for which all keys are one band."""

    def __init__(self, layer: LayerPlan, bands: list[PreparedBand], v_BGTD: Tensor, step: int):
        self.layer, (self.band,), self.v_BGTD, self.factor = layer, bands, v_BGTD, layer.factor

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        ((keys, weights_BHSK),) = self.weights(start, stop)
        return grouped(weights_BHSK, self.v_BGTD[:, :, keys].mT)

    def weights(self, start: int, stop: int) -> list[tuple[slice, Tensor]]:
        """Weights of queries start..stop-1: their keys, [B, H, S, K]."""
        keys = self.band.keys(start, stop)
        q_BHSD, k_BGKD = self.band.slices(start, stop, keys)
        factor = 1.0 if self.factor is None else self.factor[..., start:stop].to(q_BHSD.device).unsqueeze(-1)
        scores, bias = grouped(q_BHSD, k_BGKD) * self.v_BGTD.shape[-1] ** -0.5, self.band.bias(start, stop, keys)
        bias_HSK, seen_SK = None if bias is None else bias[0], self.band.seen(start, stop, keys)
        return [(keys, self.layer.encoding.weights(q_BHSD, scores, bias_HSK, seen_SK, factor, self.layer.index))]


def grouped(a_BHSX: Tensor, b_BGKX: Tensor) -> Tensor:
    """a b^T, with each key head used by its group of query heads: [B, H, S, K]."""
    groups = a_BHSX.shape[1] // b_BGKX.shape[1]
    if groups == 1:
        return a_BHSX @ b_BGKX.mT
    return (a_BHSX.unflatten(1, (-1, groups)).flatten(2, 3) @ b_BGKX.mT).unflatten(2, (groups, -1)).flatten(1, 2)
