"""Worker: a child process that runs one job after the other, since starting one (importing torch,
opening CUDA) takes seconds.

The first job's spec file is its last argument, the others come on its stdin, a line each. After
each job it writes `ended(...)` on stderr, behind all lines of that job. That line holds a secret of
this worker, so that no other line is taken for it. A job that fails, or leaves too much memory
behind, ends its worker, and the next one begins in a new one."""

import contextlib
import json
import os
import secrets
import select
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

LOOK_SECONDS = 1.0  # between looks whether a silent child has ended
SECRET = "POSBENCH_WORKER"  # environment variable that holds the secret of a worker


def ended(secret: str, code: int, stays: bool) -> str:
    """Line by which a worker says that its job ended with this exit code, and whether it takes
    another.
    """
    return f"{secret} {json.dumps({'code': code, 'stays': stays})}"


class Worker:
    """A child process of this command line and environment, in a process group of its own: Ctrl-C
    reaches only the parent.

    Raises OSError if it cannot be started.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.secret = secrets.token_hex(16)
        environment = {**environment, SECRET: self.secret}
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdin=subprocess.PIPE, process_group=0
        )
        self._begun, self._rest = False, b""  # what was read of a line that has not ended

    def run(self, spec: Path, feed: Callable[[bytes], object]) -> tuple[int, bool]:
        """Run a job, `feed` each line of its stderr, and return its exit code (below 0: a signal),
        and whether the worker takes another.
        """
        if self._begun:
            with contextlib.suppress(OSError):  # it was killed meanwhile, as its exit code says
                self.process.stdin.write(f"{spec}\n".encode())
                self.process.stdin.flush()
        self._begun = True
        for raw in self._lines():
            text, mark, message = raw.rpartition(f"{self.secret} ".encode())
            if not mark:
                feed(raw)
                continue
            if text:
                feed(text)
            end = json.loads(message)
            if end["stays"]:
                return end["code"], True
        return self.process.wait(), False

    def close(self) -> None:
        """Let an idle worker end, and wait for it."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stderr.close()

    def _lines(self) -> Iterator[bytes]:
        """Lines of stderr until it ends, or until its process has and no more come: a grandchild
        may hold it open forever.
        """
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                yield line + newline
            elif not select.select([self.process.stderr], [], [], LOOK_SECONDS)[0]:
                if self.process.poll() is not None:
                    break
            elif chunk := os.read(self.process.stderr.fileno(), 65536):
                self._rest += chunk
            else:
                break
        if self._rest:
            yield self._rest
        self.process.stderr.close()
