"""Pieces of a long tensor, so that the result of one is small enough to reuse its memory (posbench.model.memory)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Numbers of a piece: 24 MiB in float32. Blocks above 32 MiB get new pages each time, which are cleared first. Of smaller pieces there
# are so many that their calls take time: at 2,048 tokens of 135 M parameters 2^17 numbers cost a tenth or more.
PIECE = 6 * 2**20


def pieces(x: "Tensor", dim: int) -> list[slice]:
    """Slices of one dimension, one after the other; a single one on a GPU, and for a tensor without elements."""
    length, numbers = x.shape[dim], x.numel()
    step = max(1, PIECE * length // numbers) if numbers and x.device.type == "cpu" else max(1, length)
    return [slice(start, start + step) for start in range(0, length, step)]
