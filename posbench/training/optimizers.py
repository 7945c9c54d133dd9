"""Optimizers and the learning rate: the update rule of each parameter, and the rate at each step."""

import math

import torch
from torch import nn

from posbench.config.schema import TrainConfig
from posbench.position.interfaces import Encoding, ScaleAttention
from posbench.training.muon import Muon


def build(model: nn.Module, config: TrainConfig, muon: type[torch.optim.Muon] = Muon) -> list[torch.optim.Optimizer]:
    """Make the optimizers of `config.optimizer`. Every trainable parameter is in exactly one group of one of them.

    `muon` updates the weights of the nn.Linear modules inside `model.layers` by Muon, and the rest (embeddings, head, norms,
    positional parameters) by AdamW. `adamw` updates everything by AdamW. Weight decay acts only on nn.Linear weights, and not on one
    that is shared with an embedding or belongs to an encoding or a scale. A parameter opts out by `param.no_decay = True` (AdamW's
    decay) or `param.use_adamw = True` (Muon).
    """
    inside, matrices = _linear_weights(model)
    hidden, decayed, rest = [], [], []
    for p in model.parameters():
        if p.requires_grad and config.optimizer == "muon" and id(p) in inside and not getattr(p, "use_adamw", False):
            hidden.append(p)
        elif p.requires_grad:
            decays = id(p) in matrices and not getattr(p, "no_decay", False)
            (decayed if decays else rest).append(p)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer] = []
    if hidden:
        optimizers.append(muon(hidden, lr=config.muon_lr, momentum=config.momentum, weight_decay=config.weight_decay))
    # Fused takes a third of the time of the other two implementations on a CPU, and is no slower on a GPU.
    optimizers.append(torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=tuple(config.betas), fused=True))
    for group in _groups(optimizers):
        group["peak_lr"] = group["lr"]
    place_rates(optimizers)
    return optimizers


def place_rates(optimizers: list[torch.optim.Optimizer]) -> None:
    """Put the rate of parameters on a GPU into a tensor there, which a recorded step reads anew; a loaded state may have it elsewhere."""
    for group in _groups(optimizers):
        device = group["params"][0].device
        on_gpu = device.type == "cuda"
        group["lr"] = torch.tensor(float(group["lr"]), device=device) if on_gpu else float(group["lr"])
        if "capturable" in group:
            group["capturable"] = on_gpu


def rate(step: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at `step` (0 for the first): linear up to 1 over `warmup` steps, then down to 0 at `steps`.

    With schedule=constant it stays 1, so that a shorter training is the beginning of a longer one.
    """
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    left = max(0.0, (config.steps - step) / max(1, config.steps - config.warmup))
    return left if config.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def set_rate(optimizers: list[torch.optim.Optimizer], multiplier: float) -> None:
    """Set every group's learning rate to `multiplier` times its peak."""
    for group in _groups(optimizers):
        rate = group["peak_lr"] * multiplier
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _groups(optimizers: list[torch.optim.Optimizer]) -> list[dict]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _linear_weights(model: nn.Module) -> tuple[set[int], set[int]]:
    """Ids of the nn.Linear weights inside `layers`, and of all those that no embedding shares; weights of methods are in neither."""
    positional = {id(part) for module in model.modules() if isinstance(module, Encoding | ScaleAttention) for part in module.modules()}
    modules = [(name, module) for name, module in model.named_modules() if id(module) not in positional]
    linear = [(name, module.weight) for name, module in modules if isinstance(module, nn.Linear)]
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    inside = {id(weight) for name, weight in linear if "layers" in name.split(".")}
    return inside, {id(weight) for _, weight in linear} - embeddings
