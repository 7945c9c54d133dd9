"""Clipped RoPE: the slowest pairs of channels rotate less, or not at all.

The frequency theta_c of pair c is multiplied by 0.5 (1 + cos t), t from 0 to pi over these pairs.
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
        share: Share = 0.3125,  # 20 of 64 pairs
        clip: Literal["soft", "hard"] = "soft",
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        pairs = shape.head_dim // 2
        clipped = math.ceil(share * pairs)  # number of pairs, the slowest ones
        # From 1 to 0 over the clipped pairs, so the first of them turns as before.
        with torch.device("cpu"):  # real numbers even where a model is made on the meta device
            fade_F = 0.5 * (1 + torch.linspace(0, math.pi, clipped, dtype=torch.float64).cos())
            if clip == "hard":
                fade_F = torch.zeros_like(fade_F)
            unclipped_F = torch.ones(pairs - clipped, dtype=torch.float64)
            self.share_F = torch.cat((unclipped_F, fade_F))  # of the frequency that is left

    def turning(self, spectrum: Spectrum) -> Spectrum:
        return spectrum.changed(lambda freq_F: freq_F * self.share_F)
