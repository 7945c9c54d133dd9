"""Tiles of the gallery for scales of attention: the factor on logits, and what a sink or a distance leaves of a weight.

Letters: D distances, H heads, T tokens.
"""

import torch

from posbench.anatomy import axes as draws
from posbench.anatomy.dissect import dissect
from posbench.anatomy.gallery_tiles import LENGTH, SHAPE, Tile, plain_first
from posbench.common.errors import ConfigError
from posbench.config.names import nodes
from posbench.model.build import seeded
from posbench.position.instantiate import make
from posbench.position.legality import check

TOP = 3.0  # largest factor drawn


def scale_tiles() -> list[Tile]:
    """Tiles of all scales, on RoPE or else on the first encoding that they can act on."""
    encodings, tiles = nodes("encoding"), []
    for name, node in plain_first(nodes("scale_attention")):
        for own in ("rope", *encodings):
            numbers = _made(encodings[own], node)
            if numbers is not None:
                tiles.append(_tile(name, own, numbers))
                break
    return tiles


def _made(encoding: dict, scale: dict) -> dict | None:
    """Numbers of the scale on an encoding, trained in where it only can be; None if it is not defined or changes nothing."""
    nothing = nodes("extension")["none"], nodes("scale_attention")["none"]
    with seeded(0):
        built = make(encoding, SHAPE)
    extension, none, acting = make(nothing[0]), make(nothing[1], SHAPE), make(scale, SHAPE)
    at_evaluation, trained_in = (none, acting) if acting.trained or acting.sinks else (acting, None)
    try:
        verdict = check(built, extension, at_evaluation, [LENGTH], allow_untested=True)
    except ConfigError:
        return None
    return None if verdict.noop else dissect(built, extension, at_evaluation, LENGTH, trained_in).numbers


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
