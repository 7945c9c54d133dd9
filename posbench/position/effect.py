"""Effects of methods, found by comparing plans.

An extension hides or moves keys, or changes nothing; a longer text may leave its beginning as it
is.

Letters: T tokens.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from posbench.position.geometry import Bias, Trait
from posbench.position.interfaces import Encoding, Extension
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.position.plan import Plan, make_plan

# Tensors of a band's plan that say all of it.
COMPARED_TENSORS = (
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


def hides_keys(encoding: Encoding, extension: Extension, length: int) -> bool:
    """True if the extension hides keys that are seen without it; False beyond the encoding's
    limit.
    """
    # Beyond it there is no plan without the extension to compare with.
    if encoding.limit is not None and length > encoding.limit:
        return False
    changed = make_plan(encoding, extension, length=length)
    plain = make_plan(encoding, length=length)
    # An extension never shows a key that is hidden without it, so other counts are smaller ones.
    return any(
        _seen_key_counts(layer) != _seen_key_counts(plain_layer)
        for layer, plain_layer in _distinct_layer_pairs(changed, plain)
    )


def changes_plan(encoding: Encoding, extension: Extension, length: int) -> bool:
    """True if a layer's plan, or the vectors added to the embeddings, differ from those without the
    extension.
    """
    changed = make_plan(encoding, extension, length=length)
    plain = make_plan(encoding, length=length)
    if not equal_or_both_none(changed.embed(), plain.embed()):
        return True
    return not all(_same_layer(a, b) for a, b in _distinct_layer_pairs(changed, plain))


def shared_texts(plan: Callable[[int], Plan], lengths: Iterable[int]) -> dict[int, list[int]]:
    """{length of a text: lengths, the longest first, whose losses are those of its first tokens}.

    `plan(length)` makes the plans. Each of `lengths` is in one list."""
    texts: list[tuple[Plan, list[int]]] = []  # (plan of a text, lengths that it holds)
    for length in sorted(set(lengths), reverse=True):
        shorter = plan(length)
        for longer, inside in texts:
            if same_prefix(longer, shorter):
                inside.append(length)
                break
        else:
            texts.append((shorter, [length]))
    return {inside[0]: inside for _, inside in reversed(texts)}


def same_prefix(longer: Plan, plan: Plan) -> bool:
    """True if `longer` treats the first tokens of a text as `plan` does: their losses are equal.

    False too where nobody can tell: positions of a running engine.
    """
    if not all(layer.encoding.positions_known for layer in plan.layers):
        return False
    if plan.length > longer.length or not _is_beginning(longer.embed(), plan.embed()):
        return False
    return all(_same_layer_prefix(a, b) for a, b in _distinct_layer_pairs(longer, plan))


def fingerprint(plan: Plan) -> str:
    """Hash of a plan: equal where the same tokens get the same losses from the same model, but for
    what a trained scale adds.
    """
    tensors = [plan.embed()]
    # Layers that treat position alike share their bands and scales, and are hashed once.
    for layer in {id(layer.bands): layer for layer in plan.layers}.values():
        # Scales that read the text have a factor for each text; one input will do to compare them.
        tensors.append(layer.factor_of_zeros)
        for band in layer.bands:
            tensors += [getattr(band, name) for name in COMPARED_TENSORS]
    digest = hashlib.sha256(str(plan.length).encode())
    for tensor in tensors:
        if tensor is None:
            digest.update(b"-")
        else:
            digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()))
    return digest.hexdigest()


def _same_layer_prefix(longer: LayerPlan, layer: LayerPlan) -> bool:
    """True if the keys seen, coordinates, tables and factors of a layer are the first ones of the
    same layer in a longer text.
    """
    count = len(layer.bands)
    if len(longer.bands) < count or not _is_beginning(
        _factor_or_ones(longer), _factor_or_ones(layer)
    ):
        return False
    # Bands that only the longer text has must hold no key for these tokens.
    if any(band.n_seen_T[: len(layer.n_T)].any() for band in longer.bands[count:]):
        return False
    return all(
        _is_beginning(getattr(longer_band, name), getattr(band, name))
        for longer_band, band in zip(longer.bands, layer.bands, strict=False)
        for name in COMPARED_TENSORS
    )


def _factor_or_ones(layer: LayerPlan) -> Tensor:
    """Factor on the scores of each query on the CPU, 1 where there is none; of a text of zeros."""
    factor = layer.factor_of_zeros
    if factor is None:
        return torch.ones_like(layer.n_T).float()
    return factor.cpu()


def _is_beginning(longer: Tensor | None, tensor: Tensor | None) -> bool:
    """True if `tensor` is the beginning of `longer` in every dimension in which their sizes differ,
    or both are None.
    """
    if longer is None or tensor is None:
        return longer is None and tensor is None
    if longer.ndim != tensor.ndim:
        return False
    beginning = tuple(slice(size) for size in tensor.shape)
    return torch.equal(longer[beginning], tensor)


def _distinct_layer_pairs(changed: Plan, plain: Plan) -> Iterator[tuple[LayerPlan, LayerPlan]]:
    """Layers of two plans side by side, those of the same bands in `plain` once."""
    pairs = zip(changed.layers, plain.layers, strict=True)
    return iter({id(layer.bands): (other, layer) for other, layer in pairs}.values())


def _seen_key_counts(layer: LayerPlan) -> list[int]:
    """Number of keys that each query sees. Bands never overlap and only hide keys, so equal counts
    mean equal masks.
    """
    return sum(band.n_seen_T for band in layer.bands).tolist()


def _same_layer(changed: LayerPlan, plain: LayerPlan) -> bool:
    """True if a plan hides, moves and scales nothing compared with the plain one."""
    if _seen_key_counts(changed) != _seen_key_counts(plain) or not equal_or_both_none(
        changed.factor, plain.factor
    ):
        return False
    if Trait.COORDINATE not in changed.encoding.traits:
        return True  # there is nothing to move
    (plain_band,) = plain.bands
    return all(
        _same_band(changed, band, plain_band) for band in changed.bands if band.n_seen_T.any()
    )


def _same_band(layer: LayerPlan, band: BandPlan, plain: BandPlan) -> bool:
    """True if a band's coordinates and tables change no score compared with the plain band's."""
    if not equal_or_both_none(band.q_table, plain.q_table) or not equal_or_both_none(
        band.k_table, plain.k_table
    ):
        return False
    if torch.equal(band.q_pos_T, plain.q_pos_T) and torch.equal(band.k_pos_T, plain.k_pos_T):
        return True
    return _same_bias(layer, band, plain)


@torch.no_grad()
def _same_bias(layer: LayerPlan, band: BandPlan, plain: BandPlan) -> bool:
    """True if the last query's bias at the keys of a band is the same at both sets of
    coordinates.
    """
    encoding = layer.encoding
    if Bias.COLUMNS in encoding.biases or encoding.decay() is not None:
        return False  # these change with any other coordinates
    if not encoding.biases & Bias.DENSE:
        return True
    # The last query sees the most distances, and a bias depends on these.
    keys = slice(int(band.first_T[-1].clamp(min=0)), int(band.last_T[-1]) + 1)
    bias = encoding.bias(band.q_pos_T[-1:], band.k_pos_T[keys], layer.index)
    plain_bias = encoding.bias(plain.q_pos_T[-1:], plain.k_pos_T[keys], layer.index)
    return torch.equal(bias, plain_bias)


def equal_or_both_none(a: Tensor | None, b: Tensor | None) -> bool:
    """Equality of two tensors that may be None."""
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
