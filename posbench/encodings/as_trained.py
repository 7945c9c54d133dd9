"""Positions of a checkpoint as in its own code, measured on the loaded model.

See posbench/model/inplace/measure.py. No formula of its own: each layer turns some channels of q
and k, or none, with frequencies, amplitude and layout that were measured, or the model adds rows of
a learned table to its embeddings, or biases of ALiBi to its scores. Before the model is there,
`kind` says which of the three config.json promises: all that planning needs. An extension acts on
the layers that see the whole text; where every layer has a window or chunks, on all of them (Gemma
3 and Llama 4 extend their full layers, Mistral 7B has no other).

`scaling` and `scaling_len` are those of Rope: an extension that was trained in, on the layers that
an extension acts on."""

import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from posbench.common.errors import ConfigError
from posbench.encodings.alibi import Alibi, alibi_slopes
from posbench.encodings.learned import interpolated_rows
from posbench.position.fixed_frequencies import is_spectrum_by_length, spectrum_trained_in
from posbench.position.geometry import Layout, Shape, Spectrum, Trait
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension, Layer
from posbench.position.rotation import cos_and_sin_by_channel, turned_pairs

MOST_KEPT_TABLES = 3  # one for each band of an extension
FEWEST_KEPT_ROWS = 64  # of a table; fewer are those of new tokens, and made again
# Base of the frequencies that stand for those of a model that is not loaded. Nobody types it, and
# the last pairs rest in training of any length, so that no change of frequencies seems to be none.
STAND_IN_BASE = 3.7e15


class KeptTable(NamedTuple):
    """Table of cos and sin [2, T, R] that a spectrum has at coordinates pos_T."""

    spectrum: Spectrum
    pos_T: Tensor
    table: Tensor

    def shares_first_rows(self, spectrum: Spectrum, pos_T: Tensor, count: int) -> bool:
        """True if a table of `spectrum` at `pos_T` begins with the same `count` rows as this."""
        if spectrum is not self.spectrum:
            if self.spectrum.exact_F is not None or spectrum.exact_F is not None:
                return False  # frequencies differ between positions: such spectra are not compared
            if not torch.equal(self.spectrum.freq_F, spectrum.freq_F):
                return False
        return torch.equal(self.pos_T[:count], pos_T[:count])


