"""Progress on stderr: a line that updates on a terminal, a few plain lines elsewhere.

A parent that shows the progress of this process gets JSON.
"""

import bisect
import itertools
import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager

from posbench.common.quantities import clock

TERMINAL_SECONDS = 0.2  # minimum between two updates of the line
PLAIN_SECONDS = 5.0  # at least this long between two plain lines,
PLAIN_SHARE = 0.1  # and at least this share of the work
PERCENTAGE_FROM = 100_000  # totals from here on are shown as a percentage
RECENT_PIECES = 50  # updates used for the remaining time
# Variable in which a parent process says where it shows this one's progress: "terminal" or "lines".
PLACE_AT_PARENT = "POSBENCH_PROGRESS"


class Progress(AbstractContextManager):
    """Counter of `total` units of work.

    with Progress(1000, "train", "steps") as progress:
        progress.update(1, loss=3.2)

    `work` is the effort of all units together, in any measure, where units differ in it: `update`
    has that of each. With None every unit is as much, 1."""

    def __init__(self, total: int, label: str, unit: str, work: float | None = None) -> None:
        self.total = total
        self.done = 0
        self.label = label
        self.unit = unit
        self.work = total if work is None else work
        self.work_done = 0.0
        # where a parent process shows this progress; None for a process that shows it itself
        self.place_at_parent = os.environ.get(PLACE_AT_PARENT)
        self.terminal = self.place_at_parent == "terminal" or sys.stderr.isatty()
        self.began = time.monotonic()
        self.updated_at = self.began
        self.piece_began = self.began
        self.piece_work = 0.0  # work done of the current piece
        # (seconds per unit of work, work) of each
        self.recent_pieces: deque[tuple[float, float]] = deque(maxlen=RECENT_PIECES)
        # Time of the last line; a terminal shows the first one at once.
        self.shown_at = 0.0 if self.terminal else self.began
        self.shown_done = 0
        self.figures: dict[str, object] = {}  # {name: value}, shown behind the count

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
        """Add `n` finished units of the work `each`.

        `figures` are shown beside the count until a later update replaces them. Units with `part`
        set belong to a piece of work that an update without it ends. Units with `spared` set were
        done before, or need not be done: they count towards the share and not towards the speed."""
        now = self.updated_at = time.monotonic()
        self.done += n
        self.work_done += n * each
        if not spared:
            self.piece_work += n * each
        self.figures |= figures
        if not part:
            if self.piece_work:
                seconds_per_work = (now - self.piece_began) / self.piece_work
                self.recent_pieces.append((seconds_per_work, self.piece_work))
            self.piece_began = now
            self.piece_work = 0.0
        if self._is_due(now):
            self._show(now)

    def remaining(self) -> float | None:
        """Estimated seconds to go, None before the first update.

        The median of recent updates is used, so that one validation or one slow step does not
        change it. Each counts by its work. The piece in progress counts, too, since one long text
        may be slower for its work than the many short ones before it."""
        pieces = list(self.recent_pieces)  # (seconds per unit of work, weight)
        if self.piece_work:
            pieces.append(((self.updated_at - self.piece_began) / self.piece_work, self.piece_work))
        if not pieces:
            return None
        return _weighted_median(pieces) * max(0.0, self.work - self.work_done)

    def close(self, finished: bool = True) -> None:
        """Show the final state and release the terminal's line."""
        drawn = self.terminal and not self.place_at_parent
        if finished and not (drawn and self.shown_done == self.done):
            self._show(time.monotonic(), last=True)
        if drawn:
            print(file=sys.stderr, flush=True)

    def _is_due(self, now: float) -> bool:
        if self.terminal:
            return now - self.shown_at >= TERMINAL_SECONDS
        enough = self.done - self.shown_done >= PLAIN_SHARE * self.total
        # The end has a line of its own.
        return enough and now - self.shown_at >= PLAIN_SECONDS and self.done < self.total

    def _show(self, now: float, last: bool = False) -> None:
        """Show the progress: as JSON for a parent that draws it, over the last line of a terminal,
        or as a line of its own."""
        self.shown_at = now
        self.shown_done = self.done
        text = self._text(now, last)
        if self.place_at_parent:
            seconds_left = None if last else self.remaining()
            message = {
                "progress": text,
                "left": seconds_left,
                "stays": last or not self.terminal,  # the next one does not overwrite it
            }
            # The parent reads what is behind the last "\r" of a line, so that an unfinished line of
            # other code, such as a progress bar, does not hide the JSON.
            print(f"\r{json.dumps(message)}", file=sys.stderr, flush=True)
        elif self.terminal:
            width = shutil.get_terminal_size().columns - 1  # a full line would wrap
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _text(self, now: float, last: bool) -> str:
        """The line of progress, such as "train 10/100 steps  loss 4.91  3m00s left"."""
        share = f"{self.done}/{self.total}"
        if self.total >= PERCENTAGE_FROM:
            share = f"{self.done / self.total:.0%} of {self.total / 1e6:.1f} M"
        parts = [f"{self.label} {share} {self.unit}"]
        for name, value in self.figures.items():
            parts.append(f"{name} {_figure_text(value)}")
        seconds_left = self.remaining()
        if last:
            parts.append(f"took {clock(now - self.began)}")
        elif seconds_left is not None:
            parts.append(f"{clock(seconds_left)} left")
        return "  ".join(parts)


def _weighted_median(pieces: Iterable[tuple[float, float]]) -> float:
    """Median of (value, weight): half of the weight lies on either side.

    >>> _weighted_median([(1.0, 1.0), (2.0, 1.0), (9.0, 5.0)])
    9.0
    >>> _weighted_median([(1.0, 1.0), (2.0, 1.0)])
    1.5
    """
    values, weights = zip(*sorted(pieces), strict=True)
    cumulative = list(itertools.accumulate(weights))
    half = sum(weights) / 2
    low = values[bisect.bisect_left(cumulative, half)]
    high = values[bisect.bisect_right(cumulative, half)]
    return (low + high) / 2


def _figure_text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
