"""Learned absolute positions: x_t += P[t], P trainable, train_len x d_model.

Devlin et al. 2018, arXiv 1810.04805; Radford et al. 2019 (GPT-2). There is no row beyond train_len
- 1, so longer inputs are refused (`beyond: refuse`) or all use the last row (`beyond: clamp`, a
baseline and not a method of anyone's). Between rows the table is read by linear interpolation, so
that PI (coordinates t / s < train_len) is defined; coordinates beyond the last row, by at most 1 -
1/s, read that row."""

from typing import Literal

import torch
from torch import Tensor, nn

from posbench.position.geometry import Shape, Spectrum, Trait
from posbench.position.interfaces import Encoding


class Learned(Encoding):
    """A table of train_len rows."""

    def __init__(
        self, shape: Shape, beyond: Literal["refuse", "clamp"] = "refuse", init_std: float = 0.02
    ):
        super().__init__(shape)
        self.traits = Trait.COORDINATE | Trait.TABLE
        if beyond == "clamp":
            self.traits |= Trait.UNBOUNDED
        self.weight = nn.Parameter(torch.randn(shape.reach, shape.d_model) * init_std)

    def rows(self) -> Tensor:
        return self.weight

    def embed(self, pos_T: Tensor, spectrum: Spectrum | None, rows_NC: Tensor) -> Tensor:
        return interpolated_rows(rows_NC, pos_T)


def interpolated_rows(rows_NC: Tensor, pos_T: Tensor) -> Tensor:
    """A table read at coordinates by linear interpolation, beyond its ends the last row: [T, C]."""
    pos_T = pos_T.clamp(0, len(rows_NC) - 1)
    low_T = pos_T.floor().long()
    high_T = (low_T + 1).clamp(max=len(rows_NC) - 1)
    part_T1 = (pos_T - low_T).float().unsqueeze(-1)
    return torch.lerp(rows_NC[low_T], rows_NC[high_T], part_T1)
