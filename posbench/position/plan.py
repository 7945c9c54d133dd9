"""Plan of one length: the keys that each query sees, their coordinates, the factors on scores.

Letters: T tokens, N rows of a table, C channels of the model.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Span, Spectrum
from posbench.position.interfaces import Encoding, Extension, Layer, ScaleAttention
from posbench.position.layer_plan import BandPlan, LayerPlan, band_table


@dataclass(frozen=True)
class Plan:
    """Positional input of the model for a text of `length` tokens."""

    length: int
    embed: Callable[[], Tensor | None]
    layers: tuple[LayerPlan, ...]

    def for_text(self, tokens_BT: Tensor) -> "Plan":
        """Copy of the plan for one batch of texts, for encodings that read their tokens."""
        layers = []
        for layer in self.layers:
            layers.append(replace(layer, tokens_BT=tokens_BT))
        return replace(self, layers=tuple(layers))

    def with_progress(self, report: Callable[[float], None]) -> "Plan":
        """Copy of the plan that calls `report` with the share of all layers that is done."""
        count = len(self.layers)
        layers = []
        for done, layer in enumerate(self.layers):
            report_progress = functools.partial(_report_share, report, done, count)
            layers.append(replace(layer, report_progress=report_progress))
        return replace(self, layers=tuple(layers))


def _report_share(report: Callable[[float], None], done: int, count: int, share: float) -> None:
    """Report the share of all layers, when `done` of them and a share of the next are done."""
    report((done + share) / count)


class PlanRequest(NamedTuple):
    """A plan's text and device. With `queries`, all of queries is that of the last so many alone.

    `pos_T` are the coordinates of all tokens before an extension moves them."""

    span: Span
    pos_T: Tensor
    device: str
    queries: int | None


def make_plan(
    encoding: Encoding,
    extension: Extension | None = None,
    scale: ScaleAttention | None = None,
    *,
    length: int,
    device: str = "cpu",
    trained_scale: ScaleAttention | None = None,
    generator: torch.Generator | None = None,
    queries: int | None = None,
) -> Plan:
    """Make the plan of one length. The extension and the scale act on the layers that allow it, on
    top of the trained scale.

    `generator` draws the positions of a training step, if the encoding has random ones. With
    `queries`, everything of queries is that of the last so many alone (kernels/tail.py), as the
    next tokens of a text need it. Raises ConfigError for bands with lots then, and for
    two scales that weigh whole rows."""
    extension = extension or Extension()
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    pos_T = encoding.positions(length, generator)
    if pos_T is None:
        pos_T = torch.arange(length, dtype=torch.float64)
    request = PlanRequest(span, pos_T, device, queries)
    all_scales = [rule for rule in (trained_scale, scale) if rule is not None]
    if len(all_scales) > 1 and all(rule.weighs_rows for rule in all_scales):
        raise ConfigError(
            f"{type(trained_scale).__name__} was trained in and {type(scale).__name__} is to be"
            " evaluated, and both take the place of the softmax: choose scale_attention=none."
        )
    plans: dict[Layer, LayerPlan] = {}  # of layers that treat position alike
    layers = []
    for number, layer in enumerate(encoding.layers()):
        if layer not in plans:
            scales = [rule for rule in all_scales if _acts_on(rule, layer)]
            layer_extension = extension if layer.extended else Extension()
            plans[layer] = _plan_layer(layer, layer_extension, scales, request)
        # `index` counts the layers of one encoding, `layer_number` those of the model.
        layers.append(replace(plans[layer], index=layer.index, layer_number=number))
    # What is added to the embeddings is read at the coordinates of the nearest band.
    q_pos_T = extension.bands(span)[0].q(pos_T).to(device)
    spectrum = _extended_spectrum(encoding, extension, span)

    def embed() -> Tensor | None:
        rows_NC = encoding.rows()
        if rows_NC is not None:
            rows_NC = extension.rows(rows_NC, span)
        return encoding.embed(q_pos_T, spectrum, rows_NC)

    return Plan(length, embed, tuple(layers))


def _acts_on(scale: ScaleAttention, layer: Layer) -> bool:
    """True for a scale that acts on a layer; a sink enters attention of any kind."""
    return layer.scaled or (scale.sinks and not layer.encoding.mixes)


def training_plan_maker(
    encoding: Encoding, trained_scale: ScaleAttention | None, device: str, seed: int
) -> Callable[[int, int | None], Plan]:
    """Plans of a training by (length, step), None for validation: one for each length, or one for
    each step if positions are random.

    The draw depends on seed and step alone, so a resumed run repeats it.
    """
    make = functools.partial(make_plan, encoding, device=device, trained_scale=trained_scale)
    make_once = functools.cache(lambda length: make(length=length))

    def plan(length: int, step: int | None) -> Plan:
        if step is None or not encoding.random:
            return make_once(length)
        step_seed = np.random.SeedSequence([seed, step]).generate_state(1)[0]
        return make(length=length, generator=torch.Generator().manual_seed(int(step_seed)))

    return plan


def _extended_spectrum(encoding: Encoding, extension: Extension, span: Span) -> Spectrum | None:
    spectrum = encoding.spectrum_at(span.length)
    if spectrum is None:
        return None
    return extension.spectrum(spectrum, span)


def _plan_layer(
    layer: Layer, extension: Extension, scales: list[ScaleAttention], request: PlanRequest
) -> LayerPlan:
    """Plan of all layers that treat position as `layer` does; each gets its number later."""
    span = request.span
    spectrum = _extended_spectrum(layer.encoding, extension, span)
    bands = tuple(_plan_band(band, layer, spectrum, request) for band in extension.bands(span))
    n_T = sum(band.n_seen_T for band in bands).double()
    # The factor of a trained scale changes with its parameters, so it is computed when it is read.
    factors = [
        None if scale.trained or scale.reads_content else scale(n_T, span, 0).float()
        for scale in scales  # layer 0 stands for all: only a trained scale tells them apart
    ]
    return LayerPlan(
        layer.encoding,
        bands,
        causal=request.queries is None and _is_causal(bands, span.length),
        scales=tuple(zip(scales, factors, strict=True)),
        temperature=extension.temperature(span) if layer.encoding.scalable else 1.0,
        n_T=n_T,
        span=span,
    )


def _is_causal(bands: tuple[BandPlan, ...], length: int) -> bool:
    """True if the bands of a whole text are one, in which each query sees all keys up to itself."""
    if len(bands) > 1 or bands[0].lot_T is not None or bands[0].first_T.any():
        return False
    return torch.equal(bands[0].last_T, torch.arange(length))


def _plan_band(
    band: Band, layer: Layer, spectrum: Spectrum | None, request: PlanRequest
) -> BandPlan:
    """A band for one length: the keys that each query sees of it, coordinates and tables.

    Raises ConfigError for a band with a lot where only the last queries are planned.
    """
    if request.queries is not None and band.lot is not None:
        raise ConfigError(
            "An extension with random keys reads only whole texts: generate with another, or"
            " without a cache."
        )
    index_T = torch.arange(len(request.pos_T))
    # None: all tokens are queries.
    first_query = 0 if request.queries is None else len(index_T) - request.queries
    query_T = index_T[first_query:]
    first_T = band.first(query_T).clamp(min=0)
    if layer.window is not None:
        first_T = torch.maximum(first_T, query_T - layer.window + 1)
    if layer.chunk is not None:
        first_T = torch.maximum(first_T, query_T - query_T % layer.chunk)
    last_T = torch.minimum(band.last(query_T), query_T)
    q_pos_T = band.q(request.pos_T[first_query:])
    # Queries at whole coordinates leave the interpolation between two distances to the key alone.
    # They are rounded up, so that no key a query sees comes to lie after it.
    if band.interpolated:
        q_pos_T = q_pos_T.ceil()
    k_pos_T = band.k(request.pos_T)

    def table_and_factor(pos_T: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Table that turns q or k at some coordinates, and factor on them; None for neither."""
        table = band_table(layer.encoding, spectrum, pos_T, band.interpolated)
        scale_T = None if spectrum is None else spectrum.scale(pos_T)
        return _to_device(request.device, table), _to_device(request.device, scale_T)

    q_table, q_scale_T = table_and_factor(q_pos_T)
    if torch.equal(q_pos_T, k_pos_T):
        k_table = q_table
        k_scale_T = q_scale_T
    else:
        k_table, k_scale_T = table_and_factor(k_pos_T)
    return BandPlan(
        first_T,
        last_T,
        q_pos_T,
        k_pos_T,
        q_table,
        k_table,
        line=_line_of_distances(q_pos_T, k_pos_T),
        q_scale_T=q_scale_T,
        k_scale_T=k_scale_T,
        lot_T=None if band.lot is None else band.lot(index_T),
        share_T=None if band.lot is None else band.share(index_T),
        band=band,
        spectrum=spectrum,
    )


def _to_device(device: str, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def _line_of_distances(q_pos_T: Tensor, k_pos_T: Tensor) -> tuple[float, float] | None:
    """(slope, offset) if both coordinate maps are lines of one slope, else None.

    `offset` is the distance of the first query and the first key."""
    if len(q_pos_T) != len(k_pos_T):
        return None
    # Through the first and the last token; of one token any slope fits.
    slope = float(q_pos_T[-1] - q_pos_T[0]) / max(1, len(q_pos_T) - 1)
    line_T = slope * torch.arange(len(q_pos_T), dtype=torch.float64)
    for pos_T in (q_pos_T, k_pos_T):
        if not torch.allclose(pos_T - pos_T[0], line_T, rtol=1e-12, atol=1e-9):
            return None
    return slope, float(q_pos_T[0] - k_pos_T[0])
