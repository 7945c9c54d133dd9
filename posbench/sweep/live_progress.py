"""Live progress of a sweep: one line at the bottom of a terminal, plain lines otherwise."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable

from posbench.common.progress import Progress, seconds_left

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Live(Progress):
    """Progress line of a sweep: jobs done, running and failed, and the time left, followed by the progress line of one job.

    A single job shows only its own line. Several threads may call this.
    """

    def __init__(self, total: int, done: int, parallel: int) -> None:
        super().__init__(total, "sweep", "jobs")
        self.skip(done)
        self.parallel, self.drawing, self.lock = parallel, "", threading.Lock()
        self.failed = 0
        self.seconds: list[float] = []
        self.started: dict[str, float] = {}  # {running job: when it began}
        self.ends: dict[str, float] = {}  # {running job: when it ends by its own estimate}

    @property
    def running(self) -> int:
        """Number of running jobs."""
        return len(self.started)

    def start(self, job: str = "") -> None:
        """Register the start of a job under a unique name."""
        with self.lock:
            self.started[job] = time.monotonic()
            self._tell(0)

    def finish(self, seconds: float, failure: str = "", job: str = "") -> None:
        """Register the end of a job after `seconds`. `failure` is the reason if it failed."""
        with self.lock:
            self._forget(job)
            self.failed += bool(failure)
            self.seconds.append(seconds)
            if failure and self.total > 1:
                self._print(f"failed: {failure}")
            self._tell(1)

    def put_back(self, job: str = "") -> None:
        """Register that a job found its run busy and waits for another turn."""
        with self.lock:
            self._forget(job)
            self._tell(0)

    def feed(self, lines: list[str], drawing: str, job: str = "") -> None:
        """Print lines of a job. `drawing` is its current progress line, or ""."""
        with self.lock:
            for said in (*lines, drawing):
                if (left := seconds_left(said)) is not None:
                    self.ends[job] = time.monotonic() + left
            for line in lines:
                self._print(line)
            self.drawing = drawing if self.terminal else ""  # without a terminal it is the first half of a line
            if self.terminal and (lines or self._due(time.monotonic())):
                self._show(time.monotonic())

    def remaining(self) -> float | None:
        """Estimated seconds to go; None before any job ended or gave an estimate.

        A job takes the mean time of the ended ones, or its own estimate if that is longer: jobs differ, and the estimate of a
        training does not include its evaluations.
        """
        now = time.monotonic()
        told = [self.ends[job] - began for job, began in self.started.items() if job in self.ends]
        known = self.seconds or told
        if not known:
            return None
        each = sum(known) / len(known)
        left = [max(0.0, began + each - now, self.ends.get(job, now) - now) for job, began in self.started.items()]
        waiting = self.total - self.done - self.running
        return max([(sum(left) + each * waiting) / self.parallel, *left])

    def close(self, finished: bool = True) -> None:
        """Show the final state and release the terminal's line."""
        with self.lock:
            self.drawing = ""
            if self.total > 1:
                super().close(finished)
            elif self.terminal:
                self._print("\r", end="")

    def _forget(self, job: str) -> None:
        self.started.pop(job, None)
        self.ends.pop(job, None)

    def _tell(self, n: int) -> None:
        # A plain line is printed between two jobs, so the number of running jobs is only shown on a terminal.
        self.update(n, **({"running": self.running} if self.terminal else {}), failed=self.failed)

    def _print(self, line: str, end: str = "\n") -> None:
        # A closed terminal must not end the jobs.
        with contextlib.suppress(OSError):
            print(f"\r\x1b[K{line}" if self.terminal else line, end=end, file=sys.stderr, flush=True)

    def _show(self, now: float, last: bool = False) -> None:
        with contextlib.suppress(OSError):
            super()._show(now, last)

    def _text(self, now: float, last: bool) -> str:
        return "  ".join(filter(None, (super()._text(now, last) if self.total > 1 else "", self.drawing)))


def channel(terminal: bool) -> tuple[int, int]:
    """(read, write) descriptors for a child's stderr: a pseudo-terminal if this process has a terminal, so that it draws progress."""
    return pty.openpty() if terminal else os.pipe()


def relay(read: int, feed: Callable[[list[str], str], None]) -> None:
    """Pass on everything that arrives at `read` until its writers are gone, then close it: whole lines, and the unfinished last one."""
    decoder, rest = getincrementaldecoder("utf-8")("replace"), ""
    with contextlib.suppress(OSError):  # EIO is the end of file of a terminal
        while chunk := os.read(read, 1 << 16):
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            rest = rest[max(0, rest.rstrip("\r").rfind("\r")) :]
            feed([_visible(line) for line in lines], _visible(rest))
    os.close(read)
    feed([_visible(rest)] if _visible(rest) else [], "")


def _visible(line: str) -> str:
    """Visible text of a line with carriage returns: the last drawing, without colours."""
    return ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])
