"""The user's own files: one document per text file, one per row of a json, jsonl or parquet file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.data.sources import SPLITS, Source, existing_path, file_digests
from posbench.errors import ConfigError
from posbench.files import sha256_json

if TYPE_CHECKING:
    import datasets

FORMATS = {".txt": "text", ".md": "text", ".py": "text", ".json": "json", ".jsonl": "json", ".jsonl.gz": "json", ".parquet": "parquet"}


class LocalFiles(Source):
    """`path` is a file or a folder, read recursively.

    If its first level is named by split (folders train/ validation/ test/, or files like train.jsonl, train-00000.parquet), these are the
    splits. Else whole documents are dealt out in the order of their names' hashes: `test_share` and `validation_share` of them, at
    least one each. `column` holds the text of json and parquet rows.
    """

    def __init__(self, path: str | None, column: str, validation_share: float, test_share: float):
        self.root = existing_path(path, "local")
        self.column, self.shares = column, {"test": test_share, "validation": validation_share}
        if min(self.shares.values()) <= 0 or sum(self.shares.values()) >= 1:
            raise ConfigError(f"data.source shares {self.shares} must be above 0 and leave something to train on: lower them.")
        base = self.root if self.root.is_dir() else self.root.parent
        found = sorted(self.root.rglob("*")) if self.root.is_dir() else [self.root]
        names = {file.relative_to(base).as_posix(): file for file in found if _format(file)}
        self.files = {name: file for name, file in names.items() if not name.startswith(".") and "/." not in name}
        if not self.files:
            raise ConfigError(f"data.path={path} holds no file that ends in {', '.join(FORMATS)}: correct data.path.")

    def fingerprint(self) -> str:
        digests = file_digests(list(self.files.values()), self.memo, self.again)
        return sha256_json([dict(zip(self.files, digests, strict=True)), self.column, self.shares])

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        labels = {name: _label(name) for name in self.files}
        if not any(labels.values()):
            yield from self._dealt(split)
            return
        if missing := set(SPLITS) - set(labels.values()):
            raise ConfigError(f"data.path={self.root} has splits, but no {' and no '.join(sorted(missing))}: add it.")
        if unnamed := [name for name, label in labels.items() if not label]:
            raise ConfigError(f"data.path={self.root} has splits, but {unnamed[0]} is in none: move it into train, validation or test.")
        for name, label in labels.items():
            if label == split:
                yield from self._rows(name).items()

    def _dealt(self, split: str) -> Iterator[tuple[str, str]]:
        rows = {name: self._rows(name) for name in self.files}
        names = [document for lazy in rows.values() for document in lazy.names]
        if len(names) < 3:
            raise ConfigError(f"data.path={self.root} holds {len(names)} documents and three splits need at least 3: add documents.")
        ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        n_test, n_validation = (max(1, round(self.shares[part] * len(names))) for part in ("test", "validation"))
        chosen = {"test": ranked[:n_test], "validation": ranked[n_test : n_test + n_validation], "train": ranked[n_test + n_validation :]}
        wanted = set(chosen[split])
        for lazy in rows.values():
            yield from lazy.items(wanted)

    def _rows(self, name: str) -> Rows:
        return Rows(name, self.files[name], self.column)


class Rows:
    """The documents of one file: `names` at once, texts when asked for."""

    def __init__(self, name: str, file: Path, column: str):
        self.file, self.column, self.format = file, column, _format(file)
        self.table = None if self.format == "text" else self._load()
        self.names = [name] if self.table is None else [f"{name}:{row}" for row in range(len(self.table))]

    def items(self, wanted: set[str] | None = None) -> Iterator[tuple[str, str]]:
        """(name, text) of the documents in `wanted`, or of all."""
        for row, name in enumerate(self.names):
            if wanted is None or name in wanted:
                yield name, read_text(self.file) if self.table is None else self._cell(row)

    def _cell(self, row: int) -> str:
        text = self.table[row][self.column]
        if text is not None and not isinstance(text, str):
            raise ConfigError(
                f"Row {row} of {self.file} has {type(text).__name__} in {self.column}: set data.source.column to a text column."
            )
        return text or ""

    def _load(self) -> datasets.Dataset:
        from datasets import load_dataset
        from datasets.exceptions import DatasetGenerationError

        try:
            table = load_dataset(self.format, data_files=str(self.file), split="train")
        except (DatasetGenerationError, ValueError) as error:
            raise ConfigError(f"{self.file} cannot be read as {self.format} ({error.__cause__ or error}): correct or move it.") from error
        if self.column not in table.column_names:
            raise ConfigError(f"{self.file} has no column {self.column}: set data.source.column to one of {', '.join(table.column_names)}.")
        return table


def read_text(file: Path) -> str:
    """A file's text with its line ends as they are. Raises ConfigError when it is not UTF-8."""
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}): convert it or take it out of data.path.") from error


def _format(file: Path) -> str | None:
    name = file.name.lower()
    return next((form for ending, form in FORMATS.items() if name.endswith(ending) and file.is_file()), None)


def _label(name: str) -> str | None:
    first = name.split("/")[0].split(".")[0].split("-")[0].lower()
    return first if first in SPLITS else None
