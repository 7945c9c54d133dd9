"""NTK "mixed" of Su: between position interpolation and a larger base.

theta'_c = theta_c exp(-ln s ((c + 1) / m)^kappa), c = 0..m-1, m pairs, s = target_len / train_len,
at least 1. Su 2023 (kexue.fm/archives/9706), bojone/rerope ntk_patch.py, whose kappa is 0.75 with s
= 12 (the post takes 0.625). kappa = 1 is ntk_fixed, kappa = 0 divides every pair by s as pi does;
the slowest ends at theta / s in all of them."""

import math
from dataclasses import replace

import torch

from posbench.position.geometry import AtLeast0, Mode, Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class NtkMixed(ScaledExtension):
    """Between position interpolation and a larger base."""

    needs = Trait.SPECTRUM
    tested_with = {"rope": "Su 2023 (kexue.fm/archives/9706)", "p_rope": AS_ROPE, "fox": AS_ROPE}

    def __init__(
        self, kappa: AtLeast0 = 0.75, mode: Mode = "dynamic", target_len: int | None = None
    ):
        super().__init__(mode, target_len)
        self.kappa = kappa

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        pairs = len(spectrum.freq_F)
        nth_F = torch.arange(1, pairs + 1, dtype=torch.float64)  # pairs counted from 1
        slower_F = torch.exp(-math.log(span.factor) * (nth_F / max(1, pairs)) ** self.kappa)
        return replace(spectrum, freq_F=spectrum.freq_F * slower_F)
