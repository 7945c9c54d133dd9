"""`attend_by_blocks`: attention by blocks of queries that touch only the keys in a band's
intervals.

It runs any plan on any device, is exact and differentiable, and takes O(T x block) memory. There
are two kinds of blocks, which take everything that is added to the scores from `PreparedBand.bias`:
`MaskedBlock` and `WeightedBlock`, whose attention weights can be asked for.

Letters: B batch, T tokens, H heads, G key heads, D head width, S queries of a block, K keys of a
slice, W width of q and k with columns, U index distances."""

import functools
import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posbench.model.kernels.folding import (
    padded_to_width,
    sink_logit,
    with_bias_columns,
    with_decay,
)
from posbench.position.geometry import Bias
from posbench.position.interfaces import ScaleAttention
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.products import with_whole_row_groups

# Queries per block. A CPU is fastest if a block's scores stay in its cache (two bands take 1.4 to
# 2.2 times as long as plain attention with 32 queries, 6 times with 256). A GPU needs fewer and
# larger steps.
BLOCK_QUERIES = {"cpu": 32, "cuda": 512}
# The same for one band without gradients, whose blocks run in torch's fused kernel with a mask.
MASKED_BLOCK_QUERIES = {"cpu": 64, "cuda": 512}
# Tokens of a text up to which it is one block: training lengths of a small model.
LONGEST_SINGLE_BLOCK = 128


def attend_by_blocks(
    layer: LayerPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None = None,
    first_query: int = 0,
    values_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Attention of any plan for queries `first_query` and later: one softmax over all bands of each
    block.

    q and k are float32, gates float64. Weights and v are multiplied in the format `values_dtype`,
    by torch's kernel (`MaskedBlock`) in float32; the result is in that format."""
    length = q_BHTD.shape[2]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q_BHTD, k_BGTD, v_BGTD))
    # A mask that needs a gradient sends torch's kernel to its dense form.
    one_band_without_gradient = not learns and len(layer.bands) == 1
    sizes = MASKED_BLOCK_QUERIES if one_band_without_gradient else BLOCK_QUERIES
    block_rows = queries_per_block(q_BHTD, sizes)
    bands = [
        PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, block_rows) for band in layer.bands
    ]
    # torch's kernel adds a mask to the scores, and can neither multiply them nor weigh whole rows.
    adds_to_scores_alone = (
        not layer.changes_single_scores and Bias.ROWS not in layer.encoding.biases
    )
    if one_band_without_gradient and adds_to_scores_alone:
        block = MaskedBlock(bands[0], v_BGTD)
    else:
        block = WeightedBlock(layer, bands, v_BGTD, block_rows, values_dtype)
    starts = range(first_query, length, block_rows)
    # Else the backward pass would keep the probabilities of all blocks: [T, T].
    recompute = learns and len(starts) > 1
    outputs = []
    # The block with the most keys first: each later one fits into memory just freed, while growing
    # blocks never would.
    for start in reversed(starts):
        stop = min(start + block_rows, length)
        if recompute:
            outputs.append(checkpoint(block, start, stop, use_reentrant=False))
        else:
            outputs.append(block(start, stop))
        layer.report_progress(len(outputs) / (len(starts) + 1))  # below 1: the MLP follows
    return torch.cat(outputs[::-1], dim=2)


def queries_per_block(q_BHTD: Tensor, sizes: dict[str, int]) -> int:
    """Number of queries of a block of a text. `sizes` has that of long texts for each kind of
    device.
    """
    length = q_BHTD.shape[2]
    if length <= LONGEST_SINGLE_BLOCK:
        return length  # whose scores are few
    return sizes.get(q_BHTD.device.type, sizes["cuda"])  # other accelerators are like CUDA


