"""Softmax off by one: as if each query saw one more key of logit 0 and without a value.

Weights are exp z_j / (1 + sum exp z). Miller 2023 (Attention Is Off By One, evanmiller.org); the
sink of gpt-oss (learned_sink.py) with its logit fixed at 0. Meant to be trained in. In every layer,
in sliding windows too."""

import torch
from torch import Tensor

from posbench.position.interfaces import ScaleAttention


class OffByOne(ScaleAttention):
    """A sink of logit 0."""

    def sink(self, layer: int) -> Tensor:
        return torch.zeros(1)
