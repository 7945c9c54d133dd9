"""RoPE: pairs of channels of q and k are rotated by angles proportional to the position.

Pair c at position t is rotated by the angle t theta_c, theta_c = base^(-2c / head_dim). Su et al.
2021, arXiv 2104.09864. Two layouts of the same function class, which differ by a permutation of the
output channels of W_q and W_k: `half` pairs channels (c, c + head_dim/2) as GPT-NeoX and Llama do,
`interleaved` pairs (2c, 2c + 1) as the paper does. Angles are computed in float64 and kept in
float32 whatever the model's dtype.

`fraction` below 1 is partial RoPE (Black et al. 2022, GPT-NeoX, arXiv 2204.06745: 0.25): the first
r = fraction head_dim channels are turned, with frequencies base^(-2c / r), and the others carry no
position. `resonance` is Resonance RoPE (Wang et al. 2024, arXiv 2403.00071): wavelengths rounded to
whole tokens after any change of frequencies; on in training too. As an extension PI divides
positions, so after the rounding, as in the authors' code (sheryc/resonance_rope). Deviation: as a
`scaling` it is a change of frequencies, and divides them before the rounding.

`scaling` is an extension by a fixed factor that was trained in, as in Llama 3.1: its frequencies
are the model's own, and extensions act on them. `scaling_len` is the train_len of that extension:
the training length before it. Its temperature t multiplies cos and sin, each by sqrt(t) as in
transformers, or by `amplitude` where that is given. LongRoPE has other factors up to scaling_len;
dynamic NTK other frequencies at each length beyond it, so that no further extension may change
them.

`window` is a sliding window, one for all layers (Mistral 7B, Jiang et al. 2023, arXiv 2310.06825)
or a list with one for each (Qwen2). `unturned` are the layers without rotation (NoPE, Kazemnejad et
al. 2023, arXiv 2305.19466): their indices, or a number n for the last of every n (SmolLM3, Hugging
Face 2025: 4, as in configs/encoding/smollm3.yaml). A model of fewer layers is one period; a single
layer turns."""

import math

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.encodings.none import NoEncoding
from posbench.position.fixed_frequencies import is_spectrum_by_length, spectrum_trained_in
from posbench.position.geometry import Base, Layout, Period, Shape, Spectrum, Tokens, Trait
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension, Layer
from posbench.position.rotation import cos_and_sin_by_channel, turned_pairs

LEAST_ROTARY_DIM = 4  # extension=ntk divides by the number of pairs - 1


