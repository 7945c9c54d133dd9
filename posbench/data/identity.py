"""What a prepared corpus is made of, as one hash; quick, so that a run's name is known before anything is read."""

from __future__ import annotations

from pathlib import Path

from posbench.common.files import sha256_json
from posbench.data.sources import make_source
from posbench.data.tokenizers import tokenizer_identity

FORMAT = 1  # raise it when the same source and tokenizer would give other token files


def content_key(cfg_data: dict, cache_dir: Path | str | None = None, again: bool = False) -> str:
    """Hex SHA-256 of source and tokenizer: names the folder of the token files. With `again` no remembered digest of a file is trusted."""
    source = make_source(cfg_data, cache_dir)
    source.again = again
    return sha256_json([FORMAT, source.fingerprint(), tokenizer_identity(cfg_data["tokenizer"], cfg_data["vocab_size"])])


def fingerprint(cfg_data: dict, cache_dir: Path | str | None = None) -> str:
    """Hex SHA-256 of everything training and evaluation can see of the data (the BOS choice changes no token file)."""
    return with_bos(content_key(cfg_data, cache_dir), cfg_data)


def with_bos(key: str, cfg_data: dict) -> str:
    """The fingerprint that belongs to a content key."""
    return sha256_json([key, bool(cfg_data["bos"])])
