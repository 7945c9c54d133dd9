"""Positions of a checkpoint as in its own code, measured on the loaded model
(posbench/model/inplace/measure.py).

No formula of its own: each layer turns some channels of q and k, or none, with frequencies,
amplitude and layout that were measured, or the model adds rows of a learned table to its
embeddings, or biases of ALiBi to its scores. Before the model is there, `kind` says which of the
three config.json promises: all that planning needs. An extension acts on the layers that see the
whole text; where every layer has a window or chunks, on all of them (Gemma 3 and Llama 4 extend
their full layers, Mistral 7B has no other).

`scaling` and `scaling_len` are those of Rope: an extension that was trained in, on the layers that
an extension acts on."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.encodings.alibi import Alibi, slopes
from posbench.encodings.learned import between_rows
from posbench.position.fixed_frequencies import by_length, trained_in
from posbench.position.geometry import Layout, Shape, Spectrum, Trait
from posbench.position.instantiate import make
from posbench.position.interfaces import Encoding, Extension, Layer
from posbench.position.rotation import turned, wide

TABLES, FEW = (
    3,
    64,
    # tables that are kept, one for each band of an extension; fewer rows are those of new tokens, and
    # made again
)


class Turned(Encoding):
    """Layers that turn `rotary_dim` channels of q and k, the first or the `last` ones, at the
    frequencies of each length.

    `by_length`: every length has frequencies of its own (dynamic NTK), so no extension may change
    them. `backwards`: by negative angles. `amplitude` is a factor on the turned channels, `plain`
    one on the others."""

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
        self.spectra, self.layout, self.last, self.sign = (
            spectra,
            layout,
            last,
            -1.0 if backwards else 1.0,
        )
        self.amplitude, self.plain = amplitude, 1.0
        self.traits = (
            Trait.COORDINATE
            | Trait.RELATIVE
            | Trait.UNBOUNDED
            | (Trait(0) if by_length else Trait.SPECTRUM)
        )
        self._kept: list[
            tuple[Spectrum, Tensor, Tensor]
        ] = []  # the latest tables, of each band's coordinates

    def tuned(self, scaling: Extension, scaling_len: float) -> "Turned":
        """These layers with an extension trained in. Raises ConfigError for one that is no set of
        frequencies, and beside `by_length`.
        """
        if not self.traits & Trait.SPECTRUM:
            raise ConfigError(
                "This checkpoint's frequencies depend on the length, so none can be trained in:"
                " choose extension=none."
            )
        own = self.spectrum()
        sharper = trained_in(scaling, own, scaling_len, self.shape.train_len)[1]
        made = copy.copy(self)
        made.spectra, made._kept = (
            lambda length: trained_in(scaling, own, scaling_len, length)[0],
            [],
        )
        made.amplitude, made.plain = self.amplitude * sharper, self.plain * sharper
        made.traits = self.traits & ~Trait.SPECTRUM if by_length(scaling) else self.traits
        return made

    def spectrum(self) -> Spectrum:
        return self.spectra(self.shape.train_len)

    def spectrum_at(self, length: int) -> Spectrum:
        return self.spectra(length)

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and signed sin of every turned channel, times the amplitude: [2, T, R], float32. A
        longer text adds rows to a kept table.
        """
        known, found, longer = 0, None, None
        for entry in self._kept:
            before, at_T, kept = entry
            shared = min(len(at_T), len(pos_T))
            whole = before.exact_F is None and spectrum.exact_F is None
            alike = before is spectrum or (whole and torch.equal(before.freq_F, spectrum.freq_F))
            if shared > known and alike and torch.equal(at_T[:shared], pos_T[:shared]):
                known, found, longer = shared, kept[:, :shared], entry
        if known == len(pos_T):
            return found
        angle_TF = self.sign * spectrum.angles(pos_T[known:])
        new = torch.stack(
            wide(
                (torch.stack((angle_TF.cos(), angle_TF.sin())) * self.amplitude).float(),
                self.layout,
            )
        )
        found = new if known == 0 else torch.cat((found, new), dim=1)
        if len(pos_T) >= FEW:
            self._kept = [
                *[one for one in self._kept if one is not longer][1 - TABLES :],
                (spectrum, pos_T, found),
            ]
        return found

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.turn(q_BHTD, q_table), self.turn(k_BGTD, k_table)

    def turn(self, x_BHTD: Tensor, table: Tensor) -> Tensor:
        width, others = table.shape[-1], x_BHTD.shape[-1] - table.shape[-1]
        if not others:
            return turned(x_BHTD, *table, self.layout)
        sizes = [others, width] if self.last else [width, others]
        parts = list(x_BHTD.split(sizes, dim=-1))
        parts[self.last] = turned(parts[self.last], *table, self.layout)
        parts[not self.last] = parts[not self.last] * self.plain
        return torch.cat(parts, dim=-1)


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
        self.undivided_H = slope_H.detach().float()
        self.slope_H = self.undivided_H / divisor
        self.rounded, self.divisor = rounded, divisor

    def columns(
        self, q_pos_T: Tensor, k_pos_T: Tensor, row_constant: bool
    ) -> tuple[Tensor, Tensor]:
        self.slope_H = self.slope_H.to(k_pos_T.device)
        if self.rounded is None:
            return super().columns(q_pos_T, k_pos_T, row_constant)
        # Each head has a column of its own, since rounding makes the biases of two heads no
        # multiples of each other.
        slope_H, n_head = self.slope_H.double(), len(self.slope_H)
        middle = k_pos_T[len(k_pos_T) // 2]
        k_TH = self._biases(k_pos_T) - slope_H * middle
        q_HTH = torch.eye(n_head, device=k_pos_T.device)[:, None].expand(-1, len(q_pos_T), -1)
        if not row_constant:
            return q_HTH, k_TH.float()
        q_HT1 = -(slope_H[:, None] * (q_pos_T - middle))[..., None].float()
        return (
            torch.cat((q_HTH, q_HT1), dim=-1),
            torch.cat((k_TH, torch.ones_like(k_TH[:, :1])), dim=-1).float(),
        )

    def _biases(self, k_pos_T: Tensor) -> Tensor:
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
        if kind == "learned" and scaling is not None:
            raise ConfigError(
                "A learned table of positions has no frequencies that an extension is trained into:"
                " choose extension=none."
            )
        if kind == "alibi" and scaling is not None:
            raise ConfigError(
                "ALiBi has no frequencies that an extension is trained into: choose extension=none."
            )
        if kind == "learned" and rows_NC is None:
            rows_NC = torch.arange(shape.reach, dtype=torch.float32)[:, None].expand(
                -1, shape.d_model
            )  # all rows differ
        self._rows = rows_NC
        if measured is None:
            promised = self._promised(kind, shape)
            measured = [Layer(promised, index=i) for i in range(shape.n_layer)]
        whole = any(layer.window is None and layer.chunk is None for layer in measured)
        local = {"extended": False, "scaled": False}
        self._layers = [
            replace(layer, **local) if whole and (layer.window or layer.chunk) else layer
            for layer in measured
        ]
        if scaling is not None:
            made, tuned = make(scaling, kind=Extension), {}
            for i, layer in enumerate(self._layers):
                if layer.extended and isinstance(own := layer.encoding, Turned):
                    tuned[own] = tuned.get(own) or own.tuned(made, scaling_len)
                    self._layers[i] = replace(layer, encoding=tuned[own])
            if not tuned:
                raise ConfigError(
                    "No layer with an extension rotates q and k, so none can be trained in: choose"
                    " extension=none."
                )
        if rows_NC is not None:
            self.traits, self.tested_as = Trait.COORDINATE | Trait.TABLE, "learned"
            self._layers = [replace(layer, encoding=self) for layer in self._layers]
            return
        has_slopes = any(isinstance(layer.encoding, Alibi) for layer in self._layers)
        self.tested_as = "alibi" if has_slopes else "rope"
        kinds = [
            layer.encoding.traits
            for layer in self._layers
            if layer.extended and layer.encoding.traits
        ]
        self.traits = kinds[0] if kinds else Trait(0)
        for other in kinds[1:]:
            self.traits &= other

    def _promised(self, kind: str, shape: Shape) -> Encoding:
        """Encoding of all layers before the model is there."""
        if kind == "learned":
            return self
        if kind == "alibi":
            return Sloped(shape, torch.tensor(slopes(shape.n_head)))
        width = shape.head_dim
        usual = Spectrum(
            1e4 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), 1e4, width
        )
        return Turned(shape, lambda length: usual)

    def without(self, trait: Trait) -> str | None:
        """The trait that these positions lack, in words of the checkpoint's user."""
        if self._rows is not None:
            positions = "a learned table of positions"
        elif self.tested_as == "alibi":
            positions = "ALiBi's biases"
        else:
            positions = "rotary positions"
        if trait is Trait.TABLE:
            return f"has {positions} and no learned table"
        if trait is Trait.SPECTRUM and self.spectrum() is not None:
            return "has rotary frequencies that depend on the text's length already"
        if trait is Trait.SPECTRUM:
            return f"has {positions} and no rotary positions"
        if trait is Trait.RELATIVE:
            return f"has {positions}, not ones that score by distance alone"
        return None

    def tuned(self, scaling: dict, scaling_len: float) -> "AsTrained":
        """The measured layers with an extension trained in. Raises ConfigError as Turned.tuned."""
        return AsTrained(
            self.shape, measured=self._layers, scaling=scaling, scaling_len=scaling_len
        )

    def layers(self) -> list[Layer]:
        return list(self._layers)

    def spectrum(self) -> Spectrum | None:
        turning = next(
            (
                layer.encoding
                for layer in self._layers
                if isinstance(layer.encoding, Turned) and layer.extended
            ),
            None,
        )
        return None if turning is None else turning.spectrum()

    def rows(self) -> Tensor | None:
        return self._rows

    def embed(
        self, pos_T: Tensor, spectrum: Spectrum | None, rows_NC: Tensor | None
    ) -> Tensor | None:
        return None if rows_NC is None else between_rows(rows_NC, pos_T)
