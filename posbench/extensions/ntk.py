"""NTK-aware scaling: a larger base, with the fastest pair unchanged and the slowest divided by s.

theta'_c = theta_c s^(-c / (m - 1)), c = 0..m-1, the same as base' = base s^(m / (m - 1)), m =
rotary_dim / 2 pairs. bloc97 2023 (forum post); formula as in Peng et al. 2023, arXiv 2309.00071.
The fastest pair is unchanged, the slowest ends at theta / s. s = multiplier * target_len /
train_len once that ratio exceeds 1, else 1: pairs that never made a full turn in training still
meet unseen angles with multiplier 1, so the literature takes 1.5 to 4. `mode: dynamic` computes s
anew for each length (dynamic NTK with factor f = 1 of the common implementations), `mode: fixed` is
the original post.

Deviation: the formula divides by zero for a lone pair; as the fastest one it stays as it is."""

from dataclasses import replace

import torch

from posbench.position.geometry import AtLeast1, Mode, Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


def slowed_spectrum(spectrum: Spectrum, scale: float) -> Spectrum:
    """Spectrum with the slowest pair `scale` times slower, the fastest unchanged, and a geometric
    progression between them.
    """
    pairs = len(spectrum.freq_F)
    if pairs < 2:  # the fastest pair is the slowest too
        return spectrum
    pair_F = torch.arange(pairs, dtype=torch.float64)
    freq_F = spectrum.freq_F * scale ** (-pair_F / (pairs - 1))
    # The base of which the new frequencies are the powers.
    base = spectrum.base * scale ** (spectrum.rotary_dim / 2 / (pairs - 1))
    return replace(spectrum, freq_F=freq_F, base=base)


class Ntk(ScaledExtension):
    """A larger base."""

    needs = Trait.SPECTRUM
    tested_with = {
        "rope": "bloc97 2023; Peng et al. 2023, arXiv 2309.00071",
        "p_rope": AS_ROPE,
        "fox": AS_ROPE,
    }

    def __init__(
        self, multiplier: AtLeast1 = 1.0, mode: Mode = "dynamic", target_len: int | None = None
    ):
        super().__init__(mode, target_len)
        self.multiplier = multiplier

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        if span.factor == 1:
            return spectrum
        return slowed_spectrum(spectrum, self.multiplier * span.factor)
