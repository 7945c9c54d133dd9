"""NAPE: half of the heads use ALiBi, the others no position (NoPE).

Vasylenko et al. 2025, arXiv 2506.16640, for attention by ASEntmax (train.scale_attention=asentmax).
ALiBi heads come first, h = 1..H/2 (rounded down, at least 1), with slopes 1 / h (`slopes: linear`,
the default of deep-spin/asentmax) or 2^(1 - h) (`geometric`). See alibi.py. There a learned factor
in ln n acts on the heads without positions alone (`num_scaled_heads` of the same code):
`scaled_heads: nope`.
"""

from typing import Literal

import torch
from torch import Tensor

from posbench.encodings.alibi import Alibi
from posbench.position.geometry import Shape


class Nape(Alibi):
    """Linear biases in half of the heads; no parameters."""

    def __init__(
        self,
        shape: Shape,
        slopes: Literal["linear", "geometric"] = "linear",
        scaled_heads: Literal["nope", "all"] = "nope",
    ):
        super().__init__(shape)
        # The first half of the heads has slopes 1, 1/2, 1/3 ... or 1, 1/2, 1/4 ...; the other none.
        head_H = torch.arange(1.0, max(1, shape.n_head // 2) + 1)
        self.slope_H.zero_()
        self.slope_H[: len(head_H)] = 1 / head_H if slopes == "linear" else 2 ** (1 - head_H)
        self.scales_all_heads = scaled_heads == "all"

    def scaled_heads(self) -> Tensor | None:
        return None if self.scales_all_heads else self.slope_H == 0
