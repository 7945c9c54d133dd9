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
from posbench.position.interfaces import ScaleAttention
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.products import with_whole_row_groups

# Queries per block. A CPU is fastest if a block's scores stay in its cache (two bands take 1.4 to
# 2.2 times as long as plain attention with 32 queries, 6 times with 256). A GPU needs fewer and
# larger steps.
BLOCK = {"cpu": 32, "cuda": 512}
# The same for one band without gradients, whose blocks run in torch's fused kernel with a mask.
MASKED = {"cpu": 64, "cuda": 512}
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
    length = q_BHTD.shape[2]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q_BHTD, k_BGTD, v_BGTD))
    # A mask that needs a gradient sends torch's kernel to its dense form.
    one_band = not learns and len(layer.bands) == 1
    step = block_size(q_BHTD, MASKED if one_band else BLOCK)
    bands = [PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, step) for band in layer.bands]
    # torch's kernel adds a mask to the scores, and can neither multiply them nor weigh whole rows.
    adds_to_scores_alone = (
        not layer.changes_single_scores and Bias.ROWS not in layer.encoding.biases
    )
    if one_band and adds_to_scores_alone:
        block = Masked(bands[0], v_BGTD)
    else:
        block = Weighted(layer, bands, v_BGTD, step, values)
    starts = range(first, length, step)
    # Else the backward pass would keep the probabilities of all blocks: [T, T].
    recompute = learns and len(starts) > 1
    outputs = []
    # The block with the most keys first: each later one fits into memory just freed, while growing
    # blocks never would.
    for start in reversed(starts):
        stop = min(start + step, length)
        if recompute:
            outputs.append(checkpoint(block, start, stop, use_reentrant=False))
        else:
            outputs.append(block(start, stop))
        layer.tell(len(outputs) / (len(starts) + 1))  # below 1: the MLP follows
    return torch.cat(outputs[::-1], dim=2)


def block_size(q_BHTD: Tensor, sizes: dict[str, int]) -> int:
    """Queries of a block of a text, by the sizes of each kind of device."""
    length = q_BHTD.shape[2]
    return length if length <= WHOLE else sizes.get(q_BHTD.device.type, sizes["cuda"])


