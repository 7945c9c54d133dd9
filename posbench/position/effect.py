"""What an extension changes, seen by laying its plan beside the plain one: which keys are hidden, which pairs lie elsewhere.

Letters: T tokens.
"""

from __future__ import annotations

import torch

from posbench.position.geometry import Trait
from posbench.position.interfaces import Encoding, Extension, overrides
from posbench.position.plan import BandPlan, LayerPlan, make_plan


def _pairs(encoding: Encoding, extension: Extension, length: int) -> list[tuple[LayerPlan, LayerPlan]]:
    """Distinct layers with the extension beside the same without it; empty where the positions do not reach so far."""
    if encoding.limit is not None and length > encoding.limit:
        return []
    plans = [make_plan(encoding, one, length=length) for one in (extension, None)]
    pairs = zip(*(plan.layers for plan in plans), strict=True)
    return list({id(pair[1].bands): pair for pair in pairs}.values())


def _visible(layer: LayerPlan) -> list[int]:
    """How many keys each query sees; as bands never overlap and only ever hide, equal counts are equal masks."""
    return sum(band.seen_T for band in layer.bands).tolist()


def masks(encoding: Encoding, extension: Extension, length: int) -> bool:
    """Whether the extension hides keys that are seen without it."""
    return any(_visible(changed) != _visible(plain) for changed, plain in _pairs(encoding, extension, length))


def changes(encoding: Encoding, extension: Extension, length: int) -> bool:
    """Whether any layer, or what is added to the embeddings, differs from no extension."""
    if overrides(encoding, "embed"):
        added = [make_plan(encoding, one, length=length).embed() for one in (extension, None)]
        if not equal(*added):
            return True
    return not all(_same_layer(changed, plain) for changed, plain in _pairs(encoding, extension, length))


def _same_layer(changed: LayerPlan, plain: LayerPlan) -> bool:
    if _visible(changed) != _visible(plain) or not equal(changed.factor, plain.factor):
        return False
    encoding, (reference,) = changed.encoding, plain.bands
    for band in changed.bands:
        if Trait.COORDINATE not in encoding.traits or not band.seen_T.any():
            continue
        if not equal(band.q_table, reference.q_table) or not equal(band.k_table, reference.k_table):
            return False
        moved = not torch.equal(band.q_pos_T, reference.q_pos_T) or not torch.equal(band.k_pos_T, reference.k_pos_T)
        if moved and not _same_bias(changed, band, reference):
            return False
    return True


@torch.no_grad()
def _same_bias(layer: LayerPlan, band: BandPlan, reference: BandPlan) -> bool:
    """Whether the last query's bias at the keys of a band is the same at both sets of coordinates."""
    encoding, keys = layer.encoding, slice(int(band.first_T[-1].clamp(min=0)), int(band.last_T[-1]) + 1)
    if overrides(encoding, "columns") or encoding.decay() is not None:
        return False
    if not (overrides(encoding, "profile") or overrides(encoding, "bias")):
        return True
    biases = [encoding.bias(one.q_pos_T[-1:], one.k_pos_T[keys], layer.index) for one in (band, reference)]
    return torch.equal(*biases)


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equality of what may be absent."""
    return a is b or (a is not None and b is not None and torch.equal(a, b))
