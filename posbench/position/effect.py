"""Effects of methods, found by comparing plans: keys that an extension hides or moves, and the
invariance of a longer text's beginning.

Letters: T tokens.
"""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import torch

from posbench.position.geometry import Bias, Trait
from posbench.position.interfaces import Encoding, Extension
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.plan import Plan, make_plan

# Tensors of a band's plan that say all of it.
COMPARED = (
    "first_T",
    "last_T",
    "lot_T",
    "share_T",
    "q_pos_T",
    "k_pos_T",
    "q_table",
    "k_table",
    "q_scale_T",
    "k_scale_T",
)


def masks(encoding: Encoding, extension: Extension, length: int) -> bool:
    """True if the extension hides keys that are seen without it; False beyond the encoding's
    limit.
    """
    if encoding.limit is not None and length > encoding.limit:
        return False
    plans = (make_plan(encoding, one, length=length) for one in (extension, None))
    return any(_visible(changed) != _visible(plain) for changed, plain in _pairs(*plans))


def changes(encoding: Encoding, extension: Extension, length: int) -> bool:
    """True if a layer's plan, or the vectors added to the embeddings, differ from those without the
    extension.
    """
    changed, plain = (make_plan(encoding, one, length=length) for one in (extension, None))
    return not equal(changed.embed(), plain.embed()) or not all(
        _same_layer(*pair) for pair in _pairs(changed, plain)
    )


def together(plan: Callable[[int], Plan], lengths: Iterable[int]) -> dict[int, list[int]]:
    """{length of a text: lengths, the longest first, whose losses are those of its first tokens},
    from `plan(length)`. None is missing.
    """
    found: dict[int, tuple[Plan, list[int]]] = {}
    for length in sorted(lengths, reverse=True):
        own = plan(length)
        text = next(
            (text for text, (longer, _) in found.items() if begins_alike(longer, own)), length
        )
        found.setdefault(text, (own, []))[1].append(length)
    return {text: inside for text, (_, inside) in sorted(found.items())}


def begins_alike(longer: Plan, plan: Plan) -> bool:
    """True if `longer` treats the first tokens of a text as `plan` does, so that their losses are
    the same.
    """
    known = all(layer.encoding.positions_known for layer in plan.layers)
    alike = known and plan.length <= longer.length and _begins(longer.embed(), plan.embed())
    return alike and all(_layer_begins_alike(*pair) for pair in _pairs(longer, plan))


def fingerprint(plan: Plan) -> str:
    """Hash of a plan: equal where the same tokens get the same losses from the same model, but for
    what a trained scale adds.
    """
    found, tensors = hashlib.sha256(str(plan.length).encode()), [plan.embed()]
    for layer in {id(layer.bands): layer for layer in plan.layers}.values():
        tensors.append(layer.factor)
        for band in layer.bands:
            tensors += [getattr(band, name) for name in COMPARED]
    for tensor in tensors:
        found.update(
            b"-" if tensor is None else np.ascontiguousarray(tensor.detach().cpu().numpy())
        )
    return found.hexdigest()


def _layer_begins_alike(longer: LayerPlan, layer: LayerPlan) -> bool:
    pairs = [
        tuple(
            torch.ones_like(one.n_T).float() if one.factor is None else one.factor.cpu()
            for one in (longer, layer)
        )
    ]
    pairs += [
        (getattr(a, name), getattr(b, name))
        for a, b in zip(longer.bands, layer.bands, strict=False)
        for name in COMPARED
    ]
    return len(longer.bands) == len(layer.bands) and all(_begins(*pair) for pair in pairs)


def _begins(longer: torch.Tensor | None, tensor: torch.Tensor | None) -> bool:
    """True if `tensor` is the beginning of `longer` in every dimension in which their sizes differ,
    or both are None.
    """
    if longer is None or tensor is None or longer.ndim != tensor.ndim:
        return longer is tensor
    return torch.equal(longer[tuple(map(slice, tensor.shape))], tensor)


def _pairs(changed: Plan, plain: Plan) -> list[tuple[LayerPlan, LayerPlan]]:
    return list(
        {
            id(pair[1].bands): pair for pair in zip(changed.layers, plain.layers, strict=True)
        }.values()
    )


def _visible(layer: LayerPlan) -> list[int]:
    """Number of keys that each query sees. Bands never overlap and only hide keys, so equal counts
    mean equal masks.
    """
    return sum(band.seen_T for band in layer.bands).tolist()


def _same_layer(changed: LayerPlan, plain: LayerPlan) -> bool:
    if _visible(changed) != _visible(plain) or not equal(changed.factor, plain.factor):
        return False
    encoding, (reference,) = changed.encoding, plain.bands
    for band in changed.bands:
        if Trait.COORDINATE not in encoding.traits or not band.seen_T.any():
            continue
        if not equal(band.q_table, reference.q_table) or not equal(band.k_table, reference.k_table):
            return False
        moved = not torch.equal(band.q_pos_T, reference.q_pos_T) or not torch.equal(
            band.k_pos_T, reference.k_pos_T
        )
        if moved and not _same_bias(changed, band, reference):
            return False
    return True


@torch.no_grad()
def _same_bias(layer: LayerPlan, band: BandPlan, reference: BandPlan) -> bool:
    """True if the last query's bias at the keys of a band is the same at both sets of
    coordinates.
    """
    encoding, keys = (
        layer.encoding,
        slice(int(band.first_T[-1].clamp(min=0)), int(band.last_T[-1]) + 1),
    )
    if Bias.COLUMNS in encoding.biases or encoding.decay() is not None:
        return False
    if not encoding.biases & Bias.DENSE:
        return True
    biases = [
        encoding.bias(one.q_pos_T[-1:], one.k_pos_T[keys], layer.index) for one in (band, reference)
    ]
    return torch.equal(*biases)


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equality of two tensors that may be None."""
    return a is b or (a is not None and b is not None and torch.equal(a, b))
