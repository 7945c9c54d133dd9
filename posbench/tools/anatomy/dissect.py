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
from posbench.position.interfaces import HOOKS, Encoding, Extension, ScaleAttention
from posbench.position.legality import file_of, name_of
from posbench.tools.anatomy.properties import dimensionless, properties, trained_reach
from posbench.tools.anatomy.query_view import LayerView, distance, even_weights, key_bias, kinds

# distances, before equal ones are merged, of curves that are not computed at every distance
POINTS = 256


@dataclass(frozen=True)
class Anatomy:
    """Numbers of a triple, as written to json, and the layers they come from."""

    numbers: dict
    kinds: list[LayerView]


def dissect(
    encoding: Encoding,
    extension: Extension,
    scale: ScaleAttention,
    length: int,
    trained_scale: ScaleAttention | None = None,
) -> Anatomy:
    """Compute everything about one triple at `length` tokens. The triple must be legal
    (posbench.position.legality.check).

    `layers` has one entry for each kind of layer, and the top level repeats the first of them that
    the extension acts on. Lists over distance and position hold None where nothing is seen. With an
    extension that crops, a query sees at most `fed` tokens."""
    found = kinds(encoding, extension, length, scale, trained_scale)
    table = properties(encoding, extension, length)
    layers = [_layer(kind, length, row) for kind, row in zip(found, table, strict=True)]
    if len(found) > 1:  # RoPE in most layers of smollm3
        for one, kind in zip(layers, found, strict=True):
            one["name"] = file_of(encoding) if kind.encoding is encoding else one["name"]
    span = found[0].plan.span
    numbers = {
        "encoding": name_of(encoding),
        "extension": name_of(extension),
        "scale_attention": name_of(scale),
        "trained_scale": name_of(trained_scale) if trained_scale is not None else "none",
        "train_len": span.train_len,
        "length": length,
        "fed": found[0].length,
        "target_len": span.target_len,
        "factor": span.factor,
        "trained_reach": trained_reach(encoding),
        "n_parameters": sum(parameter.numel() for parameter in encoding.parameters()),
        "depends_on_content": [
            HOOKS[bias]
            for bias in (Bias.GATES, Bias.ROWS)
            if any(bias in kind.encoding.biases for kind in found)
        ],
        **{
            key: value
            for key, value in layers[0].items()
            if key not in ("numbers", "name", "window", "extended", "scaled")
        },
        **_added(found[0], extension),
        "dimensionless": dimensionless(encoding, extension, found[0]),
        "layers": layers,
    }
    return Anatomy(numbers, found)


def decay_bound(freq_F: Tensor, distance_K: Tensor) -> Tensor:
    """RoPE's envelope of the score over distance, B = (2 / r) sum over m of |sum over c < m of
    exp(i distance theta_c)|: [K].

    |sum_c h_c exp(i d theta_c)| is at most B r / 2 max |h_{c+1} - h_c| (Su et al. 2021, section 3.4.3, by Abel's summation).
    """
    angle_KF = torch.outer(distance_K.double(), freq_F)
    return torch.polar(torch.ones_like(angle_KF), angle_KF).cumsum(dim=-1).abs().mean(dim=-1)


def samples(length: int) -> Tensor:
    """Sorted distances below `length`: every one below 64, ever fewer of the longer ones, and the
    last.
    """
    steps = torch.logspace(0, math.log2(max(2, length)), POINTS, base=2, dtype=torch.float64) - 1
    return torch.cat(
        (torch.arange(min(64, length)), steps.round().long().clamp(max=length - 1))
    ).unique()


def as_lists(values: Tensor | None) -> list | None:
    """A tensor as lists, with None for nan."""
    if values is None:
        return None
    array = values.detach().double().numpy()
    return np.where(np.isnan(array), None, array).tolist()


def _layer(kind: LayerView, length: int, table: dict[str, bool | None]) -> dict:
    layer, plan, encoding, fed = kind.layer, kind.plan, kind.encoding, kind.length
    last, keys_K = fed - 1, torch.arange(fed - 1, -1, -1)
    over_distance = (distance(kind, last, keys_K), key_bias(kind, last, keys_K), even_weights(kind))
    seen_T, bias_HT, weights_HT = (
        one if one is None else pad(one, (0, length - fed), value=torch.nan)
        for one in over_distance
    )
    factor_T = torch.ones(fed) if plan.factor is None else plan.factor.detach()
    factor_T = torch.cat(
        (factor_T, factor_T[..., -1:].expand(*factor_T.shape[:-1], length - fed)), dim=-1
    )
    delta_K = samples(length)
    rules = [torch.stack(rule.distance(delta_K.double())) for rule in plan.distance_rules]
    decay_D = encoding.decay()
    bound = None
    before, after = kind.turning or (None, None)
    if (
        after is not None
        and decay_D is None
        and Trait.RELATIVE in encoding.traits
        and plan.bands[0].q_table is not None
    ):
        bound = {
            "at": delta_K.tolist(),
            "before": as_lists(decay_bound(before.freq_F, delta_K)),
            "after": as_lists(decay_bound(after.freq_F, seen_T[delta_K])),
        }
    return {
        "numbers": kind.numbers,
        "name": name_of(encoding),
        "window": layer.window,
        "extended": layer.extended,
        "scaled": layer.scaled,
        "spectrum_before": as_lists(before.freq_F) if before else None,
        "spectrum": as_lists(after.freq_F) if after else None,
        "temperature": plan.temperature,
        "bands": len(plan.bands),
        "distance": as_lists(seen_T),
        "bias": as_lists(bias_HT),
        "even_weights": as_lists(weights_HT),
        "logit_scale": as_lists(factor_T),
        "distance_rule": (
            [
                {"at": delta_K.tolist(), "factor": as_lists(rule[0]), "addend": as_lists(rule[1])}
                for rule in rules
            ]
            or None
        ),
        "sink": as_lists(plan.sink(torch.empty(1, encoding.shape.n_head))),
        "decay": sorted(set(decay_D.tolist()), reverse=True) if decay_D is not None else None,
        "decay_bound": bound,
        "properties": table,
    }


def _added(kind: LayerView, extension: Extension) -> dict:
    """Numbers of the vectors added to embeddings: their coordinates, and the cosine between the
    last one and those before it.
    """
    encoding, added_TC = kind.encoding, kind.added_TC
    if added_TC is None:
        return {"coordinates": None, "table_rows": None, "similarity": None}
    pos_T, rows_NC = kind.plan.bands[0].q_pos_T, encoding.rows()
    delta_K = samples(kind.length)
    alike_K = cosine_similarity(added_TC[-1:], added_TC[kind.length - 1 - delta_K], dim=-1)
    read_T = None
    if rows_NC is not None:
        # Extending a table that holds its own row numbers shows which rows each position reads.
        counted_NC = torch.arange(len(rows_NC), dtype=rows_NC.dtype)[:, None].expand(rows_NC.shape)
        read_T = encoding.embed(pos_T, None, extension.rows(counted_NC, kind.plan.span))[:, 0]
    return {
        "coordinates": as_lists(pos_T),
        "table_rows": as_lists(read_T),
        "similarity": {"at": delta_K.tolist(), "cosine": as_lists(alike_K)},
    }
