"""Source: the user's own files. A text file is one document; so is each row of a json, jsonl or parquet file."""

import hashlib
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_bytes, sha256_json
from posbench.data.sources import SPLITS, Source, check_names, existing_path, file_digests
from posbench.data.tables import count_rows, texts

FORMATS = {".txt": "text", ".md": "text", ".py": "text", ".json": "json", ".jsonl": "json", ".jsonl.gz": "json", ".parquet": "parquet"}
LARGEST_TEXT = 4 * 2**30  # bytes of a text file, which is read whole
FEW = 8  # with fewer test documents a note is printed


class LocalFiles(Source):
    """Documents of a file or a folder `path`, read recursively.

    If its first level is named by split (folders train/ validation/ test/, or files such as train.jsonl, train-00000.parquet), these
    are the splits. Otherwise whole documents are distributed by the hash of their names: `test_share` and `validation_share` of them,
    at least one each. A single text file is first cut into documents. `column` holds the text of json and parquet rows.
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
        check_names(self.files)
        if not self.files:
            raise ConfigError(f"data.path={path} has no file that ends in {', '.join(FORMATS)}: correct data.path.")

    def fingerprint(self) -> str:
        digests = file_digests(list(self.files.values()), self.memo, self.again)
        return sha256_json([dict(zip(self.files, digests, strict=True)), self.column, self.shares])

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        labels = {name: _label(name) for name in self.files}
        if not any(labels.values()):
            for rows in self._all:
                yield from rows.items(self._chosen[split])
            return
        if missing := set(SPLITS) - set(labels.values()):
            raise ConfigError(f"data.path={self.root} has splits, but no {' and no '.join(sorted(missing))}: add it.")
        if unnamed := [name for name, label in labels.items() if not label]:
            raise ConfigError(f"data.path={self.root} has splits, but {unnamed[0]} is in none: move it into train, validation or test.")
        for name, label in labels.items():
            if label == split:
                yield from Rows(name, self.files[name], self.column).items()

    @cached_property
    def _all(self) -> "list[Rows]":
        return [Rows(name, file, self.column, alone=len(self.files) == 1) for name, file in self.files.items()]

    @cached_property
    def _chosen(self) -> dict[str, set[str]]:
        """{split: names of its documents}."""
        names = [document for rows in self._all for document in rows.names]
        if len(names) < 3:
            raise ConfigError(f"data.path={self.root} holds {len(names)} documents and three splits need at least 3: add documents.")
        ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        n_test, n_validation = (max(1, round(self.shares[part] * len(names))) for part in ("test", "validation"))
        chosen = {"test": ranked[:n_test], "validation": ranked[n_test : n_test + n_validation], "train": ranked[n_test + n_validation :]}
        self._tell(len(names), chosen)
        return {part: set(names) for part, names in chosen.items()}

    def _tell(self, count: int, chosen: dict[str, list[str]]) -> None:
        """Print the distribution of documents if it may surprise: a single text was cut, or few test documents are left."""
        cut_up, few = self._all[0].pieces is not None, len(chosen["test"]) < FEW
        if not cut_up and not few:
            return
        what = f"{self.root} is one text, cut into {count} documents at line ends" if cut_up else f"{self.root} holds {count} documents"
        dealt = ", ".join(f"{len(names)} for {split}" for split, names in chosen.items())
        advice = "; intervals over so few test documents are wide: raise data.source.test_share" if few else ""
        print(f"data: {what}, dealt out: {dealt}{advice}", file=sys.stderr, flush=True)


class Rows:
    """Documents of one file. `names` are known at once, texts are read on demand. A text that is `alone` is cut into `pieces` at once."""

    def __init__(self, name: str, file: Path, column: str, alone: bool = False):
        self.file, self.column, self.format = file, column, _format(file)
        is_text = self.format == "text"
        self.pieces = cut_text(read_text(file)) if is_text and alone else None  # a single large text, as in nanoGPT
        if is_text and not alone:
            self.names = [name]
        else:
            count = len(self.pieces) if is_text else count_rows(file, self.format, column)
            self.names = [f"{name}:{row}" for row in range(count)]

    def items(self, wanted: set[str] | None = None) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of the documents in `wanted`, or of all."""
        if wanted is not None and wanted.isdisjoint(self.names):
            return
        found = self.pieces
        if found is None:
            found = [read_text(self.file)] if self.format == "text" else texts(self.file, self.format, self.column)
        for name, text in zip(self.names, found, strict=False):
            if wanted is None or name in wanted:
                yield name, text


def cut_text(text: str) -> list[str]:
    """Cut a text into parts of about equal size. Each ends at a blank line, or at least at a line end, if one is near.

    A small text has 20 parts; a large one 100 or more, of 4 thousand to a million characters. This is a compromise: confidence
    intervals need many documents, long contexts need long ones.
    """
    size = max(256, min(max(len(text) // 100, 2**12), 2**20, len(text) // 20))
    parts, start = [], 0
    while start < len(text):
        at, latest = start + size, start + 2 * size
        ends = [found + len(end) for end in ("\n\n", "\n") if (found := text.find(end, at, latest)) >= 0]
        parts.append(text[start : ends[0] if ends else at])
        start += len(parts[-1])
    return parts


def read_text(file: Path) -> str:
    """Text of a file with unchanged line ends. Raises ConfigError when it is not readable UTF-8, RunError when it is too large."""
    try:
        return read_bytes(file, LARGEST_TEXT).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}): convert it or take it out of data.path.") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): make it readable or take it out of data.path.") from error


def _format(file: Path) -> str | None:
    name = file.name.lower()
    return next((form for ending, form in FORMATS.items() if name.endswith(ending) and file.is_file()), None)


def _label(name: str) -> str | None:
    first = name.split("/")[0].split(".")[0].split("-")[0].lower()
    return first if first in SPLITS else None
