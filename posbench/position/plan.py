"""Plan of one length, computed once: the keys that each query sees, their coordinates, and the factors on scores.

Letters: T tokens, F frequencies, H heads.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from posbench.position.geometry import Band, Span, Spectrum
from posbench.position.interfaces import Encoding, Extension, Layer, ScaleAttention

ROWS = 256  # queries whose keys are counted at once, where they are drawn by lot


@dataclass(frozen=True)
class BandPlan:
    """Numbers of a band: keys first_T..last_T of each query, coordinates (float64) of queries and keys, the encoding's tables of them.

    `line` is (slope, offset) if the coordinate distance is slope x (index distance) + offset for every pair, else None.
    q_scale_T and k_scale_T are factors on q and k at their coordinates, None for 1. With lot_T and share_T (float64), a query sees of
    its interval only the keys whose lot is below its share.
    """

    first_T: Tensor
    last_T: Tensor
    q_pos_T: Tensor
    k_pos_T: Tensor
    q_table: Tensor | None
    k_table: Tensor | None
    line: tuple[float, float] | None
    q_scale_T: Tensor | None = None
    k_scale_T: Tensor | None = None
    lot_T: Tensor | None = None
    share_T: Tensor | None = None
    kept: dict = field(init=False, default_factory=dict, compare=False, repr=False)  # a kernel's cache for this band

    @property
    def width_T(self) -> Tensor:
        """Number of keys in the interval of each query."""
        return (self.last_T - self.first_T + 1).clamp(min=0)

    @property
    def seen_T(self) -> Tensor:
        """Number of keys of this band that each query sees."""
        return self.width_T if self.lot_T is None else self._found[0]

    @property
    def farthest_T(self) -> Tensor:
        """First key that each query sees, where it sees any."""
        return self.first_T if self.lot_T is None else self._found[1]

    @functools.cached_property
    def _found(self) -> tuple[Tensor, Tensor]:
        """`seen_T` and `farthest_T` of a band with lots, counted pair by pair in memory that grows with the length alone."""
        index_T = torch.arange(len(self.first_T))
        found = []
        for query_S in index_T.split(ROWS):
            seen_ST = self.seen(query_S, index_T).byte()
            found.append((seen_ST.sum(dim=1), seen_ST.argmax(dim=1)))
        return tuple(map(torch.cat, zip(*found, strict=True)))

    def seen(self, query_S: Tensor, key_K: Tensor) -> Tensor:
        """True where queries of these indices see keys of those: [S, K], on the CPU."""
        seen_SK = (key_K >= self.first_T[query_S, None]) & (key_K <= self.last_T[query_S, None])
        return seen_SK if self.lot_T is None else seen_SK & (self.lot_T[key_K] < self.share_T[query_S, None])


@dataclass(frozen=True)
class LayerPlan:
    """Geometry of one layer, and the scales of its content scores.

    `tell` is called from time to time with the share of the layer's work that is done, because a long text takes minutes.
    """

    encoding: Encoding
    bands: tuple[BandPlan, ...]
    causal: bool  # one band that is the whole causal triangle: any fused kernel can run it
    scales: tuple[tuple[ScaleAttention, Tensor | None], ...]  # (scale, factor); the factor is None if it is trained
    temperature: float
    n_T: Tensor
    span: Span
    index: int = 0  # among the layers of its encoding
    number: int = 0  # among all layers
    tell: Callable[[float], None] = lambda share: None

    @property
    def factor(self) -> Tensor | None:
        """Factor on the content scores of each query: [T] or [H, T], float32, on the CPU or a trained scale's device; None for 1."""
        total = None
        for scale, known in self.scales:
            factor = scale(self.n_T, self.span, self.number).float() if known is None else known
            if known is None or not (factor == 1).all():
                total = factor if total is None else total * factor.to(total.device)
        if self.temperature != 1:
            total = torch.full((len(self.n_T),), self.temperature) if total is None else total * self.temperature
        return total

    def turned(self, band: BandPlan, q_BHTD: Tensor, k_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """q and k rotated by the encoding for a band, times the factors at their coordinates."""
        if band.q_table is not None:
            q_BHTD, k_BGTD = self.encoding.rotate(q_BHTD, k_BGTD, band.q_table, band.k_table)
        if band.q_scale_T is None:
            return q_BHTD, k_BGTD
        return q_BHTD * band.q_scale_T[:, None], k_BGTD * band.k_scale_T[:, None]

    def scaled(self, q_BHTD: Tensor, width: int) -> Tensor:
        """q times 1 / sqrt(width) and every factor on the content scores."""
        factor = self.factor
        return q_BHTD * (width**-0.5 if factor is None else width**-0.5 * factor.to(q_BHTD.device).unsqueeze(-1))

    def profile(self, band: BandPlan, delta_U: Tensor, device: torch.device) -> Tensor:
        """Bias at the index distances delta_U, for a band that has a `line`: [H, U]."""
        slope, offset = band.line
        return self.encoding.profile((slope * delta_U + offset).clamp(min=0).float().to(device), self.index)

    @property
    def distance_rules(self) -> list[ScaleAttention]:
        """Scales whose factor depends on distance."""
        return [scale for scale, _ in self.scales if scale.by_distance]

    @property
    def has_sink(self) -> bool:
        """True if a scale adds a sink. Then a constant on all scores of a query matters."""
        return any(scale.sinks for scale, _ in self.scales)

    def sink(self, q_BHTD: Tensor) -> Tensor | None:
        """Logit of the sink of each head of q, of several their logarithmic sum: [H], float32; None without one."""
        found = [scale.sink(self.number) for scale, _ in self.scales if scale.sinks]
        return torch.stack([one.to(q_BHTD.device).float().expand(q_BHTD.shape[1]) for one in found]).logsumexp(dim=0) if found else None


@dataclass(frozen=True)
class Plan:
    """Positional input of the model for a text of `length` tokens."""

    length: int
    embed: Callable[[], Tensor | None]
    layers: tuple[LayerPlan, ...]

    def telling(self, tell: Callable[[float], None]) -> "Plan":
        """Copy of the plan that calls `tell` with the share of all layers that is done."""
        count = len(self.layers)
        return replace(self, layers=tuple(replace(a, tell=lambda share, i=i: tell((i + share) / count)) for i, a in enumerate(self.layers)))


def make_plan(
    encoding: Encoding,
    extension: Extension | None = None,
    scale: ScaleAttention | None = None,
    *,
    length: int,
    device: str = "cpu",
    trained_scale: ScaleAttention | None = None,
    generator: torch.Generator | None = None,
) -> Plan:
    """Make the plan of one length. The extension and the scale act on the layers that allow it, on top of the trained scale.

    `generator` draws the positions of a training step, if the encoding has random ones.
    """
    extension = extension or Extension()
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    positions = encoding.positions(length, generator)
    index_T = torch.arange(length, dtype=torch.float64) if positions is None else positions
    made: dict[Layer, LayerPlan] = {}
    layers = []
    for number, layer in enumerate(encoding.layers()):
        if layer not in made:
            scales = [one for one in (trained_scale, scale) if one is not None and (layer.scaled or one.sinks)]
            made[layer] = _plan_layer(layer, extension if layer.extended else Extension(), scales, span, index_T, device)
        layers.append(replace(made[layer], index=layer.index, number=number))
    q_pos_T = extension.bands(span)[0].q(index_T)
    spectrum = _spectrum(encoding, extension, span)

    def embed() -> Tensor | None:
        rows_NC = encoding.rows()
        return encoding.embed(q_pos_T.to(device), spectrum, extension.rows(rows_NC, span) if rows_NC is not None else None)

    return Plan(length, embed, tuple(layers))


def training_plans(encoding: Encoding, trained_scale: ScaleAttention | None, device: str, seed: int) -> Callable[[int, int | None], Plan]:
    """Plans of a training by (length, step), None for validation: one for each length, or one for each step if positions are random.

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


def _plan_layer(layer: Layer, extension: Extension, scales: list, span: Span, index_T: Tensor, device: str) -> LayerPlan:
    spectrum = _spectrum(layer.encoding, extension, span)
    bands = tuple(_plan_band(band, layer, spectrum, index_T, device) for band in extension.bands(span))
    n_T = sum(band.seen_T for band in bands).double()
    known = [(scale, None if scale.trained else scale(n_T, span, 0).float()) for scale in scales]
    whole = len(bands) == 1 and bands[0].lot_T is None
    causal = whole and not bands[0].first_T.any() and torch.equal(bands[0].last_T, torch.arange(span.length))
    temperature = extension.temperature(span) if layer.encoding.scalable else 1.0
    return LayerPlan(layer.encoding, bands, causal, tuple(known), temperature, n_T, span)


def _plan_band(band: Band, layer: Layer, spectrum: Spectrum | None, pos_T: Tensor, device: str) -> BandPlan:
    index_T = torch.arange(len(pos_T))
    first_T = band.first(index_T).clamp(min=0)
    if layer.window is not None:
        first_T = torch.maximum(first_T, index_T - layer.window + 1)
    last_T = torch.minimum(band.last(index_T), index_T)
    q_pos_T, k_pos_T = band.q(pos_T), band.k(pos_T)
    made = [layer.encoding.table(at_T, spectrum) for at_T in (q_pos_T, k_pos_T)]
    made += [None if spectrum is None else spectrum.scale(at_T) for at_T in (q_pos_T, k_pos_T)]
    q_table, k_table, *scales = (one if one is None else one.to(device) for one in made)
    lots = (None, None) if band.lot is None else (band.lot(index_T), band.share(index_T))
    return BandPlan(first_T, last_T, q_pos_T, k_pos_T, q_table, k_table, _line(q_pos_T, k_pos_T), *scales, *lots)


def _line(q_pos_T: Tensor, k_pos_T: Tensor) -> tuple[float, float] | None:
    """Slope and offset if both coordinate maps are lines of one slope, else None."""
    offset = float(q_pos_T[0] - k_pos_T[0])
    slope = float(q_pos_T[-1] - q_pos_T[0]) / max(1, len(q_pos_T) - 1)
    line_T = slope * torch.arange(len(q_pos_T), dtype=torch.float64)
    straight = all(torch.allclose(pos_T - pos_T[0], line_T, rtol=1e-12, atol=1e-9) for pos_T in (q_pos_T, k_pos_T))
    return (slope, offset) if straight else None
