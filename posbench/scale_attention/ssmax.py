"""Scalable softmax: the logits of the query that sees n keys are multiplied by s ln n (+ b).

s and b are learned for each head and layer. Only layers that let a scale act use it. Nakanishi
2025, arXiv 2501.19399. The softmax of s ln(n) z instead of z cannot fade as n grows. The paper's
initial s was not found: here s = 1 / mean of ln n over n = 1..train_len, so that the factor is 1 on
average (0.1685 at 1024 tokens); b = 0."""

import torch
from torch import Tensor, nn

from posbench.position.geometry import Shape, Span
from posbench.position.interfaces import ScaleAttention


class Ssmax(ScaleAttention):
    """Trained in: a factor s ln n for each head and layer; no weight decay."""

    trained = True

    def __init__(self, shape: Shape, bias: bool = False):
        super().__init__(shape)
        mean_log = torch.arange(1, max(2, shape.train_len) + 1, dtype=torch.float64).log().mean()
        self.scale_LH = nn.Parameter(torch.full((shape.n_layer, shape.n_head), float(1 / mean_log)))
        self.bias_LH = nn.Parameter(torch.zeros(shape.n_layer, shape.n_head)) if bias else None

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        factor_HT = self.scale_LH[layer, :, None] * n_T.log().to(self.scale_LH)
        return factor_HT if self.bias_LH is None else factor_HT + self.bias_LH[layer, :, None]
