"""Dynamic NTK: NTK-aware scaling (see ntk) by a factor that overshoots.

The factor is s_eff = f s - (f - 1), s = target_len / train_len once that exceeds 1. emozilla 2023
(forum post); jquesnelle/yarn LlamaDynamicScaledRotaryEmbedding, rope type `dynamic` of
transformers. f = 1 is ntk, f = 2 the usual setting (2 L / L0 - 1), f = 4 at 8 times the length
already 29. Deviation: common implementations keep the largest length's frequencies until a short
text comes; here each length has its own.

`fed: n` is a mistake of engines that keep turned keys in a cache (transformers' issue 25104): the
text comes in pieces of n tokens, each is turned for the length at its end, and earlier keys stay as
they were turned."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.extensions.ntk import slowed_spectrum
from posbench.position.geometry import AtLeast1, Mode, Span, Spectrum, Tokens, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


@dataclass(frozen=True)
class FedSpectrum(Spectrum):
    """Spectrum of a text that came in pieces of `fed` tokens: `freq_F_at(end)` are the frequencies
    of a piece that ends before token `end`, freq_F those of the last piece.

    exact_F, which no position uses, marks it as one that is not the same for all positions.
    """

    fed: int = 1
    freq_F_at: Callable[[int], Tensor] = lambda end: torch.ones(0)

    def angles(self, pos_T: Tensor) -> Tensor:
        pos_T = pos_T.cpu().double()
        piece_T = torch.div(pos_T, self.fed, rounding_mode="floor").long()
        n_pieces = int(piece_T.max()) + 1
        freq_PF = torch.stack([self.freq_F_at((piece + 1) * self.fed) for piece in range(n_pieces)])
        return pos_T[:, None] * freq_PF[piece_T]

    def changed(self, change: Callable[[Tensor], Tensor]) -> Spectrum:
        freq_F_at = self.freq_F_at
        return replace(super().changed(change), freq_F_at=lambda end: change(freq_F_at(end)))


class DynamicNtk(ScaledExtension):
    """A base that overshoots with length.

    `fed`: tokens that an engine reads at once, whose keys keep the frequencies of that moment.
    Raises ConfigError for `fed` beside a target_len.
    """

    needs = Trait.SPECTRUM
    tested_with = {
        "rope": "emozilla 2023; Peng et al. 2023, arXiv 2309.00071",
        "p_rope": "transformers 2023: rope type dynamic of GPT-NeoX",
        "fox": AS_ROPE,
    }

    def __init__(
        self,
        factor: AtLeast1 = 2.0,
        mode: Mode = "dynamic",
        target_len: int | None = None,
        fed: Tokens | None = None,
    ):
        super().__init__(mode, target_len)
        if fed and target_len:
            raise ConfigError(
                f"extension.fed={fed} has no effect where all lengths have the frequencies of"
                f" target_len={target_len}."
            )
        self.factor = factor
        self.fed = fed  # tokens that an engine reads at once; None: the whole text

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        """Slowed frequencies of the text's length; with `fed`, of a text that comes in pieces."""
        slower = self._slowed_spectrum(spectrum, span.factor)
        if not self.fed or span.factor == 1:
            return slower

        def freq_F_at(end: int) -> Tensor:
            """Frequencies for the length at which a piece of the text ends."""
            factor = min(end, span.length) / span.train_len  # the last piece ends with the text
            return self._slowed_spectrum(spectrum, max(1.0, factor)).freq_F

        return FedSpectrum(
            slower.freq_F,
            slower.base,
            slower.rotary_dim,
            # No position is below 0, so none takes exact_F. It only marks the spectrum as one whose
            # frequencies differ between positions: such are neither compared nor trained in.
            exact_first=0,
            exact_F=slower.freq_F,
            fed=self.fed,
            freq_F_at=freq_F_at,
        )

    def _slowed_spectrum(self, spectrum: Spectrum, ratio: float) -> Spectrum:
        """Spectrum for a text of `ratio` times the training length."""
        return (
            spectrum
            if ratio == 1
            else slowed_spectrum(spectrum, self.factor * ratio - (self.factor - 1))
        )
