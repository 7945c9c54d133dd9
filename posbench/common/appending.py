"""Logs that grow by a line at a time, each in one write."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, finite


def append_line(path: Path | str, value: object) -> None:
    """Append one JSON line to a log (a log may end early, but never in the middle of a line that counts).

    Raises RunError when the disk is full, or the log is no regular file but a link or a device.
    """
    with disk_errors(Path(path)), opened_log(path) as log:
        write_line(log, json.dumps(finite(value)).encode())


@contextlib.contextmanager
def opened_log(path: Path | str) -> Iterator[int]:
    """A handle that reads a log and appends to it. Raises OSError where it cannot be opened, RunError for what is no regular file."""
    if os.path.islink(path):
        raise RunError(f"{path} is a link to {os.readlink(path)}, which is not written to: remove the link.")
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RunError(f"{path} is no regular file: remove it.")
        yield handle
    finally:
        os.close(handle)


def write_line(log: int, line: bytes) -> None:
    """Append a line in one write: lines of several processes never mix. Raises OSError when the disk is full."""
    if os.write(log, line + b"\n") <= len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
