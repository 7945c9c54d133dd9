"""Text in, token windows out. Importing this package imports no heavy library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus


def fingerprint(cfg_data: dict, cache_dir: Path | str | None = None) -> str:
    """Identity (hex SHA-256) of a data configuration: content, tokenizer and options, never paths.

    `cfg_data` is the resolved `data` group. Digests of the user's own files are remembered in `cache_dir` if given.
    Raises ConfigError when the data cannot be had here.
    """
    from posbench.data.identity import fingerprint

    return fingerprint(cfg_data, cache_dir)


def prepare(cfg_data: dict, cache_dir: Path | str, splits: Iterable[str] = ("train", "validation", "test")) -> Corpus:
    """Tokenize once into `cache_dir`, verify, memory-map; where some splits are enough, these alone, in a folder of their own.

    Raises ConfigError when the data cannot be had, RunError when what lies in `cache_dir` is damaged or the disk is full.
    """
    from posbench.data.corpus import prepare

    return prepare(cfg_data, cache_dir, splits)
