"""Source: the user's own files. A text file is one document; so is each row of a json, jsonl or
parquet file.

Files are opened here and not by libraries, which read brackets, :: and # in a name as patterns and
addresses."""

import gzip
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_bytes, sha256_json
from posbench.data.sources import SPLITS, Source, check_names, existing_path, file_digests

TEXT_ENDINGS = (".txt", ".md", ".py")
ENDINGS = (*TEXT_ENDINGS, ".json", ".jsonl", ".jsonl.gz", ".parquet")
LARGEST_TEXT = 4 * 2**30  # bytes of a text file, which is read whole
LONGEST_REASON = 200  # characters of another library's error in a sentence
FEW_DOCUMENTS = 8  # with fewer test documents a note is printed


class LocalFiles(Source):
    """Documents of a file or a folder `path`, read recursively.

    If the first level of a folder is named by split (folders train/ validation/ test/, or files
    such as train.jsonl, train-00000.parquet), these are the splits. Otherwise whole documents are
    distributed by the hash of their names: `test_share` and `validation_share` of them, at least
    one each. A single text file is first cut into documents. `column` holds the text of json and
    parquet rows."""

    def __init__(self, path: str | None, column: str, validation_share: float, test_share: float):
        self.root = existing_path(path, "local")
        self.column = column
        self.shares = {"test": test_share, "validation": validation_share}
        if min(self.shares.values()) <= 0 or sum(self.shares.values()) >= 1:
            raise ConfigError(
                f"data.source shares {self.shares} must be above 0 and leave something to train on:"
                " lower them."
            )
        self.files = _files_of(self.root)  # {name: path}
        # cut into documents, since nanoGPT's users have one input.txt
        self.is_single_text = len(self.files) == 1 and all(map(_is_text_file, self.files))
        check_names(self.files)
        if not self.files:
            raise ConfigError(
                f"data.path={path} has no file that ends in {', '.join(ENDINGS)}: correct"
                " data.path."
            )

    def fingerprint(self) -> str:
        digests = file_digests(list(self.files.values()), self.memo, self.again)
        return sha256_json([dict(zip(self.files, digests, strict=True)), self.column, self.shares])

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        # A file that is given alone has no other beside it, whatever its name says.
        is_folder = self.root.is_dir()
        split_of = {name: _split_of_name(name) if is_folder else None for name in self.files}
        if not any(split_of.values()):
            names = self._names_of_splits[split]
            for file in self.files:
                # a file that is one document is read for its own split alone
                if file in names or not self._is_document(file):
                    for name, text in self._documents_of_file(file):
                        if name in names:
                            yield name, text
            return
        missing = sorted(set(SPLITS) - set(split_of.values()))
        if missing:
            raise ConfigError(
                f"data.path={self.root} has splits, but no {' and no '.join(missing)}: add it."
            )
        for file, file_split in split_of.items():
            if file_split is None:
                raise ConfigError(
                    f"data.path={self.root} has splits, but {file} is in none: move it into"
                    " train, validation or test."
                )
        for file, file_split in split_of.items():
            if file_split == split:
                yield from self._documents_of_file(file)

    def _documents_of_file(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of the documents of a file."""
        if self._is_document(name):
            yield name, read_text(self.files[name])
            return
        if self.is_single_text:
            documents = self._documents_of_text
        else:
            documents = row_texts(self.files[name], self.column)
        for row, text in enumerate(documents):
            yield f"{name}:{row}", text

    def _is_document(self, name: str) -> bool:
        """True if a file is one document. Otherwise it is a table, or the single text."""
        return _is_text_file(name) and not self.is_single_text

    @cached_property
    def _documents_of_text(self) -> list[str]:
        """Documents of the single text, which is asked for them several times."""
        (file,) = self.files.values()
        return cut_text(read_text(file))

    @cached_property
    def _names_of_splits(self) -> dict[str, set[str]]:
        """{split: names of its documents}, the same for the same names. It is printed once."""
        names = []
        for file in self.files:
            if self._is_document(file):
                names.append(file)
            else:
                names += [name for name, _ in self._documents_of_file(file)]
        if len(names) < len(SPLITS):
            raise ConfigError(
                f"data.path={self.root} holds {len(names)} documents and three splits need at least"
                " 3: add documents."
            )
        ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        n_test = max(1, round(self.shares["test"] * len(names)))
        n_held_out = n_test + max(1, round(self.shares["validation"] * len(names)))
        chosen = {
            "test": ranked[:n_test],
            "validation": ranked[n_test:n_held_out],
            "train": ranked[n_held_out:],
        }
        self._print_shares({split: len(part) for split, part in chosen.items()})
        return {split: set(part) for split, part in chosen.items()}

    def _print_shares(self, counts: dict[str, int]) -> None:
        """Print {split: documents} if it may surprise: a text was cut, or few are for the test."""
        few = counts["test"] < FEW_DOCUMENTS
        if not self.is_single_text and not few:
            return
        total = sum(counts.values())
        contents = f"holds {total} documents"
        if self.is_single_text:
            contents = f"is one text, cut into {total} documents at line ends"
        shares = ", ".join(f"{count} for {split}" for split, count in counts.items())
        line = f"data: {self.root} {contents}, dealt out: {shares}"
        if few:
            line += "; intervals over so few test documents are wide: raise data.source.test_share"
        print(line, file=sys.stderr, flush=True)


def _files_of(root: Path) -> dict[str, Path]:
    """{name: path} of the readable files of a folder, or of one file. Hidden ones are left out."""
    base = root if root.is_dir() else root.parent
    files = {}
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        name = path.relative_to(base).as_posix()
        hidden = name.startswith(".") or "/." in name
        if not hidden and path.name.lower().endswith(ENDINGS) and path.is_file():
            files[name] = path
    return files


def _is_text_file(name: str) -> bool:
    return name.lower().endswith(TEXT_ENDINGS)


def _split_of_name(name: str) -> str | None:
    """Split that the first part of a file's name says, None for none.

    >>> _split_of_name("train-00000.parquet"), _split_of_name("notes/test.txt")
    ('train', None)
    """
    first = re.split("[/.-]", name)[0].lower()
    return first if first in SPLITS else None


def read_text(file: Path) -> str:
    """Text of a file with unchanged line ends.

    Raises ConfigError when it is not readable UTF-8, RunError when it is too large."""
    try:
        return read_bytes(file, LARGEST_TEXT).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8 text (byte {error.start}): convert it or take it out of"
            " data.path."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}): make it readable or take it out of"
            " data.path."
        ) from error


def cut_text(text: str) -> list[str]:
    """Cut a text into parts of about equal size.

    Each ends at a blank line, or at least at a line end, if one is near. A small text has 20
    parts; a large one 100 or more, of 4 thousand to a million characters. This is a compromise:
    confidence intervals need many documents, long contexts need long ones."""
    size = max(len(text) // 100, 2**12)
    size = min(size, 2**20)
    size = min(size, len(text) // 20)  # 20 parts or more
    size = max(size, 256)  # of a text that is too small for 20 parts
    parts = []
    start = 0
    while start < len(text):
        end = start + size
        for line_end in ("\n\n", "\n"):
            place = text.find(line_end, end, end + size)
            if place >= 0:
                end = place + len(line_end)
                break
        parts.append(text[start:end])
        start = end
    return parts


def row_texts(file: Path, column: str) -> Iterator[str]:
    """Yield the text of each row of a table, "" for null or missing.

    Raises ConfigError for a damaged file and for other cells."""
    is_parquet = file.name.lower().endswith(".parquet")
    rows = _parquet_rows(file, column) if is_parquet else _json_rows(file)
    n_read = 0
    has_column = False
    row: dict = {}
    try:
        for row in rows:
            text = row.get(column)
            if text is None:
                text = ""
            if not isinstance(text, str):
                raise ConfigError(
                    f"Row {n_read} of {file} has {type(text).__name__} in {column}: set"
                    " data.source.column to a text column."
                )
            text.encode()  # raises for half a surrogate pair
            yield text
            n_read += 1
            has_column = has_column or column in row
    except ConfigError:
        raise
    except Exception as error:  # the errors of the libraries have no common base class
        reason = " ".join((str(error) or type(error).__name__).split())[:LONGEST_REASON]
        advice = "correct or move it"
        if reason.startswith("Extra data"):
            advice = "give one object in each line"
        raise ConfigError(f"{file} cannot be read (row {n_read}: {reason}): {advice}.") from error
    if n_read and not has_column:
        columns = ", ".join(sorted(row))
        if len(columns) > LONGEST_REASON:
            columns = f"{columns[:LONGEST_REASON]} ..."
        raise ConfigError(
            f"{file} has no column {column}: set data.source.column to one of {columns}."
        )


def _parquet_rows(file: Path, column: str) -> Iterator[dict]:
    import pyarrow.parquet

    with open(file, "rb") as content:
        table = pyarrow.parquet.ParquetFile(content)
        # All columns where that one is missing: the error lists them.
        columns = [column] if column in table.schema_arrow.names else None
        for batch in table.iter_batches(batch_size=256, columns=columns):
            yield from batch.to_pylist()


def _json_rows(file: Path) -> Iterator[dict]:
    """Yield the objects of a json file: a list of objects or strings (as column "text"), one
    object, or one on each line.
    """
    open_text = gzip.open if file.name.lower().endswith(".gz") else open
    # utf-8-sig passes over a byte order mark; other line ends than \n may stand within an object
    with open_text(file, "rt", encoding="utf-8-sig", newline="\n") as content:
        lines = filter(str.strip, content)
        first = next(lines, None)
        if first is None:
            return
        try:
            values = itertools.chain([json.loads(first)], map(json.loads, lines))
        except json.JSONDecodeError:  # over several lines
            values = [json.loads(first + "".join(lines))]
        for value in values:
            for row in value if isinstance(value, list) else [value]:
                if isinstance(row, str):
                    yield {"text": row}
                elif isinstance(row, dict):
                    yield row
                else:
                    raise ValueError(f"{type(row).__name__} instead of an object")
