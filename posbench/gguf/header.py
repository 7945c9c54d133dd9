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
from typing import BinaryIO, NamedTuple

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import opened
from posbench.config.typed_args import shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# {type in the file: struct's letter} of numbers; 8 is a string, 9 an array.
NUMBER_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
FLOAT32 = 6
STRING = 8
ARRAY = 9
MOST_HEADER = 256 * 2**20  # bytes; vocabularies of 200,000 tokens take ten million
MOST_DIMENSIONS = 4
USUAL_ALIGNMENT = 32  # bytes, the format's default
MOST_ALIGNMENT = 2**16


@dataclass(frozen=True)
class TensorEntry:
    """Place of a tensor: shape in torch's order, number of its quantisation, and first byte."""

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GgufFile:
    """Header of a file. `metadata` holds numbers, strings, lists of strings, arrays of numbers."""

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
    """Header of a GGUF file. Raises ConfigError for one that is damaged or cannot be read."""
    with readable(path):
        stat = os.stat(path)
        return _read_header(str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns)


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
        raise incomplete(path, str(error)) from error


def incomplete(path: str | Path, reason: str) -> ConfigError:
    """Error for a GGUF file that does not hold what its header claims."""
    return ConfigError(f"{path} is not a complete GGUF file ({reason}): download it again.")


@functools.lru_cache(maxsize=4)
def _read_header(path: str, size: int, modified: int) -> GgufFile:
    """Header of a file in this state, kept because one command needs it several times."""
    with opened(path) as file:
        return _HeaderReader(file, min(os.fstat(file.fileno()).st_size, MOST_HEADER)).read(
            Path(path)
        )


class _DirectoryEntry(NamedTuple):
    """Entry of the tensor directory. `offset` counts from the end of the header."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _HeaderReader:
    """Cursor over a header. It stops at `limit`, so no false count asks for more than the file."""

    def __init__(self, file: BinaryIO, limit: int):
        self.file = file
        self.limit = limit
        self.position = 0

    def read(self, path: Path) -> GgufFile:
        """The whole header, from its first byte."""
        if self.take(4) != MAGIC:
            raise _Damaged("it does not begin with GGUF")
        version = self.number("I")
        n_tensors = self.number("Q")
        n_keys = self.number("Q")
        if version not in VERSIONS:
            raise _Damaged(
                f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are read, in"
                " little endian"
            )
        metadata = self.metadata(n_keys)
        entries = [self.tensor() for _ in range(n_tensors)]
        size = os.fstat(self.file.fileno()).st_size
        return GgufFile(path, size, metadata, self.places(entries, metadata, size))

    def metadata(self, count: int) -> dict[str, object]:
        """{key: value} of the next `count` keys."""
        metadata: dict[str, object] = {}
        for _ in range(count):
            key = self.string()
            if key in metadata:
                raise _Damaged(f"it holds {shown(key)} twice")
            kind = self.number("I")  # type of the value, which stands before it
            metadata[key] = self.value(kind, shown(key))
        return metadata

    def tensor(self) -> _DirectoryEntry:
        """The next entry of the tensor directory, whose shape a file writes backwards."""
        name = self.string()
        dimensions = self.number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise _Damaged(f"{shown(name)} has {dimensions:,} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        return _DirectoryEntry(name, shape[::-1], kind=self.number("I"), offset=self.number("Q"))

    def places(
        self, entries: list[_DirectoryEntry], metadata: dict[str, object], size: int
    ) -> dict[str, TensorEntry]:
        """{name: place} in a file of `size` bytes. Tensors begin at the first aligned byte."""
        alignment = metadata.get("general.alignment", USUAL_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= MOST_ALIGNMENT:
            raise _Damaged(f"general.alignment={shown(alignment)}")
        padding = -self.position % alignment  # bytes to the next multiple
        first_start = self.position + padding
        places: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in entries:
            start = first_start + offset
            if name in places:
                raise _Damaged(f"it holds the tensor {shown(name)} twice")
            if offset % alignment or start > size:
                raise _Damaged(f"{shown(name)} begins at byte {start:,} of {size:,}")
            places[name] = TensorEntry(shape, kind, start)
        return places

    def take(self, count: int) -> bytes:
        """The next `count` bytes. None are read if a false count exceeds the file."""
        self.position += count
        content = self.file.read(count) if self.position <= self.limit else b""
        if len(content) < count:
            raise _Damaged(
                f"it ends early, or a length in it is false: no {count:,} bytes are left, of at"
                f" most {MOST_HEADER:,}"
            )
        return content

    def number(self, form: str) -> int | float | bool:
        """The next number, by struct's letter."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        """The next text, which stands behind its length."""
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError:
            raise _Damaged("a name or a text in it is no UTF-8") from None

    def value(self, kind: int, key: str) -> object:
        """The next value of a type.

        A float32 becomes the shortest decimal of it: 1e-05 and not 9.999999747378752e-06."""
        if kind == STRING:
            return self.string()
        if kind in NUMBER_FORMATS:
            number = self.number(NUMBER_FORMATS[kind])
            return float(str(np.float32(number))) if kind == FLOAT32 else number
        if kind != ARRAY:
            raise _Damaged(f"{key} has type {kind}")
        kind_of_values = self.number("I")
        count = self.number("Q")
        if kind_of_values == STRING:
            return [self.string() for _ in range(count)]
        if kind_of_values not in NUMBER_FORMATS:
            raise _Damaged(f"{key} is an array of type {kind_of_values}")
        code = NUMBER_FORMATS[kind_of_values].replace("?", "B")  # array has no bool
        values = array(code)
        values.frombytes(self.take(values.itemsize * count))
        return values
