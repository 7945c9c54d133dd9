"""No scaling of the logits beyond 1 / sqrt(head_dim)."""

from posbench.position.interfaces import TESTED_WITH_ALL, ScaleAttention


class NoScale(ScaleAttention):
    """Scale that changes nothing: the factor is 1."""

    tested_with = TESTED_WITH_ALL
