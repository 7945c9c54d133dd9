"""Tiles of the gallery for scales of attention: the factor on logits, and what a sink or a distance leaves of a weight.

Letters: T tokens.
"""

import torch

from posbench.anatomy import axes as draws
from posbench.anatomy.gallery_tiles import LENGTH, Tile, acting_tiles

TOP = 3.0  # largest factor drawn


def scale_tiles() -> list[Tile]:
    """Tiles of all scales, on RoPE or else on the first encoding that they can act on."""
    return acting_tiles("scale_attention", _tile)


def _tile(name: str, encoding: str, numbers: dict) -> Tile:
    factors = torch.as_tensor(numbers["logit_scale"], dtype=torch.float64)
    does = [f"x{factors[..., 0].mean():.2f}"] if factors.ndim == 1 and factors.unique().numel() == 1 and factors[0] != 1 else []
    if not does and (factors != 1).any():
        does = ["by keys, learned" if factors.ndim == 2 else "by keys"]
    if numbers["distance_rule"]:
        does.append("by distance")
    if numbers["sink"]:
        does.append("a sink")
    words = ", ".join(does) or "no change"
    return Tile(name, words if encoding == "rope" else f"{words} ({encoding})", lambda axes: _draw(axes, factors, numbers))


def _draw(axes, factors: torch.Tensor, numbers: dict) -> None:
    axes.axhline(1, color="black", linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    for rule in numbers["distance_rule"] or ():
        axes.plot(rule["at"], rule["factor"], color=draws.BLUE, linewidth=1.8, zorder=3)
        axes.plot(rule["at"], torch.as_tensor(rule["addend"]).exp(), color=draws.ORANGE, linewidth=1.8, zorder=3)
    if not numbers["distance_rule"]:
        for factor_T in factors.unique(dim=0) if factors.ndim == 2 else [factors]:
            draws.line(axes, factor_T.tolist(), draws.BLUE, width=1.8)
    if numbers["sink"]:
        keys_T = torch.arange(1, LENGTH + 1)
        for logit in sorted(set(numbers["sink"])):
            axes.plot(keys_T - 1, keys_T / (keys_T + torch.tensor(logit).exp()), color=draws.ORANGE, linewidth=1.8, zorder=3)
    axes.set_ylim(0, TOP)