class Rope(Encoding):
    """Rotary positions. Raises ConfigError for a scaling that is no set of frequencies, and for
    arguments that do not fit together.
    """

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.SPECTRUM | Trait.UNBOUNDED

    def __init__(
        self,
        shape: Shape,
        base: Base = 10000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        resonance: bool = False,
        scaling: dict | None = None,
        scaling_len: float | None = None,
        window: Tokens | list[Tokens | None] | None = None,
        amplitude: float | None = None,
        unturned: list[int] | Period | None = None,
    ):
        super().__init__(shape)
        self.rotary_dim = _rotary_dim(fraction, shape.head_dim)
        self.base = base
        self.layout = layout
        self.resonance = resonance
        self.windows = _windows_of_layers(window, shape.n_layer)
        self.unturned = _unturned_layers(unturned, shape.n_layer)
        self.unturned_encoding = NoEncoding(shape) if self.unturned else None
        # The latest table, and cos and sin for every channel made from it.
        self._last_table: tuple[Tensor, tuple[Tensor, Tensor]] | None = None
        # Real numbers even on the meta device, where a model is made only for its shapes.
        with torch.device("cpu"):
            channel_F = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64)
            freq_F = base ** (-channel_F / self.rotary_dim)
        unscaled = Spectrum(freq_F, base, self.rotary_dim)
        self.set_frequencies(unscaled, scaling, scaling_len, amplitude)

    def set_frequencies(
        self,
        unscaled: Spectrum,
        scaling: dict | None,
        scaling_len: float | None,
        amplitude: float | None = None,
    ) -> None:
        """Turn at the frequencies `unscaled`, or with a scaling at those that it makes of them.

        The arguments of the scaling are those of the class. Raises ConfigError as the class does.
        """
        _check_scaling(scaling, scaling_len, amplitude)
        self.unscaled_spectrum = unscaled
        self.trained_spectrum = unscaled
        self.scaling = None
        self.scaling_len = scaling_len
        self.amplitude = 1.0
        if scaling is None:
            return
        self.scaling = make_method(scaling, kind=Extension)
        with torch.device("cpu"):
            self.trained_spectrum, scaling_amplitude = spectrum_trained_in(
                self.scaling, unscaled, scaling_len, self.shape.train_len
            )
        self.amplitude = amplitude or scaling_amplitude
        # No other extension may change frequencies that follow the length.
        if is_spectrum_by_length(self.scaling):
            self.traits = self.traits & ~Trait.SPECTRUM

    def layers(self) -> list[Layer]:
        layers = []
        for number, window in enumerate(self.windows):
            encoding = self.unturned_encoding if number in self.unturned else self
            layers.append(Layer(encoding, window=window, index=number))
        return layers

    def spectrum(self) -> Spectrum:
        return self.trained_spectrum

    def spectrum_at(self, length: int) -> Spectrum:
        spectrum = self.spectrum()
        # A subclass that has other frequencies has them at every length.
        has_other_frequencies = spectrum is not self.trained_spectrum
        if self.scaling is None or has_other_frequencies:
            return spectrum
        # Real numbers even on the meta device.
        with torch.device("cpu"):
            spectrum, _temperature = spectrum_trained_in(
                self.scaling, self.unscaled_spectrum, self.scaling_len, length
            )
        return spectrum

    def turning(self, spectrum: Spectrum) -> Spectrum:
        if not self.resonance:
            return spectrum
        # Wavelengths of whole tokens.
        return spectrum.changed(lambda freq_F: 2 * math.pi / (2 * math.pi / freq_F).round())

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and sin of every angle, times the amplitude of the scaling: [2, T, F], float32."""
        angle_TF = self.turning(spectrum).angles(pos_T)
        return (torch.stack((angle_TF.cos(), angle_TF.sin())) * self.amplitude).float()

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._turned(q_BHTD, q_table), self._turned(k_BGTD, k_table)

    def _turned(self, x_BHTD: Tensor, table: Tensor) -> Tensor:
        """Rotate the first channels, two for each column of the table; the others stay as they
        are.
        """
        x_BHTR, rest = x_BHTD.tensor_split([2 * table.shape[-1]], dim=-1)
        x_BHTR = turned_pairs(x_BHTR, *self._cos_and_sin(table), self.layout)
        return torch.cat((x_BHTR, rest), dim=-1) if rest.shape[-1] else x_BHTR

    def _cos_and_sin(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a table by channel. Those of the last table are kept, since all
        layers of a plan share it.
        """
        if table.requires_grad:  # a backward pass frees what is kept
            return cos_and_sin_by_channel(table, self.layout)
        if self._last_table is None or self._last_table[0] is not table:
            self._last_table = table, cos_and_sin_by_channel(table, self.layout)
        return self._last_table[1]


def _rotary_dim(fraction: float, head_dim: int) -> int:
    """Number of channels that turn. Raises ConfigError for a share that is no even number, at least
    LEAST_ROTARY_DIM.
    """
    channels = fraction * head_dim
    rotary_dim = round(channels)
    is_whole = abs(rotary_dim - channels) <= 1e-6  # a fraction such as 1/3 is rounded
    if not LEAST_ROTARY_DIM <= rotary_dim <= head_dim or rotary_dim % 2 or not is_whole:
        raise ConfigError(
            f"encoding.fraction={fraction} of the head width {head_dim} is {channels:g} channels,"
            f" and RoPE turns an even number, at least {LEAST_ROTARY_DIM}: choose another fraction"
            " up to 1, or another model.head_dim."
        )
    return rotary_dim


def _windows_of_layers(window: int | list[int | None] | None, n_layer: int) -> list[int | None]:
    """Window of each layer, None without one. Raises ConfigError for a list of other length."""
    windows = list(window) if isinstance(window, list) else [window] * n_layer
    if len(windows) != n_layer:
        raise ConfigError(
            f"encoding.window={window} must be a list of one window for each of {n_layer} layers,"
            " null without."
        )
    return windows


def _check_scaling(
    scaling: dict | None, scaling_len: float | None, amplitude: float | None
) -> None:
    """Raise ConfigError for arguments of a scaling of which another one is missing."""
    if (scaling is None) != (scaling_len is None):
        raise ConfigError(
            f"encoding.scaling={scaling} and scaling_len={scaling_len} must be set together:"
            " give both, or neither."
        )
    if amplitude is not None and (scaling is None or amplitude <= 0):
        raise ConfigError(
            f"encoding.amplitude={amplitude} must be above 0, and belongs to an"
            " encoding.scaling: leave it out."
        )


def _unturned_layers(unturned: list[int] | int | None, n_layer: int) -> frozenset[int]:
    """Indices of the layers without rotation: listed, or the last of every `unturned` layers.

    Raises ConfigError unless they are some of all.
    """
    if isinstance(unturned, int):
        period = max(2, min(unturned, n_layer))  # of few layers the last one, and never all
        unturned = list(range(period - 1, n_layer, period))
    if unturned and not set(unturned) < set(range(n_layer)):
        raise ConfigError(
            f"encoding.unturned={unturned} must be some of the layers 0 to {n_layer - 1}, counted"
            " from 0."
        )
    return frozenset(unturned or ())
