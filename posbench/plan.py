"""Everything positional about one length, worked out once: which keys a query sees, at which coordinates, with which factor.

Letters: T tokens, F frequencies, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.extensions.none import NoExtension
from posbench.geometry import Band, Span, Spectrum
from posbench.interfaces import Encoding, Extension, Layer, ScaleAttention
from posbench.scale_attention.none import NoScale


@dataclass(frozen=True)
class BandPlan:
    """A band in numbers: keys first_T..last_T of each query, coordinates (float64) of queries and keys, the encoding's tables of them."""

    first_T: Tensor
    last_T: Tensor
    q_pos_T: Tensor
    k_pos_T: Tensor
    q_table: Tensor | None
    k_table: Tensor | None

    @property
    def seen_T(self) -> Tensor:
        """How many keys of this band each query sees."""
        return (self.last_T - self.first_T + 1).clamp(min=0)


@dataclass(frozen=True)
class LayerPlan:
    """One layer's geometry; `factor` ([T] or [H, T], None for 1) multiplies the content scores."""

    encoding: Encoding
    bands: tuple[BandPlan, ...]
    factor: Tensor | None
    causal: bool  # one band that is the whole causal triangle: any fused kernel can run it


@dataclass(frozen=True)
class Plan:
    """What the model needs to know to read `length` tokens."""

    length: int
    embed: Callable[[], Tensor | None]
    layers: tuple[LayerPlan, ...]


def make_plan(
    encoding: Encoding, extension: Extension | None = None, scale: ScaleAttention | None = None, *, length: int, device: str = "cpu"
) -> Plan:
    """The plan of one length; the extension and the scale act on the layers that allow it."""
    extension, scale = extension or NoExtension(), scale or NoScale()
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    made: dict[tuple, LayerPlan] = {}
    layers = []
    for layer in encoding.layers():
        key = (id(layer.encoding), layer.window, layer.extended, layer.scaled)
        if key not in made:
            made[key] = _plan_layer(layer, extension, scale, span, device)
        layers.append(made[key])
    q_pos_T = extension.bands(span)[0].q(torch.arange(length, dtype=torch.float64))
    spectrum = _spectrum(encoding, extension, span)
    return Plan(length, lambda: encoding.embed(q_pos_T.to(device), spectrum), tuple(layers))


def _spectrum(encoding: Encoding, extension: Extension, span: Span) -> Spectrum | None:
    spectrum = encoding.spectrum()
    return extension.spectrum(spectrum, span) if spectrum is not None else None


def _plan_layer(layer: Layer, extension: Extension, scale: ScaleAttention, span: Span, device: str) -> LayerPlan:
    extension = extension if layer.extended else NoExtension()
    scale = scale if layer.scaled else NoScale()
    spectrum = _spectrum(layer.encoding, extension, span)
    bands = tuple(_plan_band(band, layer, spectrum, span.length, device) for band in extension.bands(span))
    n_T = sum(band.seen_T for band in bands).double()
    factor = scale(n_T, span).float().to(device)
    index_T = torch.arange(span.length)
    causal = len(bands) == 1 and not bands[0].first_T.any() and torch.equal(bands[0].last_T, index_T)
    return LayerPlan(layer.encoding, bands, None if (factor == 1).all() else factor, causal)


def _plan_band(band: Band, layer: Layer, spectrum: Spectrum | None, length: int, device: str) -> BandPlan:
    index_T = torch.arange(length)
    first_T = band.first(index_T).clamp(min=0)
    if layer.window is not None:
        first_T = torch.maximum(first_T, index_T - layer.window + 1)
    last_T = torch.minimum(band.last(index_T), index_T)
    q_pos_T, k_pos_T = band.q(index_T.double()), band.k(index_T.double())
    tables = []
    for pos_T in (q_pos_T, k_pos_T):
        table = layer.encoding.table(pos_T, spectrum)
        tables.append(table if table is None else table.to(device))
    return BandPlan(first_T, last_T, q_pos_T, k_pos_T, *tables)