class PreparedBand:
    """One band of a layer for blocks of `block_rows` queries. q is scaled unless the encoding
    weighs whole rows, which does so itself.

    `hides`: the bias is already -inf at the keys that a query does not see.
    """

    def __init__(
        self,
        layer: LayerPlan,
        band: BandPlan,
        q_BHTD: Tensor,
        k_BGTD: Tensor,
        gates_BHT: Tensor | None,
        block_rows: int,
    ):
        encoding = layer.encoding
        length = q_BHTD.shape[2]
        weighs_rows = Bias.ROWS in encoding.biases
        self.layer = layer
        self.band = band
        self.gates_BHT = gates_BHT
        self.device = q_BHTD.device
        self.keys = band.keys
        self.q_pos_T, self.k_pos_T = band.positions(self.device)
        self.decay_D = encoding.decay()
        self.q_BHTD, self.k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
        if not weighs_rows:  # an encoding that does scales q itself
            self.q_BHTD = layer.scaled(self.q_BHTD, q_BHTD.shape[-1])
        self.sink_H = layer.sink(q_BHTD)
        # Of one band alone a constant on all scores of a query changes nothing.
        row_constant = len(layer.bands) > 1 or layer.has_sink
        self.columns = encoding.columns(self.q_pos_T, self.k_pos_T, row_constant=row_constant)
        # Whole rows and scales by distance need the bias apart from the product of q and k.
        if self.columns is not None and not (weighs_rows or layer.distance_rules):
            self.q_BHTD, self.k_BGTD = fold(self.q_BHTD, self.k_BGTD, *self.columns)
            self.columns = None
        self.diagonal = None  # bias at each index distance, of which every block is a slice
        # The bias depends on the index distance alone where coordinates lie on a line.
        if Bias.PROFILE in encoding.biases and band.line is not None:
            profile = functools.partial(layer.profile, band)
            self.diagonal = diagonal(profile, block_rows, length, self.device)
        self.hides = self.diagonal is not None and layer.causal and not weighs_rows
        if self.hides:
            distance = diagonal(
                lambda delta_U: delta_U, block_rows, length, self.device, clamp=False
            )
            is_later_key = distance < 0
            self.diagonal = self.diagonal.masked_fill(is_later_key, -torch.inf)

    def edges(self, start: int, stop: int, keys: slice) -> list[slice]:
        """Parts of `keys` that are not seen by every query of a block."""
        if self.band.lot_T is not None:  # keys drawn at random
            return [keys]
        # Keys from `first` to before `end` are seen by all.
        first = int(self.band.first_T[start:stop].max())
        end = int(self.band.last_T[start:stop].min()) + 1
        if end <= first:
            return [keys]
        return [edge for edge in (slice(keys.start, first), slice(end, keys.stop)) if _some(edge)]

    def slices(self, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        """q and k of a block; the decay counts from its first query."""
        q_BHSD = self.q_BHTD[:, :, start:stop]
        k_BGKD = self.k_BGTD[:, :, keys]
        if self.decay_D is None:
            return q_BHSD, k_BGKD
        q_pos_S = self.q_pos_T[start:stop]
        k_pos_K = self.k_pos_T[keys]
        return damp(q_BHSD, k_BGKD, self.decay_D, q_pos_S, k_pos_K, origin=self.q_pos_T[start])

    def bias(self, start: int, stop: int, keys: slice) -> Tensor | None:
        """Sum of all that is added to the scores of a block beyond the product of q and k: [1 or B,
        H, 1 or S, K]; None for nothing.
        """
        encoding = self.layer.encoding
        parts = []
        if self.columns is not None:
            q_HTR, k_TR = self.columns
            parts.append((q_HTR[:, start:stop] @ k_TR[keys].mT)[None])
        if self.diagonal is not None:
            parts.append(diagonal_slice(self.diagonal, start, stop, keys)[None])
        elif encoding.biases & Bias.DENSE:
            q_pos_S = self.q_pos_T[start:stop]
            k_pos_K = self.k_pos_T[keys]
            parts.append(encoding.bias(q_pos_S, k_pos_K, self.layer.index)[None])
        if self.layer.content_bias is not None:
            parts.append(self.layer.content_bias(slice(start, stop), keys))
        if self.gates_BHT is not None:
            # Sums from each key to the block's first query, near which float32 is exact enough. The
            # gates from there to each query are a constant per row, which softmax ignores.
            sums_BHK = (self.gates_BHT[..., start, None] - self.gates_BHT[..., keys]).float()
            parts.append(sums_BHK[:, :, None])
        return functools.reduce(operator.add, parts) if parts else None

    def sink(self, start: int, stop: int) -> Tensor | None:
        """Logit of the sink beside the scores of a block: [1 or B, H, 1 or S, 1]; None without
        one.
        """
        if self.sink_H is None:
            return None
        logit = sink_logit(self.sink_H, self.gates_BHT, slice(start, stop), origin=start)
        return logit.unsqueeze(-1)

    def seen(self, start: int, stop: int, keys: slice) -> Tensor:
        """True for the keys that each query sees: [S, K]."""
        query_S = torch.arange(start, stop, device=self.device)
        key_K = torch.arange(keys.start, keys.stop, device=self.device)
        return self.band.seen(query_S, key_K)


def _some(indices: slice) -> bool:
    return indices.start < indices.stop


class Masked:
    """Blocks of one band without gradients: torch's fused kernel, with the bias as its mask."""

    def __init__(self, band: PreparedBand, v_BGTD: Tensor):
        self.band = band
        self.width = v_BGTD.shape[-1]
        self.v_BGTW = padded(v_BGTD.float(), band.k_BGTD.shape[-1])

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        keys = self.band.keys(start, stop)
        q_BHSW, k_BGKW = self.band.slices(start, stop, keys)
        v_BGKW = self.v_BGTW[:, :, keys]
        groups = q_BHSW.shape[1] // k_BGKW.shape[1]
        mask = self._mask(start, stop, keys)
        sink = self.band.sink(start, stop)
        if sink is not None:
            # A last key, whose value is 0.
            k_BGKW = F.pad(k_BGKW, (0, 0, 0, 1))
            v_BGKW = F.pad(v_BGKW, (0, 0, 0, 1))
            shape = torch.broadcast_shapes(mask.shape[:-1], sink.shape[:-1])
            mask = torch.cat((mask.expand(*shape, -1), sink.expand(*shape, -1)), dim=-1)
        if groups > 1:
            # The query heads of a group become further queries of one key head, so no key is
            # copied.
            mask = mask.expand(-1, q_BHSW.shape[1], -1, -1)
            mask = mask.unflatten(1, (-1, groups)).flatten(2, 3)
            q_BHSW = q_BHSW.unflatten(1, (-1, groups)).flatten(2, 3)
        n_rows = q_BHSW.shape[2]
        # Whole groups of rows have the same digits with any number of threads.
        q_BHSW, mask = with_whole_row_groups(q_BHSW, mask)
        y_BHSW = F.scaled_dot_product_attention(q_BHSW, k_BGKW, v_BGKW, attn_mask=mask, scale=1.0)
        y_BHSW = y_BHSW[:, :, :n_rows].unflatten(2, (groups, -1)).flatten(1, 2)
        return y_BHSW[..., : self.width]

    def _mask(self, start: int, stop: int, keys: slice) -> Tensor:
        """Bias of a block, -inf where a query does not see a key: [1 or B, 1 or H, 1 or S, K]."""
        bias = self.band.bias(start, stop, keys)
        if self.band.hides:  # the bias is -inf there already
            return bias
        if bias is None:
            bias = torch.zeros(1, 1, 1, 1, device=self.band.device)
        return torch.where(self.band.seen(start, stop, keys), bias, -torch.inf)


class Weighted:
    """Blocks of any number of bands, with one softmax over the scores of all.

    A scale may take the softmax's place, and an encoding may make the weights of whole rows."""

    def __init__(
        self,
        layer: LayerPlan,
        bands: list[PreparedBand],
        v_BGTD: Tensor,
        step: int,
        values: torch.dtype = torch.float32,
    ):
        self.layer = layer
        self.bands = bands
        self.v_BGTD = v_BGTD
        self.values = values
        self.weighs_rows = Bias.ROWS in layer.encoding.biases
        self.factor = layer.factor if self.weighs_rows else None  # else q is scaled by it
        self.rules = []  # factors and addends of the scores at each distance: [2, S, U]
        for rule in layer.distance_rules:
            values_of = functools.partial(_factor_and_addend, rule)
            self.rules.append(diagonal(values_of, step, v_BGTD.shape[2], v_BGTD.device))

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        dtype = self.values
        return sum(
            grouped(weights_BHSK.to(dtype), self.v_BGTD[:, :, keys].to(dtype).mT)
            for keys, weights_BHSK in self.weights(start, stop)
        )

    def weights(self, start: int, stop: int) -> list[tuple[slice, Tensor]]:
        """Weights of queries start..stop-1 in each band: its keys, [B, H, S, K]."""
        if self.weighs_rows:
            return [self._of_rows(start, stop)]
        slices = []  # keys of each band that the block sees
        scores = []
        for band in self.bands:
            keys = band.keys(start, stop)
            if _some(keys):
                slices.append(keys)
                scores.append(self._scores(band, start, stop, keys))
        sink = self.bands[0].sink(start, stop)  # the layer's: each band has the same
        if sink is not None:
            scores.append(sink.expand(*scores[0].shape[:-1], -1))
        sizes = [part.shape[-1] for part in scores]
        joint = len(scores) > 1
        weights_BHSK = self.layer.weights(torch.cat(scores, dim=-1) if joint else scores[0])
        # The sink's weight is the last, and has no keys.
        return list(zip(slices, weights_BHSK.split(sizes, dim=-1), strict=False))

    def _scores(self, band: PreparedBand, start: int, stop: int, keys: slice) -> Tensor:
        """Scores with every factor and bias, -inf where not visible: [B, H, S, K]."""
        scores = grouped(*band.slices(start, stop, keys))
        bias = band.bias(start, stop, keys)
        for rule in self.rules:
            multiply, add = diagonal_slice(rule, start, stop, keys)
            scores = scores * multiply + add
        if bias is not None:
            scores = scores + bias
        softcap = self.layer.softcap
        if softcap is not None:
            # -inf where the bias hides becomes -softcap, so it is hidden again.
            scores = softcap * torch.tanh(scores / softcap)
        elif band.hides:
            return scores
        # With gradients each part changed in place would copy the gradient of all scores.
        hidden_in = [keys] if scores.requires_grad else band.edges(start, stop, keys)
        for some_keys in hidden_in:
            hidden = ~band.seen(start, stop, some_keys)
            columns = slice(some_keys.start - keys.start, some_keys.stop - keys.start)
            scores[..., columns].masked_fill_(hidden, -torch.inf)
        return scores

    def _of_rows(self, start: int, stop: int) -> tuple[slice, Tensor]:
        """Keys and weights of an encoding that weighs whole rows, for which all are one band."""
        (band,) = self.bands
        keys = band.keys(start, stop)
        q_BHSD, k_BGKD = band.slices(start, stop, keys)
        scores_BHSK = grouped(q_BHSD, k_BGKD) * self.v_BGTD.shape[-1] ** -0.5
        bias = band.bias(start, stop, keys)
        factor = 1.0
        if self.factor is not None:
            factor = self.factor[..., start:stop].to(q_BHSD.device).unsqueeze(-1)
        weights_BHSK = self.layer.encoding.weights(
            q_BHSD,
            scores_BHSK,
            bias_HSK=None if bias is None else bias[0],
            seen_SK=band.seen(start, stop, keys),
            factor=factor,
            layer=self.layer.index,
        )
        return keys, weights_BHSK


def _factor_and_addend(rule: ScaleAttention, delta_U: Tensor) -> Tensor:
    """Factor and addend of a rule at each index distance: [2, U], float32."""
    return torch.stack(rule.distance(delta_U)).float()


def grouped(a_BHSX: Tensor, b_BGKX: Tensor) -> Tensor:
    """a b^T, with each key head used by its group of query heads: [B, H, S, K]."""
    groups = a_BHSX.shape[1] // b_BGKX.shape[1]
    if groups == 1:
        return a_BHSX @ b_BGKX.mT
    product_BGPK = a_BHSX.unflatten(1, (-1, groups)).flatten(2, 3) @ b_BGKX.mT
    return product_BGPK.unflatten(2, (groups, -1)).flatten(1, 2)


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
    shift = length - start
    return diagonal_SU[..., : stop - start, keys.start + shift : keys.stop + shift]
