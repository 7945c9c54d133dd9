"""Logs of JSON lines. Each line is appended in one write."""

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
    """Append one JSON line to a log. The log may end in a line cut short, which does not count.

    Raises RunError when the disk is full, or when the log is no regular file (a link, a device).
    """
    with disk_errors(Path(path)), opened_log(path) as log:
        write_line(log, json.dumps(finite(value)).encode())


@contextlib.contextmanager
def opened_log(path: Path | str) -> Iterator[int]:
    """Yield a file descriptor that reads a log and appends to it.

    Raises OSError when it cannot be opened, RunError when it is no regular file.
    """
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
    """Append a line in one write, so that lines of several processes never mix. Raises OSError when the disk is full."""
    if os.write(log, line + b"\n") <= len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
