"""A band prepared for attention by blocks: q and k of a block, everything that is added to its scores, and the keys that it sees.

Letters: B batch, T tokens, H heads, G key heads, D head width, S queries of a block, K keys of a slice, U index distances.
"""

import functools
import operator
from collections.abc import Callable

import torch
from torch import Tensor

from posbench.model.kernels.folding import damp, fold, sink_logit
from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan


class PreparedBand:
    """One band of a layer for blocks of `step` queries. q is scaled unless the encoding weighs whole rows, which does so itself.

    `hides`: the bias is already -inf at the keys that a query does not see.
    """

    def __init__(self, layer: LayerPlan, band: BandPlan, q_BHTD: Tensor, k_BGTD: Tensor, gates_BHT: Tensor | None, step: int):
        encoding, length, whole = layer.encoding, q_BHTD.shape[2], Bias.ROWS in layer.encoding.biases
        self.layer, self.band, self.gates_BHT, self.device = layer, band, gates_BHT, q_BHTD.device
        self.q_pos_T, self.k_pos_T = band.positions(self.device)
        self.decay_D = encoding.decay()
        self.q_BHTD, self.k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
        if not whole:
            self.q_BHTD = layer.scaled(self.q_BHTD, q_BHTD.shape[-1])
        self.sink_H = layer.sink(q_BHTD)
        self.columns = encoding.columns(self.q_pos_T, self.k_pos_T, row_constant=len(layer.bands) > 1 or layer.has_sink)
        # Whole rows and scales by distance need the bias apart from the product of q and k.
        if self.columns is not None and not (whole or layer.distance_rules):
            self.q_BHTD, self.k_BGTD = fold(self.q_BHTD, self.k_BGTD, *self.columns)
            self.columns = None
        self.diagonal = None
        if Bias.PROFILE in encoding.biases and band.line is not None:
            self.diagonal = diagonal(functools.partial(layer.profile, band), step, length, self.device)
        self.hides = self.diagonal is not None and layer.causal and not whole
        if self.hides:
            later = diagonal(lambda delta_U: -delta_U, step, length, self.device, clamp=False) > 0
            self.diagonal = self.diagonal.masked_fill(later, -torch.inf)

    def keys(self, start: int, stop: int) -> slice:
        """Slice of the keys that queries start..stop-1 see; empty if they see none."""
        return self.band.keys(start, stop)

    def slices(self, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        """q and k of a block; the decay counts from its first query."""
        q_BHSD, k_BGKD = self.q_BHTD[:, :, start:stop], self.k_BGTD[:, :, keys]
        if self.decay_D is None:
            return q_BHSD, k_BGKD
        return damp(q_BHSD, k_BGKD, self.decay_D, self.q_pos_T[start:stop], self.k_pos_T[keys], self.q_pos_T[start])

    def bias(self, start: int, stop: int, keys: slice) -> Tensor | None:
        """Sum of all that is added to the scores of a block beyond the product of q and k: [1 or B, H, 1 or S, K]; None for nothing."""
        parts = []
        if self.columns is not None:
            parts.append((self.columns[0][:, start:stop] @ self.columns[1][keys].mT)[None])
        if self.diagonal is not None:
            parts.append(cut(self.diagonal, start, stop, keys)[None])
        elif self.layer.encoding.biases & Bias.DENSE:
            parts.append(self.layer.encoding.bias(self.q_pos_T[start:stop], self.k_pos_T[keys], self.layer.index)[None])
        if self.gates_BHT is not None:
            # Sums from each key to the block's first query, near which float32 is exact enough. The gates from there to each query are
            # a constant per row, which softmax ignores.
            parts.append((self.gates_BHT[..., start, None] - self.gates_BHT[..., keys]).float()[:, :, None])
        return functools.reduce(operator.add, parts) if parts else None

    def sink(self, start: int, stop: int) -> Tensor | None:
        """Logit of the sink beside the scores of a block: [1 or B, H, 1 or S, 1]; None without one."""
        return None if self.sink_H is None else sink_logit(self.sink_H, self.gates_BHT, slice(start, stop), start).unsqueeze(-1)

    def seen(self, start: int, stop: int, keys: slice) -> Tensor:
        """True for the keys that each query sees: [S, K]."""
        return self.band.seen(*(torch.arange(one.start, one.stop, device=self.device) for one in (slice(start, stop), keys)))


def diagonal(value: Callable[[Tensor], Tensor], step: int, length: int, device: torch.device, clamp: bool = True) -> Tensor:
    """Values of a function of the index distance (float64), laid out so that every block of `step` queries is a slice of them: [..., S, U].

    Row s, column u holds the value at distance s - (u - length), so the columns of a block that starts at query i begin at length - i.
    Distances below 0 (later keys) hold value(0), unless clamp=False.
    """
    delta_U = torch.arange(length + step - 1, -step, -1, dtype=torch.float64, device=device)
    value_U = value(delta_U.clamp(min=0) if clamp else delta_U)
    # Window s of width length + step begins one element later for each earlier row.
    return value_U.unfold(-1, length + step, 1).flip(-2)


def cut(diagonal_SU: Tensor, start: int, stop: int, keys: slice) -> Tensor:
    """Slice of a `diagonal` for queries start..stop-1 and some keys: [..., S, K]."""
    length = diagonal_SU.shape[-1] - diagonal_SU.shape[-2]
    return diagonal_SU[..., : stop - start, keys.start - start + length : keys.stop - start + length]
