"""Worker: a child process that runs one job after the other.

Starting one takes seconds, in which it imports torch and opens CUDA. The first job's spec file is
its last argument, the others come on its stdin, a line each. After each job it writes `ended(...)`
on stderr, behind all lines of that job. That line holds a secret of this worker, so that no other
line is taken for it. A job that fails, or leaves too much memory behind, ends its worker, and the
next one begins in a new one."""

import contextlib
import json
import os
import secrets
import select
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 1.0  # between looks whether a silent child has ended
CHUNK = 2**16  # bytes
SECRET = "POSBENCH_WORKER"  # environment variable that holds the secret of a worker


class JobEnd(NamedTuple):
    """End of a job: exit code (below 0: a signal), and whether its worker takes another job."""

    code: int
    stays: bool


def end_line(secret: str, code: int, stays: bool) -> str:
    """Line by which a worker tells the end of its job.

    >>> end_line("5f1c", 0, stays=True)
    '5f1c {"code": 0, "stays": true}'
    """
    return f"{secret} {json.dumps({'code': code, 'stays': stays})}"


class Worker:
    """Child process of this command line and environment. Raises OSError if it cannot be started.

    It is in a process group of its own: Ctrl-C reaches only the parent.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.secret = secrets.token_hex(16)  # by which the line that ends a job is known
        environment = {**environment, SECRET: self.secret}
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdin=subprocess.PIPE, process_group=0
        )
        self._had_job = False
        self._unread = b""  # begin of a line that has not ended

    def run(self, spec: Path, feed: Callable[[bytes], object]) -> JobEnd:
        """Run a job, and `feed` each line of its stderr."""
        if self._had_job:  # the first spec is a word of its command
            with contextlib.suppress(OSError):  # it was killed meanwhile, as its exit code says
                self.process.stdin.write(f"{spec}\n".encode())
                self.process.stdin.flush()
        self._had_job = True
        for line in self._lines():
            # The line that `end_line` writes; text that had no newline may stand before it.
            text_before, secret, message = line.rpartition(f"{self.secret} ".encode())
            if not secret:
                feed(line)
                continue
            if text_before:
                feed(text_before)
            end = JobEnd(**json.loads(message))
            if end.stays:
                return end
            # Otherwise it is about to exit: its last lines are read, and its exit code counts.
        return JobEnd(self.process.wait(), stays=False)

    def close(self) -> None:
        """Let an idle worker end, and wait for it."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stderr.close()

    def _lines(self) -> Iterator[bytes]:
        """Lines of stderr until it ends.

        A grandchild may hold it open forever: so also until the process ended and no more come.
        """
        stderr = self.process.stderr
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                yield line + newline
                continue
            can_read, _, _ = select.select([stderr], [], [], LOOK_SECONDS)
            if can_read:
                chunk = os.read(stderr.fileno(), CHUNK)
                if not chunk:
                    break
                self._unread += chunk
            elif self.process.poll() is not None:
                break
        if self._unread:
            yield self._unread
        stderr.close()
