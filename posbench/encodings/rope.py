"""RoPE: channel pair c of q and k at position t is turned by the angle t theta_c, theta_c = base^(-2c / head_dim).

Su et al. 2021, arXiv 2104.09864. Two layouts of the same function class, which differ by a permutation of the output channels
of W_q and W_k: `half` pairs channels (c, c + head_dim/2) as GPT-NeoX and Llama do, `interleaved` pairs (2c, 2c + 1) as
the paper does. Angles are computed in float64 and kept in float32 whatever the model's dtype.
"""

import torch
from torch import Tensor

from posbench.errors import ConfigError
from posbench.geometry import Shape, Spectrum, Trait
from posbench.interfaces import Encoding


class Rope(Encoding):
    """Rotary positions. Raises ConfigError for an odd head_dim, an unknown layout or a base of 1 or less."""

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.SPECTRUM | Trait.UNBOUNDED

    def __init__(self, shape: Shape, base: float = 10000.0, layout: str = "half"):
        super().__init__(shape)
        if shape.head_dim % 2 or shape.head_dim < 4:
            raise ConfigError(
                f"encoding=rope turns pairs of channels: the head width must be even and at least 4, "
                f"but d_model / n_head is {shape.head_dim}: change model.d_model or model.n_head."
            )
        if base <= 1:
            raise ConfigError(f"encoding.base={base} must be above 1, or no channel is slower than another: 10000 is usual.")
        if layout not in ("half", "interleaved"):
            raise ConfigError(f"encoding.layout={layout} is unknown: choose half or interleaved.")
        self.base, self.layout = base, layout

    def spectrum(self) -> Spectrum:
        channel_F = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float64)
        return Spectrum(self.base ** (-channel_F / self.shape.head_dim), self.base, self.shape.head_dim)

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and sin of every angle: [2, T, F], float32."""
        angle_TF = spectrum.angles(pos_T)
        return torch.stack((angle_TF.cos(), angle_TF.sin())).float()

    def rotate(self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor) -> tuple[Tensor, Tensor]:
        return self._turn(q_BHTD, q_table), self._turn(k_BGTD, k_table)

    def _turn(self, x_BHTD: Tensor, table: Tensor) -> Tensor:
        cos_TF, sin_TF = table
        if self.layout == "half":
            a_BHTF, b_BHTF = x_BHTD.chunk(2, dim=-1)
            return torch.cat((a_BHTF * cos_TF - b_BHTF * sin_TF, b_BHTF * cos_TF + a_BHTF * sin_TF), dim=-1)
        a_BHTF, b_BHTF = x_BHTD.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a_BHTF * cos_TF - b_BHTF * sin_TF, b_BHTF * cos_TF + a_BHTF * sin_TF), dim=-1).flatten(-2)
