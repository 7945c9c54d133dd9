"""Global log-n: all logits of a text are multiplied by max(1, ln N / ln train_len).

N is the number of keys that its last query sees. log-n (Su 2021, kexue.fm/archives/8823; see log_n)
with one factor for the whole text, as in the temperature of LongRoPE (arXiv 2402.13753), which it
equals where all keys are visible. Queries early in a long text differ from those of a short one;
log_n keeps them equal."""

import math

import torch
from torch import Tensor

from posbench.position.geometry import Span
from posbench.position.interfaces import ScaleAttention
from posbench.scale_attention.log_n import LogN


class LogNGlobal(ScaleAttention):
    """Sharper attention for every query of a long text."""

    tested_with = {
        **LogN.tested_with,
        "rope": "LongRoPE's temperature (Ding et al. 2024, arXiv 2402.13753)",
    }

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        factor = float(n_T.max().log()) / math.log(max(2, span.train_len))
        return torch.full_like(n_T, max(1.0, factor))
