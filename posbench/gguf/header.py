"""Metadata and tensor directory of a GGUF file, which is foreign: every count, size and offset is checked against the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian. The reader of the package gguf
takes seconds for 49,000 tokens and never ends on a false count; of that package only the quantisations are used.
"""

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
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY, FLOAT32 = 8, 9, 6
LEAST_ENTRY = 12  # bytes of the shortest key with its value, and of the shortest tensor's entry
MOST_HEADER = 256 * 2**20  # bytes; vocabularies of 200,000 tokens take ten million
MOST_KEY, MOST_DIMENSIONS, MOST_ALIGNMENT = 2**16, 4, 2**16


@dataclass(frozen=True)
class TensorEntry:
    """Place of a tensor: its shape in torch's order, number of its quantisation, and first byte in the file."""

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GgufFile:
    """Header of a file. `metadata` holds numbers, strings, lists of strings, and arrays of numbers."""

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
    """Header of a GGUF file. Raises ConfigError for a file that is none, is damaged, or cannot be read."""
    with readable(path):
        stat = os.stat(path)
        return _read(str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns)


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn errors of reading the file `path` into a ConfigError of one sentence."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): correct the path, or make it readable.") from error
    except RunError as error:
        raise ConfigError(str(error)) from error
    except _Damaged as error:
        raise ConfigError(f"{path} is not a complete GGUF file ({error}): download it again.") from error


@functools.lru_cache(maxsize=4)
def _read(path: str, size: int, modified: int) -> GgufFile:
    """Header of the file of this size and time of change, kept because one command needs it several times."""
    with opened(path) as file:
        return _Header(file, min(os.fstat(file.fileno()).st_size, MOST_HEADER)).read(Path(path))


class _Header:
    """Cursor over a header. Nothing is read beyond `limit`, so no count can ask for more than the file holds."""

    def __init__(self, file: BinaryIO, limit: int):
        self.file, self.limit, self.at = file, limit, 0

    def read(self, path: Path) -> GgufFile:
        if self.take(4, "its first bytes") != MAGIC:
            raise _Damaged("it does not begin with GGUF")
        version = self.number("I", "its version")
        if version not in VERSIONS:
            raise _Damaged(f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are read, in little endian")
        n_tensors, n_keys = (self.count(LEAST_ENTRY, what) for what in ("the number of tensors", "the number of keys"))
        metadata: dict[str, object] = {}
        for _ in range(n_keys):
            key = self.string("a key", MOST_KEY)
            if key in metadata:
                raise _Damaged(f"it holds {shown(key)} twice")
            metadata[key] = self.value(self.number("I", "a type"), shown(key))
        entries = [self.entry() for _ in range(n_tensors)]
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

    def take(self, count: int, what: str) -> bytes:
        if count > self.limit - self.at:
            raise _Damaged(f"it ends, or goes on for more than {MOST_HEADER:,} bytes, within {what}")
        found = self.file.read(count)
        if len(found) < count:
            raise _Damaged(f"it ends within {what}")
        self.at += count
        return found

    def number(self, form: str, what: str) -> int | float | bool:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))[0]

    def count(self, least: int, what: str) -> int:
        """The next count, of things of at least `least` bytes each."""
        found = self.number("Q", what)
        if found * least > self.limit - self.at:
            raise _Damaged(f"{what} is {found:,}, more than the file holds")
        return found

    def string(self, what: str, most: int = MOST_HEADER) -> str:
        size = self.count(1, f"the length of {what}")
        if size > most:
            raise _Damaged(f"the length of {what} is {size:,}")
        try:
            return self.take(size, what).decode()
        except UnicodeDecodeError:
            raise _Damaged(f"{what} is no UTF-8") from None

    def value(self, kind: int, key: str) -> object:
        """The next value of a type. A float32 becomes the shortest decimal of it: 1e-05 and not 9.999999747378752e-06."""
        if kind == STRING:
            return self.string(key)
        if kind in NUMBERS:
            found = self.number(NUMBERS[kind], key)
            return float(str(np.float32(found))) if kind == FLOAT32 else found
        if kind != ARRAY:
            raise _Damaged(f"{key} has type {kind}")
        kind = self.number("I", key)
        if kind == STRING:
            return [self.string(key) for _ in range(self.count(8, f"the size of {key}"))]
        if kind not in NUMBERS:
            raise _Damaged(f"{key} is an array of type {kind}")
        found = array(NUMBERS[kind].replace("?", "B"))
        found.frombytes(self.take(found.itemsize * self.count(found.itemsize, f"the size of {key}"), key))
        return found

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """The next tensor's name, shape, kind and offset."""
        name = self.string("a tensor's name", MOST_KEY)
        dimensions = self.number("I", "a tensor's dimensions")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise _Damaged(f"{shown(name)} has {dimensions:,} dimensions")
        shape = tuple(self.number("Q", "a tensor's shape") for _ in range(dimensions))
        return name, shape[::-1], self.number("I", "a tensor's type"), self.number("Q", "a tensor's place")
