"""Learned sink: each head's softmax has one more logit, which is learned and has no value.

Weights are softmax([z, s_h]) without the last. OpenAI 2025 (gpt-oss, arXiv 2508.10925), as in
transformers' models/gpt_oss; also in MiMo-V2 and Granite. The output is that of attention without
it times sigmoid(ln sum exp z - s_h), so that a head may attend to nothing. It acts in every layer,
in sliding windows too; s is not scaled with the logits. Deviation: s starts at `init`; gpt-oss
starts it at N(0, 0.02^2)."""

import torch
from torch import Tensor, nn

from posbench.position.geometry import Shape
from posbench.position.interfaces import ScaleAttention


class LearnedSink(ScaleAttention):
    """Trained in: a logit for each head and layer; no weight decay."""

    trained = True

    def __init__(self, shape: Shape, init: float = 0.0):
        super().__init__(shape)
        self.logit_LH = nn.Parameter(torch.full((shape.n_layer, shape.n_head), float(init)))

    def sink(self, layer: int) -> Tensor:
        return self.logit_LH[layer]
