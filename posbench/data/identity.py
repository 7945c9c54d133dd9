"""Hashes that identify a prepared corpus. They are fast, so that a run's id is known before any text is read."""

from pathlib import Path

from posbench.common.files import sha256_json
from posbench.data.mix import mix_of
from posbench.data.sources import make_source
from posbench.data.tokenizer_files import tokenizer_identity

FORMAT = 1  # increase it when the same source and tokenizer give different token files


def content_key(cfg_data: dict, cache_dir: Path | str | None = None, again: bool = False) -> str:
    """Hex SHA-256 of source and tokenizer, which names the folder of the token files. With `again` no cached file digest is used."""
    source = make_source(cfg_data, cache_dir)
    source.again = again
    return sha256_json([FORMAT, source.fingerprint(), tokenizer_identity(cfg_data["tokenizer"], cfg_data["vocab_size"])])


def folder_key(cfg_data: dict, trained: dict | None, cache_dir: Path | str, again: bool = False) -> str:
    """content_key, or, of a text without what was `trained` on, a hash of both."""
    own = content_key(cfg_data, cache_dir, again)
    return sha256_json([own, content_key(trained, cache_dir, again)]) if trained else own


def fingerprint(cfg_data: dict, cache_dir: Path | str | None = None) -> str:
    """Hex SHA-256 of the content, tokenizer and options of a data configuration, never of paths.

    `cfg_data` is the resolved `data` group. Digests of the user's own files are cached in `cache_dir` if given.
    Raises ConfigError when the data is not available.
    """
    return with_bos(content_key(cfg_data, cache_dir), cfg_data)


def with_bos(key: str, cfg_data: dict) -> str:
    """Fingerprint for a content key. The BOS choice and a mixed task are added here, since they change no token file."""
    mix = mix_of(cfg_data)
    return sha256_json([key, bool(cfg_data["bos"]), *([mix.share, mix.task.fingerprint()] if mix else [])])
