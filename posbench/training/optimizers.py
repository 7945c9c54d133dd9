"""Optimizers and the learning rate: the update rule of each parameter, and the rate at each step.

Letters: M matrices of one shape, R rows, C columns.
"""

import math
from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.config.schema import TrainConfig
from posbench.position.interfaces import Encoding, ScaleAttention


class Muon(torch.optim.Muon):
    """torch.optim.Muon with the same arguments, state and results up to rounding, without
    `adjust_lr_fn` (Jordan et al. 2024).

    Matrices of one shape are stacked and made orthogonal together; there they are taken one by one.
    """

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
        """Update matrices of one shape."""
        gradients = [weight.grad for weight in weights]
        momentum = group["momentum"]
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight.grad)
        averages = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)  # in place, so the state advances
        updates = averages
        if group["nesterov"]:
            updates = torch._foreach_lerp(gradients, averages, momentum)
        updates_MRC = orthogonal(
            torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        lr = group["lr"]
        rows, columns = weights[0].shape
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        # A tall matrix needs a longer step for outputs to change as much (torch's "original").
        updates_MRC = updates_MRC.to(weights[0].dtype) * (-lr * math.sqrt(max(1, rows / columns)))
        torch._foreach_add_(weights, list(updates_MRC))


def orthogonal(
    x_MRC: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Each matrix with its singular values near 1, by steps of Newton and Schulz in bf16: [M, R,
    C].

    The method `bfloat16` is what posbench.model.precision.MuonInFloat32 replaces.
    """
    a, b, c = coefficients
    tall = x_MRC.shape[1] > x_MRC.shape[2]
    x = x_MRC.bfloat16()
    x = x.mT if tall else x  # so that x x^T is the smaller of both products
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def make_optimizers(
    model: nn.Module, config: TrainConfig, muon: type[torch.optim.Muon] = Muon
) -> list[torch.optim.Optimizer]:
    """Make the optimizers of `config.optimizer`. Every trainable parameter is in exactly one group
    of one of them.

    `muon` updates the weights of the nn.Linear modules inside `model.layers` by Muon, and the rest
    (embeddings, head, norms, positional parameters) by AdamW. `adamw` updates everything by AdamW.
    Weight decay acts only on nn.Linear weights, and not on one that is shared with an embedding or
    belongs to an encoding or a scale."""
    parts = _partition(model, by_muon=config.optimizer == "muon")
    groups = [
        {"params": parts.decayed, "weight_decay": config.weight_decay},
        {"params": parts.others, "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if parts.hidden:
        optimizers.append(
            muon(
                parts.hidden,
                lr=config.muon_lr,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
            )
        )
    # Fused takes a third of the time of the other two implementations on a CPU, and is no slower on
    # a GPU.
    optimizers.append(
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=tuple(config.betas),
            fused=True,
        )
    )
    for group in _parameter_groups(optimizers):
        group["peak_lr"] = group["lr"]
    place_rates(optimizers)  # on the GPU, if there is one
    return optimizers


class Partition(NamedTuple):
    """Trainable parameters: those that Muon updates, and AdamW's with weight decay and without."""

    hidden: list[nn.Parameter]
    decayed: list[nn.Parameter]
    others: list[nn.Parameter]


def _partition(model: nn.Module, by_muon: bool) -> Partition:
    """Partition of a model's trainable parameters, each in the order of the model."""
    ids_inside_layers, ids_of_matrices = _linear_weights(model)
    parts = Partition([], [], [])
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if by_muon and id(parameter) in ids_inside_layers:
            parts.hidden.append(parameter)
        elif id(parameter) in ids_of_matrices:
            parts.decayed.append(parameter)
        else:  # embeddings, biases, norms and parameters of methods
            parts.others.append(parameter)
    return parts


def place_rates(optimizers: list[torch.optim.Optimizer]) -> None:
    """Put the rate of parameters on a GPU into a tensor there, which a recorded step reads anew; a
    loaded state may have it elsewhere.
    """
    for group in _parameter_groups(optimizers):
        device = group["params"][0].device
        on_gpu = device.type == "cuda"
        group["lr"] = float(group["lr"])
        if on_gpu:
            group["lr"] = torch.tensor(group["lr"], device=device)
        if "capturable" in group:  # AdamW then counts its steps on the GPU, as a graph needs it
            group["capturable"] = on_gpu


def rate_multiplier(step: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at `step` (0 for the first): linear up to 1 over `warmup`
    steps, then down to 0 at `steps`.

    With schedule=constant it stays 1, so that a shorter training is the beginning of a longer one.
    """
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    remaining = max(0.0, (config.steps - step) / max(1, config.steps - config.warmup))
    if config.schedule == "linear":
        return remaining
    return 0.5 * (1 - math.cos(math.pi * remaining))


def set_rate(optimizers: list[torch.optim.Optimizer], multiplier: float) -> None:
    """Set every group's learning rate to `multiplier` times its peak."""
    for group in _parameter_groups(optimizers):
        rate = group["peak_lr"] * multiplier
        # A recorded step reads the rate from this very tensor.
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _parameter_groups(optimizers: list[torch.optim.Optimizer]) -> list[dict]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _linear_weights(model: nn.Module) -> tuple[set[int], set[int]]:
    """Ids of the nn.Linear weights inside `layers`, and of all those that no embedding shares;
    weights of methods are in neither.
    """
    positional = set()  # ids of the modules of methods
    embeddings = set()  # ids of their weights
    for module in model.modules():
        if isinstance(module, Encoding | ScaleAttention):
            positional.update(id(part) for part in module.modules())
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))
    inside = set()
    matrices = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and id(module) not in positional:
            matrices.add(id(module.weight))
            if "layers" in name.split("."):
                inside.add(id(module.weight))
    return inside, matrices - embeddings
