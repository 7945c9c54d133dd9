"""p-RoPE: RoPE whose slow pairs do not rotate.

Of the frequencies base^(-2c / head_dim) the m fastest are kept. Barbero, Vitvitskyi,
Perivolaropoulos, Pascanu, Velickovic 2024, arXiv 2410.06205: m = p head_dim / 2, p = 0.75 best in
their models; p = 1 is RoPE and p = 0 NoPE. `cut: share` is that rule, rounded down as transformers'
rope type `proportional` does. `cut: full_turns` keeps the pairs that made a full turn in training,
train_len theta_c >= 2 pi, which is the idea of HoPE (Chen et al. 2024, arXiv 2410.21216; its own
rule for the cut could not be checked).

The m pairs are a spectrum of their own, base^(2m / head_dim) over 2m channels, so that an
extension's last pair is the last that turns. A `scaling` (see rope.py) acts on the same m pairs,
as the extension did before it was trained in: with cut=full_turns those of scaling_len tokens. Its
temperature multiplies the pairs at rest too, as all logits."""

import math
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Layout, Shape, Share, Spectrum, Tokens


def with_resting_pairs(table: Tensor, pairs: int, amplitude: float = 1.0) -> Tensor:
    """Pad a table of cos and sin, times `amplitude`, to `pairs` pairs; the added ones have angle 0:
    [2, ..., pairs].
    """
    wider = (0, pairs - table.shape[-1])
    return torch.stack((F.pad(table[0], wider, value=amplitude), F.pad(table[1], wider)))


class PRope(Rope):
    """Rotary positions in the fast pairs alone."""

    def __init__(
        self,
        shape: Shape,
        p: Share = 0.75,
        cut: Literal["share", "full_turns"] = "share",
        base: Base = 10000.0,
        layout: Layout = "half",
        scaling: dict | None = None,
        scaling_len: float | None = None,
        window: Tokens | list[Tokens | None] | None = None,
    ):
        super().__init__(shape, base, layout, window=window)  # without a scaling: it follows
        all_pairs = self.unscaled_spectrum
        if cut == "share":
            self.n_active = int(p * shape.head_dim // 2)  # pairs that turn, the fastest ones
        else:
            # In the training before a scaling.
            reach = shape.reach if scaling_len is None else scaling_len
            turns_F = all_pairs.freq_F * reach / (2 * math.pi)
            self.n_active = int((turns_F >= 1).sum())
        active_pairs = replace(all_pairs, freq_F=all_pairs.freq_F[: self.n_active])
        self.set_frequencies(active_pairs, scaling, scaling_len)

    def spectrum(self) -> Spectrum | None:
        """Frequencies of the pairs that turn; None if no pair turns, which is NoPE."""
        return super().spectrum() if self.n_active else None

    def table(self, pos_T: Tensor, spectrum: Spectrum | None) -> Tensor | None:
        if spectrum is None:
            return None
        pairs = self.shape.head_dim // 2
        return with_resting_pairs(super().table(pos_T, spectrum), pairs, self.amplitude)
