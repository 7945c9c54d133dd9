"""Sandwich: the inner product of two sinusoidal embeddings as a bias on distance.

Head h = 1..H adds (sum over c of cos((i - j) w_c) - D/2) / (8h/H) to the scaled score, w_c =
10000^(-2c/D), c = 0..D/2-1. Chi et al. 2022, arXiv 2212.10356: the inner product of two sinusoidal
embeddings, as a bias that is 0 for i = j and negative elsewhere. Nothing is learned. D is the
paper's 128 whatever the model's width. NVIDIA/NeMo's copy differs: it counts c from 1, which drops
the fastest frequency, and takes the head's width for D."""

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Shape, Trait
from posbench.position.interfaces import Encoding


class Sandwich(Encoding):
    """Biases from sinusoidal products; no parameters. Raises ConfigError for a dim that is odd or
    below 2.
    """

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.UNBOUNDED

    def __init__(self, shape: Shape, dim: int = 128):
        super().__init__(shape)
        if dim < 2 or dim % 2:
            raise ConfigError(
                f"encoding.dim={dim} must be even and at least 2, since each frequency has a sine"
                " and a cosine."
            )
        # Frequencies of the paper's sinusoidal embeddings, 128 wide whatever the model's width.
        self.speeds = [10000.0 ** (-2 * c / dim) for c in range(dim // 2)]

    def profile(self, delta: Tensor, layer: int) -> Tensor:
        delta = delta.double()
        # One frequency at a time: all at once would need D/2 times the memory of a block's scores.
        # Minus their number, so that the bias is 0 at distance 0.
        bias = sum(torch.cos(delta * speed) for speed in self.speeds) - len(self.speeds)
        n_head = self.shape.n_head
        head_H = torch.arange(1, n_head + 1, dtype=torch.float32, device=delta.device)
        share_H = n_head / (8 * head_H)  # 1 / (8h / H), as in the paper
        return share_H.view(-1, *[1] * delta.ndim) * bias.float()
