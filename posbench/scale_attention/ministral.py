"""Ministral 3's temperature: the logits grow in steps of train_len tokens.

Those of the query that sees n keys are multiplied by 1 + beta ln(1 + floor((n - 1) / train_len)).
Mistral AI 2025 (transformers models/ministral3), beta = 0.1, on all layers. As llama4 with the
query's index in place of its keys: 1 in all of training, a step each train_len tokens after."""

from torch import Tensor

from posbench.position.geometry import Shape, Span
from posbench.position.interfaces import AS_ROPE, ScaleAttention


class Ministral(ScaleAttention):
    """Factor that grows in steps of train_len tokens."""

    tested_with = {"rope": "Ministral 3 (Mistral AI 2025)", "p_rope": AS_ROPE}

    def __init__(self, shape: Shape, beta: float = 0.1):
        super().__init__(shape)
        self.beta = beta

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return 1 + self.beta * ((n_T - 1) / span.train_len).floor().log1p()