class Turned(Encoding):
    """Layers that turn `rotary_dim` channels of q and k, the first or the `last` ones, at the
    frequencies of each length.

    `by_length`: every length has frequencies of its own (dynamic NTK), so no extension may change
    them. `backwards`: by negative angles. `amplitude` is a factor on the turned channels,
    `factor_on_others` one on the others."""

    tested_as = "rope"

    def __init__(
        self,
        shape: Shape,
        spectra: Callable[[int], Spectrum],
        layout: Layout = "half",
        last: bool = False,
        amplitude: float = 1.0,
        backwards: bool = False,
        by_length: bool = False,
    ):
        super().__init__(shape)
        self.spectra = spectra
        self.layout = layout
        self.turns_last = last
        self.sign = -1.0 if backwards else 1.0
        self.amplitude = amplitude
        self.factor_on_others = 1.0  # other than 1 once a scaling with a temperature is trained in
        self.traits = Trait.COORDINATE | Trait.RELATIVE | Trait.UNBOUNDED
        # SPECTRUM promises frequencies that an extension may change.
        if not by_length:
            self.traits |= Trait.SPECTRUM
        self._kept_tables: list[KeptTable] = []  # the latest, of each band's coordinates

    def with_extension_trained_in(self, scaling: Extension, scaling_len: float) -> "Turned":
        """These layers with an extension trained in. Raises ConfigError for one that is no set of
        frequencies, and beside `by_length`.
        """
        if not self.traits & Trait.SPECTRUM:
            raise ConfigError(
                "This checkpoint's frequencies depend on the length, so none can be trained in:"
                " choose extension=none."
            )
        unscaled = self.spectrum()
        _, amplitude = spectrum_trained_in(scaling, unscaled, scaling_len, self.shape.train_len)

        def spectrum_of_length(length: int) -> Spectrum:
            spectrum, _ = spectrum_trained_in(scaling, unscaled, scaling_len, length)
            return spectrum

        tuned = copy.copy(self)
        tuned.spectra = spectrum_of_length
        tuned._kept_tables = []
        tuned.amplitude = self.amplitude * amplitude
        # A temperature is one of all scores, so it reaches the channels that do not turn as well.
        tuned.factor_on_others = self.factor_on_others * amplitude
        # Frequencies of each length's own take no further extension.
        if is_spectrum_by_length(scaling):
            tuned.traits = self.traits & ~Trait.SPECTRUM
        return tuned

    def spectrum(self) -> Spectrum:
        return self.spectra(self.shape.train_len)

    def spectrum_at(self, length: int) -> Spectrum:
        return self.spectra(length)

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and signed sin of every turned channel, times the amplitude: [2, T, R], float32. A
        longer text adds rows to a kept table.
        """
        longest = None  # kept table that shares the most first rows
        shared = 0
        for entry in self._kept_tables:
            count = min(len(entry.pos_T), len(pos_T))
            if count > shared and entry.shares_first_rows(spectrum, pos_T, count):
                longest = entry
                shared = count
        if longest is None:
            table = self._new_table(pos_T, spectrum)
        elif shared == len(pos_T):
            return longest.table[:, :shared]
        else:
            later_rows = self._new_table(pos_T[shared:], spectrum)
            table = torch.cat((longest.table[:, :shared], later_rows), dim=1)
        # A few rows are those of new tokens, and would displace others.
        if len(pos_T) >= FEWEST_KEPT_ROWS:
            others = [entry for entry in self._kept_tables if entry is not longest]
            # The new one and the latest of the others.
            self._kept_tables = [*others[1 - MOST_KEPT_TABLES :], KeptTable(spectrum, pos_T, table)]
        return table

    def _new_table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and signed sin at these coordinates alone: [2, T, R], float32."""
        angle_TF = self.sign * spectrum.angles(pos_T)
        # Pairs that rest are not in the spectrum: their angle is 0.
        n_resting = spectrum.rotary_dim // 2 - angle_TF.shape[-1]
        angle_TF = pad(angle_TF, (0, n_resting))
        table = (torch.stack((angle_TF.cos(), angle_TF.sin())) * self.amplitude).float()
        return torch.stack(cos_and_sin_by_channel(table, self.layout))

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.turned(q_BHTD, q_table), self.turned(k_BGTD, k_table)

    def turned(self, x_BHTD: Tensor, table: Tensor) -> Tensor:
        """Turn the channels by a table; the others are multiplied by `factor_on_others`."""
        width = table.shape[-1]
        others = x_BHTD.shape[-1] - width
        if not others:
            return turned_pairs(x_BHTD, *table, self.layout)
        if self.turns_last:
            first, second = x_BHTD.split([others, width], dim=-1)
            return torch.cat(
                (first * self.factor_on_others, turned_pairs(second, *table, self.layout)), dim=-1
            )
        first, second = x_BHTD.split([width, others], dim=-1)
        return torch.cat(
            (turned_pairs(first, *table, self.layout), second * self.factor_on_others), dim=-1
        )


