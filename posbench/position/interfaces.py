"""What a method may override; every default does nothing, so a method's file holds only what makes it that method.

Letters: B batch, T tokens, C width, H heads, G key heads, D head width, R columns, F frequencies, N rows of a learned table;
S queries and K keys of a block, which `rows` works on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Shape, Span, Spectrum, Trait

ANY = frozenset({"*"})  # tested_with everything: the method cannot interact with the other side


@dataclass(frozen=True)
class Layer:
    """How one transformer layer treats position: its encoding, its own sliding window, and whether tests may change it.

    `index` counts the layers of one encoding: what it gives to hooks that have parameters of their own for each layer.
    """

    encoding: Encoding
    window: int | None = None
    extended: bool = True
    scaled: bool = True
    index: int = 0

    @property
    def kind(self) -> tuple:
        """Layers of one kind treat position alike."""
        return id(self.encoding), self.window, self.extended, self.scaled


class Encoding(nn.Module):
    """Where position enters the model: added to embeddings, rotating q and k, or biasing scores.

    `tested_with` names the extensions and scales that somebody has tested with this encoding; other defined pairs run
    only with allow_untested=true. A method may say so on either side.
    """

    traits: ClassVar[Trait] = Trait(0)
    tested_with: ClassVar[frozenset[str]] = frozenset()
    scalable: ClassVar[bool] = True  # False where the rows are no softmax, so that a factor on the logits means nothing
    random: ClassVar[bool] = False  # True where `positions` draws anew in every training step

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def layers(self) -> list[Layer]:
        """One Layer per transformer layer; a hybrid returns different ones."""
        return [Layer(self, index=i) for i in range(self.shape.n_layer)]

    def positions(self, length: int, generator: torch.Generator | None) -> Tensor | None:
        """Coordinates of the tokens before an extension moves them ([T], float64, ascending); None is 0, 1, 2, ...

        `generator` is given in training alone, a new one for each step.
        """
        return None

    @property
    def limit(self) -> int | None:
        """Coordinates are defined below this, where the encoding is not UNBOUNDED and has no `rows`."""
        return None

    def spectrum(self) -> Spectrum | None:
        """The frequencies an extension may change."""
        return None

    def rows(self) -> Tensor | None:
        """A learned table [N, C], row n for coordinate n, which an extension may make longer."""
        return None

    def embed(self, pos_T: Tensor, spectrum: Spectrum | None, rows_NC: Tensor | None) -> Tensor | None:
        """What is added to the token embeddings at coordinates pos_T: [T, C]."""
        return None

    def table(self, pos_T: Tensor, spectrum: Spectrum | None) -> Tensor | None:
        """What `rotate` needs to know about coordinates pos_T (float64, CPU); made once per length."""
        return None

    def rotate(self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor) -> tuple[Tensor, Tensor]:
        """q and k (fp32, not yet scaled) turned by their tables, both possibly wider; called only where `table` gives one."""
        raise NotImplementedError

    def decay(self) -> Tensor | None:
        """Rates [D] >= 0: the product of channel d of the turned q and k is multiplied by exp(-rate_d (q_pos - k_pos))."""
        return None

    def columns(self, q_pos_T: Tensor, k_pos_T: Tensor, row_constant: bool) -> tuple[Tensor, Tensor] | None:
        """A bias of low rank R as columns ([H, T, R], [T, R]) whose product is added to the scaled scores.

        A softmax ignores what all keys of a row share; with row_constant=False (one band) that part may be left out.
        """
        return None

    def gates(self, x_BTC: Tensor, layer: int) -> Tensor | None:
        """log f_t <= 0 of each token ([B, H, T], fp32): the sum of log f over j < t <= i is added to the score of (i, j)."""
        return None

    def profile(self, delta: Tensor, layer: int) -> Tensor:
        """A bias that depends on the coordinate distance alone (fp32, >= 0, any shape): [H, *delta.shape]."""
        raise NotImplementedError

    def bias(self, q_pos_S: Tensor, k_pos_K: Tensor, layer: int) -> Tensor:
        """Any other bias, from the coordinates of queries and keys: [H, S, K]. Default: `profile` of their difference."""
        return self.profile((q_pos_S[:, None] - k_pos_K).clamp(min=0).float(), layer)

    def weights(
        self, q_BHSD: Tensor, scores_BHSK: Tensor, bias_HSK: Tensor | None, seen_SK: Tensor, factor: Tensor | float, layer: int
    ) -> Tensor:
        """Attention weights from whole rows of scaled content scores: [B, H, S, K], 0 where not `seen_SK`.

        For what no softmax of separate bands can do. q is not scaled; `factor` (broadcasts to [B, H, S, K]) holds every factor on
        the logits, not yet applied. Keys are in order; of the last row the query itself is the last key.
        """
        raise NotImplementedError


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

    def rows(self, rows_NC: Tensor, span: Span) -> Tensor:
        """Another learned table, possibly of more rows."""
        return rows_NC

    def bands(self, span: Span) -> tuple[Band, ...]:
        """Which pairs exist, and at which coordinates."""
        return (Band(),)

    def temperature(self, span: Span) -> float:
        """A factor on the logits of every query."""
        return 1.0

    def crop(self, span: Span) -> int | None:
        """How many last tokens are fed for each target; None feeds them all."""
        return None


class ScaledExtension(Extension):
    """An extension by a factor: `dynamic` takes length / train_len anew for each length, `fixed` a constant target_len.

    Raises ConfigError for `fixed` without a target_len, and for a target_len that `dynamic` would ignore.
    """

    def __init__(self, mode: str = "dynamic", target_len: float | None = None):
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
    """A factor on the logits of the query that sees n keys, applied at evaluation or trained in (train.scale_attention)."""

    tested_with: ClassVar[frozenset[str]] = frozenset()
    trained: ClassVar[bool] = False  # True where it has parameters: only train.scale_attention may choose it

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        """The factor for each query that sees n_T keys (float64, CPU): [T], or [H, T] where heads differ."""
        return torch.ones_like(n_T)

    def distance(self, delta_K: Tensor) -> tuple[Tensor, Tensor] | None:
        """Factor and addend [K] of the content score at each index distance (float64), for rules that no factor per query can say."""
        return None


def overrides(method: Encoding | Extension | ScaleAttention, hook: str) -> bool:
    """Whether a method has a hook of its own."""
    base = next(kind for kind in (Encoding, Extension, ScaleAttention) if isinstance(method, kind))
    return getattr(type(method), hook) is not getattr(base, hook)


def window_size(window: int | None, default: int) -> int:
    """A method's window in tokens. Raises ConfigError below 1."""
    if window is None:
        return max(1, default)
    if window < 1:
        raise ConfigError(f"extension.window={window} must be at least 1 token.")
    return window
