"""YaRN's temperature on its own: logits times (coefficient ln s + 1)^2.

s = target_len / train_len once that exceeds 1. Peng et al. 2023, arXiv 2309.00071, coefficient 0.1;
s is the extension's, so `mode: fixed` makes it constant. extension=yarn brings it along: together
they would multiply (extension.temperature=false)."""

import math

import torch
from torch import Tensor

from posbench.position.geometry import Shape, Span
from posbench.position.interfaces import ScaleAttention


class YarnTemperature(ScaleAttention):
    """One factor for all queries, from the ratio of lengths."""

    tested_with = {
        "rope": "the paper",
        "p_rope": "GLM-4-32B-0414 (2025), half of whose channels turn: YaRN with factor 4",
    }

    def __init__(self, shape: Shape, coefficient: float = 0.1):
        super().__init__(shape)
        self.coefficient = coefficient

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return torch.full_like(n_T, (self.coefficient * math.log(span.factor) + 1) ** 2)
