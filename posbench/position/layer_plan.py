"""Plan of one layer at one length: its bands, its factors on scores, the encoding's part of both.

Letters: T tokens, S and K chosen queries and keys, U index distances, B batch, H query heads, G
heads of keys, D channels of a head."""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posbench.position.geometry import Band, Bias, PairBias, Span, Spectrum
from posbench.position.interfaces import Encoding, ScaleAttention

QUERIES_AT_ONCE = 256  # queries whose keys are counted at once, where they are drawn by lot


def band_table(
    encoding: Encoding, spectrum: Spectrum | None, pos_T: Tensor, interpolated: bool
) -> Tensor | None:
    """Table of an encoding for the coordinates of a band; None for no rotation.

    In an `interpolated` band a key between two whole coordinates has the mean of both scores, by
    its distance from each, and not the score of its own coordinate."""
    if not interpolated:
        return encoding.table(pos_T, spectrum)
    whole_T = torch.arange(int(pos_T.max().ceil()) + 1, dtype=torch.float64)
    table = encoding.table(whole_T, spectrum)
    if table is None:
        return None
    upper_T = pos_T.ceil()
    upper_table = table[..., upper_T.long(), :]
    lower_table = table[..., pos_T.long(), :]
    share_of_lower_T = upper_T - pos_T
    return encoding.between(upper_table, lower_table, share_of_lower_T)


