"""NTK "fixed" of Su: a larger base that slows the fastest pair too.

theta'_c = theta_c s^(-(c + 1) / m), c = 0..m-1, m pairs, s = target_len / train_len once that
exceeds 1. Su 2023 (kexue.fm/archives/9706). Every pair is slowed, the fastest by s^(-1/m), where
ntk leaves it alone; the slowest ends at theta / s. The name is the author's and has nothing to do
with `mode: fixed`."""

from dataclasses import replace

import torch

from posbench.position.geometry import Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class NtkFixed(ScaledExtension):
    """A larger base that reaches the fastest pair too."""

    needs = Trait.SPECTRUM
    tested_with = {"rope": "Su 2023 (kexue.fm/archives/9706)", "p_rope": AS_ROPE, "fox": AS_ROPE}

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        pairs = len(spectrum.freq_F)
        nth_F = torch.arange(1, pairs + 1, dtype=torch.float64)  # pairs counted from 1
        return replace(spectrum, freq_F=spectrum.freq_F * span.factor ** (-nth_F / max(1, pairs)))
