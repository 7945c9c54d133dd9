"""Tensors of safetensors files, read one at a time."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.common.lazy_tensor import LazyTensor

if TYPE_CHECKING:
    from safetensors import safe_open as SafeOpen
    from torch import Tensor

FLOATS = {"F64", "F32", "F16", "BF16"}  # of safetensors


def safetensors_tensors(files: list[Path]) -> dict[str, LazyTensor]:
    """{name: tensor} of all safetensors files. Raises ConfigError for a file that is damaged."""
    found = {}
    for file in files:
        with _opened(file) as content:
            for name in content.keys():  # noqa: SIM118 (no dict)
                piece, read = content.get_slice(name), functools.partial(_read, file, name)
                found[name] = LazyTensor(list(piece.get_shape()), piece.get_dtype(), read, piece.get_dtype() in FLOATS)
    return found


@contextmanager
def _opened(file: Path) -> "Iterator[SafeOpen]":
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): download it again.") from error


def _read(file: Path, name: str) -> "Tensor":
    with _opened(file) as content:
        return content.get_tensor(name)