@dataclass(frozen=True)
class BandPlan:
    """Numbers of a band: keys first_T..last_T of each query, coordinates (float64) of queries and
    keys, the encoding's tables of them.

    `line` is (slope, offset) if the coordinate distance is slope x (index distance) + offset for
    every pair, else None. q_scale_T and k_scale_T are factors on q and k at their coordinates, None
    for 1. With lot_T and share_T (float64), a query sees of its interval only the keys whose lot is
    below its share."""

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
    # Maps of coordinates and frequencies, which tokens that the text places need once more.
    band: Band = Band()
    spectrum: Spectrum | None = None
    # Whatever kernels make once for this band.
    cache: dict[Hashable, object] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def at_text_positions(self, encoding: Encoding, pos: Tensor) -> "BandPlan":
        """The band with tables for the coordinates of a text, [B, H, T] or [B, H, T, F]."""
        spectrum = self.spectrum
        if spectrum is not None:
            spectrum = self.made_once(
                ("spectrum", pos.device), lambda: self.spectrum.to(pos.device)
            )
        q_pos = self.band.q(pos)
        k_pos = self.band.k(pos)
        q_table = encoding.table(q_pos, spectrum)
        k_table = q_table if self.band.q == self.band.k else encoding.table(k_pos, spectrum)
        band = replace(self, q_table=q_table, k_table=k_table)
        # `replace` made an empty cache, and nothing in the old one depends on the tables.
        object.__setattr__(band, "cache", self.cache)
        return band

    @property
    def n_interval_keys_T(self) -> Tensor:
        """Number of keys in the interval of each query."""
        return (self.last_T - self.first_T + 1).clamp(min=0)

    @property
    def n_seen_T(self) -> Tensor:
        """Number of keys of this band that each query sees."""
        return self.n_interval_keys_T if self.lot_T is None else self._seen_by_lot[0]

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Coordinates of queries and keys on a device.

        They stay there, since every copy to a GPU waits until it has done all its work."""
        return self.made_once(
            ("positions", device), lambda: (self.q_pos_T.to(device), self.k_pos_T.to(device))
        )

    def made_once(self, key: Hashable, make: Callable[[], object]) -> object:
        """Result of the first `make` with this key: made once for a plan, since its layers share
        their bands.
        """
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    @property
    def first_seen_T(self) -> Tensor:
        """First key that each query sees, where it sees any."""
        return self.first_T if self.lot_T is None else self._seen_by_lot[1]

    @functools.cached_property
    def _seen_by_lot(self) -> tuple[Tensor, Tensor]:
        """`n_seen_T` and `first_seen_T` of a band whose keys are drawn by lot.

        Pairs of QUERIES_AT_ONCE queries are looked at, so memory grows with the length alone.
        """
        index_T = torch.arange(len(self.first_T))
        counts = []
        farthest = []
        for query_S in index_T.split(QUERIES_AT_ONCE):
            is_seen_ST = self.seen(query_S, index_T).byte()
            counts.append(is_seen_ST.sum(dim=1))
            farthest.append(is_seen_ST.argmax(dim=1))  # the first key that is seen
        return torch.cat(counts), torch.cat(farthest)

    def keys(self, start: int, stop: int) -> slice:
        """Slice of the keys that queries start..stop-1 see; empty if they see none."""
        first_S = self.first_T[start:stop]
        last_S = self.last_T[start:stop]
        some_S = last_S >= first_S  # queries that see any
        if not some_S.any():
            return slice(0, 0)
        return slice(int(first_S[some_S].min()), int(last_S[some_S].max()) + 1)

    def seen(self, query_S: Tensor, key_K: Tensor) -> Tensor:
        """True where queries of these indices see keys of those: [S, K], on their device."""
        device = query_S.device
        first_T, last_T, lot_T, share_T = self.made_once(
            ("seen", device), lambda: self._visibility_on(device)
        )
        seen_SK = (key_K >= first_T[query_S, None]) & (key_K <= last_T[query_S, None])
        if lot_T is None:
            return seen_SK
        # Each key has a random lot in 0..1, and a query sees that share of the keys.
        return seen_SK & (lot_T[key_K] < share_T[query_S, None])

    def _visibility_on(self, device: torch.device) -> list[Tensor | None]:
        """first_T, last_T, lot_T and share_T on a device."""
        rules = (self.first_T, self.last_T, self.lot_T, self.share_T)
        return [None if rule_T is None else rule_T.to(device) for rule_T in rules]


@dataclass(frozen=True)
class LayerPlan:
    """Geometry of one layer, and the scales of its content scores.

    `report_progress` is called from time to time with the share of the layer's work that is done,
    because a long text takes minutes."""

    encoding: Encoding
    bands: tuple[BandPlan, ...]
    causal: bool  # one band that is the whole causal triangle: any fused kernel can run it
    # (scale, factor); the factor is None if it is trained
    scales: tuple[tuple[ScaleAttention, Tensor | None], ...]
    temperature: float
    n_T: Tensor
    span: Span
    index: int = 0  # among the layers of its encoding
    layer_number: int = 0  # among all layers
    # Scores become cap tanh(score / cap), biases and factors included (Gemma 2). Only kernels by
    # blocks can.
    softcap: float | None = None
    report_progress: Callable[[float], None] = lambda share: None
    tokens_BT: Tensor | None = None  # for an encoding that reads them
    content_bias: PairBias | None = None
    content_factor: Tensor | None = None  # [B, H, T], of the scales that read the text

    @functools.cached_property
    def reads_content(self) -> bool:
        """True if something depends on the input of the layer, other than gates."""
        encoding = self.encoding
        return (
            encoding.placed_by_content
            or Bias.CONTENT in encoding.biases
            or any(scale.reads_content for scale, _ in self.scales)
        )

    def content_arguments(self, x_BTC: Tensor) -> tuple:
        """Arguments of the encoding's hooks of content: the input in float32, the layer's index,
        and the text where the encoding reads it.
        """
        if self.encoding.reads_tokens:
            return x_BTC.float(), self.index, self.tokens_BT
        return x_BTC.float(), self.index

    def for_text(self, x_BTC: Tensor) -> "LayerPlan":
        """The plan for one batch of texts, with all that depends on the input of the layer."""
        if not self.reads_content:
            return self
        encoding = self.encoding
        content = self.content_arguments(x_BTC)  # of which the first is x in float32
        bands = self.bands
        if encoding.placed_by_content:
            pos = encoding.content_positions(*content)
            bands = tuple(band.at_text_positions(encoding, pos) for band in bands)
        content_bias = None
        if Bias.CONTENT in encoding.biases:
            content_bias = encoding.content_bias(*content)
        factor = self._content_factor(content[0])
        return replace(self, bands=bands, content_bias=content_bias, content_factor=factor)

    def _content_factor(self, x_BTC: Tensor) -> Tensor | None:
        """Product of the factors that read the text: [B, H, T]; None without any."""
        factor = None
        for scale, _ in self.scales:
            if scale.reads_content:
                n_T = self._key_counts_on(x_BTC.device)
                scale_BHT = scale.content_factor(x_BTC, n_T, self.span, self.layer_number).float()
                factor = scale_BHT if factor is None else factor * scale_BHT
        return factor

    @property
    def factor_of_zeros(self) -> Tensor | None:
        """`factor`, where scales that read the text are given an input of zeros: [T] or [H, T]."""
        if not any(scale.reads_content for scale, _ in self.scales):
            return self.factor
        parameters = [number for scale, _ in self.scales for number in scale.parameters()]
        device = parameters[0].device if parameters else None
        zeros_BTC = torch.zeros(1, len(self.n_T), self.encoding.shape.d_model, device=device)
        return replace(self, content_factor=self._content_factor(zeros_BTC)).factor[0]

    @property
    def factor(self) -> Tensor | None:
        """Factor on the content scores of each query: [T] or [H, T], float32, on the CPU or a
        trained scale's device; [B, H, T] where a scale reads the text; None for 1.
        """
        total = self.content_factor
        for scale, untrained_factor in self.scales:
            if scale.reads_content:  # within content_factor
                continue
            if untrained_factor is None:
                factor = self._trained_factor(scale)
            elif (untrained_factor == 1).all():
                continue  # so that None, for which kernels do nothing, is what stays
            else:
                factor = untrained_factor
            total = factor if total is None else total * factor.to(total.device)
        heads_H = self.encoding.scaled_heads()
        if total is not None and heads_H is not None:
            # Heads on which scales do not act.
            total = torch.where(heads_H.to(total.device)[:, None], total, 1.0)
        if self.temperature == 1:
            return total
        if total is None:
            return torch.full((len(self.n_T),), self.temperature)
        return total * self.temperature

    def _trained_factor(self, scale: ScaleAttention) -> Tensor:
        device = next(scale.parameters()).device
        return scale(self._key_counts_on(device), self.span, self.layer_number).float()

    def _key_counts_on(self, device: torch.device) -> Tensor:
        return self.bands[0].made_once(("n", device), lambda: self.n_T.to(device))

    def turned(self, band: BandPlan, q_BHTD: Tensor, k_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """q and k rotated by the encoding for a band, times the factors at their coordinates."""
        if band.q_table is not None:
            q_BHTD, k_BGTD = self.encoding.rotate(q_BHTD, k_BGTD, band.q_table, band.k_table)
        if band.q_scale_T is None:
            return q_BHTD, k_BGTD
        return q_BHTD * band.q_scale_T[:, None], k_BGTD * band.k_scale_T[:, None]

    def scaled(self, q_BHTD: Tensor, width: int) -> Tensor:
        """q times 1 / sqrt(width) and every factor on the content scores."""

        def factor_on_device() -> Tensor | None:
            factor = self.factor
            return None if factor is None else factor.to(q_BHTD.device)

        is_trained = any(factor is None for _, factor in self.scales)
        if self.content_factor is not None or is_trained:
            factor = factor_on_device()  # it changes from step to step
        else:  # kept in the first band, since no band has a factor of its own
            factor = self.bands[0].made_once(("factor", q_BHTD.device), factor_on_device)
        if factor is None:
            return q_BHTD * width**-0.5
        return q_BHTD * (width**-0.5 * factor.unsqueeze(-1))

    @property
    def is_bare(self) -> bool:
        """True if the scores are the products of q and k over sqrt(D), and nothing else."""
        encoding = self.encoding
        return (
            not encoding.biases
            and not self.has_sink
            and encoding.decay() is None
            and self.factor is None
        )

    def profile(self, band: BandPlan, delta_U: Tensor) -> Tensor:
        """Bias at the index distances delta_U, for a band that has a `line`: [H, U]."""
        slope, offset = band.line
        return self.encoding.profile((slope * delta_U + offset).clamp(min=0).float(), self.index)

    @property
    def distance_rules(self) -> list[ScaleAttention]:
        """Scales whose factor depends on distance."""
        return [scale for scale, _ in self.scales if scale.by_distance]

    @property
    def changes_single_scores(self) -> bool:
        """True if single scores are changed, or something takes the place of their softmax: only
        kernels by blocks do that.
        """
        return (
            self.softcap is not None
            or bool(self.distance_rules)
            or self.row_weighing_scale is not None
        )

    @property
    def row_weighing_scale(self) -> ScaleAttention | None:
        """The scale that weighs whole rows, None for a softmax."""
        for scale, _ in self.scales:
            if scale.weighs_rows:
                return scale
        return None

    def weights(self, scores_BHSK: Tensor) -> Tensor:
        """Weights of rows that hold the scores of all bands and of the sink."""
        rule = self.row_weighing_scale
        return scores_BHSK.softmax(dim=-1) if rule is None else rule.weights(scores_BHSK)

    @property
    def has_sink(self) -> bool:
        """True if a scale adds a sink. Then a constant on all scores of a query matters."""
        return any(scale.sinks for scale, _ in self.scales)

    def sink(self, q_BHTD: Tensor) -> Tensor | None:
        """Logit of the sink of each head of q: [H], float32; None without one.

        Several sinks are one, whose logit is their logarithmic sum."""
        heads = q_BHTD.shape[1]
        logits = []
        for scale, _ in self.scales:
            if scale.sinks:
                logits.append(scale.sink(self.layer_number).to(q_BHTD.device).float().expand(heads))
        if not logits:
            return None
        return torch.stack(logits).logsumexp(dim=0)
