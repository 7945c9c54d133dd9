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

PLAIN = (".txt", ".md", ".py")
ENDINGS = (*PLAIN, ".json", ".jsonl", ".jsonl.gz", ".parquet")
LARGEST_TEXT = 4 * 2**30  # bytes of a text file, which is read whole
FEW = 8  # with fewer test documents a note is printed


class LocalFiles(Source):
    """Documents of a file or a folder `path`, read recursively.

    If its first level is named by split (folders train/ validation/ test/, or files such as
    train.jsonl, train-00000.parquet), these are the splits. Otherwise whole documents are
    distributed by the hash of their names: `test_share` and `validation_share` of them, at least
    one each. A single text file is first cut into documents. `column` holds the text of json and
    parquet rows."""

    def __init__(self, path: str | None, column: str, validation_share: float, test_share: float):
        self.root = existing_path(path, "local")
        self.column, self.shares = column, {"test": test_share, "validation": validation_share}
        if min(self.shares.values()) <= 0 or sum(self.shares.values()) >= 1:
            raise ConfigError(
                f"data.source shares {self.shares} must be above 0 and leave something to train on:"
                " lower them."
            )
        base = self.root if self.root.is_dir() else self.root.parent
        found = sorted(self.root.rglob("*")) if self.root.is_dir() else [self.root]
        names = {
            file.relative_to(base).as_posix(): file
            for file in found
            if file.name.lower().endswith(ENDINGS) and file.is_file()
        }
        self.files = {
            name: file
            for name, file in names.items()
            if not name.startswith(".") and "/." not in name
        }
        self.one_text = len(self.files) == 1 and all(
            name.lower().endswith(PLAIN) for name in self.files
        )  # as in nanoGPT
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
        first = {name: re.split("[/.-]", name)[0].lower() for name in self.files}
        labels = {name: one if one in SPLITS else None for name, one in first.items()}
        if not any(labels.values()):
            chosen = self._chosen[split]
            for name in self.files:
                if name in chosen or not self._is_whole(name):
                    yield from (document for document in self._read(name) if document[0] in chosen)
            return
        if missing := set(SPLITS) - set(labels.values()):
            raise ConfigError(
                f"data.path={self.root} has splits, but no {' and no '.join(sorted(missing))}:"
                " add it."
            )
        if unnamed := [name for name, label in labels.items() if not label]:
            raise ConfigError(
                f"data.path={self.root} has splits, but {unnamed[0]} is in none: move it into"
                " train, validation or test."
            )
        for name, label in labels.items():
            if label == split:
                yield from self._read(name)

    def _read(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of the documents of a file."""
        if self._is_whole(name):
            yield name, read_text(self.files[name])
            return
        pieces = self._pieces if self.one_text else texts(self.files[name], self.column)
        yield from ((f"{name}:{row}", text) for row, text in enumerate(pieces))

    def _is_whole(self, name: str) -> bool:
        return name.lower().endswith(PLAIN) and not self.one_text

    @cached_property
    def _pieces(self) -> list[str]:
        """Documents of the single text, which is asked for them several times."""
        (file,) = self.files.values()
        return cut_text(read_text(file))

    @cached_property
    def _chosen(self) -> dict[str, set[str]]:
        """{split: names of its documents}. Their distribution is printed if it may surprise: a text
        was cut, or few are for the test.
        """
        names = []
        for name in self.files:
            names += (
                [name] if self._is_whole(name) else [document for document, _ in self._read(name)]
            )
        if len(names) < 3:
            raise ConfigError(
                f"data.path={self.root} holds {len(names)} documents and three splits need at least"
                " 3: add documents."
            )
        ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        n_test, n_validation = (
            max(1, round(self.shares[part] * len(names))) for part in ("test", "validation")
        )
        chosen = {
            "test": ranked[:n_test],
            "validation": ranked[n_test : n_test + n_validation],
            "train": ranked[n_test + n_validation :],
        }
        if self.one_text or n_test < FEW:
            how = (
                f"is one text, cut into {len(names)} documents at line ends"
                if self.one_text
                else f"holds {len(names)} documents"
            )
            dealt = ", ".join(f"{len(part)} for {split}" for split, part in chosen.items())
            advice = (
                "; intervals over so few test documents are wide: raise data.source.test_share"
                if n_test < FEW
                else ""
            )
            print(
                f"data: {self.root} {how}, dealt out: {dealt}{advice}", file=sys.stderr, flush=True
            )
        return {split: set(part) for split, part in chosen.items()}


def read_text(file: Path) -> str:
    """Text of a file with unchanged line ends. Raises ConfigError when it is not readable UTF-8,
    RunError when it is too large.
    """
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
    """Cut a text into parts of about equal size. Each ends at a blank line, or at least at a line
    end, if one is near.

    A small text has 20 parts; a large one 100 or more, of 4 thousand to a million characters. This
    is a compromise: confidence intervals need many documents, long contexts need long ones."""
    size = max(256, min(max(len(text) // 100, 2**12), 2**20, len(text) // 20))
    parts, start = [], 0
    while start < len(text):
        at, latest = start + size, start + 2 * size
        ends = [
            found + len(end) for end in ("\n\n", "\n") if (found := text.find(end, at, latest)) >= 0
        ]
        parts.append(text[start : ends[0] if ends else at])
        start += len(parts[-1])
    return parts


def texts(file: Path, column: str) -> Iterator[str]:
    """Yield the text of each row of a table, "" for null or missing. Raises ConfigError for a
    damaged file and for other cells.
    """
    read, known, row = 0, False, {}
    try:
        for row in (
            _parquet_rows(file, column)
            if file.name.lower().endswith(".parquet")
            else _json_rows(file)
        ):
            text = row.get(column) or ""
            if not isinstance(text, str):
                kind = type(text).__name__
                raise ConfigError(
                    f"Row {read} of {file} has {kind} in {column}: set data.source.column to a text"
                    " column."
                )
            text.encode()  # raises for half a surrogate pair
            yield text
            read, known = read + 1, known or column in row
    except ConfigError:
        raise
    except Exception as error:  # the errors of the libraries have no common base class
        said = " ".join((str(error) or type(error).__name__).split())[:200]
        advice = (
            "give one object in each line"
            if said.startswith("Extra data")
            else "correct or move it"
        )
        raise ConfigError(f"{file} cannot be read (row {read}: {said}): {advice}.") from error
    if read and not known:
        raise ConfigError(
            f"{file} has no column {column}: set data.source.column to one of"
            f" {', '.join(sorted(row))}."
        )


def _parquet_rows(file: Path, column: str) -> Iterator[dict]:
    import pyarrow.parquet

    with open(file, "rb") as content:
        table = pyarrow.parquet.ParquetFile(content)
        columns = [column] if column in table.schema_arrow.names else None
        for batch in table.iter_batches(batch_size=256, columns=columns):
            yield from batch.to_pylist()


def _json_rows(file: Path) -> Iterator[dict]:
    """Yield the objects of a json file: a list of objects or strings (as column "text"), one
    object, or one on each line.
    """
    with (gzip.open if file.name.lower().endswith(".gz") else open)(
        file, "rt", encoding="utf-8-sig", newline="\n"
    ) as content:
        lines = filter(str.strip, content)
        first = next(lines, None)
        if first is None:
            return
        try:
            found = itertools.chain([json.loads(first)], map(json.loads, lines))
        except json.JSONDecodeError:  # over several lines
            found = [json.loads(first + "".join(lines))]
        for value in found:
            for row in value if isinstance(value, list) else [value]:
                row = {"text": row} if isinstance(row, str) else row
                if not isinstance(row, dict):
                    raise ValueError(f"{type(row).__name__} instead of an object")
                yield row
