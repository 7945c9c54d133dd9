"""Locks shared by processes of several machines.

The holder writes its pid and host into the lock file.
"""

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, read_bytes

OWNER = re.compile(rb"(?P<pid>\d+) (?P<host>[\w.-]+)\n")


class Busy(RunError):
    """Another process works on this run. A sweep tries it again at the end."""


@contextlib.contextmanager
def hold(lock: FileLock, doing: str, wait: bool) -> Iterator[None]:
    """Hold a lock, and write its holder into the file. `doing` says what is done under it: working
    on results/runs/ID.

    Raises Busy while another process holds it; with `wait`, print one line on stderr and wait
    instead. The system releases the lock of a process that dies (on a network file system once its
    machine is back). Raises RunError when the file cannot be made or locked."""
    path = Path(lock.lock_file)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            who, advice = describe_holder(path)
            if not wait:
                raise Busy(
                    f"Another process{who} is {doing}: wait for it, or leave this run out{advice}."
                ) from None
            print(f"another process{who} is {doing}; waiting{advice}", file=sys.stderr, flush=True)
            lock.acquire(timeout=-1)  # without an end
    try:
        if not isinstance(lock, SoftFileLock):  # a SoftFileLock writes its holder by itself
            _write_holder(path)
        yield
    finally:
        lock.release()


def _write_holder(path: Path) -> None:
    """Write pid and host of this process into a lock file. Without them a message names nobody."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.write(file, f"{os.getpid()} {socket.gethostname()}\n".encode())
        os.close(file)


def describe_holder(path: Path) -> tuple[str, str]:
    """(holder, advice) for an error sentence, such as (" (pid 7 on node1)", "; if ...").

    The advice says how to remove a dead lock of another machine. Each is "" if unknown.
    """
    try:
        owner = OWNER.fullmatch(read_bytes(path, limit=1000))
    except (OSError, RunError):
        owner = None
    if not owner:
        return "", ""
    pid = owner["pid"].decode()
    host = owner["host"].decode()
    advice = ""
    if host != socket.gethostname():
        advice = f"; if that machine is gone for good, remove {path}"
    return f" (pid {pid} on {host})", advice
