"""Plan of one length, computed once: the keys that each query sees, their coordinates, and the
factors on scores.

Letters: T tokens, N rows of a table, C channels of the model.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Span, Spectrum
from posbench.position.interfaces import Encoding, Extension, Layer, ScaleAttention
from posbench.position.layer_plan import BandPlan, LayerPlan


@dataclass(frozen=True)
class Plan:
    """Positional input of the model for a text of `length` tokens."""

    length: int
    embed: Callable[[], Tensor | None]
    layers: tuple[LayerPlan, ...]

    def telling(self, tell: Callable[[float], None]) -> "Plan":
        """Copy of the plan that calls `tell` with the share of all layers that is done."""
        count = len(self.layers)
        return replace(
            self,
            layers=tuple(
                replace(a, tell=lambda share, i=i: tell((i + share) / count))
                for i, a in enumerate(self.layers)
            ),
        )


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
    next tokens of a text need it. Raises ConfigError for bands with lots then."""
    extension = extension or Extension()
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    positions = encoding.positions(length, generator)
    index_T = torch.arange(length, dtype=torch.float64) if positions is None else positions
    made: dict[Layer, LayerPlan] = {}
    layers = []
    for number, layer in enumerate(encoding.layers()):
        if layer not in made:
            scales = [
                one
                for one in (trained_scale, scale)
                if one is not None and (layer.scaled or one.sinks)
            ]
            made[layer] = _plan_layer(
                layer,
                extension if layer.extended else Extension(),
                scales,
                span,
                index_T,
                device,
                queries,
            )
        layers.append(replace(made[layer], index=layer.index, number=number))
    q_pos_T = extension.bands(span)[0].q(index_T).to(device)
    spectrum = _spectrum(encoding, extension, span)

    def embed() -> Tensor | None:
        rows_NC = encoding.rows()
        return encoding.embed(
            q_pos_T, spectrum, extension.rows(rows_NC, span) if rows_NC is not None else None
        )

    return Plan(length, embed, tuple(layers))


def training_plans(
    encoding: Encoding, trained_scale: ScaleAttention | None, device: str, seed: int
) -> Callable[[int, int | None], Plan]:
    """Plans of a training by (length, step), None for validation: one for each length, or one for
    each step if positions are random.

    The draw depends on seed and step alone, so a resumed run repeats it.
    """
    made = functools.partial(make_plan, encoding, device=device, trained_scale=trained_scale)
    kept = functools.cache(lambda length: made(length=length))

    def plan(length: int, step: int | None) -> Plan:
        if step is None or not encoding.random:
            return kept(length)
        drawn = np.random.SeedSequence([seed, step]).generate_state(1)[0]
        return made(length=length, generator=torch.Generator().manual_seed(int(drawn)))

    return plan


def _spectrum(encoding: Encoding, extension: Extension, span: Span) -> Spectrum | None:
    spectrum = encoding.spectrum_at(span.length)
    return extension.spectrum(spectrum, span) if spectrum is not None else None


def _plan_layer(
    layer: Layer,
    extension: Extension,
    scales: list,
    span: Span,
    index_T: Tensor,
    device: str,
    queries: int | None,
) -> LayerPlan:
    spectrum = _spectrum(layer.encoding, extension, span)
    bands = tuple(
        _plan_band(band, layer, spectrum, index_T, device, queries)
        for band in extension.bands(span)
    )
    n_T = sum(band.seen_T for band in bands).double()
    known = [(scale, None if scale.trained else scale(n_T, span, 0).float()) for scale in scales]
    whole = len(bands) == 1 and bands[0].lot_T is None and queries is None
    causal = (
        whole
        and not bands[0].first_T.any()
        and torch.equal(bands[0].last_T, torch.arange(span.length))
    )
    temperature = extension.temperature(span) if layer.encoding.scalable else 1.0
    return LayerPlan(layer.encoding, bands, causal, tuple(known), temperature, n_T, span)


def _plan_band(
    band: Band,
    layer: Layer,
    spectrum: Spectrum | None,
    pos_T: Tensor,
    device: str,
    queries: int | None,
) -> BandPlan:
    index_T, asked = (
        torch.arange(len(pos_T)),
        slice(None if queries is None else len(pos_T) - queries, None),
    )
    query_T = index_T[asked]
    first_T = band.first(query_T).clamp(min=0)
    if layer.window is not None:
        first_T = torch.maximum(first_T, query_T - layer.window + 1)
    if layer.chunk is not None:
        first_T = torch.maximum(first_T, query_T - query_T % layer.chunk)
    last_T = torch.minimum(band.last(query_T), query_T)
    q_pos_T, k_pos_T = band.q(pos_T[asked]), band.k(pos_T)

    def made(pos_T: Tensor) -> list[Tensor | None]:
        found = (
            layer.encoding.table(pos_T, spectrum),
            None if spectrum is None else spectrum.scale(pos_T),
        )
        return [one if one is None else one.to(device) for one in found]

    q_table, q_scale_T = of_q = made(q_pos_T)
    k_table, k_scale_T = of_q if torch.equal(q_pos_T, k_pos_T) else made(k_pos_T)
    lots = (None, None) if band.lot is None else (band.lot(index_T), band.share(index_T))
    if queries is not None and band.lot is not None:
        raise ConfigError(
            "An extension with random keys reads only whole texts: generate with another, or"
            " without a cache."
        )
    return BandPlan(
        first_T,
        last_T,
        q_pos_T,
        k_pos_T,
        q_table,
        k_table,
        _line(q_pos_T, k_pos_T),
        q_scale_T,
        k_scale_T,
        *lots,
    )


def _line(q_pos_T: Tensor, k_pos_T: Tensor) -> tuple[float, float] | None:
    """Slope and offset if both coordinate maps are lines of one slope, else None."""
    if len(q_pos_T) != len(k_pos_T):
        return None
    offset = float(q_pos_T[0] - k_pos_T[0])
    slope = float(q_pos_T[-1] - q_pos_T[0]) / max(1, len(q_pos_T) - 1)
    line_T = slope * torch.arange(len(q_pos_T), dtype=torch.float64)
    straight = all(
        torch.allclose(pos_T - pos_T[0], line_T, rtol=1e-12, atol=1e-9)
        for pos_T in (q_pos_T, k_pos_T)
    )
    return (slope, offset) if straight else None
