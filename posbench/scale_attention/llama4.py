"""Llama 4's temperature: the logits grow in steps with the number of keys that a query sees.

Those of the query that sees n keys are multiplied by 1 + beta ln(1 + floor(n / floor_scale)). Meta
2025 (Llama 4; transformers models/llama4), beta = 0.1 and floor_scale = 8192, on its layers without
positions; after Nakanishi 2025, arXiv 2501.19399. Default floor_scale = train_len: the factor is 1
for all but the last query of training, and grows beyond."""

from torch import Tensor

from posbench.position.geometry import Shape, Span, Tokens
from posbench.position.interfaces import ScaleAttention


class Llama4(ScaleAttention):
    """Factor that grows in steps of floor_scale keys."""

    tested_with = {
        "none": "the layers without positions of Llama 4 (Meta 2025)",
        "hybrid": "Llama 4 (Meta 2025)",
    }

    def __init__(self, shape: Shape, beta: float = 0.1, floor_scale: Tokens | None = None):
        super().__init__(shape)
        self.beta = beta
        self.floor_scale = floor_scale  # keys of a step; None: the training length

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return 1 + self.beta * (n_T / (self.floor_scale or span.train_len)).floor().log1p()
