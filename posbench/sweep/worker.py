"""Worker: a child process that runs one job after the other, since starting one (importing torch, opening CUDA) takes seconds.

The first job's spec file is its last argument, the others come on its stdin, a line each. After each job it writes `ended(...)` on stderr,
behind all lines of that job. A job that fails, or leaves too much memory behind, ends its worker, and the next one begins in a new one.
"""

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

DRAIN_SECONDS = 5.0  # to read the rest of a dead child's stderr, which a grandchild may hold open forever
LOOK_SECONDS = 1.0  # between looks whether a silent child has ended
MARK = '{"ended": '


def ended(code: int, stays: bool) -> str:
    """Line by which a worker says that its job ended with this exit code, and whether it takes another."""
    return f"{MARK}{json.dumps({'code': code, 'stays': stays})}}}"


class Worker:
    """A child process of this command line and environment, in a process group of its own: Ctrl-C reaches only the parent.

    One that is `lone` ends with its only job. Raises OSError if it cannot be started.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], lone: bool = False) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if lone else subprocess.PIPE,
            process_group=0,
        )
        self._begun = False
        self._feed: Callable[[bytes], object] = lambda raw: None
        # (exit code, whether it stays) of each job; None where stderr ends
        self._told: queue.SimpleQueue[tuple[int, bool] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def run(self, spec: Path, feed: Callable[[bytes], object]) -> tuple[int, bool]:
        """Run a job, `feed` each line of its stderr, and return its exit code (below 0: a signal), and whether the worker takes another."""
        self._feed = feed
        if not self._begun:
            self._begun = True
            self._reader.start()
        else:
            try:
                self.process.stdin.write(f"{spec}\n".encode())
                self.process.stdin.flush()
            except OSError:
                pass  # it was killed meanwhile, as its exit code says
        told = self._next()
        if told and told[1]:
            return told
        code = self.process.wait()
        self._reader.join(DRAIN_SECONDS)
        return code, False

    def _next(self) -> tuple[int, bool] | None:
        """End of the running job as its process told it; None if the process ended first, whose stderr somebody else may hold open."""
        while True:
            try:
                return self._told.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self.process.poll() is not None:
                    return None

    def close(self) -> None:
        """Let an idle worker end, and wait for it."""
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> None:
        with self.process.stderr:
            for raw in self.process.stderr:
                text, mark, said = raw.rpartition(MARK.encode())
                if text or not mark:
                    self._feed(text if mark else raw)
                if mark:
                    found = json.loads(said.rstrip()[:-1])
                    self._told.put((found["code"], found["stays"]))
        self._told.put(None)
