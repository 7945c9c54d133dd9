"""Logs of JSON lines. Each line is appended in one write."""

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, finite


def append_lines(path: Path | str, values: Iterable[object], sync: bool = False) -> None:
    """Append JSON lines to a log, each in one write, so that lines of several processes never mix; with `sync`, sync them to the disk.

    A last line that was cut short is ended first. Raises RunError when the disk is full, or when the log cannot be written or is no
    regular file (a link, a device).
    """
    if os.path.islink(path):
        raise RunError(f"{path} is a link to {os.readlink(path)}, which is not written to: remove the link.")
    with disk_errors(Path(path)):
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(log).st_mode):
                raise RunError(f"{path} is no regular file: remove it.")
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
