"""Randomised positions: a training text has sorted random positions below max_len.

A text of T tokens has T integers drawn without replacement from 0..max_len - 1. Ruoss et al. 2023,
arXiv 2305.16843; max_len = 2048 for texts of up to 40 tokens, evaluated to 500. A wrapper: `base`
is any encoding, and it is built for coordinates below max_len, so that a table has that many rows.
One draw for each training step, shared by the batch, as in
google-deepmind/randomized_positional_encodings. That code draws at evaluation too (`eval: random`,
here the same draw for each length); `spread` takes token t at floor(t max_len / T), evenly from 0,
and `arange` at t.

`real` draws T real numbers from [0, max_len) in place of integers, so that no two texts share their
distances, and `spread` does not round: random float sampling (Shimizu, Taniguchi, Matsuo 2026,
arXiv 2602.14050), which draws at evaluation too (`eval: random`). Only its abstract was read. For
encodings of real coordinates, so not for a learned table. Extensions that give near and far keys
other distances count tokens and not these coordinates, so they are refused."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Shape, Trait
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding
from posbench.position.repositioned import Repositioned


class Randomized(Repositioned):
    """Any encoding at drawn positions. Raises ConfigError for a max_len below train_len, and for
    longer texts than max_len.
    """

    def __init__(
        self,
        shape: Shape,
        base: dict,
        max_len: int | None = None,
        eval: Literal["spread", "arange", "random"] = "spread",
        real: bool = False,
    ):
        super().__init__(shape)
        # None: the longest text that is evaluated by default.
        self.max_len = 16 * shape.train_len if max_len is None else max_len
        if self.max_len < shape.train_len:
            raise ConfigError(
                f"encoding.max_len={max_len} is shorter than train_len={shape.train_len}: choose at"
                " least that."
            )
        # Positions in evaluations: evenly spread over max_len, 0, 1, 2, ... (arange), or drawn.
        self.eval = eval
        self.real = real
        self.base: Encoding = make_method(
            base, replace(shape, positions=self.max_len), kind=Encoding
        )
        self.check_base()
        # Positions end at max_len, and drawn distances are not those that tell near from far.
        for part in dict.fromkeys([self.base, *(layer.encoding for layer in self.base.layers())]):
            part.traits = part.traits & ~(Trait.UNBOUNDED | Trait.RELATIVE)
        if real and self.base.rows() is not None:
            raise ConfigError(
                "encoding.real=true draws positions between the rows of a learned table: leave it"
                " out, or change the base."
            )
        self.traits = self.base.traits
        self.scalable = self.base.scalable

    def positions(self, length: int, generator: torch.Generator | None) -> Tensor:
        if length > self.max_len:
            raise ConfigError(
                f"encoding.max_len={self.max_len} holds no {length} positions: evaluate up to that,"
                " or train with more."
            )
        if generator is None and self.eval != "random":  # no generator: an evaluation
            return self._evaluation_positions(torch.arange(length))
        if generator is None:
            generator = torch.Generator().manual_seed(length)  # every evaluation draws the same
        if self.real:
            drawn_T = torch.rand(length, generator=generator, dtype=torch.float64) * self.max_len
        else:
            drawn_T = torch.randperm(self.max_len, generator=generator)[:length]
        return drawn_T.sort().values.double()

    def _evaluation_positions(self, index_T: Tensor) -> Tensor:
        """Positions of an evaluation that draws none."""
        if self.eval == "arange":
            return index_T.double()
        if self.real:
            return index_T.double() * self.max_len / len(index_T)
        return (index_T * self.max_len // len(index_T)).double()

    @property
    def limit(self) -> int:
        return self.max_len
