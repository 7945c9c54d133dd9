"""Muon for many matrices at once: those of one shape are stacked, and made orthogonal together.

Jordan et al. 2024 (KellerJordan/Muon), in the arithmetic of torch.optim.Muon, which takes them one by one.

Letters: M matrices of one shape, R rows, C columns.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch.optim.Muon with the same arguments, state and results up to rounding, without `adjust_lr_fn`."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        """Update every matrix that has a gradient. Raises ValueError for a closure."""
        if closure is not None:
            raise ValueError("Muon takes no closure: compute the loss and its gradients first.")
        for group in self.param_groups:
            stacks: dict[tuple, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    stacks[weight.shape, weight.device].append(weight)
            for weights in stacks.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict) -> None:
        gradients, momentum, lr = [weight.grad for weight in weights], group["momentum"], group["lr"]
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight.grad)
        averages = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, averages, momentum) if group["nesterov"] else averages
        updates_MRC = orthogonal(torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = weights[0].shape
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        updates_MRC = updates_MRC.to(weights[0].dtype) * (-lr * math.sqrt(max(1, rows / columns)))
        torch._foreach_add_(weights, list(updates_MRC))


def orthogonal(x_MRC: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Each matrix with its singular values near 1, by steps of Newton and Schulz in bf16: [M, R, C].

    The method `bfloat16` is what posbench.model.precision.Float32 replaces.
    """
    a, b, c = coefficients
    tall = x_MRC.shape[1] > x_MRC.shape[2]
    x = x_MRC.bfloat16()
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
