"""Source: a folder of books with train/, validation/ and test/, one .txt file per book; optionally
train-extra/.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_file, sha256_json
from posbench.data.local import read_text
from posbench.data.sources import SPLITS, Source, check_names, existing_path, file_digests

EXTRA_FOLDER = "train-extra"


class Book(NamedTuple):
    """Line of the manifest. Without a manifest all fields are ""."""

    digest: str = ""  # SHA-256 of the text
    stratum: str = ""
    author: str = ""


class Books(Source):
    """Books in the folder `path`.

    An optional MANIFEST.jsonl gives `file`, `order` and `sha256` of each book. A `stratum` in
    the manifest becomes part of the document's name (test/other/ulysses.txt), for
    evaluate.documents. `skip_test_bytes` skips the beginning of every test book (title page,
    contents) up to the next line. A whole copy of a test book in train or validation is left out
    there. `test_extra` scores the books of train-extra/ too whose `author` in the manifest has
    no book in train/ or validation/; their names stay train-extra/...."""

    def __init__(
        self, path: str | None, train_extra: bool, skip_test_bytes: int, test_extra: bool = False
    ):
        self.root = existing_path(path, "books")
        self.folders = {split: [split] for split in SPLITS}
        if train_extra and test_extra:
            raise ConfigError(
                "data.source.train_extra=true and data.source.test_extra=true would score books of"
                " the training: leave one of them out."
            )
        if train_extra:
            self.folders["train"].append(EXTRA_FOLDER)
        if test_extra:
            self.folders["test"].append(EXTRA_FOLDER)
        self.test_extra = test_extra
        if skip_test_bytes < 0:
            raise ConfigError(
                f"data.source.skip_test_bytes={skip_test_bytes} must be 0 or more bytes."
            )
        self.skip_test_bytes = skip_test_bytes  # of each test book: title page and contents
        for folder in self._all_folders():
            if not (self.root / folder).is_dir():
                raise ConfigError(
                    f"data.path={path} has no {folder}/: choose a folder with train/, validation/"
                    " and test/."
                )
        self.manifest = self.root / "MANIFEST.jsonl"
        # Extra books are scored only where the training has none of their author.
        if test_extra and not self.manifest.exists():
            raise ConfigError(
                f"data.source.test_extra=true needs the author of each book, and {self.manifest}"
                " does not exist: write one (configs/data/books.yaml), or leave test_extra out."
            )

    def fingerprint(self) -> str:
        options = [self.folders, self.skip_test_bytes]
        books = self._books_by_name()
        if self.manifest.exists():
            digests = {name: book.digest for name, book in books.items()}
            content = sha256_file(self.manifest)
        else:
            files = [self.root / name for name in books]
            of_files = file_digests(files, self.memo, self.again)
            digests = dict(zip(books, of_files, strict=True))
            content = digests
        if self.skip_test_bytes and self._has_test_copies(digests):
            # new fingerprint: older token files still hold these copies
            options.append("no copies of test books")
        return sha256_json([content, options])

    def _has_test_copies(self, digests: dict[str, str]) -> bool:
        """True if a book of test/ stands in train or validation too.

        Extra books of the test are not asked: token files with them never held such copies."""
        test = set()
        other = set()
        for name, digest in digests.items():
            folder = name.split("/")[0]
            if folder == "test":
                test.add(digest)
            if folder in (*self.folders["train"], "validation"):
                other.add(digest)
        return bool(test & other)

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        for name, text in self._whole_books(split):
            if split == "test" and self.skip_test_bytes:
                text = from_next_line(text, self.skip_test_bytes)
            yield name, text

    def uncut(self, split: str) -> Iterator[str]:
        if split == "test" and self.skip_test_bytes:
            yield from (text for _, text in self._whole_books(split))

    def _all_folders(self) -> list[str]:
        return [folder for folders in self.folders.values() for folder in folders]

    def _whole_books(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield (name, whole text) of the books of a split.

        Of train-extra/ the test has no book of an author that train/ or validation/ knows."""
        books = self._books_by_name()
        known_authors = set()
        if split == "test" and self.test_extra:
            known_authors = self._authors_of_training(books)
        for folder in self.folders[split]:
            for name, book in books.items():
                if not name.startswith(f"{folder}/"):
                    continue
                if split == "test" and folder == EXTRA_FOLDER and book.author in known_authors:
                    continue
                text = self._read_book(name, book)
                if book.stratum:
                    name = f"{folder}/{book.stratum}/{name.split('/')[1]}"
                yield name, text

    def _read_book(self, name: str, book: Book) -> str:
        """Text of a book. Raises ConfigError where it is not the one of the manifest, if there is
        one.
        """
        path = self.root / name
        if not path.is_file():
            raise ConfigError(
                f"{path} is listed in {self.manifest} but does not exist: restore the book,"
                " or remove the manifest."
            )
        text = read_text(path)
        # Without a manifest there is no digest to compare with.
        if book.digest and hashlib.sha256(text.encode()).hexdigest() != book.digest:
            raise ConfigError(
                f"{path} differs from the book in {self.manifest} (by SHA-256): restore it,"
                " or remove the manifest."
            )
        return text

    def _authors_of_training(self, books: dict[str, Book]) -> set[str]:
        """Authors of train/ and validation/.

        Raises ConfigError where a book of train-extra/ has no author."""
        authors = set()
        for name, book in books.items():
            if name.startswith(f"{EXTRA_FOLDER}/") and not book.author:
                raise ConfigError(
                    "data.source.test_extra=true needs the author of each book, and"
                    f" {self.manifest} has none of {name}: add it, or leave test_extra out."
                )
            if name.startswith(("train/", "validation/")):
                authors.add(book.author)
        return authors

    def _books_by_name(self) -> dict[str, Book]:
        """{"folder/name": Book} in the manifest's order; without one, the files in theirs."""
        if self.manifest.exists():
            books = self._books_of_manifest()
        else:
            books = {}
            for folder in self._all_folders():
                for path in sorted((self.root / folder).glob("*.txt")):
                    books[path.relative_to(self.root).as_posix()] = Book()
        check_names(books)
        return books

    def _books_of_manifest(self) -> dict[str, Book]:
        """{"folder/name": Book} of the manifest, by `order`, those without one last."""
        content = read_text(self.manifest)
        try:
            rows = [json.loads(line) for line in content.splitlines() if line.strip()]
            rows.sort(key=lambda row: (row["order"] == "", row["order"] or 0, row["file"]))
            books = {}
            for row in rows:
                name = "/".join(row["file"].split("/")[-2:])
                books[name] = Book(row["sha256"], row.get("stratum", ""), row.get("author", ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{self.manifest} is not a list of books ({error!r}): restore it, or remove it."
            ) from error
        return books


def from_next_line(text: str, n_bytes: int) -> str:
    """`text` from the first line that begins at or after byte `n_bytes`; without one, from the
    first character there.
    """
    if n_bytes == 0:
        return text
    content = text.encode()
    end = content.find(b"\n", n_bytes - 1)  # a line that begins at n_bytes counts
    rest = content[end + 1 :] if end >= 0 else b""
    return (rest or content[n_bytes:]).decode(errors="ignore")  # without a part of a character
