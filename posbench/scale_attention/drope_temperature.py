"""DroPE's temperature: logits times 1 + a ln s, s = target_len / train_len once that exceeds 1.

Gelberg et al. 2025 (SakanaAI), arXiv 2512.12167: for a model whose RoPE was dropped after training,
evaluated at s times its length. a = 0.412 for their model of 494 million parameters trained from
scratch, 0.103 for SmolLM-360M, each tuned on held-out text. One factor for the whole text, of the
logits themselves; yarn_temperature squares."""

import math

import torch
from torch import Tensor

from posbench.position.geometry import Shape, Span
from posbench.position.interfaces import ScaleAttention


class DropeTemperature(ScaleAttention):
    """One factor for all queries, from the ratio of lengths."""

    tested_with = {"none": "the paper"}

    def __init__(self, shape: Shape, coefficient: float = 0.412):
        super().__init__(shape)
        self.coefficient = coefficient

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return torch.full_like(n_T, 1 + self.coefficient * math.log(span.factor))
