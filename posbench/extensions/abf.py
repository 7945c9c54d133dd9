"""ABF: the base of the frequencies is replaced by a larger constant.

theta'_c = base'^(-c / m), c = 0..m-1, m pairs. Xiong et al. 2023, arXiv 2309.16039 (Llama 2 Long):
10000 to 500000, followed by training at the new length. Used on a trained model as it is, it is
NTK-aware scaling by s = (base' / base)^((m - 1) / m) (44 for 32 pairs), at every length: texts
within train_len change too. The base replaced is the spectrum's own: for p_rope, that of the grid
on which its active pairs lie."""

from dataclasses import replace

import torch

from posbench.position.geometry import Base, Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, Extension


class Abf(Extension):
    """Another base."""

    needs = Trait.SPECTRUM
    tested_with = {
        "rope": "the paper",
        "p_rope": (
            "GLM-4-9B-Chat-1M (Zeng et al. 2024, arXiv 2406.12793): rope_ratio 10000, half of the"
            " channels turn"
        ),
        "fox": AS_ROPE,
    }

    def __init__(self, base: Base = 500000.0):
        self.base = base

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        pair_F = torch.arange(len(spectrum.freq_F), dtype=torch.float64)
        slower_F = (self.base / spectrum.base) ** (-2 * pair_F / spectrum.rotary_dim)
        return replace(spectrum, freq_F=spectrum.freq_F * slower_F, base=self.base)
