"""YaRN-radix: pairs are slowed by powers of s that rise within the bounds of YaRN's ramp by index.

theta'_c = theta_c / s^e, e rising from 0 at pair `low` to 1 at pair `high`. Mixed-radix RoPE
(MrRoPE, mattian7/mrRoPE): a position is written in digits, pair c is a digit, and what is stretched
is the base of each digit. `digits: progressive`, the code's choice: e = n (n + 1) / N (N + 1), n =
c - low, N = high - low, so that each digit is stretched more than the one before. `digits:
uniform`: e = n / N, all digits alike. YaRN mixes theta and theta / s in the same bounds, which
stretches the first digits most. s = target_len / train_len once that exceeds 1; temperature as in
yarn. Only its code was read."""

from dataclasses import replace
from typing import Literal

import torch

from posbench.extensions.yarn import Yarn
from posbench.position.geometry import Mode, Span, Spectrum


class YarnRadix(Yarn):
    """By digits, and sharper."""

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float | None = None,
        digits: Literal["progressive", "uniform"] = "progressive",
        truncate: bool = True,
        temperature: bool = True,
        mode: Mode = "dynamic",
        target_len: float | None = None,
    ):
        super().__init__(
            alpha=alpha,
            beta=beta,
            ramp="index",
            truncate=truncate,
            temperature=temperature,
            mode=mode,
            target_len=target_len,
        )
        self.ramp = "digits"  # not one of YaRN's two: no engine's keys describe these frequencies
        self.digits = digits

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        if span.factor == 1 or not len(spectrum.freq_F):
            return spectrum
        # A pair is a digit of the position, in a base that is stretched: of all alike (uniform), or
        # of each more than of the one before.
        low, high = self.ramp_bounds(spectrum, span.train_len)
        width = high - low  # pairs from the first bound to the second, above 0
        pair_F = torch.arange(len(spectrum.freq_F), dtype=torch.float64)
        n_F = (pair_F - low).clamp(0, width)
        if self.digits == "uniform":
            share_F = n_F / width
        else:  # the k-th pair adds k equal parts: 1 + 2 + ... + n of 1 + 2 + ... + width
            share_F = n_F * (n_F + 1) / (width * (width + 1))
        return replace(spectrum, freq_F=spectrum.freq_F * span.factor**-share_F)
