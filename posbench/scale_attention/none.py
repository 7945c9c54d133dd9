"""No scaling of the logits beyond 1 / sqrt(head_dim)."""

from torch import Tensor, ones_like

from posbench.geometry import Span
from posbench.interfaces import ANY, ScaleAttention


class NoScale(ScaleAttention):
    """The factor 1."""

    tested_with = ANY

    def forward(self, n_T: Tensor, span: Span) -> Tensor:
        return ones_like(n_T)
