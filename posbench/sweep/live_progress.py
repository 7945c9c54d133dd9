"""Live progress of a sweep: one line at the bottom of a terminal, plain lines otherwise."""

import contextlib
import json
import re
import sys
import threading
import time
from typing import NamedTuple

from posbench.common.progress import Progress
from posbench.common.secret import masked
from posbench.sweep.jobs import Result

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Live(Progress):
    """Progress line of a sweep: jobs done, running and failed, and the time left, followed by the
    progress line of one job.

    A single job shows only its own line. Several threads may call this.
    """

    def __init__(self, total: int, done: int, parallel: int) -> None:
        super().__init__(total, "sweep", "jobs")
        self.done = done
        self.shown_done = done  # `done` as the last line showed it
        self.parallel = parallel
        self.drawing = ""  # progress line of the job that wrote last, "" if that line stays
        self.lock = threading.Lock()
        self.failed = 0
        self.seconds_of_ended: list[float] = []  # of each job that ended
        self.started: dict[str, float] = {}  # {running job: when it began}
        self.ends: dict[str, float] = {}  # {job: when it ends by its own estimate}

    def start(self, job: str) -> None:
        """Register the start of a job under a unique name."""
        with self.lock:
            self.started[job] = time.monotonic()
            self.ends.pop(job, None)
            self._tell(0)

    def finish(self, result: Result) -> None:
        """Register the end of a job; an interrupted one is not done. Of a sweep, a failure is
        printed.
        """
        failures = [f"{result.job.run.id}: {outcome.reason}" for outcome in result.failures]
        interrupted = any(outcome.status == "interrupted" for outcome in result.outcomes)
        with self.lock:
            self.started.pop(result.job.run.id, None)
            self.failed += bool(failures)
            self.seconds_of_ended.append(result.seconds)
            if failures and self.total > 1:
                self._print(f"failed: {'; '.join(failures)}")
            self._tell(0 if interrupted else 1)

    def put_back(self, job: str) -> None:
        """Register that a job found its run busy and waits for another turn."""
        with self.lock:
            self.started.pop(job, None)
            self._tell(0)

    def feed(self, raw: bytes, job: str) -> str | None:
        """Show a line of a job's stderr, by name among several. Returns its text, or None for a
        progress that the next one replaces.
        """
        text, seconds_left, stays = read_line(raw)
        text = masked(text)  # a traceback may quote a server that repeats the user's key
        now = time.monotonic()
        line = f"[{job}] {text}" if self.parallel > 1 else text
        with self.lock:
            if seconds_left is not None:
                self.ends[job] = now + seconds_left
            if stays:
                self._print(line)
            self.drawing = "" if stays else line
            if self.terminal and (stays or self._is_due(now)):
                self._show(now)
        return text if stays else None

    def remaining(self) -> float | None:
        """Estimated seconds to go; None before any job ended or gave an estimate.

        A job takes the mean time of the ended ones, or its own estimate if that is longer: jobs
        differ, and the estimate of a training does not include its evaluations."""
        now = time.monotonic()
        running = self.started.items()
        estimates = [self.ends[job] - began for job, began in running if job in self.ends]
        durations = self.seconds_of_ended or estimates
        if not durations:
            return None
        mean = sum(durations) / len(durations)
        to_go = []  # seconds of each running job
        for job, began in running:
            by_itself = self.ends.get(job, now) - now
            to_go.append(max(0.0, began + mean - now, by_itself))
        n_waiting = self.total - self.done - len(self.started)
        # No less than the longest job that runs: it cannot be shared out.
        return max([(sum(to_go) + mean * n_waiting) / self.parallel, *to_go])

    def close(self, finished: bool = True) -> None:
        """Show the final state and release the terminal's line."""
        with self.lock:
            self.drawing = ""
            if self.total > 1:
                super().close(finished)
            elif self.terminal:
                # Of a single job nothing but its own line was shown: `_print` erases it.
                self._print("\r", end="")

    def _tell(self, n: int) -> None:
        # A plain line is printed between two jobs, so the number of running jobs is only shown on a
        # terminal.
        running = {"running": len(self.started)} if self.terminal else {}
        self.update(n, **running, failed=self.failed)

    def _print(self, line: str, end: str = "\n") -> None:
        # A closed terminal must not end the jobs.
        text = f"\r\x1b[K{line}" if self.terminal else line
        with contextlib.suppress(OSError):
            print(text, end=end, file=sys.stderr, flush=True)

    def _show(self, now: float, last: bool = False) -> None:
        with contextlib.suppress(OSError):
            super()._show(now, last)

    def _text(self, now: float, last: bool) -> str:
        sweep = super()._text(now, last) if self.total > 1 else ""
        return "  ".join(part for part in (sweep, self.drawing) if part)


class ChildLine(NamedTuple):
    """Line on a child's stderr: its text, the seconds left if it says so, True if it stays."""

    text: str
    seconds_left: float | None
    stays: bool


def read_line(raw: bytes) -> ChildLine:
    """Line of a child: JSON of its Progress, or text without colours and redrawing.

    >>> read_line(b'{"progress": "train 2/4", "left": 3, "stays": false}')
    ChildLine(text='train 2/4', seconds_left=3.0, stays=False)
    """
    # Behind the last carriage return: what a terminal would show.
    line = ESCAPES.sub("", raw.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2])
    if line.startswith('{"progress": '):
        # one that was cut short, or is another program's, is shown as it is
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            progress = json.loads(line)
            seconds_left = None if progress["left"] is None else float(progress["left"])
            return ChildLine(str(progress["progress"]), seconds_left, bool(progress["stays"]))
    return ChildLine(line, seconds_left=None, stays=True)
