"""Head scale: logits times a factor learned for each head, or one for the whole model.

The other weights are frozen (finetune=head_scale). Wang et al. 2024, arXiv 2404.12224, for models
without positions, whose attention fades as texts grow: learned at the longer length, at every
length the same. `shared: true` is the paper's uniform scale. Deviation: every factor starts at 1,
where the model is as it was."""

import torch
from torch import Tensor, nn

from posbench.position.geometry import Shape, Span
from posbench.position.interfaces import ScaleAttention


class HeadScale(ScaleAttention):
    """Trained in: a factor for each head and layer, or a single one; no weight decay."""

    trained = True

    def __init__(self, shape: Shape, shared: bool = False):
        super().__init__(shape)
        self.n_head = shape.n_head
        self.shared = shared
        self.scale_LH = nn.Parameter(
            torch.ones((1, 1) if shared else (shape.n_layer, shape.n_head))
        )

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        factor_H = self.scale_LH[0 if self.shared else layer].expand(self.n_head)
        return factor_H[:, None].expand(-1, len(n_T))
