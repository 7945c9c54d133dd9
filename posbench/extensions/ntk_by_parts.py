"""NTK-by-parts: fast pairs are kept, slow ones divided by s, between them mixed.

theta' = g theta + (1 - g) theta / s, s = target_len / train_len once that exceeds 1; g falls from 1
(kept) to 0 (divided). Peng et al. 2023, arXiv 2309.00071. rho_c = train_len theta_c / 2 pi are the
turns of pair c in training. `ramp: turns` is the paper: g = (rho - alpha) / (beta - alpha), cut to
0..1. `ramp: index` is the code people run (jquesnelle/yarn, transformers): g falls linearly in the
pair's index c from x(beta) to x(alpha), x(rho) = r ln(train_len / 2 pi rho) / (2 ln base), r =
rotary_dim, rounded outwards (`truncate`; gpt-oss does not) and cut to 0..2m - 1, m pairs; it keeps
up to 2.6 times faster pairs in the middle, and always the first pair. In a spectrum that is scaled
already x(rho) is counted on from its last pair that turns more than rho times. The published alpha
= 1, beta = 32 suit train_len >= 4096: 32 turns is more than any pair makes in 200 tokens. So beta =
null is a quarter of the fastest pair's turns, at most 32 and at least alpha + 1."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.default_beta import default_beta
from posbench.position.geometry import Mode, Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class NtkByParts(ScaledExtension):
    """Fast pairs as trained, slow ones divided. Raises ConfigError for bounds that are not 0 <
    alpha < beta.
    """

    needs = Trait.SPECTRUM
    tested_with = {
        "rope": "the paper",
        "p_rope": "GLM-4-32B-0414 (2025), half of whose channels turn: YaRN with factor 4",
        "fope": "Hua et al. 2024, arXiv 2412.17739: with YaRN",
        "fox": AS_ROPE,
    }

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float | None = None,
        ramp: Literal["index", "turns"] = "turns",
        truncate: bool = True,
        mode: Mode = "dynamic",
        target_len: float | None = None,
    ):
        super().__init__(mode, target_len)
        if alpha <= 0 or (beta is not None and beta <= alpha):
            raise ConfigError(
                f"extension.alpha={alpha} and extension.beta={beta} must be turns, 0 < alpha <"
                " beta: 1 and 32 are usual."
            )
        self.alpha = alpha
        self.beta = beta  # None: by the training length (default_beta)
        self.ramp = ramp
        self.truncate = truncate  # True: ramp=index begins and ends at whole pairs

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        if span.factor == 1 or not len(spectrum.freq_F):
            return spectrum
        if self.ramp == "turns":
            turns_F = span.train_len * spectrum.freq_F / (2 * math.pi)
            beta = self.turns_kept_from(spectrum.freq_F, span.train_len)
            # Share of a frequency that is kept: all from beta turns on, none up to alpha.
            share_F = ((turns_F - self.alpha) / (beta - self.alpha)).clamp(0, 1)
        else:
            low, high = self.ramp_bounds(spectrum, span.train_len)
            pair_F = torch.arange(len(spectrum.freq_F), dtype=torch.float64)
            share_F = 1 - ((pair_F - low) / (high - low)).clamp(0, 1)
        return replace(spectrum, freq_F=spectrum.freq_F * (share_F + (1 - share_F) / span.factor))

    def turns_kept_from(self, freq_F: Tensor, train_len: int) -> float:
        """Turns in training from which a pair is kept: beta, or its default if beta is None."""
        return self.beta or default_beta(self.alpha, train_len, float(freq_F.max()))

    def ramp_bounds(self, spectrum: Spectrum, train_len: int) -> tuple[float, float]:
        """Indices of the pairs between which the kept share falls from 1 to 0 by ramp=index."""
        turns_F = train_len * spectrum.freq_F / (2 * math.pi)
        beta = self.turns_kept_from(spectrum.freq_F, train_len)
        low = _fractional_index(turns_F, beta, spectrum)
        high = _fractional_index(turns_F, self.alpha, spectrum)
        if self.truncate:  # to whole pairs, as YaRN's code does
            low, high = math.floor(low), math.ceil(high)
        if high < 0 or low > spectrum.rotary_dim - 1:
            raise ConfigError(
                f"extension.alpha={self.alpha:g} and beta={beta:g} are turns that no pair makes"
                f" in {train_len} tokens of training, where ramp=index would fall backwards: choose"
                " others, or ramp=turns."
            )
        low = max(low, 0)
        high = min(high, 2 * len(turns_F) - 1)  # rotary_dim - 1, as in YaRN's code
        # Equal bounds become a step instead of a division by zero.
        return low, max(high, low + 1e-3)


def _fractional_index(turns_F: Tensor, turns: float, spectrum: Spectrum) -> float:
    """Index (fractional) of a pair that makes `turns` turns in training, also before and after the
    existing pairs.
    """
    last_faster = max(0, int((turns_F > turns).sum()) - 1)
    ratio = float(turns_F[last_faster]) / turns
    return last_faster + spectrum.rotary_dim / 2 * math.log(ratio) / math.log(spectrum.base)
