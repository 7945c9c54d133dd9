"""Metadata and tensor directory of a GGUF file, which is foreign: every count, size and offset is
checked against the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
The reader of the package gguf takes seconds for 49,000 tokens and never ends on a false count; of
that package only the quantisations are used."""

import functools
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import opened
from posbench.config.typed_args import shown

MAGIC, VERSIONS = b"GGUF", (2, 3)
# {type in the file: struct's letter} of numbers; 8 is a string, 9 an array.
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY, FLOAT32 = 8, 9, 6
MOST_HEADER = 256 * 2**20  # bytes; vocabularies of 200,000 tokens take ten million
MOST_DIMENSIONS, MOST_ALIGNMENT = 4, 2**16


@dataclass(frozen=True)
class TensorEntry:
    """Place of a tensor: its shape in torch's order, number of its quantisation, and first byte in
    the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GgufFile:
    """Header of a file. `metadata` holds numbers, strings, lists of strings, and arrays of
    numbers.
    """

    path: Path
    size: int
    metadata: dict[str, object]
    tensors: dict[str, TensorEntry]


class _Damaged(Exception):
    """Reason why a file is not what it claims to be."""


def is_gguf(path: str | Path) -> bool:
    """True if a path is named like a GGUF file."""
    return str(path).lower().endswith(".gguf")


def read_gguf(path: str | Path) -> GgufFile:
    """Header of a GGUF file. Raises ConfigError for a file that is none, is damaged, or cannot be
    read.
    """
    with readable(path):
        stat = os.stat(path)
        return _read(str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns)


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn errors of reading the file `path` into a ConfigError of one sentence."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): correct the path, or make it readable."
        ) from error
    except RunError as error:
        raise ConfigError(str(error)) from error
    except _Damaged as error:
        raise ConfigError(
            f"{path} is not a complete GGUF file ({error}): download it again."
        ) from error


@functools.lru_cache(maxsize=4)
def _read(path: str, size: int, modified: int) -> GgufFile:
    """Header of the file of this size and time of change, kept because one command needs it several
    times.
    """
    with opened(path) as file:
        return _Header(file, min(os.fstat(file.fileno()).st_size, MOST_HEADER)).read(Path(path))


class _Header:
    """Cursor over a header. Nothing is read beyond `limit`, so no count can ask for more than the
    file holds.
    """

    def __init__(self, file: BinaryIO, limit: int):
        self.file, self.limit, self.at = file, limit, 0

    def read(self, path: Path) -> GgufFile:
        if self.take(4) != MAGIC:
            raise _Damaged("it does not begin with GGUF")
        version, n_tensors, n_keys = self.number("I"), self.number("Q"), self.number("Q")
        if version not in VERSIONS:
            raise _Damaged(
                f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are read, in"
                " little endian"
            )
        metadata: dict[str, object] = {}
        for _ in range(n_keys):
            key = self.string()
            if key in metadata:
                raise _Damaged(f"it holds {shown(key)} twice")
            metadata[key] = self.value(self.number("I"), shown(key))
        entries = []
        for _ in range(n_tensors):
            name, dimensions = self.string(), self.number("I")
            if not 1 <= dimensions <= MOST_DIMENSIONS:
                raise _Damaged(f"{shown(name)} has {dimensions:,} dimensions")
            shape = tuple(self.number("Q") for _ in range(dimensions))
            entries.append((name, shape[::-1], self.number("I"), self.number("Q")))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MOST_ALIGNMENT:
            raise _Damaged(f"general.alignment={shown(alignment)}")
        size, start = os.fstat(self.file.fileno()).st_size, -(-self.at // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise _Damaged(f"it holds the tensor {shown(name)} twice")
            if offset % alignment or start + offset > size:
                raise _Damaged(f"{shown(name)} begins at byte {start + offset:,} of {size:,}")
            tensors[name] = TensorEntry(shape, kind, start + offset)
        return GgufFile(path, size, metadata, tensors)

    def take(self, count: int) -> bytes:
        self.at += count
        found = self.file.read(count) if self.at <= self.limit else b""
        if len(found) < count:
            raise _Damaged(
                f"it ends early, or a length in it is false: no {count:,} bytes are left, of at"
                f" most {MOST_HEADER:,}"
            )
        return found

    def number(self, form: str) -> int | float | bool:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError:
            raise _Damaged("a name or a text in it is no UTF-8") from None

    def value(self, kind: int, key: str) -> object:
        """The next value of a type. A float32 becomes the shortest decimal of it: 1e-05 and not
        9.999999747378752e-06.
        """
        if kind == STRING:
            return self.string()
        if kind in NUMBERS:
            found = self.number(NUMBERS[kind])
            return float(str(np.float32(found))) if kind == FLOAT32 else found
        if kind != ARRAY:
            raise _Damaged(f"{key} has type {kind}")
        kind, count = self.number("I"), self.number("Q")
        if kind == STRING:
            return [self.string() for _ in range(count)]
        if kind not in NUMBERS:
            raise _Damaged(f"{key} is an array of type {kind}")
        found = array(NUMBERS[kind].replace("?", "B"))
        found.frombytes(self.take(found.itemsize * count))
        return found
