"""ASEntmax: the adaptive scale (adaptive.py), then 1.5-entmax in place of the softmax.

The weights of a row z are the maximum of p.z + 4/3 sum (p_i - p_i^1.5) over distributions p
(Peters et al. 2019, arXiv 1905.05702): p_i = (z_i / 2 - tau)^2 where that difference is above 0,
else exactly 0, with the tau at which they sum to 1. So a far key may weigh nothing, however many
there are. Vasylenko et al. 2025, arXiv 2506.16640 (ICLR 2026), whose experiments have it with NAPE
(encoding=nape).

tau is found by Newton's method on the norm of the differences, which is 1 there. The norm is
convex in tau and falls, so that steps from below never pass the root; where all scores are equal,
one step is exact. Only the last step of the search has a gradient: that of the root."""

import torch
from torch import Tensor

from posbench.scale_attention.adaptive import Adaptive

# Six were enough for the digits of float32 in all rows tried: to 2^18 keys,
# equal scores beside others, normal and exponential ones, mixtures of them.
NEWTON_STEPS = 8


class Asentmax(Adaptive):
    """Trained in: sparse weights."""

    def weights(self, scores_BHSK: Tensor) -> Tensor:
        return entmax15(scores_BHSK)


def entmax15(scores_BHSK: Tensor) -> Tensor:
    """1.5-entmax of each row. A row needs a finite score."""
    half_BHSK = scores_BHSK / 2
    with torch.no_grad():
        # The largest weight is at most 1.
        tau_BHS1 = half_BHSK.amax(dim=-1, keepdim=True) - 1
        for _ in range(NEWTON_STEPS - 1):
            tau_BHS1 = _newton_step(half_BHSK, tau_BHS1)
    # Outside of no_grad: at the solution this step alone gives the whole gradient.
    tau_BHS1 = _newton_step(half_BHSK, tau_BHS1)
    return (half_BHSK - tau_BHS1).relu().square()


def _newton_step(half_BHSK: Tensor, tau_BHS1: Tensor) -> Tensor:
    """A step of Newton's method, from a tau that is not above the root."""
    above_BHSK = (half_BHSK - tau_BHS1).relu()
    norm_BHS1 = above_BHSK.norm(dim=-1, keepdim=True)
    slope_BHS1 = above_BHSK.detach().sum(dim=-1, keepdim=True) / norm_BHS1.detach()
    return tau_BHS1 + (norm_BHS1 - 1) / slope_BHS1
