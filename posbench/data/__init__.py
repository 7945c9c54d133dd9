"""Data: from text to windows of tokens. Importing this package imports no heavy library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus


def fingerprint(cfg_data: dict, cache_dir: Path | str | None = None) -> str:
    """Hex SHA-256 of the content, tokenizer and options of a data configuration, never of paths.

    `cfg_data` is the resolved `data` group. Digests of the user's own files are cached in `cache_dir` if given.
    Raises ConfigError when the data is not available.
    """
    from posbench.data.identity import fingerprint

    return fingerprint(cfg_data, cache_dir)


def prepare(cfg_data: dict, cache_dir: Path | str, splits: Iterable[str] = ("train", "validation", "test")) -> Corpus:
    """Tokenize a text into `cache_dir` if it is not there yet, verify the files and memory-map them.

    Fewer `splits` than three are tokenized into a folder of their own. Raises ConfigError when the data is not available, RunError
    when files in `cache_dir` are damaged or the disk is full.
    """
    from posbench.data.corpus import prepare

    return prepare(cfg_data, cache_dir, splits)