class PreparedBand:
    """One band of a layer for blocks of `block_rows` queries. q is scaled unless the encoding
    weighs whole rows, which does so itself.

    `bias_hides_unseen`: the bias is already -inf at the keys that a query does not see.
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
        # With one band and no sink a constant on all scores of a query changes nothing.
        row_constant = len(layer.bands) > 1 or layer.has_sink
        self.columns = encoding.columns(self.q_pos_T, self.k_pos_T, row_constant=row_constant)
        # Whole rows and scales by distance need the bias apart from the product of q and k.
        if self.columns is not None and not (weighs_rows or layer.distance_rules):
            self.q_BHTD, self.k_BGTD = with_bias_columns(self.q_BHTD, self.k_BGTD, *self.columns)
            self.columns = None
        self.bias_table = None  # bias at each index distance, of which every block is a slice
        # The bias depends on the index distance alone where coordinates lie on a line.
        if Bias.PROFILE in encoding.biases and band.line is not None:
            profile = functools.partial(layer.profile, band)
            self.bias_table = distance_table(profile, block_rows, length, self.device)
        # Where later keys are all that is hidden, -inf in the table hides them. An encoding that
        # weighs rows computes with its biases, and hides keys itself.
        self.bias_hides_unseen = self.bias_table is not None and layer.causal and not weighs_rows
        if self.bias_hides_unseen:
            # The index distance itself, which must be below 0 for later keys: not clamped.
            distance = distance_table(
                lambda delta_U: delta_U, block_rows, length, self.device, clamp=False
            )
            is_later_key = distance < 0
            self.bias_table = self.bias_table.masked_fill(is_later_key, -torch.inf)

    def partly_seen_keys(self, start: int, stop: int, keys: slice) -> list[slice]:
        """Parts of `keys` that are not seen by every query of a block."""
        # Keys drawn at random are seen by all queries nowhere.
        if self.band.lot_T is not None:
            return [keys]
        # Keys from `first` to before `end` are seen by all.
        first = int(self.band.first_T[start:stop].max())
        end = int(self.band.last_T[start:stop].min()) + 1
        if end <= first:
            return [keys]
        before_and_after = (slice(keys.start, first), slice(end, keys.stop))
        return [edge for edge in before_and_after if _is_nonempty(edge)]

    def q_and_k(self, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        """q [B, H, S, D] and k [B, G, K, D] of a block; the decay counts from its first query."""
        q_BHSD = self.q_BHTD[:, :, start:stop]
        k_BGKD = self.k_BGTD[:, :, keys]
        if self.decay_D is None:
            return q_BHSD, k_BGKD
        q_pos_S = self.q_pos_T[start:stop]
        k_pos_K = self.k_pos_T[keys]
        return with_decay(
            q_BHSD, k_BGKD, self.decay_D, q_pos_S, k_pos_K, origin=self.q_pos_T[start]
        )

    def bias(self, start: int, stop: int, keys: slice) -> Tensor | None:
        """Sum of all that is added to the scores of a block beyond the product of q and k: [1 or B,
        H, 1 or S, K]; None for nothing.
        """
        encoding = self.layer.encoding
        parts = []
        if self.columns is not None:
            q_HTR, k_TR = self.columns
            parts.append((q_HTR[:, start:stop] @ k_TR[keys].mT)[None])
        if self.bias_table is not None:
            parts.append(distance_table_slice(self.bias_table, start, stop, keys)[None])
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
        # In a block the gates of the scores are summed from its first query.
        logit = sink_logit(self.sink_H, self.gates_BHT, slice(start, stop), origin=start)
        return logit.unsqueeze(-1)

    def seen(self, start: int, stop: int, keys: slice) -> Tensor:
        """True for the keys that each query sees: [S, K]."""
        query_S = torch.arange(start, stop, device=self.device)
        key_K = torch.arange(keys.start, keys.stop, device=self.device)
        return self.band.seen(query_S, key_K)


def _is_nonempty(indices: slice) -> bool:
    return indices.start < indices.stop


class MaskedBlock:
    """Blocks of one band without gradients: torch's fused kernel, with the bias as its mask."""

    def __init__(self, band: PreparedBand, v_BGTD: Tensor):
        self.band = band
        self.width = v_BGTD.shape[-1]
        self.v_BGTW = padded_to_width(v_BGTD.float(), band.k_BGTD.shape[-1])

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        keys = self.band.keys(start, stop)
        q_BHSW, k_BGKW = self.band.q_and_k(start, stop, keys)
        v_BGKW = self.v_BGTW[:, :, keys]
        queries_per_key = q_BHSW.shape[1] // k_BGKW.shape[1]  # heads
        mask = self._mask(start, stop, keys)
        sink = self.band.sink(start, stop)
        if sink is not None:
            # A last key of zeros, to whose score of 0 the mask adds the logit; its value is 0.
            k_BGKW = F.pad(k_BGKW, (0, 0, 0, 1))
            v_BGKW = F.pad(v_BGKW, (0, 0, 0, 1))
            shape = torch.broadcast_shapes(mask.shape[:-1], sink.shape[:-1])
            mask = torch.cat((mask.expand(*shape, -1), sink.expand(*shape, -1)), dim=-1)
        if queries_per_key > 1:
            # The query heads of a group become further queries of one key head, so no key is
            # copied.
            mask = mask.expand(-1, q_BHSW.shape[1], -1, -1)
            mask = mask.unflatten(1, (-1, queries_per_key)).flatten(2, 3)
            q_BHSW = q_BHSW.unflatten(1, (-1, queries_per_key)).flatten(2, 3)
        n_rows = q_BHSW.shape[2]
        # Whole groups of rows have the same digits with any number of threads.
        q_BHSW, mask = with_whole_row_groups(q_BHSW, mask)
        y_BHSW = F.scaled_dot_product_attention(q_BHSW, k_BGKW, v_BGKW, attn_mask=mask, scale=1.0)
        y_BHSW = y_BHSW[:, :, :n_rows].unflatten(2, (queries_per_key, -1)).flatten(1, 2)
        return y_BHSW[..., : self.width]  # without the padding to the width of q and k

    def _mask(self, start: int, stop: int, keys: slice) -> Tensor:
        """Bias of a block, -inf where a query does not see a key: [1 or B, 1 or H, 1 or S, K]."""
        bias = self.band.bias(start, stop, keys)
        if self.band.bias_hides_unseen:  # the bias is -inf there already
            return bias
        if bias is None:
            bias = torch.zeros(1, 1, 1, 1, device=self.band.device)
        return torch.where(self.band.seen(start, stop, keys), bias, -torch.inf)


