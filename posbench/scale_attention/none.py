"""No scaling of the logits beyond 1 / sqrt(head_dim)."""

from posbench.position.interfaces import ANY, ScaleAttention


class NoScale(ScaleAttention):
    """The factor 1."""

    tested_with = ANY
