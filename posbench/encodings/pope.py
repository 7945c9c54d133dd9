"""PoPE: channels as polar coordinates, a magnitude from the content and an angle from the position.

score(i, j) = sum_c mu(q_c) mu(k_c) cos((i - j) theta_c - phi_hc), mu = softplus. Gopalakrishnan et
al. 2025, arXiv 2509.10534. Every channel has a frequency of its own, theta_c = base^(-c /
head_dim), c = 0..head_dim - 1, and its content is a magnitude alone; the phases phi of each head
are learned, 0 at the start and held within -2 pi..0. Each channel becomes a cosine and a sine, so q
and k are 2 head_dim wide; the score is still divided by sqrt(head_dim). Deviation: x-transformers
adds phi to the angle of k, here it is taken from the angle of q: the same product, and query heads
that share a key head keep phases of their own. All layers share the phases, as there."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.position.geometry import Base, Shape, Spectrum, Trait
from posbench.position.interfaces import Encoding


class Pope(Encoding):
    """Polar positions."""

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.SPECTRUM | Trait.UNBOUNDED

    def __init__(self, shape: Shape, base: Base = 10000.0):
        super().__init__(shape)
        self.base = base
        self.phase_H1D = nn.Parameter(torch.zeros(shape.n_head, 1, shape.head_dim))

    def spectrum(self) -> Spectrum:
        width = self.shape.head_dim
        channel_F = torch.arange(width, dtype=torch.float64)
        return Spectrum(self.base ** (-channel_F / width), self.base, 2 * width)

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and sin of every angle: [2, T, D], float32."""
        angle_TD = spectrum.angles(pos_T)
        return torch.stack((angle_TD.cos(), angle_TD.sin())).float()

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q and k by polar coordinates: softplus(channel) at the angle of its position, of q less a
        learned phase. Each channel becomes a cosine and a sine.
        """
        phase_H1D = self.phase_H1D.clamp(-2 * math.pi, 0)  # one turn, as published
        cos_H1D = phase_H1D.cos()
        sin_H1D = phase_H1D.sin()
        cos_TD, sin_TD = q_table
        # cos and sin of the angle minus the phase.
        q_cos_HTD = cos_TD * cos_H1D + sin_TD * sin_H1D
        q_sin_HTD = sin_TD * cos_H1D - cos_TD * sin_H1D
        k_cos_TD, k_sin_TD = k_table
        q_BHTD = F.softplus(q_BHTD)
        k_BGTD = F.softplus(k_BGTD)
        # So q k is a sum over channels: both magnitudes times the cosine between both angles.
        q_BHTR = torch.cat((q_BHTD * q_cos_HTD, q_BHTD * q_sin_HTD), dim=-1)
        k_BGTR = torch.cat((k_BGTD * k_cos_TD, k_BGTD * k_sin_TD), dim=-1)
        return q_BHTR, k_BGTR