class WeightedBlock:
    """Blocks of any number of bands, with one softmax over the scores of all.

    A scale may take the softmax's place, and an encoding may make the weights of whole rows."""

    def __init__(
        self,
        layer: LayerPlan,
        bands: list[PreparedBand],
        v_BGTD: Tensor,
        block_rows: int,
        values_dtype: torch.dtype = torch.float32,
    ):
        self.layer = layer
        self.bands = bands
        self.v_BGTD = v_BGTD
        self.values_dtype = values_dtype
        self.weighs_rows = Bias.ROWS in layer.encoding.biases
        # Else q is scaled by it.
        self.factor = layer.factor if self.weighs_rows else None
        self.rule_tables = []  # factors and addends of the scores at each distance: [2, S, U]
        for rule in layer.distance_rules:
            at_distance = functools.partial(_factor_and_addend, rule)
            self.rule_tables.append(
                distance_table(at_distance, block_rows, v_BGTD.shape[2], v_BGTD.device)
            )

    def __call__(self, start: int, stop: int) -> Tensor:
        """Output of queries start..stop-1: [B, H, S, D]."""
        dtype = self.values_dtype
        return sum(
            grouped_product(weights_BHSK.to(dtype), self.v_BGTD[:, :, keys].to(dtype).mT)
            for keys, weights_BHSK in self.weights(start, stop)
        )

    def weights(self, start: int, stop: int) -> list[tuple[slice, Tensor]]:
        """Weights of queries start..stop-1 in each band: its keys, [B, H, S, K]."""
        if self.weighs_rows:
            return [self._weights_of_whole_rows(start, stop)]
        slices = []  # keys of each band that the block sees
        scores = []
        for band in self.bands:
            keys = band.keys(start, stop)
            if _is_nonempty(keys):
                slices.append(keys)
                scores.append(self._scores(band, start, stop, keys))
        sink = self.bands[0].sink(start, stop)  # the layer's: each band has the same
        if sink is not None:
            scores.append(sink.expand(*scores[0].shape[:-1], -1))
        sizes = [part.shape[-1] for part in scores]
        # torch.cat would copy a single tensor.
        all_scores_BHSK = torch.cat(scores, dim=-1) if len(scores) > 1 else scores[0]
        weights_BHSK = self.layer.weights(all_scores_BHSK)
        # The sink's weight is the last, and has no keys.
        return list(zip(slices, weights_BHSK.split(sizes, dim=-1), strict=False))

    def _scores(self, band: PreparedBand, start: int, stop: int, keys: slice) -> Tensor:
        """Scores with every factor and bias, -inf where not visible: [B, H, S, K]."""
        scores = grouped_product(*band.q_and_k(start, stop, keys))
        bias = band.bias(start, stop, keys)
        for table in self.rule_tables:
            factor_SK, addend_SK = distance_table_slice(table, start, stop, keys)
            scores = scores * factor_SK + addend_SK
        if bias is not None:
            scores = scores + bias
        softcap = self.layer.softcap
        if softcap is not None:
            # -inf of the bias at unseen keys becomes -softcap, so they are hidden again below.
            scores = softcap * torch.tanh(scores / softcap)
        elif band.bias_hides_unseen:
            return scores
        # With gradients each part changed in place would copy the gradient of all scores.
        hidden_in = [keys] if scores.requires_grad else band.partly_seen_keys(start, stop, keys)
        for some_keys in hidden_in:
            hidden = ~band.seen(start, stop, some_keys)
            columns = slice(some_keys.start - keys.start, some_keys.stop - keys.start)
            scores[..., columns].masked_fill_(hidden, -torch.inf)
        return scores

    def _weights_of_whole_rows(self, start: int, stop: int) -> tuple[slice, Tensor]:
        """Keys and weights of an encoding that weighs whole rows, for which all are one band."""
        (band,) = self.bands
        keys = band.keys(start, stop)
        q_BHSD, k_BGKD = band.q_and_k(start, stop, keys)
        scores_BHSK = grouped_product(q_BHSD, k_BGKD) * self.v_BGTD.shape[-1] ** -0.5
        # `weights` takes a bias of positions alone, which all texts share.
        bias_1HSK = band.bias(start, stop, keys)
        factor = 1.0
        if self.factor is not None:
            factor = self.factor[..., start:stop].to(q_BHSD.device).unsqueeze(-1)
        weights_BHSK = self.layer.encoding.weights(
            q_BHSD,
            scores_BHSK,
            bias_HSK=None if bias_1HSK is None else bias_1HSK[0],
            seen_SK=band.seen(start, stop, keys),
            factor=factor,
            layer=self.layer.index,
        )
        return keys, weights_BHSK


