"""Atomic files and folders, and lines that are never mixed: posbench writes every file that it
keeps through this module.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from posbench.common.errors import ConfigError, RunError

FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
LARGEST = (
    256 * 2**20
)  # bytes of a file that is read whole; posbench itself writes a few megabytes at most


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing `path`, such as a full disk, into a RunError that names it. Some
    libraries say them without an errno.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number in FULL or "No space left" in str(error) or "File too large" in str(error):
            raise RunError(
                f"No space left to write {path}: free some disk and run the same command again; no"
                " file is incomplete."
            ) from error
        if (
            number is None or number < 0 or isinstance(error, ConnectionError)
        ):  # of a network, not of a disk
            raise
        reason = os.strerror(errno.ENOTDIR if number == errno.EEXIST else number)
        named = os.fsdecode(error.filename or path)
        own = named == str(path) or named.startswith(
            str(path.parent / f".{path.stem}")
        )  # a temporary name says nothing to a user
        culprit = "" if own else f": {named}"
        raise RunError(
            f"{path} cannot be written ({reason}{culprit}): fix this, or choose another folder."
        ) from error


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it vanishes.

    Content and name are synced to the disk before this returns. Leftovers of a killed process for
    the same file are deleted first. Raises RunError when the disk is full, when `path` cannot be
    written, and when it is a link or no regular file, which would be lost."""
    path = Path(path)
    with disk_errors(path):
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(
            f".{glob.escape(path.stem)}-????????{glob.escape(path.suffix)}"
        ):
            with contextlib.suppress(OSError, RunError), opened(left) as file:
                fcntl.flock(
                    file, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # one that is being written is locked and stays
                left.unlink()
        handle, temporary = _temporary(path)
        try:
            yield temporary
            with open(temporary, "rb+") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder beside `out`; it takes that name on success and vanishes on failure.

    `out` may be an empty folder. Leftovers of a killed process are deleted first. Files are synced
    to the disk. Raises ConfigError while another process writes `out`, RunError when it cannot be
    written."""
    folder = out.with_name(f".{out.name}.part")
    with disk_errors(out), contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"Another process writes out={out}: wait for it, or give another folder."
            ) from error
        except OSError:
            pass  # a file system without locks
        for left in folder.iterdir():
            left.unlink()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(folder, out)
        sync_folder(out.parent)


def _check_replaceable(path: Path) -> None:
    if path.is_symlink() or (
        path.exists() and not path.is_file() and not path.is_dir()
    ):  # writing to a folder fails with a clear error
        raise RunError(f"{path} is a link, or no regular file: name another file, or remove it.")


def sync_folder(folder: Path) -> None:
    """Sync the names in `folder` to the disk, since a power cut may undo a rename. File systems
    that cannot do this are skipped.
    """
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _temporary(path: Path) -> tuple[int, Path]:
    """(descriptor, path) of a new file beside `path`. The open descriptor locks it while its owner
    lives.
    """
    while True:
        temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(
            handle
        ).st_nlink:  # 0: another process deleted it as abandoned before it was locked
            return handle, temporary
        os.close(handle)


def locked(path: Path) -> bool:
    """True while a living process holds the lock of a file: the .lock of a run at work, or a
    temporary file being written.
    """
    try:
        with opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, RunError) as error:
        return isinstance(error, BlockingIOError)
    return False


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write `content` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path | str, value: object) -> None:
    """Write `value` atomically as indented JSON. A nan or infinity becomes null."""
    write_atomic(path, json_text(value))


def json_text(value: object) -> str:
    """Text of a JSON file that `write_json` writes."""
    return json.dumps(finite(value), indent=1) + "\n"


def append_lines(path: Path | str, values: Iterable[object], sync: bool = False) -> None:
    """Append JSON lines to a log, each in one write, so that lines of several processes never mix;
    with `sync`, sync them to the disk.

    A last line that was cut short is ended first. Raises RunError when the disk is full, or when
    the log cannot be written or is no regular file (a link, a device)."""
    with disk_errors(Path(path)):
        _check_replaceable(Path(path))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        log = os.open(
            path,
            os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            0o666,
        )
        try:
            for value in values:
                size = os.fstat(log).st_size
                torn = size and os.pread(log, 1, size - 1) != b"\n"
                line = b"\n" * bool(torn) + json.dumps(finite(value)).encode() + b"\n"
                if os.write(log, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(log)
        finally:
            os.close(log)


def read_lines(path: Path | str) -> list[dict]:
    """Lines of a log that `append_lines` wrote, but for damaged ones; [] if it cannot be read."""
    found = []
    with contextlib.suppress(OSError, RunError):
        for line in read_bytes(path).splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def finite(value: object) -> object:
    """`value` with every nan or infinity replaced by None, since JSON has neither. Tuples become
    lists.
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return (
        None
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))
        else value
    )


def read_bytes(path: Path | str, limit: int = LARGEST) -> bytes:
    """Content of a regular file of at most `limit` bytes.

    Raises OSError when the file cannot be opened, RunError when it is no regular file or is larger
    than `limit`."""
    with opened(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise RunError(
            f"{path} has more than the {limit:,} bytes allowed for such a file: is it the right"
            " file?"
        )
    return content


def opened(path: Path | str) -> BinaryIO:
    """Open a regular file, or the file a link leads to, for reading.

    Raises OSError when it cannot be opened, RunError when it is no regular file: a FIFO or a device
    could block or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise RunError(f"{path} is not a regular file: put the file itself there, or remove it.")


def read_json(path: Path | str, limit: int = LARGEST) -> dict:
    """Value of a JSON file of at most `limit` bytes. Raises RunError when it is damaged or cannot
    be read.
    """
    try:
        return json.loads(read_bytes(path, limit).decode())
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror}): restore it, or delete it and run the same"
            " command again."
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{path} is damaged ({error}): delete it and run the same command again."
        ) from error


def sha256_file(path: Path | str) -> str:
    """Hex SHA-256 of a regular file's content."""
    with opened(path) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sha256_each(contents: Mapping[str, bytes]) -> dict[str, str]:
    """{name: hex SHA-256 of its content}, sorted by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}


def sha256_json(value: object) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
