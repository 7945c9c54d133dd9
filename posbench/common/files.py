"""Atomic files and folders, and lines that are never mixed.

posbench writes every file that it keeps through this module.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from posbench.common.errors import ConfigError, RunError

FULL_DISK_ERRNOS = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
MOST_FILE_BYTES = 256 * 2**20  # of a file that is read whole; posbench's own have a few megabytes


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing `path`, such as a full disk, into a RunError that names it."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        # Some libraries say it without an errno.
        says_full = "No space left" in str(error) or "File too large" in str(error)
        if number in FULL_DISK_ERRNOS or says_full:
            raise RunError(
                f"No space left to write {path}: free some disk and run the same command again; no"
                " file is incomplete."
            ) from error
        # None: no error of the system; below 0: of a network's names, as ConnectionError is of its
        # lines. None of these is of the disk.
        if number is None or number < 0 or isinstance(error, ConnectionError):
            raise
        raise RunError(
            f"{path} cannot be written ({_reason_not_written(error, path)}): fix this, or choose"
            " another folder."
        ) from error


def _reason_not_written(error: OSError, path: Path) -> str:
    """Reason why `path` cannot be written, and the file at fault if it is another one.

    "Permission denied", or "Not a directory: results/runs" for results/runs/ID/rows.json.
    """
    # A file in the place of a folder.
    number = errno.ENOTDIR if error.errno == errno.EEXIST else error.errno
    culprit = os.fsdecode(error.filename or path)
    temporary = str(path.parent / f".{path.stem}")  # which says nothing to a user
    if culprit == str(path) or culprit.startswith(temporary):
        return os.strerror(number)
    return f"{os.strerror(number)}: {culprit}"


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
        _delete_leftovers(path)
        handle, temporary = _locked_temporary_file(path)
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)


def _delete_leftovers(path: Path) -> None:
    """Delete the temporary files of `path` that a killed process left."""
    # named by write_atomic, with eight random signs
    leftovers = f".{glob.escape(path.stem)}-????????{glob.escape(path.suffix)}"
    for leftover in path.parent.glob(leftovers):
        with contextlib.suppress(OSError, RunError), opened(leftover) as file:
            # One that is being written is locked and stays.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


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
        for leftover in folder.iterdir():
            leftover.unlink()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(folder, out)
        sync_folder(out.parent)


def _check_replaceable(path: Path) -> None:
    """Raise RunError for a link, a device and the like. Writing to a folder fails clearly later."""
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        raise RunError(f"{path} is a link, or no regular file: name another file, or remove it.")


def sync_folder(folder: Path) -> None:
    """Sync the names in `folder` to the disk, since a power cut may undo a rename."""
    with contextlib.suppress(OSError):  # file systems that cannot do this
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _locked_temporary_file(path: Path) -> tuple[int, Path]:
    """(descriptor, path) of a new file beside `path`.

    The open descriptor locks it while its owner lives.
    """
    while True:
        temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        links = os.fstat(handle).st_nlink
        if links:  # 0: another process deleted it as abandoned before it was locked
            return handle, temporary
        os.close(handle)


def is_locked(path: Path) -> bool:
    """True while a living process holds the lock of a file.

    Such are the .lock of a run at work, and a temporary file being written.
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
    return json.dumps(nan_as_none(value), indent=1) + "\n"


def append_lines(path: Path | str, values: Iterable[object], sync: bool = False) -> None:
    """Append JSON lines to a log, each in one write: lines of several processes never mix.

    A last line that was cut short is ended first. With `sync` the disk is synced. Raises RunError
    when the disk is full, or when the log cannot be written or is no regular file (a link, a
    device)."""
    with disk_errors(Path(path)):
        _check_replaceable(Path(path))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # No waiting for a FIFO's reader, no link followed, no child that inherits the log.
        safely = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | safely, 0o666)
        try:
            for value in values:
                line = json.dumps(nan_as_none(value)).encode() + b"\n"
                size = os.fstat(log).st_size
                if size and os.pread(log, 1, size - 1) != b"\n":
                    line = b"\n" + line  # ends one that was cut short
                if os.write(log, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(log)
        finally:
            os.close(log)


def read_lines(path: Path | str) -> list[dict]:
    """Lines of a log that `append_lines` wrote, but for damaged ones; [] if it cannot be read."""
    values = []
    with contextlib.suppress(OSError, RunError):
        for line in read_bytes(path).splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                values.append(json.loads(line))
    return [value for value in values if isinstance(value, dict)]


def nan_as_none(value: object) -> object:
    """`value` with None for every nan or infinity, since JSON has neither.

    >>> nan_as_none({"nll": float("nan"), "ends": (1.0, float("inf"))})
    {'nll': None, 'ends': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: nan_as_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_as_none(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_bytes(path: Path | str, limit: int = MOST_FILE_BYTES) -> bytes:
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


def read_json(path: Path | str, limit: int = MOST_FILE_BYTES) -> dict:
    """Value of a JSON file of at most `limit` bytes.

    Raises RunError when it is damaged or cannot be read.
    """
    try:
        return json.loads(read_bytes(path, limit).decode())
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror}): restore it, or delete it and run the same"
            " command again."
        ) from error
    except RunError:  # of read_bytes, such as a file too large; it is a ValueError, too
        raise
    except (ValueError, RecursionError) as error:
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
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
