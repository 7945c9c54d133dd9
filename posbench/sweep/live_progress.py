"""What a sweep shows while it runs: one line for all of it at the bottom of a terminal, plain lines elsewhere."""

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
    """Count jobs: done, running, failed, time left; on a terminal, what a job draws of itself stands at the line's end.

    A single job has no line but its own. Several threads may call it.
    """

    def __init__(self, total: int, done: int, parallel: int) -> None:
        super().__init__(total, "sweep", "jobs")
        self.skip(done)
        self.parallel, self.drawing, self.lock = parallel, "", threading.Lock()
        self.failed = 0
        self.seconds: list[float] = []
        self.started: dict[str, float] = {}  # of the jobs that run, when they began,
        self.ends: dict[str, float] = {}  # and when they end by their own last word

    @property
    def running(self) -> int:
        """Jobs that run."""
        return len(self.started)

    def start(self, job: str = "") -> None:
        """A job begins, known by a name of its own."""
        with self.lock:
            self.started[job] = time.monotonic()
            self._tell(0)

    def finish(self, seconds: float, failure: str = "", job: str = "") -> None:
        """A job ended after so many seconds; `failure` says how it failed."""
        with self.lock:
            self._forget(job)
            self.failed += bool(failure)
            self.seconds.append(seconds)
            if failure and self.total > 1:
                self._print(f"failed: {failure}")
            self._tell(1)

    def put_back(self, job: str = "") -> None:
        """A job found its run busy and waits for another turn."""
        with self.lock:
            self._forget(job)
            self._tell(0)

    def feed(self, lines: list[str], drawing: str, job: str = "") -> None:
        """Print a job's lines; `drawing` is what it overwrites itself (a progress line, empty when there is none)."""
        with self.lock:
            for said in (*lines, drawing):
                if (left := seconds_left(said)) is not None:
                    self.ends[job] = time.monotonic() + left
            for line in lines:
                self._print(line)
            self.drawing = drawing if self.terminal else ""  # elsewhere it is the first half of a line
            if self.terminal and (lines or self._due(time.monotonic())):
                self._show(time.monotonic())

    def remaining(self) -> float | None:
        """Seconds to go; None before any job ended or said how long it takes.

        A job takes as long as the mean of those that ended, or as it says itself where that is more: it may be one of several kinds, and
        says nothing yet of what comes after its training.
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
        # A plain line comes when a job ends, and the next one has not begun: how many run is told where the line stays.
        self.update(n, **({"running": self.running} if self.terminal else {}), failed=self.failed)

    def _print(self, line: str, end: str = "\n") -> None:
        # A terminal that was closed must not end the jobs, which save what they have.
        with contextlib.suppress(OSError):
            print(f"\r\x1b[K{line}" if self.terminal else line, end=end, file=sys.stderr, flush=True)

    def _show(self, now: float, last: bool = False) -> None:
        with contextlib.suppress(OSError):
            super()._show(now, last)

    def _text(self, now: float, last: bool) -> str:
        return "  ".join(filter(None, (super()._text(now, last) if self.total > 1 else "", self.drawing)))


def channel(terminal: bool) -> tuple[int, int]:
    """Descriptors to read and to write a child's stderr by; where there is a terminal, the child has one too and draws its progress."""
    return pty.openpty() if terminal else os.pipe()


def relay(read: int, feed: Callable[[list[str], str], None]) -> None:
    """Hand on what arrives at `read` until its writers are gone, then close it: whole lines, and what the unfinished last one shows."""
    decoder, rest = getincrementaldecoder("utf-8")("replace"), ""
    with contextlib.suppress(OSError):  # EIO, a terminal's end of file
        while chunk := os.read(read, 1 << 16):
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            rest = rest[max(0, rest.rstrip("\r").rfind("\r")) :]
            feed([_visible(line) for line in lines], _visible(rest))
    os.close(read)
    feed([_visible(rest)] if _visible(rest) else [], "")


def _visible(line: str) -> str:
    """What a terminal shows of a line that returns to its start: the last drawing, without colours."""
    return ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])
