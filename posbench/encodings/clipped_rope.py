"""Clipped RoPE: the slowest pairs of channels rotate less, or not at all: theta_c times 0.5 (1 +
cos t), t from 0 to pi over these pairs.

Li et al. 2026, arXiv 2602.05258, where it is called CoPE; here encoding=cope is Golovneva's. In
hrlics/CoPE the slowest 20 of 64 pairs are clipped, so the first of these turns as before and the
last not at all. `clip: hard` stops all of them, which p_rope does too. Clipping comes after any
change of frequencies by an extension, as in that code, which clips ABF's and YaRN's frequencies.
"""

import math
from typing import Literal

import torch

from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Layout, Shape, Share, Spectrum


class ClippedRope(Rope):
    """Rotary positions whose slow pairs fade out."""

    def __init__(
        self,
        shape: Shape,
        share: Share = 0.3125,
        clip: Literal["soft", "hard"] = "soft",
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        pairs = shape.head_dim // 2
        clipped = math.ceil(share * pairs)
        with torch.device("cpu"):
            fade_F = 0.5 * (1 + torch.linspace(0, math.pi, clipped, dtype=torch.float64).cos())
            self.left_F = torch.cat(
                (torch.ones(pairs - clipped, dtype=torch.float64), fade_F * (clip == "soft"))
            )

    def turning(self, spectrum: Spectrum) -> Spectrum:
        return spectrum.changed(lambda freq_F: freq_F * self.left_F)
