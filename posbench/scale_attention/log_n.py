"""log-n: the logits of the query that sees n keys are multiplied by (ln n / ln train_len)^p.

At evaluation the factor is no less than 1. Su 2021 (kexue.fm/archives/8823), per query and clamped
as in bojone/rerope and Qwen's use_logn_attn: inside the training length nothing changes. `clamp:
false` is the post's own form, for a model trained with it: below train_len it is smaller than 1,
and 0 for the first query, which has one key and needs none. It multiplies the content score q.k
alone, not a distance bias.

p = 1 is Su's. Which power keeps attention neither even nor on one key depends on the scores: laws
from (ln n)^1/2 to (ln n)^2 have been derived, and are cases of one theory (Hayase and Karakida
2026, arXiv 2605.12697); ln n for the model of Chen et al. 2025 (arXiv 2510.05554). Only their
abstracts were read. `-m scale_attention.p=0.5,1,1.5,2` finds the one that a trained model wants."""

import math

from torch import Tensor

from posbench.position.geometry import Above0, Shape, Span
from posbench.position.interfaces import AS_ROPE, ScaleAttention


class LogN(ScaleAttention):
    """Sharper attention for queries that see more keys than any did in training."""

    tested_with = {
        "rope": "Su 2023 (bojone/rerope); Qwen (Bai et al. 2023, arXiv 2309.16609)",
        "none": "SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719): its layers without positions",
        "hybrid": "SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719)",
        "p_rope": AS_ROPE,
        **dict.fromkeys(
            ("learned", "sinusoidal", "xpos", "fope", "pope", "randomized"),
            "Su 2021 (kexue.fm/archives/8823) derives it from the softmax alone",
        ),
    }

    def __init__(self, shape: Shape, clamp: bool = True, p: Above0 = 1.0):
        super().__init__(shape)
        self.clamp = clamp  # True: no factor is below 1
        self.p = p

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        factor_T = (n_T.log() / math.log(max(2, span.train_len))) ** self.p
        return factor_T.clamp(min=1.0) if self.clamp else factor_T
