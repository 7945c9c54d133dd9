"""Progress on stderr: one line that updates on a terminal, a few plain lines otherwise, JSON for a
parent that shows it.
"""

import bisect
import itertools
import json
import os
import shutil
import sys
import time
from collections import deque
from contextlib import AbstractContextManager

TERMINAL_SECONDS = 0.2  # minimum between two updates of the line
PLAIN_SECONDS = 5.0  # at least this long between two plain lines,
PLAIN_SHARE = 0.1  # and at least this share of the work
MANY = 100_000  # totals from here on are shown as a percentage
RECENT = 50  # updates used for the remaining time
SHOWN = (  # "terminal" or "lines": where a parent shows the progress of this process
    "POSBENCH_PROGRESS"
)


class Progress(AbstractContextManager):
    """Counter of `total` units of work: `with Progress(1000, "train", "step") as progress:
    progress.update(1, loss=3.2)`.

    Where units differ in their work, `work` is that of all of them, and `update` tells that of
    each."""

    def __init__(self, total: int, label: str, unit: str, work: float | None = None) -> None:
        self.total, self.label, self.unit, self.done = total, label, unit, 0
        self.work, self.worked = total if work is None else work, 0.0
        self.parent = os.environ.get(SHOWN)
        self.terminal = self.parent == "terminal" or sys.stderr.isatty()
        self.began = self.last = time.monotonic()
        self.shown_at, self.shown_done = (0.0 if self.terminal else self.began), 0
        self.piece, self.seen = (
            0.0,
            self.began,
        )  # work of the current piece, and the time of the last update
        self.pieces: deque[tuple[float, float]] = deque(maxlen=RECENT)  # seconds per work, and work
        self.figures: dict[str, object] = {}

    def __exit__(self, kind: type | None, *_: object) -> None:
        self.close(finished=kind is None)

    def update(
        self,
        n: int = 1,
        part: bool = False,
        each: float = 1.0,
        spared: bool = False,
        **figures: object,
    ) -> None:
        """Add `n` finished units of the work `each`. `figures` are shown beside the count until a
        later update replaces them.

        Units with `part` set belong to a piece of work that an update without it ends. Units with
        `spared` set were done before, or need not be done: they count towards the share and not
        towards the speed."""
        now = self.seen = time.monotonic()
        self.done += n
        self.worked += n * each
        self.piece += 0.0 if spared else n * each
        self.figures |= figures
        if not part:
            if self.piece:
                self.pieces.append(((now - self.last) / self.piece, self.piece))
            self.last, self.piece = now, 0.0
        if self._due(now):
            self._show(now)

    def remaining(self) -> float | None:
        """Estimated seconds to go, None before the first update.

        The median of recent updates is used, so that one validation or one slow step does not
        change it. Each counts by its work, also what is done of a piece that has not ended: one
        long text may take longer than its work says by many short ones before it."""
        known = [
            *self.pieces,
            *([((self.seen - self.last) / self.piece, self.piece)] if self.piece else []),
        ]
        if not known:
            return None
        values, weights = zip(*sorted(known), strict=True)
        upto, half = (
            list(itertools.accumulate(weights)),
            sum(weights) / 2,
        )  # of the weight lies on either side of the median
        median = (
            values[bisect.bisect_left(upto, half)] + values[bisect.bisect_right(upto, half)]
        ) / 2
        return median * max(0.0, self.work - self.worked)

    def close(self, finished: bool = True) -> None:
        """Show the final state and release the terminal's line."""
        drawn = self.terminal and not self.parent
        if finished and not (drawn and self.shown_done == self.done):
            self._show(time.monotonic(), last=True)
        if drawn:
            print(file=sys.stderr, flush=True)

    def _due(self, now: float) -> bool:
        if self.terminal:
            return now - self.shown_at >= TERMINAL_SECONDS
        enough = self.done - self.shown_done >= PLAIN_SHARE * self.total
        return enough and now - self.shown_at >= PLAIN_SECONDS and self.done < self.total

    def _show(self, now: float, last: bool = False) -> None:
        self.shown_at, self.shown_done = now, self.done
        text = self._text(now, last)
        if self.parent:
            told = {
                "progress": text,
                "left": None if last else self.remaining(),
                "stays": last or not self.terminal,
            }
            print(f"\r{json.dumps(told)}", file=sys.stderr, flush=True)
        elif self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _text(self, now: float, last: bool) -> str:
        share = (
            f"{self.done / self.total:.0%} of {self.total / 1e6:.1f} M"
            if self.total >= MANY
            else f"{self.done}/{self.total}"
        )
        parts = [f"{self.label} {share} {self.unit}"]
        parts += [f"{name} {_figure_text(value)}" for name, value in self.figures.items()]
        left = self.remaining()
        if last:
            parts.append(f"took {_duration(now - self.began)}")
        elif left is not None:
            parts.append(f"{_duration(left)} left")
        return "  ".join(parts)


def _figure_text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}h{minutes:02d}m"
        if hours
        else f"{minutes}m{seconds:02d}s"
        if minutes
        else f"{seconds}s"
    )
