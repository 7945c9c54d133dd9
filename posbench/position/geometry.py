"""Types of position: Trait, Bias, Shape, Spectrum, Span and Band.

The first four belong to an encoding, the Span to an extension; a Band holds the keys that a query
sees.

Letters: T tokens, F frequencies. An *index* counts tokens (int64, from 0). A *coordinate* is the
position that an encoding uses for a token (float64: PI's are fractions, and angles need every bit
of them)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Annotated, Literal

import torch
from torch import Tensor

from posbench.config.typed_args import Check

IndexMap = Callable[[Tensor], Tensor]
# Bias of some queries and keys, both slices of indices: [B, H, S, K].
PairBias = Callable[[slice, slice], Tensor]
# Types of methods' arguments. A value that does not fit is refused by name where a cell is planned.
Above0 = Annotated[float, Check("above 0", lambda number: number > 0)]
AtLeast0 = Annotated[float, Check("at least 0", lambda number: number >= 0)]
AtLeast1 = Annotated[float, Check("at least 1", lambda number: number >= 1)]
Base = Annotated[
    float,
    Check("above 1, or no channel is slower than another: 10000 is usual", lambda base: base > 1),
]
Count = Annotated[int, Check("0 or more", lambda number: number >= 0)]
Layout = Literal["half", "interleaved"]  # of the two channels of a pair
Mode = Literal["dynamic", "fixed"]  # of an extension's factor: from each length, or from target_len
Period = Annotated[
    int, Check("at least 2 layers, of which one differs", lambda layers: layers >= 2)
]
Share = Annotated[float, Check("a share from 0 to 1", lambda share: 0 <= share <= 1)]
Size = Annotated[int, Check("at least 1", lambda number: number >= 1)]
Several = Annotated[int, Check("at least 2", lambda number: number >= 2)]
Tokens = Annotated[int, Check("at least 1 token", lambda tokens: tokens >= 1)]


class Trait(Flag):
    """Properties of an encoding that an extension may need."""

    COORDINATE = auto()  # reads real-valued coordinates, so they may be moved or stretched
    # Scores depend on coordinates only through their difference, so each band may have its own.
    RELATIVE = auto()
    SPECTRUM = auto()  # made of frequencies, which may be changed
    UNBOUNDED = auto()  # defined at every coordinate, also beyond the training length
    TABLE = auto()  # looks coordinates up in a learned table, which may be made longer
    CONTENT = auto()  # makes its own positions from the text, which an extension cannot move


class Bias(Flag):
    """Ways in which an encoding acts on the scores, each by one hook of `Encoding`. The kernels
    choose by them.
    """

    COLUMNS = auto()  # `columns`: a product of low rank, which fits into q and k
    PROFILE = auto()  # `profile`: a function of the distance, which has few different values
    PAIRWISE = auto()  # `bias`: a function of both coordinates
    GATES = auto()  # `gates`: a sum over the tokens between the two
    # `weights`: whole rows of scores become weights, without a softmax over separate bands.
    ROWS = auto()
    CONTENT = auto()  # `content_bias`: a function of the text and of both indices
    DENSE = PROFILE | PAIRWISE  # `bias` computes it for every pair of a block


@dataclass(frozen=True)
class Shape:
    """Sizes that an encoding is built for."""

    d_model: int
    n_layer: int
    n_head: int
    n_kv_head: int
    train_len: int
    head_width: int | None = None  # None: d_model / n_head
    # Number of coordinates used in training, if not train_len (randomised positions).
    positions: int | None = None

    @property
    def head_dim(self) -> int:
        return self.head_width or self.d_model // self.n_head

    @property
    def reach(self) -> int:
        """Exclusive upper bound of the coordinates used in training."""
        return self.positions or self.train_len


@dataclass(frozen=True)
class Span:
    """Lengths in tokens: the model was trained at `train_len`, now reads `length`, and the
    extension is set for `target_len`.
    """

    train_len: int
    length: int
    target_len: int

    @property
    def factor(self) -> float:
        """target_len / train_len, but never below 1."""
        return max(1.0, self.target_len / self.train_len)


@dataclass(frozen=True)
class Spectrum:
    """Frequencies freq_F in radians per token (float64), and the base and dimension they were made
    from: base^(-2c / rotary_dim).

    Coordinates below `exact_first` use exact_F (same size) instead, the frequencies as trained, and
    q and k there are multiplied by exact_scale (LongRoPE). exact_F is None for one set alone.

    Not `measured` are those that stand for the frequencies of a model that is not loaded, of which
    fewer pairs may turn."""

    freq_F: Tensor
    base: float
    rotary_dim: int
    exact_first: int = 0
    exact_F: Tensor | None = None
    exact_scale: float = 1.0
    measured: bool = True

    def angles(self, pos_T: Tensor) -> Tensor:
        """Angle of each pair at each coordinate: [T, F], float64 on the CPU.

        At coordinates of a text, [B, H, T] or [B, H, T, F], it is [B, H, T, F] in their format and
        on their device, and the first `exact_first` tokens are those by index, since coordinates
        by content say nothing of it."""
        if pos_T.ndim > 1:
            return self._text_angles(pos_T)
        pos_T = pos_T.cpu().double()
        angle_TF = torch.outer(pos_T, self.freq_F)
        if self.exact_F is None:
            return angle_TF
        # LongRoPE's first positions turn as trained.
        is_exact_T1 = (pos_T < self.exact_first)[:, None]
        return torch.where(is_exact_T1, torch.outer(pos_T, self.exact_F), angle_TF)

    def _text_angles(self, pos: Tensor) -> Tensor:
        """Angles at coordinates of the tokens of a text, one for each head ([B, H, T]) or for each
        pair ([B, H, T, F]).
        """
        pos_BHTF = pos.unsqueeze(-1) if pos.ndim == 3 else pos
        angle_BHTF = pos_BHTF * self.freq_F.to(pos)
        if self.exact_F is None:
            return angle_BHTF
        # LongRoPE's first tokens, by index: coordinates here are made from the content.
        is_exact_T1 = (torch.arange(pos.shape[2], device=pos.device) < self.exact_first)[:, None]
        return torch.where(is_exact_T1, pos_BHTF * self.exact_F.to(pos), angle_BHTF)

    def to(self, device: torch.device) -> "Spectrum":
        """Copy of the spectrum on a device."""
        return self.changed(lambda freq_F: freq_F.to(device))

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Spectrum":
        """Spectrum with `change` made to its frequencies, the exact ones too."""
        return replace(
            self,
            freq_F=change(self.freq_F),
            exact_F=None if self.exact_F is None else change(self.exact_F),
        )

    def scale(self, pos_T: Tensor) -> Tensor | None:
        """Factor on q and k at each coordinate: [T], float32; None if it is 1 everywhere."""
        if self.exact_scale == 1:
            return None
        return torch.where(pos_T < self.exact_first, self.exact_scale, 1.0)


def identity(index_T: Tensor) -> Tensor:
    """Map each index to itself."""
    return index_T


def first_token(index_T: Tensor) -> Tensor:
    """Map each index to 0, the first token of the text."""
    return index_T * 0


@dataclass(frozen=True)
class Band:
    """Query-key pairs that share a geometry: query i sees keys first(i)..last(i), inclusive and
    within the causal triangle.

    q and k map an index to its coordinate in the encoding. Bands of one extension never overlap, so
    the method's attention is one softmax over all of them. With `lot` and `share`, query i sees of
    its interval only the keys j with lot(j) < share(i).

    `interpolated`: the score at a distance that is no whole number lies between those at the whole
    ones around it, on a line. Coordinates of queries are rounded up."""

    first: IndexMap = first_token
    last: IndexMap = identity
    q: IndexMap = identity
    k: IndexMap = identity
    lot: IndexMap | None = None
    share: IndexMap | None = None
    interpolated: bool = False
