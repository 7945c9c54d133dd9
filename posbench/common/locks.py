"""Locks shared by processes of several machines. The holder writes its pid and host into the lock file."""

import contextlib
import errno
import fcntl
import os
import re
import socket
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from posbench.common.errors import RunError
from posbench.common.files import read_bytes

NONE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ESTALE, errno.EACCES}  # errors of network file systems that have no locks
OWNER = re.compile(rb"(\d+) ([\w.-]+)\n")


def acquire(lock: FileLock, wait: bool) -> None:
    """Take a lock and write its holder into the file. With `wait`, block until it is free.

    Raises Timeout while another process holds it, RunError when the file system has no locks, OSError when the file cannot be made.
    """
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        if (number := _lock_error(lock.lock_file)) in NONE:  # filelock reads EACCES as "held" and would wait forever
            raise _no_locks(lock, number) from None
        raise
    except OSError as error:
        if error.errno in NONE and error.filename is None:
            raise _no_locks(lock, error.errno) from error
        raise
    if not isinstance(lock, SoftFileLock):  # a SoftFileLock writes its own text into the file
        with contextlib.suppress(OSError):
            file = os.open(lock.lock_file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.write(file, f"{os.getpid()} {socket.gethostname()}\n".encode())
            os.close(file)


def _lock_error(path: str) -> int | None:
    """errno of an attempt to lock the file, None if it succeeds."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno
    return None


def _no_locks(lock: FileLock, number: int) -> RunError:
    return RunError(
        f"{lock.lock_file} cannot be locked ({os.strerror(number)}): mount its file system with locks (NFS: without nolock), or choose "
        "results_dir and cache_dir on another."
    )


def holder(path: Path) -> tuple[str, str]:
    """(holder, advice) for an error sentence: " (pid 7 on node1)" and, for a holder on another machine, how to remove a dead lock.

    Each is "" if unknown.
    """
    try:
        found = OWNER.fullmatch(read_bytes(path, 1000))
    except (OSError, RunError):
        found = None
    if not found:
        return "", ""
    host = found[2].decode()
    gone = "" if host == socket.gethostname() else f"; if that machine is gone for good, remove {path}"
    return f" (pid {found[1].decode()} on {host})", gone
