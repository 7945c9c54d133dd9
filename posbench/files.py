"""Files that are either whole or absent: everything posbench keeps is written through here."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from posbench.errors import RunError

FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk into a RunError that names `path`; libraries that hide the errno are read by their message."""
    try:
        yield
    except Exception as error:
        hidden = "No space left" in str(error) or "File too large" in str(error) or "Disk quota" in str(error)
        if hidden or (isinstance(error, OSError) and error.errno in FULL):
            raise RunError(
                f"No space left to write {path}: free some disk and run the same command again; nothing was half-written."
            ) from error
        raise


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it vanishes.

    Raises RunError when the disk is full.
    """
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with open(temporary, "rb+") as written:
                os.fsync(written.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write `content` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path | str, value: object) -> None:
    """Write `value` as indented JSON, atomically; a nan or infinity becomes null, since JSON has neither."""
    write_atomic(path, json.dumps(_finite(value), indent=1) + "\n")


def append_line(path: Path | str, value: object) -> None:
    """Append one JSON line to a log (a log may end early, but never in the middle of a line that counts)."""
    with disk_errors(Path(path)), open(path, "a", encoding="utf-8") as log:
        log.write(json.dumps(_finite(value)) + "\n")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))) else value


def read_json(path: Path | str) -> dict:
    """Read a JSON file. Raises RunError when it is damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and run the same command again.") from error


def sha256_file(path: Path | str) -> str:
    """Hex SHA-256 of a file's content."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
