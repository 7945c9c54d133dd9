"""A tensor in a file of weights, read on demand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of a checkpoint: its shape, the name of its type, the call that reads it, and if what it reads is of 16 bits or more."""

    shape: list[int]
    dtype: str
    read: "Callable[[], Tensor]"
    floating: bool = True
