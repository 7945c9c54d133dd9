"""Sinusoidal absolute positions: sines and cosines are added to the embeddings.

x_t += g P[t], P[t, 2c] = sin(t w_c), P[t, 2c+1] = cos(t w_c), w_c = base^(-2c / d_model). Vaswani
et al. 2017, arXiv 1706.03762. Deviation: the paper adds P to sqrt(d_model) times the embedding;
here the embedding is left alone and P has one learned gain g, d_model^-0.5 at the start (the same
ratio of the two, and it may move)."""

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.position.geometry import Base, Shape, Spectrum, Trait
from posbench.position.interfaces import Encoding


class Sinusoidal(Encoding):
    """Sines and cosines of the coordinate. Raises ConfigError for an odd d_model."""

    traits = Trait.COORDINATE | Trait.SPECTRUM | Trait.UNBOUNDED

    def __init__(self, shape: Shape, base: Base = 10000.0):
        super().__init__(shape)
        if shape.d_model % 2:
            raise ConfigError(
                f"encoding=sinusoidal pairs sines with cosines, and model.d_model={shape.d_model}"
                " is odd: make it even."
            )
        self.base = base
        # (coordinates, spectrum, waves) of the latest plan
        self._last_waves: tuple[Tensor, Spectrum, Tensor] | None = None
        # The paper's ratio: there embeddings are multiplied by sqrt(d_model) and waves by 1.
        self.gain = nn.Parameter(torch.tensor(shape.d_model**-0.5))

    def spectrum(self) -> Spectrum:
        width = self.shape.d_model
        channel_F = torch.arange(0, width, 2, dtype=torch.float64)
        return Spectrum(self.base ** (-channel_F / width), self.base, width)

    def embed(self, pos_T: Tensor, spectrum: Spectrum, rows_NC: Tensor | None) -> Tensor:
        # A plan has the same coordinates and spectrum in every step.
        if (
            self._last_waves is None
            or self._last_waves[0] is not pos_T
            or self._last_waves[1] is not spectrum
        ):
            angle_TF = spectrum.angles(pos_T)
            wave_TC = torch.stack((angle_TF.sin(), angle_TF.cos()), dim=-1).flatten(1)
            self._last_waves = pos_T, spectrum, wave_TC.to(self.gain)
        return self.gain * self._last_waves[2]
