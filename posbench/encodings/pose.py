"""Skipped positions in training, so that short texts include far positions.

A text of T tokens has T of the positions 0..max_len - 1. `draw: chunks` is PoSE (Zhu et al. 2023,
arXiv 2309.10400), as in dwzhu-pku/PoSE, src/train_pose.py: the text is cut after 1 to (T + 1) // 2
tokens, and all after the cut moves by a shift from 0..max_len - T. `draw: sorted` is the paper's
RandPos, T different positions in order. Both draws are uniform. Evaluation is at 0, 1, 2, ...;
`encoding=randomized` is the same for a training from the start, and spreads there. Deviations: one
draw for each training step, shared by the batch, not one for each text; and the text is one piece,
where the code takes what follows the cut from farther on in the document."""

from typing import Literal

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Shape, Tokens
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding
from posbench.position.repositioned import Repositioned


class Pose(Repositioned):
    """Any encoding at skipped positions. Raises ConfigError for a max_len that holds no text of the
    training length.
    """

    def __init__(
        self,
        shape: Shape,
        base: dict,
        max_len: Tokens,
        draw: Literal["chunks", "sorted"] = "chunks",
    ):
        super().__init__(shape)
        if max_len < shape.train_len:
            raise ConfigError(
                f"encoding.max_len={max_len} is shorter than train_len={shape.train_len}: choose at"
                " least that."
            )
        self.max_len = max_len
        self.draw = draw
        self.base: Encoding = make_method(base, shape, kind=Encoding)
        self.check_base()
        self.traits = self.base.traits
        self.scalable = self.base.scalable
        self.tested_with = self.base.tested_with

    def positions(self, length: int, generator: torch.Generator | None) -> Tensor | None:
        if generator is None:  # at evaluation
            return self.base.positions(length, generator=None)
        if self.draw == "sorted":
            return torch.randperm(self.max_len, generator=generator)[:length].sort().values.double()
        # Tokens before the cut, 1 to half of the text, and positions that are skipped there.
        cut = torch.randint(1, (length + 1) // 2 + 1, (), generator=generator)
        shift = torch.randint(0, self.max_len - length + 1, (), generator=generator)
        index_T = torch.arange(length)
        return torch.where(index_T < cut, index_T, index_T + shift).double()

    @property
    def limit(self) -> int | None:
        return self.base.limit