def _factor_and_addend(rule: ScaleAttention, delta_U: Tensor) -> Tensor:
    """Factor and addend of a rule at each index distance: [2, U], float32."""
    return torch.stack(rule.distance(delta_U)).float()


def grouped_product(a_BHSX: Tensor, b_BGKX: Tensor) -> Tensor:
    """a b^T, with each key head used by its group of query heads: [B, H, S, K]."""
    groups = a_BHSX.shape[1] // b_BGKX.shape[1]
    if groups == 1:
        return a_BHSX @ b_BGKX.mT
    product_BGPK = a_BHSX.unflatten(1, (-1, groups)).flatten(2, 3) @ b_BGKX.mT
    return product_BGPK.unflatten(2, (groups, -1)).flatten(1, 2)


def distance_table(
    value_at_distance: Callable[[Tensor], Tensor],
    block_rows: int,
    length: int,
    device: torch.device,
    clamp: bool = True,
) -> Tensor:
    """Values of a function of the index distance (float64), laid out so that every block of
    `block_rows` queries is a slice of them: [..., S, U].

    Row s, column u holds the value at distance s - (u - length), so the columns of a block that
    starts at query i begin at length - i. Distances below 0 (later keys) hold value_at_distance(0),
    unless clamp=False."""
    delta_U = torch.arange(
        length + block_rows - 1, -block_rows, -1, dtype=torch.float64, device=device
    )
    value_U = value_at_distance(delta_U.clamp(min=0) if clamp else delta_U)
    # Window s of width length + block_rows begins one element later for each earlier row.
    return value_U.unfold(-1, length + block_rows, 1).flip(-2)


def distance_table_slice(table_SU: Tensor, start: int, stop: int, keys: slice) -> Tensor:
    """Slice of a `distance_table` for queries start..stop-1 and some keys: [..., S, K]."""
    length = table_SU.shape[-1] - table_SU.shape[-2]
    shift = length - start
    return table_SU[..., : stop - start, keys.start + shift : keys.stop + shift]
