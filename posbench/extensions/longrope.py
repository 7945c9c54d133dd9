"""LongRoPE: the frequency of each pair is divided by a factor of its own.

theta'_c = theta_c / nu_c; the first `exact_first` positions keep their trained angles. Ding et al.
2024, arXiv 2402.13753 (microsoft/LongRoPE); LongRoPE2, arXiv 2502.20082. The factors come from a
search on held-out text at the target length (scripts/search_factors.py); `factors: null` takes a
start of it, YaRN's (see ntk_by_parts, ramp index). As in transformers, `factors` apply beyond
train_len, `short_factors` up to it (null: no change in mode dynamic, `factors` in mode fixed).
Mode dynamic with given `factors` is LongRoPE2's mixed context window: the original frequencies for
texts within train_len. Its training on texts of both kinds is not here.
Temperature: cos and sin times sqrt(1 + ln s / ln train_len), that is logits times ln(s train_len) /
ln train_len, s = target_len / train_len; in mode dynamic the same as scale_attention=log_n_global.
The first `exact_first` positions keep angles and magnitude, so a logit has the factor m^2 = ln(s
train_len) / ln train_len between two later tokens, m where one is among the first, and 1 where both
are.

Deviation: the authors' dynamic class lets the factors grow with the length."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.position.geometry import Above0, Count, Mode, Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class Longrope(ScaledExtension):
    """A factor for each pair. Raises ConfigError for factors that are not one for each pair of the
    encoding.
    """

    needs = Trait.SPECTRUM
    tested_with = {
        "rope": "the paper",
        "p_rope": (
            "Phi-4-mini (Microsoft 2025, arXiv 2503.01743), three quarters of whose channels turn"
        ),
        "fox": AS_ROPE,
    }

    def __init__(
        self,
        factors: list[Above0] | None = None,
        short_factors: list[Above0] | None = None,
        exact_first: Count = 0,
        temperature: bool = True,
        mode: Mode = "dynamic",
        target_len: float | None = None,
    ):
        super().__init__(mode, target_len)
        self.factors = factors  # None: those of YaRN
        # up to the training length; None: as trained, but in mode fixed as beyond it
        self.short_factors = short_factors
        self.exact_first = exact_first  # first tokens, whose angles stay as trained
        self.has_temperature = temperature  # True: the method's own temperature, False: none

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        if self.exact_first > span.train_len:
            raise ConfigError(
                f"extension.exact_first={self.exact_first} exceeds the {span.train_len} tokens of"
                " training: give no more."
            )
        if span.length <= self.exact_first:  # all of its tokens keep their frequencies
            return spectrum
        if self.short_factors is not None and span.length <= span.train_len:
            freq_F = _divided_frequencies(spectrum, self.short_factors, "short_factors")
        elif span.factor == 1:
            return spectrum
        elif self.factors is None:
            # Where the search for factors begins: YaRN's frequencies.
            freq_F = NtkByParts(ramp="index").spectrum(spectrum, span).freq_F
        else:
            freq_F = _divided_frequencies(spectrum, self.factors, "factors")
        if not self.exact_first:
            return replace(spectrum, freq_F=freq_F)
        return replace(
            spectrum,
            freq_F=freq_F,
            exact_first=self.exact_first,
            exact_F=spectrum.freq_F,
            exact_scale=self.temperature(span) ** -0.5,  # undoes its share of q and of k
        )

    def temperature(self, span: Span) -> float:
        if not self.has_temperature or span.length <= self.exact_first:
            return 1.0
        return 1 + math.log(span.factor) / math.log(max(2, span.train_len))


def _divided_frequencies(spectrum: Spectrum, factors: list[float], name: str) -> Tensor:
    """Frequencies divided by a factor each. Raises ConfigError for another number of factors."""
    pairs = len(spectrum.freq_F)
    if not spectrum.measured and len(factors) < pairs:
        # Fewer pairs may turn: the loaded model tells. Repeated, all factors act in the meantime.
        factors = (factors * pairs)[:pairs]
    if len(factors) != pairs:
        raise ConfigError(
            f"extension.{name} has {len(factors)} numbers: give {pairs}, one for each pair that"
            " turns."
        )
    return spectrum.freq_F / torch.tensor(factors, dtype=torch.float64)
