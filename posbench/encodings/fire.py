"""FIRE: a bias that is a learned function of the distance, as a share of the query's position.

The bias is f_h(psi(i - j) / psi(max(L, i))), psi(x) = ln(1 + c x), f a learned MLP 1 -> 32 -> H
with ReLU; c and L are learned. Li et al. 2023, arXiv 2310.04418. Beyond L tokens the farthest key
always reads f at 1, so the method interpolates by itself; that makes the bias depend on i and not
on i - j alone. No official code was found; other people's copies start at c = 0.1 and L = 512. Here
L starts at train_len / 4, which is 512 at 2048 tokens. Deviations from the copies: c and L are
exponentials of the parameters, where the copies take absolute values. psi(max(L, i)) is clamped at
1e-6, where the copies add 1e-6, so that the farthest key reads exactly 1."""

import math

import torch
from torch import Tensor, nn

from posbench.position.geometry import Above0, Shape, Size, Trait
from posbench.position.interfaces import Encoding


class Fire(Encoding):
    """A learned function of the relative distance."""

    traits = Trait.COORDINATE | Trait.UNBOUNDED

    def __init__(
        self,
        shape: Shape,
        c: Above0 = 0.1,
        threshold: Above0 | None = None,
        width: Size = 32,
        share_layers: bool = False,
    ):
        super().__init__(shape)
        if threshold is None:
            # 512 at 2048 tokens: other people's code begins with 512.
            threshold = max(1.0, shape.reach / 4)
        n = 1 if share_layers else shape.n_layer
        self.log_c = nn.Parameter(torch.full((n,), math.log(c)))
        self.log_threshold = nn.Parameter(torch.full((n,), math.log(threshold)))
        self.inner = nn.ModuleList(nn.Linear(1, width) for _ in range(n))
        self.outer = nn.ModuleList(nn.Linear(width, shape.n_head) for _ in range(n))

    def bias(self, q_pos_S: Tensor, k_pos_K: Tensor, layer: int) -> Tensor:
        n = layer % len(self.inner)  # 0 if layers share
        inner = self.inner[n]
        outer = self.outer[n]
        c = self.log_c[n].exp()
        threshold = self.log_threshold[n].exp()
        delta_SK = (q_pos_S[:, None] - k_pos_K).clamp(min=0).float()
        # Queries before the threshold divide as one at it, so that near distances stay small; 1e-6
        # keeps a c of almost 0 from a division by 0.
        largest_S = torch.log1p(c * torch.maximum(threshold, q_pos_S.float())).clamp(min=1e-6)
        # From 0 for the query itself to at most 1 for the first token.
        share_SK = torch.log1p(c * delta_SK) / largest_S[:, None]
        # Hidden units first: the result is [H, S, K] without a transposition.
        hidden_W = torch.relu(inner.weight * share_SK.flatten() + inner.bias[:, None])
        bias_H = outer.weight @ hidden_W + outer.bias[:, None]
        return bias_H.unflatten(-1, share_SK.shape)
