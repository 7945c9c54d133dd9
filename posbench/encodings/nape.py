"""NAPE: half of the heads are ALiBi's, the others have no position (NoPE).

Vasylenko et al. 2025, arXiv 2506.16640, for attention by ASEntmax; here with softmax. ALiBi heads come first, h = 1..H/2 (rounded down,
at least 1), with slopes 1 / h (`slopes: linear`, the default of deep-spin/asentmax) or 2^(1 - h) (`geometric`). See alibi.py.
"""

from typing import Literal

import torch

from posbench.encodings.alibi import Alibi
from posbench.position.geometry import Shape


class Nape(Alibi):
    """Linear biases in half of the heads; no parameters."""

    def __init__(self, shape: Shape, slopes: Literal["linear", "geometric"] = "linear"):
        super().__init__(shape)
        head_H = torch.arange(1.0, max(1, shape.n_head // 2) + 1)
        self.slope_H.zero_()
        self.slope_H[: len(head_H)] = 1 / head_H if slopes == "linear" else 2 ** (1 - head_H)