class Sloped(Alibi):
    """ALiBi with slopes [H] that were measured.

    Key j adds slope_h j / divisor to the scores of a head. The position, and its product with the
    slope, are in the number format `rounded`; None rounds nothing."""

    tested_as = "alibi"

    def __init__(
        self,
        shape: Shape,
        slope_H: Tensor,
        rounded: torch.dtype | None = None,
        divisor: float = 1.0,
    ):
        super().__init__(shape)
        # `_rounded_biases` rounds the product with these, and divides after it.
        self.undivided_H = slope_H.detach().float()
        self.slope_H = self.undivided_H / divisor
        self.rounded = rounded
        self.divisor = divisor

    def columns(
        self, q_pos_T: Tensor, k_pos_T: Tensor, row_constant: bool
    ) -> tuple[Tensor, Tensor]:
        """Columns whose product is the bias; without `row_constant` up to a constant of each query,
        which softmax ignores.
        """
        # Layers are kept in a list, so they do not move with the model.
        self.slope_H = self.slope_H.to(k_pos_T.device)
        if self.rounded is None:
            return super().columns(q_pos_T, k_pos_T, row_constant)
        # Each head has a column of its own, since rounding makes the biases of two heads no
        # multiples of each other.
        slope_H = self.slope_H.double()
        n_head = len(slope_H)
        middle = k_pos_T[len(k_pos_T) // 2]  # biases relative to it are small numbers in float32
        k_TH = self._rounded_biases(k_pos_T) - slope_H * middle
        q_HTH = torch.eye(n_head, device=k_pos_T.device)[:, None].expand(-1, len(q_pos_T), -1)
        if not row_constant:
            return q_HTH, k_TH.float()
        q_HT1 = -(slope_H[:, None] * (q_pos_T - middle))[..., None].float()
        return (
            torch.cat((q_HTH, q_HT1), dim=-1),
            torch.cat((k_TH, torch.ones_like(k_TH[:, :1])), dim=-1).float(),
        )

    def _rounded_biases(self, k_pos_T: Tensor) -> Tensor:
        """Rounded biases of keys: [T, H], float64."""
        k_T = k_pos_T.to(self.rounded)
        product_TH = k_T.float()[:, None] * self.undivided_H.to(k_T.device)
        return product_TH.to(self.rounded).double() / self.divisor


class AsTrained(Encoding):
    """Layers as they were measured, and the learned table; without them what `kind` says of all
    layers.
    """

    def __init__(
        self,
        shape: Shape,
        kind: Literal["turned", "learned", "alibi"] = "turned",
        measured: list[Layer] | None = None,
        rows_NC: Tensor | None = None,
        scaling: dict | None = None,
        scaling_len: float | None = None,
    ):
        super().__init__(shape)
        self.subject = "this checkpoint"
        if scaling is not None:
            _check_scaling(kind)
        # Before the model is there, nothing is measured, and any table whose rows differ stands for
        # its own.
        if kind == "learned" and rows_NC is None:
            rows_T1 = torch.arange(shape.reach, dtype=torch.float32)[:, None]
            rows_NC = rows_T1.expand(-1, shape.d_model)
        self._rows = rows_NC
        if measured is None:
            promised = self._encoding_of_kind(kind, shape)
            measured = [Layer(promised, index=i) for i in range(shape.n_layer)]
        self._layers = _extended_where_text_is_whole(measured)
        if scaling is not None:
            self._train_scaling_in(make_method(scaling, kind=Extension), scaling_len)
        if rows_NC is not None:
            self.traits = Trait.COORDINATE | Trait.TABLE
            self.tested_as = "learned"  # what is tested with that encoding holds for this
            self._layers = [replace(layer, encoding=self) for layer in self._layers]
            return
        has_slopes = any(isinstance(layer.encoding, Alibi) for layer in self._layers)
        self.tested_as = "alibi" if has_slopes else "rope"
        self.traits = self._shared_traits()

    def _train_scaling_in(self, scaling: Extension, scaling_len: float | None) -> None:
        """Train an extension into the layers that turn; layers alike stay the same object."""
        tuned: dict[Turned, Turned] = {}  # {encoding as measured: tuned}
        for number, layer in enumerate(self._layers):
            encoding = layer.encoding
            if not layer.extended or not isinstance(encoding, Turned):
                continue
            if encoding not in tuned:
                tuned[encoding] = encoding.with_extension_trained_in(scaling, scaling_len)
            self._layers[number] = replace(layer, encoding=tuned[encoding])
        if not tuned:
            raise ConfigError(
                "No layer with an extension rotates q and k, so none can be trained in: choose"
                " extension=none."
            )

    def _shared_traits(self) -> Trait:
        """Traits of all layers that an extension acts on and that have any."""
        extended = [layer.encoding.traits for layer in self._layers if layer.extended]
        with_traits = [traits for traits in extended if traits]
        if not with_traits:
            return Trait(0)
        return functools.reduce(operator.and_, with_traits)

    def _encoding_of_kind(self, kind: str, shape: Shape) -> Encoding:
        """Encoding of all layers before the model is there."""
        if kind == "learned":
            return self
        if kind == "alibi":
            return Sloped(shape, torch.tensor(alibi_slopes(shape.n_head)))
        width = shape.head_dim
        stand_in = Spectrum(
            STAND_IN_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width),
            base=STAND_IN_BASE,
            rotary_dim=width,
            measured=False,
        )
        return Turned(shape, lambda length: stand_in)

    def without(self, trait: Trait) -> str | None:
        """The trait that these positions lack, in words of the checkpoint's user; None for the
        usual words.

        It is asked only about a trait that the layers lack."""
        if self._rows is not None:
            positions = "a learned table of positions"
        elif self.tested_as == "alibi":
            positions = "ALiBi's biases"
        else:
            positions = "rotary positions"
        if trait is Trait.TABLE:
            return f"has {positions} and no learned table"
        # `Turned` has a spectrum and lacks the trait where each length has its own frequencies.
        if trait is Trait.SPECTRUM and self.spectrum() is not None:
            return "has rotary frequencies that depend on the text's length already"
        # Here are tables and biases alone: turned layers have a spectrum, and layers without
        # positions are not asked.
        if trait is Trait.SPECTRUM:
            return f"has {positions} and no rotary positions"
        if trait is Trait.RELATIVE:
            return f"has {positions}, not ones that score by distance alone"
        return None

    def with_extension_trained_in(self, scaling: dict, scaling_len: float) -> "AsTrained":
        """The measured layers with an extension trained in. Raises ConfigError for one that is no
        set of frequencies, and for frequencies that depend on the length already.
        """
        return AsTrained(
            self.shape, measured=self._layers, scaling=scaling, scaling_len=scaling_len
        )

    def layers(self) -> list[Layer]:
        return list(self._layers)

    def spectrum(self) -> Spectrum | None:
        for layer in self._layers:
            if layer.extended and isinstance(layer.encoding, Turned):
                return layer.encoding.spectrum()
        return None

    def rows(self) -> Tensor | None:
        return self._rows

    def embed(
        self, pos_T: Tensor, spectrum: Spectrum | None, rows_NC: Tensor | None
    ) -> Tensor | None:
        return None if rows_NC is None else interpolated_rows(rows_NC, pos_T)


def _check_scaling(kind: str) -> None:
    """Raise ConfigError for positions that no extension can be trained into."""
    if kind == "learned":
        raise ConfigError(
            "A learned table of positions has no frequencies that an extension is trained into:"
            " choose extension=none."
        )
    if kind == "alibi":
        raise ConfigError(
            "ALiBi has no frequencies that an extension is trained into: choose extension=none."
        )


def _extended_where_text_is_whole(layers: list[Layer]) -> list[Layer]:
    """Layers, extended and scaled only where they see the whole text, if any of them does."""
    sees_all = [layer.window is None and layer.chunk is None for layer in layers]
    if not any(sees_all):
        return list(layers)
    # A layer with a window or chunks sees no more than in training, so nothing need act on it.
    return [
        layer if whole_text else replace(layer, extended=False, scaled=False)
        for layer, whole_text in zip(layers, sees_all, strict=True)
    ]
