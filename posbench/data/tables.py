"""Reader for text in rows of json, jsonl, jsonl.gz and parquet files. Files are streamed: no copy is made or kept.

Files are opened here and not by libraries, which read brackets, :: and # in a name as patterns and addresses.
"""

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from posbench.common.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ROW = 256 * 2**20  # largest row of json lines, in bytes
WHOLE = 2**30  # largest json file that is one list or object, in bytes; it is read at once
UNPACKED = 100  # largest ratio of unpacked to packed size: text packs to a third or a tenth, a bomb to a thousandth
SMALL = 64 * 2**20  # unpacked bytes that are always allowed
ROWS = 10**8
SPACE = re.compile(r"\s*")


def count_rows(file: Path, form: str, column: str) -> int:
    """Number of rows. Raises ConfigError for a file that is not a table of this format, or lacks the column."""
    if form == "parquet":
        with _parquet(file) as table:
            count, columns = table.metadata.num_rows, set(table.schema_arrow.names)
    else:
        count, columns = 0, set()
        for row in _objects(file):
            count += 1
            columns.update(row if len(columns) < 100 else {column} & row.keys())
            if count > ROWS:
                break
    if count > ROWS:
        raise ConfigError(f"{file} has more than {ROWS:,} rows: split it, or make longer documents of them.")
    if count and column not in columns:
        names = ", ".join(sorted(columns))
        raise ConfigError(f"{file} has no column {column}: set data.source.column to one of {names}.")
    return count


def texts(file: Path, form: str, column: str) -> Iterator[str]:
    """Yield the text of each row, "" for null or missing. Raises ConfigError for a cell that is not text."""
    cells = _cells(file, column) if form == "parquet" else (row.get(column) for row in _objects(file))
    for number, text in enumerate(cells):
        if text is not None and not isinstance(text, str):
            kind = type(text).__name__
            raise ConfigError(f"Row {number} of {file} has {kind} in {column}: set data.source.column to a text column.")
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"Row {number} of {file} is not text ({error.reason}, character {error.start}): correct or move it."
            ) from error
        yield text or ""


@contextmanager
def _readable(file: Path, form: str, row: list[int] | None = None) -> Iterator[None]:
    """Turn the errors of readers of damaged files into a ConfigError. `row` holds the number of the current row."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the errors of the libraries have no common base class
        where = f"row {row[0]}: " if row else ""
        said = " ".join((str(error) or type(error).__name__).split())[:200]
        raise ConfigError(f"{file} cannot be read as {form} ({where}{said}): correct or move it.") from error


@contextmanager
def _parquet(file: Path) -> "Iterator[ParquetFile]":
    import pyarrow.parquet

    with _readable(file, "parquet"), open(file, "rb") as content:
        table = pyarrow.parquet.ParquetFile(content)
        unpacked = sum(table.metadata.row_group(n).total_byte_size for n in range(table.metadata.num_row_groups))
        _check_unpacked(file, unpacked, os.fstat(content.fileno()).st_size)
        yield table


def _cells(file: Path, column: str) -> Iterator[object]:
    with _parquet(file) as table:
        found = 0
        for batch in table.iter_batches(batch_size=256, columns=[column]):
            found += len(batch)
            yield from batch.column(0).to_pylist()
        if found != table.metadata.num_rows:
            raise ValueError(f"{found} rows where {table.metadata.num_rows} are announced")


def _objects(file: Path) -> Iterator[dict]:
    """Yield the objects of a json file: a list of objects or strings (as column "text"), or consecutive objects, mostly one per line."""
    row = [0]
    with _readable(file, "json", row), open(file, "rb") as packed:
        unpacked = gzip.open(packed) if file.name.lower().endswith(".gz") else packed
        for value in _json_values(_text_lines(file, packed, unpacked)):
            value = {"text": value} if isinstance(value, str) else value
            if not isinstance(value, dict):
                raise ValueError(f"{type(value).__name__} instead of an object")
            yield value
            row[0] += 1


def _text_lines(file: Path, packed: BinaryIO, unpacked: BinaryIO) -> Iterator[str]:
    """Yield the lines that are not blank, with their line ends."""
    size, total, first = os.fstat(packed.fileno()).st_size, 0, True
    while line := unpacked.readline(ROW + 1):
        total += len(line)
        if unpacked is not packed:
            _check_unpacked(file, total, size)
        if len(line) > ROW:
            raise ConfigError(f"{file} has a line of more than {ROW:,} bytes: split it into documents.")
        text = line.decode("utf-8-sig" if first else "utf-8")
        first = False
        if not text.isspace():
            yield text


def _json_values(lines: Iterator[str]) -> Iterator[object]:
    first = next(lines, "")
    if first.lstrip().startswith("["):
        yield from json.loads(_whole_json(first, lines))
        return
    try:
        found = list(_decoded(first))
    except json.JSONDecodeError:
        found = _decoded(_whole_json(first, lines))  # an object over several lines
    yield from found
    for line in lines:
        yield from list(_decoded(line))


def _whole_json(first: str, lines: Iterable[str]) -> str:
    parts, size = [first], len(first)
    for line in lines:
        parts.append(line)
        size += len(line)
        if size > WHOLE:
            raise ConfigError(f"This json has more than {WHOLE:,} characters in one list or object: write one object a line instead.")
    return "".join(parts)


def _decoded(text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), SPACE.match(text).end()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        at = SPACE.match(text, at).end()
        yield value


def _check_unpacked(file: Path, unpacked: int, packed: int) -> None:
    if unpacked > max(SMALL, UNPACKED * packed):
        raise ConfigError(
            f"{file} has {packed:,} bytes and unpacks to {unpacked:,} or more, which no text does (the limit is {UNPACKED} times): "
            "unpack it yourself if that is what you want."
        )
