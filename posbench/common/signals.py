"""Ending on a signal without losing work."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import MutableMapping
from types import FrameType

PARENT = "POSBENCH_PARENT"  # the process id of the parent whose end is a child's own
WATCH_SECONDS = 0.5  # between looks for it


class Stopped(SystemExit):
    """Work ended by a signal after saving; uncaught, the process exits with 128 + the signal's number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(128 + number)
        self.number, self.message = number, message


class Signals:
    """Hold back SIGINT and SIGTERM inside the block: `received` names the first, `check` raises Stopped for it.

    Later ones are ignored: Ctrl-C reaches a child from the terminal and once more from the parent that passes it on.
    Outside the main thread, where Python allows no handlers, nothing is held back.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.previous: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if isinstance(error, Stopped):
            # Here, since a progress line inside the block has ended by now.
            print(f"{signal.Signals(error.number).name}: {error.message}", file=sys.stderr, flush=True)

    def check(self, message: str) -> None:
        """Raise Stopped if a signal came; `message` tells the user where things stand."""
        if self.received is not None:
            raise Stopped(self.received, message)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number


def name_parent(environment: MutableMapping[str, str]) -> None:
    """Tell the children started with this environment whose end is theirs too: this process's."""
    environment[PARENT] = str(os.getpid())


def die_with_parent() -> None:
    """Be told to stop, with a checkpoint, when the process that started this one was killed outright: a child that nobody waits for
    would hold its run, and the machine, for hours. One that was killed before this call counts as well.
    """
    parent = os.environ.get(PARENT)

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent:  # not of one that was started by hand
        threading.Thread(target=watch, daemon=True, name="parent").start()
