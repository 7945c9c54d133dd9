"""Shutdown on a signal without losing work.

The first signal waits for a checkpoint, the second ends everything at once.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, MutableMapping
from types import FrameType

PARENT_VARIABLE = "POSBENCH_PARENT"  # process id of the parent; when it dies the child stops too
# Set where a scheduler sends several signals for one stop: none of them is a second one.
PATIENT_VARIABLE = "POSBENCH_PATIENT"
WATCH_SECONDS = 0.5  # between checks that the parent lives
ORPHAN_SECONDS = 60.0  # that a child without its parent has to save
# Within these, signals are one stop: a terminal or a cluster may signal a child beside its parent.
SAME_STOP_SECONDS = 1.0


class Stopped(SystemExit):
    """Exit after a signal, raised once work is saved.

    Uncaught, the process exits with 128 + the signal number.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(128 + number)  # as a shell reports a signal
        self.number = number
        self.message = message


class Signals:
    """Context that holds back signals, by default SIGINT and SIGTERM.

    `received` is the first signal, and `check` raises Stopped for it. Later signals change nothing
    here: `end_at_second` and the parent of a child see to them. Outside the main thread Python
    allows no handlers, so nothing is held back there.
    """

    def __init__(self, numbers: Iterable[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.numbers = numbers
        self.received: int | None = None
        self.first_signal_at = 0.0
        self.previous_handlers: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                self.previous_handlers[number] = signal.signal(number, self.note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
        if isinstance(error, Stopped):
            # Printed here because a progress line inside the block has ended by now.
            name = signal.Signals(error.number).name
            print(f"{name}: {error.message}", file=sys.stderr, flush=True)

    def check(self, message: str) -> None:
        """Raise Stopped if a signal came. `message` tells the user how far the work is."""
        if self.received is not None:
            raise Stopped(self.received, message)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Keep the first signal and its time; a handler of Python's, which gives it the frame."""
        if self.received is None:
            self.received = number
            self.first_signal_at = time.monotonic()

    def is_second_stop(self) -> bool:
        """True if a signal that comes now asks a second time to stop."""
        return (
            self.received is not None
            and time.monotonic() - self.first_signal_at > SAME_STOP_SECONDS
            and PATIENT_VARIABLE not in os.environ
        )


def name_parent(environment: MutableMapping[str, str]) -> None:
    """Name this process as the parent in an environment: children stop when it dies."""
    environment[PARENT_VARIABLE] = str(os.getpid())


def kill_group(leader: int) -> None:
    """Kill a process at once, and if it leads a group all processes in it, such as compilers."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(leader) == leader:
            os.killpg(leader, signal.SIGKILL)
        else:
            os.kill(leader, signal.SIGKILL)


def end_at_second() -> None:
    """Kill this process at the second stop, wherever it is.

    A handler of Python's would wait for the end of a call into C. This watches from another thread,
    where C releases the interpreter."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)

    def watch() -> None:
        """Kill this process group at a stop that comes after another one."""
        stops = Signals(())  # handles none, but counts what is noted here
        while numbers := receiver.recv(64):  # a byte for each signal; up to 64 at once
            for number in numbers:
                if number not in (signal.SIGINT, signal.SIGTERM):
                    continue
                # asked before this stop is noted
                if stops.is_second_stop():
                    kill_group(os.getpid())
                stops.note(number, frame=None)

    threading.Thread(target=watch, daemon=True, name="second stop").start()


def die_with_parent() -> None:
    """Send this process SIGTERM when its parent is gone, so that it saves a checkpoint and stops.

    What does not come to a saved state in ORPHAN_SECONDS is killed: the last saved state stays.

    Otherwise a child of a killed parent would hold its run, and the machine, for hours. A parent
    killed before this call counts too."""
    parent = os.environ.get(PARENT_VARIABLE)

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        kill_group(os.getpid())

    if parent:  # unset for a process started by hand
        threading.Thread(target=watch, daemon=True, name="parent").start()
