"""Files that are either whole or absent: everything posbench keeps is written through here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from posbench.common.errors import RunError

FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
DEEPEST = 100  # levels of what is read; what posbench writes has a dozen
LARGEST = 256 * 2**20  # bytes of a file that is read whole; what posbench writes of this kind has a few megabytes at most


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, and whatever else keeps `path` from being written, into a RunError that names it.

    Libraries that hide the errno are read by their message. Other files' errors pass as they are.
    """
    try:
        yield
    except Exception as error:
        hidden = "No space left" in str(error) or "File too large" in str(error) or "Disk quota" in str(error)
        if hidden or (isinstance(error, OSError) and error.errno in FULL):
            raise RunError(
                f"No space left to write {path}: free some disk and run the same command again; nothing was half-written."
            ) from error
        if isinstance(error, OSError) and error.errno is not None and _concerns(error, path):
            reason = os.strerror(errno.ENOTDIR if error.errno == errno.EEXIST else error.errno)
            raise RunError(f"{path} cannot be written ({reason}{_culprit(error, path)}): mend that, or choose another folder.") from error
        raise


def _concerns(error: OSError, path: Path) -> bool:
    """Whether an error is about `path`, its neighbours or the folders above it; a failing fsync names no file."""
    if error.filename is None:
        return error.errno == errno.EIO
    named, path = _absolute(error.filename), _absolute(path)
    return path.is_relative_to(named) or named.is_relative_to(path.parent)


def _culprit(error: OSError, path: Path) -> str:
    """Which of the folders above `path` it is, where it is one."""
    if error.filename is None:
        return ""
    named, path = _absolute(error.filename), _absolute(path)
    return f": {os.fsdecode(error.filename)}" if named != path and path.is_relative_to(named) else ""


def _absolute(path: Path | str | bytes) -> Path:
    return Path(os.path.abspath(os.fsdecode(path)))


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it vanishes.

    Both the content and the new name are on the disk when this returns. What a killed process left of the same file goes away first.
    Raises RunError when the disk is full, `path` cannot be written, or is there and no regular file: a device would be lost, and a link
    in somebody else's folder could lead anywhere.
    """
    path = Path(path)
    with disk_errors(path):
        _replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        handle, temporary = _temporary(path)
        try:
            yield temporary
            with open(temporary, "rb+") as written:
                os.fsync(written.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)


def _replaceable(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        raise RunError(f"{path} is a link to {os.readlink(path)}: name that file itself, or remove the link.")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder the rename says so
        raise RunError(f"{path} is no regular file, and would be lost: name another file.")


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk: a rename alone may be lost with the power. Some file systems know no such thing."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _temporary(path: Path) -> tuple[int, Path]:
    """A new file beside `path` and the handle that locks it for as long as its owner lives."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        with contextlib.suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else another process took it for abandoned before it was locked
            return handle, Path(name)
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Delete temporary files of `path` whose owners are gone; one that is being written is locked and stays."""
    for left in path.parent.glob(f".{glob.escape(path.stem)}-????????{glob.escape(path.suffix)}"):
        with contextlib.suppress(OSError, RunError), opened(left) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def locked(path: Path) -> bool:
    """Whether a living process holds the lock of a file: a run's .lock while it works there, a temporary file while it writes it."""
    try:
        with opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, RunError):
        return False
    return False


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
    write_atomic(path, json.dumps(finite(value), indent=1) + "\n")


def finite(value: object) -> object:
    """`value` with None for a nan or infinity: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))) else value


def read_bytes(path: Path | str, limit: int = LARGEST) -> bytes:
    """Content of a regular file of at most `limit` bytes.

    Raises OSError where the file cannot be opened, RunError for what is no regular file or larger than `limit`.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""
    if max(size, len(content)) > limit:
        raise RunError(f"{path} has more than the {limit:,} bytes that are read of such a file: is it the file that was meant?")
    return content


def opened(path: Path | str) -> BinaryIO:
    """A regular file, or the one that a link leads to, open for reading; a FIFO or a device would keep the reader waiting or never end.

    Raises OSError where it cannot be opened, RunError for what is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise RunError(f"{path} is no regular file: put the file itself there, or remove it.")


def read_json(path: Path | str, limit: int = LARGEST) -> dict:
    """Read a JSON file of at most `limit` bytes and DEEPEST levels. Raises RunError when it is damaged or cannot be read."""
    try:
        content = read_bytes(path, limit)
        value = json.loads(content.decode())
        if content.count(b"[") + content.count(b"{") > DEEPEST and _deep(value):
            raise ValueError(f"more than {DEEPEST} levels")
        return value
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): restore it, or delete it and run the same command again.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path} is damaged ({error}): delete it and run the same command again.") from error


def _deep(value: object) -> bool:
    """Whether a value has more levels than whoever walks through it should meet."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [item for one in level if isinstance(one, dict | list) for item in (one.values() if isinstance(one, dict) else one)]
    return bool(level)


def sha256_file(path: Path | str) -> str:
    """Hex SHA-256 of a regular file's content."""
    with opened(path) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
