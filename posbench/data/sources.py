"""Source, the base class of all text sources, and its construction from a configuration."""

import contextlib
import inspect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, sha256_file, write_json
from posbench.config.typed_args import class_named, typed_arguments

SPLITS = ("train", "validation", "test")
TASK_TOKENIZER = "task"  # data.tokenizer of a task, whose tokens are its own (data/task.py)
MADE_OF_TEXT = ("bpe", "char")  # data.tokenizer that is made of the training split
WITHOUT_FILE = ("bytes", *MADE_OF_TEXT)  # data.tokenizer that is no file
ALL = "all"  # the documents of all splits, which may be scored where nothing is trained
_known_digests: dict[str, list] = {}  # of local files: {path: [size, mtime_ns, sha256]}


class Source:
    """Documents in three splits; no document is divided between splits.

    A user's own source needs only these methods."""

    memo: Path | None = None  # cache of the digests of local files
    again: bool = False  # read local files again for their digests, and ignore the cache

    def fingerprint(self) -> str:
        """Hex SHA-256 that changes with any document or split.

        It must be fast: neither torch nor datasets is imported."""
        raise NotImplementedError

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield (name, text) in a fixed order.

        Raises ConfigError when the data is missing or differs from the pinned data."""
        raise NotImplementedError

    def uncut(self, split: str) -> Iterator[str]:
        """Yield the whole texts of a split whose `documents` are cut, to find whole copies in other
        splits. Yields nothing otherwise.
        """
        yield from ()


def make_source(raw_data: dict, cache_dir: Path | str | None = None) -> Source:
    """Source built from the class `source._target_`, with the other keys of `source` and
    `data.path`, if any, as arguments.

    `path` stands beside `source`, not in it, since it does not identify the data; the vocab_size of
    a task stands there too. Raises ConfigError for an unknown class or argument."""
    config = raw_data["source"]
    tokenizer = raw_data.get("tokenizer")
    of_source = {key: value for key, value in config.items() if key != "_target_"}
    of_data = {}
    if "path" in raw_data:
        of_data["path"] = raw_data["path"]
    if tokenizer == TASK_TOKENIZER:
        of_data["vocab_size"] = raw_data["vocab_size"]
    source_class = class_named(config.get("_target_"))
    for method in ("fingerprint", "documents"):
        if not callable(getattr(source_class, method, None)):
            raise ConfigError(
                f"data.source._target_={config['_target_']} is not a source of documents: choose a"
                " class that is one."
            )
    if (tokenizer == TASK_TOKENIZER) != hasattr(source_class, "draw"):
        raise ConfigError(
            f"data.tokenizer={tokenizer} and data={raw_data.get('name')} do not go together: tasks"
            f" have data.tokenizer={TASK_TOKENIZER}, and texts any other."
        )
    try:
        inspect.signature(source_class).bind(**of_source, **of_data)
    except TypeError as error:
        raise ConfigError(f"data.source cannot be built from {config}: {error}.") from error
    source = source_class(
        **typed_arguments("data.source", source_class, of_source),
        **typed_arguments("data", source_class, of_data),
    )
    # Where the digests of its files are kept; None: nowhere, so each is computed again.
    source.memo = Path(cache_dir) / "digests.json" if cache_dir else None
    return source


def existing_path(path: str | None, choice: str) -> Path:
    """Path from the user's `data.path`.

    Raises ConfigError when it is not given or does not exist."""
    if not path:
        raise ConfigError(f"data={choice} needs your own files: add data.path=PATH to the command.")
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise ConfigError(
            f"data.path={path} does not exist (relative paths start at {Path.cwd()}): correct"
            " data.path."
        )
    return Path(path)


def check_names(names: Iterable[str]) -> None:
    """Raise ConfigError for a file name that is not UTF-8: it becomes the name of a document, in
    files and on the terminal.
    """
    for name in names:
        if not name.isascii() and name != name.encode(errors="replace").decode():
            raise ConfigError(
                f"data.path holds a file whose name is not UTF-8 ({ascii(name)}): rename it."
            )


def file_digests(paths: list[Path], memo: Path | None, again: bool = False) -> list[str]:
    """SHA-256 of each file.

    A file is read again only if its size or modification time changed; `memo` is the cache on
    disk. With `again` every file is read and the cache corrected. Raises ConfigError for a file
    that cannot be read."""
    # Of a damaged cache nothing is used: the files are only read again.
    with contextlib.suppress(RunError, AttributeError):
        cache = read_json(memo) if memo and memo.exists() else {}
        for path, record in cache.items():
            if isinstance(record, list) and len(record) == 3:  # size, time, digest
                _known_digests.setdefault(path, record)
    digests = []
    missed = False
    for path in paths:
        try:
            stat = path.stat()
            state = [stat.st_size, stat.st_mtime_ns]
            name = str(path.resolve())
            record = _known_digests.get(name)
            unchanged = record is not None and record[:2] == state
            if again or not unchanged:
                record = [*state, sha256_file(path)]
                _known_digests[name] = record
                missed = True
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}): make it readable, or remove it."
            ) from error
        digests.append(record[-1])
    if missed and memo:
        with contextlib.suppress(RunError):  # without a cache the files are only read again
            write_json(memo, _known_digests)
    return digests
