"""log-n: the logits of the query that sees n keys are multiplied by max(1, ln n / ln train_len).

Su 2021 (kexue.fm/archives/8823), per query and clamped as in bojone/rerope and Qwen's use_logn_attn: inside the training length
nothing changes. It multiplies the content score q.k alone, not a distance bias.
"""

import math

from torch import Tensor

from posbench.geometry import Span
from posbench.interfaces import ScaleAttention


class LogN(ScaleAttention):
    """Sharper attention for queries that see more keys than any did in training."""

    tested_with = frozenset({"rope", "none"})

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return (n_T.log() / math.log(max(2, span.train_len))).clamp(min=1.0)
