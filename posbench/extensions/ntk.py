"""NTK-aware scaling: theta'_c = theta_c s^(-2c / (d - 2)), the same as base' = base s^(d / (d - 2)), d the rotary dimension.

bloc97 2023 (forum post); formula as in Peng et al. 2023, arXiv 2309.00071. The fastest pair is unchanged, the slowest ends at theta / s.
s = multiplier * target_len / train_len once that ratio exceeds 1, else 1: pairs that never made a full turn in training still
meet unseen angles with multiplier 1, so the literature takes 1.5 to 4. `mode: dynamic` computes s anew for each length
(dynamic NTK with factor f = 1 of the common implementations), `mode: fixed` is the original post.
"""

import torch

from posbench.errors import ConfigError
from posbench.geometry import Span, Spectrum, Trait
from posbench.interfaces import ScaledExtension


class Ntk(ScaledExtension):
    """A larger base. Raises ConfigError for a multiplier below 1."""

    needs = Trait.SPECTRUM
    tested_with = frozenset({"rope"})

    def __init__(self, multiplier: float = 1.0, mode: str = "dynamic", target_len: int | None = None):
        super().__init__(mode, target_len)
        if multiplier < 1:
            raise ConfigError(f"extension.multiplier={multiplier} must be at least 1.")
        self.multiplier = multiplier

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        if span.factor == 1:
            return spectrum
        scale = self.multiplier * span.factor
        pair_F = torch.arange(len(spectrum.freq_F), dtype=torch.float64)
        freq_F = spectrum.freq_F * scale ** (-2 * pair_F / (spectrum.rotary_dim - 2))
        base = spectrum.base * scale ** (spectrum.rotary_dim / (spectrum.rotary_dim - 2))
        return Spectrum(freq_F, base, spectrum.rotary_dim)
