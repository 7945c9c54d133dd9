"""`rows`: attention by blocks of queries that touch only the keys in a band's intervals.

It runs any plan on any device, is exact and differentiable, and takes O(T x block) memory. There
are two kinds of blocks, which take everything that is added to the scores from `PreparedBand.bias`:
`Masked` and `Weighted`, which can also tell the weights themselves.

Letters: B batch, T tokens, H heads, G key heads, D head width, S queries of a block, K keys of a
slice, W width of q and k with columns, U index distances."""

import functools
import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posbench.model.kernels.folding import damp, fold, padded, sink_logit
from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.products import whole_groups

# Queries per block. A CPU is fastest if a block's scores stay in its cache (two bands take 1.4 to
# 2.2 times as long as plain attention with 32 queries, 6 times with 256). A GPU needs fewer and
# larger steps.
BLOCK = {"cpu": 32, "cuda": 512}
MASKED = {
    "cpu": 64,
    "cuda": 512,
}  # for one band without gradients, whose blocks run in torch's fused kernel with a mask
WHOLE = 128  # texts of up to so many tokens are one block: training lengths of a small model


def rows(
    layer: LayerPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None = None,
    first: int = 0,
    values: torch.dtype = torch.float32,
) -> Tensor:
    """Attention of any plan for queries `first` and later: one softmax over all bands of each
    block.

    q and k are float32, gates float64. Weights and v are multiplied in the format `values`, by
    torch's kernel (`Masked`) in float32; the result is in that format."""
    length, learns = (
        q_BHTD.shape[2],
        torch.is_grad_enabled() and any(t.requires_grad for t in (q_BHTD, k_BGTD, v_BGTD)),
    )
    # A mask that needs a gradient sends torch's kernel to its dense form.
    plain = not learns and len(layer.bands) == 1
    step = block_size(q_BHTD, MASKED if plain else BLOCK)
    bands = [PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, step) for band in layer.bands]
    masked = plain and not layer.per_score and Bias.ROWS not in layer.encoding.biases
    block = Masked(bands[0], v_BGTD) if masked else Weighted(layer, bands, v_BGTD, step, values)
    starts = range(first, length, step)
    keep = not learns or len(starts) == 1
    done = []
    # The block with the most keys first: each later one fits into memory just freed, while growing
    # blocks never would.
    for start in reversed(starts):
        stop = min(start + step, length)
        # Without the checkpoint the backward pass would keep the probabilities of all blocks: [T,
        # T].
        done.append(
            block(start, stop) if keep else checkpoint(block, start, stop, use_reentrant=False)
        )
        layer.tell(len(done) / (len(starts) + 1))
    return torch.cat(done[::-1], dim=2)


def block_size(q_BHTD: Tensor, sizes: dict[str, int]) -> int:
    """Queries of a block of a text, by the sizes of each kind of device."""
    length = q_BHTD.shape[2]
    return length if length <= WHOLE else sizes.get(q_BHTD.device.type, sizes["cuda"])


