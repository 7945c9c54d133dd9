"""Numbers of a triple of methods, computed without training: frequencies, distances, biases,
factors on the logits.

Letters: F frequencies, H heads, K keys, T tokens.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, pad

from posbench.position.geometry import Bias, Trait
from posbench.position.interfaces import HOOK_OF_BIAS, Encoding, Extension, ScaleAttention
from posbench.position.legality import file_of, name_of
from posbench.tools.anatomy.properties import (
    dimensionless_numbers,
    measured_properties,
    trained_reach,
)
from posbench.tools.anatomy.query_view import (
    LayerView,
    even_weights,
    key_biases,
    key_distances,
    layer_views,
)

# Distances, before equal ones are merged, of curves that are not computed at every distance.
CURVE_POINTS = 256


@dataclass(frozen=True)
class Anatomy:
    """Numbers of a triple, as written to json, and the layers they come from."""

    numbers: dict
    views: list[LayerView]


# Values of a kind of layer that its entry in `layers` alone has.
LAYER_KEYS = ("numbers", "name", "window", "extended", "scaled")


def dissect(
    encoding: Encoding,
    extension: Extension,
    scale: ScaleAttention,
    length: int,
    trained_scale: ScaleAttention | None = None,
) -> Anatomy:
    """Compute everything about one triple at `length` tokens. The triple must be legal
    (posbench.position.legality.verdict_of).

    `layers` has one entry for each kind of layer, and the top level repeats the first of them that
    the extension acts on. Lists over distance and position hold None where nothing is seen. With an
    extension that crops, a query sees at most `fed` tokens."""
    # those that the extension acts on first
    views = layer_views(encoding, extension, length, scale, trained_scale)
    tables = measured_properties(encoding, extension, length)
    layers = [_layer_entry(view, length, table) for view, table in zip(views, tables, strict=True)]
    if len(views) > 1:
        for layer, view in zip(layers, views, strict=True):
            # A yaml of several kinds of layers has one name, such as smollm3. Its main layers go by
            # the name of their class, rope.
            if view.encoding is encoding:
                layer["name"] = file_of(encoding)
    span = views[0].plan.span
    numbers = {
        "encoding": name_of(encoding),
        "extension": name_of(extension),
        "scale_attention": name_of(scale),
        "trained_scale": name_of(trained_scale) if trained_scale is not None else "none",
        "train_len": span.train_len,
        "length": length,
        "fed": views[0].length,
        "target_len": span.target_len,
        "factor": span.factor,
        "trained_reach": trained_reach(encoding),
        "n_parameters": sum(parameter.numel() for parameter in encoding.parameters()),
        "depends_on_content": _content_hooks(views),
        **{key: value for key, value in layers[0].items() if key not in LAYER_KEYS},
        **_embedding_numbers(views[0], extension),
        "dimensionless": dimensionless_numbers(encoding, extension, views[0]),
        "layers": layers,
        "without_attention": [
            number for number, layer in enumerate(encoding.layers()) if layer.encoding.mixes
        ],
    }
    return Anatomy(numbers, views)


def _content_hooks(views: list[LayerView]) -> list[str]:
    """Names of the hooks that read content, such as ["gates"]."""
    hooks = []
    for bias in (Bias.GATES, Bias.ROWS, Bias.CONTENT):
        if any(bias in view.encoding.biases for view in views):
            hooks.append(HOOK_OF_BIAS[bias])
    if any(view.encoding.placed_by_content for view in views):
        hooks.append("content_positions")
    return hooks


def decay_bound(freq_F: Tensor, distance_K: Tensor) -> Tensor:
    """RoPE's envelope of the score over distance: [K].

    B = (2 / r) sum over m of |sum over c < m of exp(i distance theta_c)|, and |sum_c h_c exp(i d
    theta_c)| is at most B r / 2 max |h_{c+1} - h_c| (Su et al. 2021, section 3.4.3, by Abel's
    summation)."""
    angle_KF = torch.outer(distance_K.double(), freq_F)
    return torch.polar(torch.ones_like(angle_KF), angle_KF).cumsum(dim=-1).abs().mean(dim=-1)


def sampled_distances(length: int) -> Tensor:
    """Sorted distances below `length`: each below 64, ever fewer of the longer, and the last."""
    steps = (
        torch.logspace(0, math.log2(max(2, length)), CURVE_POINTS, base=2, dtype=torch.float64) - 1
    )
    spread = steps.round().long().clamp(max=length - 1)
    return torch.cat((torch.arange(min(64, length)), spread)).unique()


def as_lists(values: Tensor | None) -> list | None:
    """A tensor as lists, with None for nan."""
    if values is None:
        return None
    array = values.detach().double().numpy()
    return np.where(np.isnan(array), None, array).tolist()


def _layer_entry(view: LayerView, length: int, table: dict[str, bool | None]) -> dict:
    """Entry of a kind of layer in `layers`; `table` are its properties.

    Lists by distance have `length` entries, None beyond the tokens that the view holds."""
    layer = view.layer
    plan = view.plan
    encoding = view.encoding
    last = view.length - 1
    keys_K = torch.arange(last, -1, -1)
    seen_T = _padded_with_nan(key_distances(view, last, keys_K), length)
    before, after = view.turning_spectra or (None, None)  # None where nothing turns
    decay_D = encoding.decay()
    any_q = torch.empty(1, encoding.shape.n_head)  # a sink depends on the number of heads alone
    return {
        "numbers": view.layer_indices,
        "name": name_of(encoding),
        "window": layer.window,
        "extended": layer.extended,
        "scaled": layer.scaled,
        "spectrum_before": as_lists(before.freq_F) if before else None,
        "spectrum": as_lists(after.freq_F) if after else None,
        "temperature": plan.temperature,
        "bands": len(plan.bands),
        "distance": as_lists(seen_T),
        "bias": as_lists(_padded_with_nan(key_biases(view, last, keys_K), length)),
        "even_weights": as_lists(_padded_with_nan(even_weights(view), length)),
        "logit_scale": as_lists(_logit_factors(view, length)),
        "distance_rule": _distance_rules(view, length),
        "sink": as_lists(plan.sink(any_q)),
        "decay": sorted(set(decay_D.tolist()), reverse=True) if decay_D is not None else None,
        "decay_bound": _decay_bounds(view, seen_T),
        "properties": table,
    }


def _padded_with_nan(values_T: Tensor | None, length: int) -> Tensor | None:
    """Values over distance, with nan for distances up to `length` that no query is fed."""
    if values_T is None:
        return None
    return pad(values_T, (0, length - values_T.shape[-1]), value=torch.nan)


def _logit_factors(view: LayerView, length: int) -> Tensor:
    """Factor on the logits of each query: [T] or [H, T]. Beyond the fed text it is the last. What
    depends on content is that of tokens of zeros.
    """
    factor_T = view.plan.factor_of_zeros
    factor_T = torch.ones(view.length) if factor_T is None else factor_T.detach()
    beyond_fed_T = factor_T[..., -1:].expand(*factor_T.shape[:-1], length - view.length)
    return torch.cat((factor_T, beyond_fed_T), dim=-1)


def _distance_rules(view: LayerView, length: int) -> list[dict[str, list]] | None:
    """Factor and addend of each rule on the score at some distances; None without a rule."""
    delta_K = sampled_distances(length)
    curves = []
    for rule in view.plan.distance_rules:
        factor_K, addend_K = torch.stack(rule.distance(delta_K.double()))
        curves.append(
            {"at": delta_K.tolist(), "factor": as_lists(factor_K), "addend": as_lists(addend_K)}
        )
    return curves or None


def _decay_bounds(view: LayerView, seen_T: Tensor) -> dict[str, list] | None:
    """`decay_bound` at some distances, before and after; None where it does not hold.

    It is a bound on the score of q and k that turn by their distance, with nothing that damps it.
    `seen_T`: the distance in coordinates, after, at each distance in tokens; nan where not seen.
    """
    encoding = view.encoding
    relative = Trait.RELATIVE in encoding.traits and encoding.decay() is None
    # Without a table of angles nothing turns, though there may be frequencies.
    # A layer has tables in all of its bands or in none, since they have one encoding.
    if view.turning_spectra is None or not relative or view.plan.bands[0].q_table is None:
        return None
    before, after = view.turning_spectra
    delta_K = sampled_distances(len(seen_T))
    return {
        "at": delta_K.tolist(),
        "before": as_lists(decay_bound(before.freq_F, delta_K)),
        "after": as_lists(decay_bound(after.freq_F, seen_T[delta_K])),
    }


def _embedding_numbers(view: LayerView, extension: Extension) -> dict:
    """Numbers of the vectors added to embeddings: their coordinates, and the cosine between the
    last one and those before it.
    """
    encoding = view.encoding
    added_TC = view.added_TC
    if added_TC is None:
        return {"coordinates": None, "table_rows": None, "similarity": None}
    pos_T = view.plan.bands[0].q_pos_T
    rows_NC = encoding.rows()
    delta_K = sampled_distances(view.length)
    cosine_K = cosine_similarity(added_TC[-1:], added_TC[view.length - 1 - delta_K], dim=-1)
    row_read_T = None
    if rows_NC is not None:
        # Extending a table that holds its own row numbers shows which rows each position reads.
        row_numbers_NC = torch.arange(len(rows_NC), dtype=rows_NC.dtype)[:, None].expand(
            rows_NC.shape
        )
        row_read_T = encoding.embed(pos_T, None, extension.rows(row_numbers_NC, view.plan.span))[
            :, 0
        ]
    return {
        "coordinates": as_lists(pos_T),
        "table_rows": as_lists(row_read_T),
        "similarity": {"at": delta_K.tolist(), "cosine": as_lists(cosine_K)},
    }
