"""What a method may override; every default does nothing, so a method's file holds only what makes it that method.

Letters: B batch, T tokens, C width, H heads, G key heads, D head width, R columns, F frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from posbench.errors import ConfigError
from posbench.geometry import Band, Shape, Span, Spectrum, Trait

ANY = frozenset({"*"})  # tested_with everything: the method cannot interact with the other side


@dataclass(frozen=True)
class Layer:
    """How one transformer layer treats position: its encoding, its own sliding window, and whether tests may change it."""

    encoding: Encoding
    window: int | None = None
    extended: bool = True
    scaled: bool = True


class Encoding(nn.Module):
    """Where position enters the model: added to embeddings, rotating q and k, or biasing scores.

    `tested_with` names the extensions and scales that somebody has tested with this encoding; other defined pairs run
    only with allow_untested=true. A method may say so on either side.
    """

    traits: ClassVar[Trait] = Trait(0)
    tested_with: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def layers(self) -> list[Layer]:
        """One Layer per transformer layer; a hybrid returns different ones."""
        return [Layer(self)] * self.shape.n_layer

    def spectrum(self) -> Spectrum | None:
        """The frequencies an extension may change."""
        return None

    def embed(self, pos_T: Tensor, spectrum: Spectrum | None) -> Tensor | None:
        """What is added to the token embeddings at coordinates pos_T: [T, C]."""
        return None

    def table(self, pos_T: Tensor, spectrum: Spectrum | None) -> Tensor | None:
        """What `rotate` needs to know about coordinates pos_T (float64, CPU); made once per length."""
        return None

    def rotate(self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor) -> tuple[Tensor, Tensor]:
        """q and k (fp32) turned by their tables; called only where `table` gives one."""
        raise NotImplementedError

    def columns(self, q_pos_T: Tensor, k_pos_T: Tensor, row_constant: bool) -> tuple[Tensor, Tensor] | None:
        """A bias of low rank R as columns ([H, T, R], [T, R]) whose product is added to the scaled scores.

        A softmax ignores what all keys of a row share; with row_constant=False (one band) that part may be left out.
        """
        return None


class Extension:
    """A pure answer to "trained at train_len, asked for length": no parameters, no state, no memory of the last call."""

    needs: ClassVar[Trait] = Trait(0)
    tested_with: ClassVar[frozenset[str]] = frozenset()

    def target_len(self, length: int) -> int:
        """The length the extension is configured for when `length` tokens are evaluated."""
        return length

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        """Other frequencies."""
        return spectrum

    def bands(self, span: Span) -> tuple[Band, ...]:
        """Which pairs exist, and at which coordinates."""
        return (Band(),)

    def crop(self, span: Span) -> int | None:
        """How many last tokens are fed for each target; None feeds them all."""
        return None


class ScaledExtension(Extension):
    """An extension by a factor: `dynamic` takes length / train_len anew for each length, `fixed` a constant target_len.

    Raises ConfigError for `fixed` without a target_len, and for a target_len that `dynamic` would ignore.
    """

    def __init__(self, mode: str = "dynamic", target_len: int | None = None):
        if mode not in ("dynamic", "fixed"):
            raise ConfigError(f"extension.mode={mode} is unknown: choose dynamic or fixed.")
        if (mode == "fixed") != (target_len is not None):
            raise ConfigError(
                f"extension.mode={mode} with extension.target_len={target_len} does not say one thing: "
                "set extension.mode=fixed together with extension.target_len=TOKENS, or neither."
            )
        if target_len is not None and target_len < 1:
            raise ConfigError(f"extension.target_len={target_len} must be at least 1.")
        self.fixed_target = target_len

    def target_len(self, length: int) -> int:
        return self.fixed_target or length


class ScaleAttention(nn.Module):
    """A factor on the logits of the query that sees n keys."""

    tested_with: ClassVar[frozenset[str]] = frozenset()

    def forward(self, n_T: Tensor, span: Span) -> Tensor:
        """The factor for each query: [T], or [H, T] where heads differ."""
        raise NotImplementedError


def window_size(window: int | None, default: int) -> int:
    """A method's window in tokens. Raises ConfigError below 1."""
    if window is None:
        return max(1, default)
    if window < 1:
        raise ConfigError(f"extension.window={window} must be at least 1 token.")
    return window
