"""Pieces of a long tensor that stay in a processor's cache, so that several operations in a row read memory once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 2**16  # numbers of a piece for each thread: 256 KB in float32


def pieces(x: "Tensor", dim: int) -> list[slice]:
    """Slices of one dimension, one after the other; a single one on a GPU, and for a tensor without elements."""
    import torch

    length, numbers = x.shape[dim], x.numel()
    piece = PIECE * max(2, torch.get_num_threads())
    step = max(1, piece * length // numbers) if numbers and x.device.type == "cpu" else max(1, length)
    return [slice(start, start + step) for start in range(0, length, step)]
