"""The vocabulary of position: what an encoding offers, what an extension asks, which keys a query sees and where they seem to lie.

Letters: T tokens, F frequencies. An *index* counts tokens (int64, from 0); a *coordinate* is where an encoding believes a
token lies (float64: PI's are fractions, and angles need every bit of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import torch
from torch import Tensor

IndexMap = Callable[[Tensor], Tensor]


class Trait(Flag):
    """What an encoding lets others do with its positions."""

    COORDINATE = auto()  # reads real-valued coordinates, so they may be moved or stretched
    RELATIVE = auto()  # scores depend on coordinates only through their difference, so a band may have its own
    SPECTRUM = auto()  # made of frequencies, so these may be changed
    UNBOUNDED = auto()  # defined at every coordinate, also beyond the training length
    TABLE = auto()  # looks coordinates up in a learned table, which may be made longer
    CONTENT = auto()  # makes positions of its own from the text, which nobody can move


@dataclass(frozen=True)
class Shape:
    """The sizes an encoding is built for."""

    d_model: int
    n_layer: int
    n_head: int
    n_kv_head: int
    train_len: int
    head_width: int | None = None  # None: d_model / n_head
    positions: int | None = None  # coordinates that training meets, where these are not its tokens (randomised positions)

    @property
    def head_dim(self) -> int:
        return self.head_width or self.d_model // self.n_head

    @property
    def reach(self) -> int:
        """Coordinates below this are met in training."""
        return self.positions or self.train_len


@dataclass(frozen=True)
class Span:
    """The question put to an extension: trained at `train_len`, now `length`, configured for `target_len` (all in tokens)."""

    train_len: int
    length: int
    target_len: int

    @property
    def factor(self) -> float:
        """How many times longer than in training; never below 1."""
        return max(1.0, self.target_len / self.train_len)


@dataclass(frozen=True)
class Spectrum:
    """Frequencies freq_F in radians per token (float64), with the base and the dimension they were made from: base^(-2c / rotary_dim).

    Coordinates below `exact_first` turn by exact_F (as many frequencies) instead, and q and k there are multiplied by exact_scale.
    """

    freq_F: Tensor
    base: float
    rotary_dim: int
    exact_first: int = 0
    exact_F: Tensor | None = None
    exact_scale: float = 1.0

    def angles(self, pos_T: Tensor) -> Tensor:
        """The angle of each pair at each coordinate: [T, F], float64 on the CPU."""
        pos_T = pos_T.cpu().double()
        angle_TF = torch.outer(pos_T, self.freq_F)
        if self.exact_F is None:
            return angle_TF
        return torch.where((pos_T < self.exact_first)[:, None], torch.outer(pos_T, self.exact_F), angle_TF)

    def scale(self, pos_T: Tensor) -> Tensor | None:
        """The factor on q and k at each coordinate: [T], float32; None for 1."""
        return None if self.exact_scale == 1 else torch.where(pos_T < self.exact_first, self.exact_scale, 1.0)


def identity(index_T: Tensor) -> Tensor:
    """An index is its own coordinate."""
    return index_T


def start(index_T: Tensor) -> Tensor:
    """The first token of the text."""
    return index_T * 0


@dataclass(frozen=True)
class Band:
    """Query-key pairs that share a geometry: query i sees keys first(i)..last(i), inclusive and within the causal triangle.

    q and k map an index to the coordinate at which the encoding sees it. Bands of one extension never overlap, so one
    softmax over all of them is the method's attention.
    """

    first: IndexMap = start
    last: IndexMap = identity
    q: IndexMap = identity
    k: IndexMap = identity
