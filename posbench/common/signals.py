"""Shutdown on a signal without losing work."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, MutableMapping
from types import FrameType

PARENT = "POSBENCH_PARENT"  # process id of the parent; when it dies the child stops too
WATCH_SECONDS = 0.5  # between checks that the parent lives


class Stopped(SystemExit):
    """Exit after a signal, raised once work is saved. Uncaught, the process exits with 128 + the signal number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(128 + number)
        self.number, self.message = number, message


class Signals:
    """Context that holds back signals, by default SIGINT and SIGTERM: `received` is the first signal, `check` raises Stopped for it.

    Later signals are ignored, since Ctrl-C reaches a child twice: from the terminal and from its parent.
    Outside the main thread Python allows no handlers, so nothing is held back there.
    """

    def __init__(self, numbers: Iterable[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.numbers = numbers
        self.received: int | None = None
        self.previous: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._note) for number in self.numbers}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if isinstance(error, Stopped):
            # Printed here because a progress line inside the block has ended by now.
            print(f"{signal.Signals(error.number).name}: {error.message}", file=sys.stderr, flush=True)

    def check(self, message: str) -> None:
        """Raise Stopped if a signal came. `message` tells the user how far the work is."""
        if self.received is not None:
            raise Stopped(self.received, message)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number


def name_parent(environment: MutableMapping[str, str]) -> None:
    """Set POSBENCH_PARENT to this process, so that children started with this environment stop when it dies."""
    environment[PARENT] = str(os.getpid())


def die_with_parent() -> None:
    """Watch the parent process and send this one SIGTERM when the parent is gone, so that it saves a checkpoint and stops.

    Otherwise a child of a killed parent would hold its run, and the machine, for hours. A parent killed before this call counts too.
    """
    parent = os.environ.get(PARENT)

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent:  # unset for a process started by hand
        threading.Thread(target=watch, daemon=True, name="parent").start()