class PreparedBand:
    """One band of a layer for blocks of `step` queries. q is scaled unless the encoding weighs
    whole rows, which does so itself.

    `hides`: the bias is already -inf at the keys that a query does not see.
    """

    def __init__(
        self,
        layer: LayerPlan,
        band: BandPlan,
        q_BHTD: Tensor,
        k_BGTD: Tensor,
        gates_BHT: Tensor | None,
        step: int,
    ):
        encoding, length, whole = (
            layer.encoding,
            q_BHTD.shape[2],
            Bias.ROWS in layer.encoding.biases,
        )
        self.layer, self.band, self.gates_BHT, self.device, self.keys = (
            layer,
            band,
            gates_BHT,
            q_BHTD.device,
            band.keys,
        )
        self.q_pos_T, self.k_pos_T = band.positions(self.device)
        self.decay_D = encoding.decay()
        self.q_BHTD, self.k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
        if not whole:
            self.q_BHTD = layer.scaled(self.q_BHTD, q_BHTD.shape[-1])
        self.sink_H = layer.sink(q_BHTD)
        self.columns = encoding.columns(
            self.q_pos_T, self.k_pos_T, row_constant=len(layer.bands) > 1 or layer.has_sink
        )
        # Whole rows and scales by distance need the bias apart from the product of q and k.
        if self.columns is not None and not (whole or layer.distance_rules):
            self.q_BHTD, self.k_BGTD = fold(self.q_BHTD, self.k_BGTD, *self.columns)
            self.columns = None
        self.diagonal = None
        if Bias.PROFILE in encoding.biases and band.line is not None:
            self.diagonal = diagonal(
                functools.partial(layer.profile, band), step, length, self.device
            )
        self.hides = self.diagonal is not None and layer.causal and not whole
        if self.hides:
            later = diagonal(lambda delta_U: -delta_U, step, length, self.device, clamp=False) > 0
            self.diagonal = self.diagonal.masked_fill(later, -torch.inf)

    def edges(self, start: int, stop: int, keys: slice) -> list[slice]:
        """Parts of `keys` that are not seen by every query of a block."""
        if self.band.lot_T is not None:
            return [keys]
        first, end = (
            int(self.band.first_T[start:stop].max()),
            int(self.band.last_T[start:stop].min()) + 1,
        )
        if end <= first:
            return [keys]
        return [slice(a, b) for a, b in ((keys.start, first), (end, keys.stop)) if a < b]

    def slices(self, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        """q and k of a block; the decay counts from its first query."""
        q_BHSD, k_BGKD = self.q_BHTD[:, :, start:stop], self.k_BGTD[:, :, keys]
        if self.decay_D is None:
            return q_BHSD, k_BGKD
        return damp(
            q_BHSD,
            k_BGKD,
            self.decay_D,
            self.q_pos_T[start:stop],
            self.k_pos_T[keys],
            self.q_pos_T[start],
        )

    def bias(self, start: int, stop: int, keys: slice) -> Tensor | None:
        """Sum of all that is added to the scores of a block beyond the product of q and k: [1 or B,
        H, 1 or S, K]; None for nothing.
        """
        parts = []
        if self.columns is not None:
            parts.append((self.columns[0][:, start:stop] @ self.columns[1][keys].mT)[None])
        if self.diagonal is not None:
            parts.append(diagonal_slice(self.diagonal, start, stop, keys)[None])
        elif self.layer.encoding.biases & Bias.DENSE:
            parts.append(
                self.layer.encoding.bias(
                    self.q_pos_T[start:stop], self.k_pos_T[keys], self.layer.index
                )[None]
            )
        if self.gates_BHT is not None:
            # Sums from each key to the block's first query, near which float32 is exact enough. The
            # gates from there to each query are a constant per row, which softmax ignores.
            parts.append(
                (self.gates_BHT[..., start, None] - self.gates_BHT[..., keys]).float()[:, :, None]
            )
        return functools.reduce(operator.add, parts) if parts else None

    def sink(self, start: int, stop: int) -> Tensor | None:
        """Logit of the sink beside the scores of a block: [1 or B, H, 1 or S, 1]; None without
        one.
        """
        return (
            None
            if self.sink_H is None
            else sink_logit(self.sink_H, self.gates_BHT, slice(start, stop), start).unsqueeze(-1)
        )

    def seen(self, start: int, stop: int, keys: slice) -> Tensor:
        """True for the keys that each query sees: [S, K]."""
        return self.band.seen(
            *(
                torch.arange(one.start, one.stop, device=self.device)
                for one in (slice(start, stop), keys)
            )
        )


class Masked:
    """Blocks of one band without gradients: torch's fused kernel, with the bias as its mask."""

    def __init__(self, band: PreparedBand, v_BGTD: Tensor):
        self.band, self.width, self.v_BGTW = (
            band,
            v_BGTD.shape[-1],
            padded(v_BGTD.float(), band.k_BGTD.shape[-1]),
        )

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
            # The query heads of a group become further queries of one key head, so no key is
            # copied.
            mask = mask.expand(-1, q_BHSW.shape[1], -1, -1)
            q_BHSW, mask = (t.unflatten(1, (-1, groups)).flatten(2, 3) for t in (q_BHSW, mask))
        n_rows = q_BHSW.shape[2]
        q_BHSW, mask = whole_groups(q_BHSW, mask)
        y_BHSW = F.scaled_dot_product_attention(q_BHSW, k_BGKW, v_BGKW, attn_mask=mask, scale=1.0)[
            :, :, :n_rows
        ]
        return y_BHSW.unflatten(2, (groups, -1)).flatten(1, 2)[..., : self.width]


class Weighted:
    """Blocks of any number of bands, one softmax over the scores of all; or of an encoding that
    makes weights from whole rows itself.
    """

    def __init__(
        self,
        layer: LayerPlan,
        bands: list[PreparedBand],
        v_BGTD: Tensor,
        step: int,
        values: torch.dtype = torch.float32,
    ):
        self.layer, self.bands, self.v_BGTD, self.values = layer, bands, v_BGTD, values
        self.whole = Bias.ROWS in layer.encoding.biases
        self.factor = layer.factor if self.whole else None
        self.rules = [
            diagonal(
                lambda u, rule=rule: torch.stack(rule.distance(u)).float(),
                step,
                v_BGTD.shape[2],
                v_BGTD.device,
            )
            for rule in layer.distance_rules
        ]

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        values = self.values
        return sum(
            grouped(part.to(values), self.v_BGTD[:, :, keys].to(values).mT)
            for keys, part in self.weights(start, stop)
        )

    def weights(self, start: int, stop: int) -> list[tuple[slice, Tensor]]:
        """Weights of queries start..stop-1 in each band: its keys, [B, H, S, K]."""
        if self.whole:
            return [self._of_rows(start, stop)]
        reached = [(band, band.keys(start, stop)) for band in self.bands]
        reached = [(band, keys) for band, keys in reached if keys.stop > keys.start]
        scores = [self._scores(band, start, stop, keys) for band, keys in reached]
        if (sink := self.bands[0].sink(start, stop)) is not None:
            scores.append(sink.expand(*scores[0].shape[:-1], -1))
        weights_BHSK = (
            torch.cat(scores, dim=-1).softmax(dim=-1)
            if len(scores) > 1
            else scores[0].softmax(dim=-1)
        )
        parts = weights_BHSK.split([one.shape[-1] for one in scores], dim=-1)
        return [(keys, part) for part, (_, keys) in zip(parts, reached, strict=False)]

    def _scores(self, band: PreparedBand, start: int, stop: int, keys: slice) -> Tensor:
        """Scores with every factor and bias, -inf where not visible: [B, H, S, K]."""
        scores, bias = grouped(*band.slices(start, stop, keys)), band.bias(start, stop, keys)
        for rule in self.rules:
            multiply, add = diagonal_slice(rule, start, stop, keys)
            scores = scores * multiply + add
        if bias is not None:
            scores = scores + bias
        if (cap := self.layer.softcap) is not None:
            scores = cap * torch.tanh(
                scores / cap
            )  # -inf where the bias hides becomes -cap, so it is hidden again
        elif band.hides:
            return scores
        for some in [keys] if scores.requires_grad else band.edges(start, stop, keys):
            scores[..., some.start - keys.start : some.stop - keys.start].masked_fill_(
                ~band.seen(start, stop, some), -torch.inf
            )
        return scores

    def _of_rows(self, start: int, stop: int) -> tuple[slice, Tensor]:
        """The same of an encoding that weighs whole rows, for which all keys are one band."""
        (band,), encoding = self.bands, self.layer.encoding
        keys = band.keys(start, stop)
        q_BHSD, k_BGKD = band.slices(start, stop, keys)
        factor = (
            1.0
            if self.factor is None
            else self.factor[..., start:stop].to(q_BHSD.device).unsqueeze(-1)
        )
        scores, bias = (
            grouped(q_BHSD, k_BGKD) * self.v_BGTD.shape[-1] ** -0.5,
            band.bias(start, stop, keys),
        )
        bias_HSK, seen_SK = None if bias is None else bias[0], band.seen(start, stop, keys)
        return keys, encoding.weights(q_BHSD, scores, bias_HSK, seen_SK, factor, self.layer.index)


def grouped(a_BHSX: Tensor, b_BGKX: Tensor) -> Tensor:
    """a b^T, with each key head used by its group of query heads: [B, H, S, K]."""
    groups = a_BHSX.shape[1] // b_BGKX.shape[1]
    if groups == 1:
        return a_BHSX @ b_BGKX.mT
    return (
        (a_BHSX.unflatten(1, (-1, groups)).flatten(2, 3) @ b_BGKX.mT)
        .unflatten(2, (groups, -1))
        .flatten(1, 2)
    )


def diagonal(
    value: Callable[[Tensor], Tensor],
    step: int,
    length: int,
    device: torch.device,
    clamp: bool = True,
) -> Tensor:
    """Values of a function of the index distance (float64), laid out so that every block of `step`
    queries is a slice of them: [..., S, U].

    Row s, column u holds the value at distance s - (u - length), so the columns of a block that
    starts at query i begin at length - i. Distances below 0 (later keys) hold value(0), unless
    clamp=False."""
    delta_U = torch.arange(length + step - 1, -step, -1, dtype=torch.float64, device=device)
    value_U = value(delta_U.clamp(min=0) if clamp else delta_U)
    # Window s of width length + step begins one element later for each earlier row.
    return value_U.unfold(-1, length + step, 1).flip(-2)


def diagonal_slice(diagonal_SU: Tensor, start: int, stop: int, keys: slice) -> Tensor:
    """Slice of a `diagonal` for queries start..stop-1 and some keys: [..., S, K]."""
    length = diagonal_SU.shape[-1] - diagonal_SU.shape[-2]
    return diagonal_SU[
        ..., : stop - start, keys.start - start + length : keys.stop - start + length
    ]
