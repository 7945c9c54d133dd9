"""Running jobs: each training with its evaluations in a child process, survivors counted, busy runs taken up again at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from posbench.cells import BUSY, Job, Outcome
from posbench.files import read_json


@dataclass
class Result:
    """What became of one job: its exit code and the outcomes of its cells."""

    job: Job
    code: int
    outcomes: list[Outcome] = field(default_factory=list)


class Children:
    """The running child processes; a signal to this process is passed on to them, and no new one is started after it."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen] = set()
        self.received: int | None = None

    def __enter__(self) -> Children:
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        else:
            self.previous = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _: object) -> None:
        self.received = number
        for child in list(self.running):
            child.send_signal(number)

    def call(self, job: Job, wait: bool, threads: int, prefix: str) -> Result:
        """Run one job in a child; with a prefix, each of its lines bears it (several children share one terminal)."""
        with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
            spec = Path(folder) / "job.json"
            spec.write_text(json.dumps({"cfgs": job.cfgs, "wait": wait}))
            environment = {"OMP_NUM_THREADS": str(threads), **os.environ}  # whoever set it knows better
            output = subprocess.PIPE if prefix else None
            child = subprocess.Popen(
                [sys.executable, "-m", "posbench.job", str(spec)],
                env=environment,
                stderr=output,
                stdin=subprocess.DEVNULL,
                text=bool(prefix),
                process_group=0,  # Ctrl-C reaches the parent alone, which passes it on once
            )
            self.running.add(child)
            if self.received is not None:
                child.send_signal(self.received)
            for line in child.stderr or ():
                print(f"{prefix}{line}", end="", file=sys.stderr, flush=True)
            code = child.wait()
            self.running.discard(child)
            code = 128 - code if code < 0 else code
            outcome = Path(f"{spec}.outcome")
            outcomes = [Outcome(**values) for values in read_json(outcome)["outcomes"]] if outcome.exists() else []
        if code not in (0, BUSY) and not outcomes:
            outcomes = [Outcome("", "failed", _ended(code))]
        return Result(job, code, outcomes)


def _ended(code: int) -> str:
    if code <= 128:
        return f"ended with exit code {code}; see the lines above"
    name = signal.Signals(code - 128).name if code - 128 in signal.valid_signals() else f"signal {code - 128}"
    hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
    return f"ended by {name}{hint}; the same command goes on from its last checkpoint"


def run_jobs(jobs: list[Job], parallel: int) -> list[Result]:
    """Run what is not done yet, at most `parallel` at a time; a run that another process holds goes to the end of the queue.

    A job that fails costs no other. After SIGINT or SIGTERM the running ones save and end, and no new one starts.
    """
    done = [Result(job, 0, [Outcome(cell.label, "exists") for cell in job.user_cells]) for job in jobs if job.done]
    queue = deque((job, False) for job in jobs if not job.done)
    parallel = max(1, min(parallel, len(queue)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // parallel)
    lock = threading.Lock()

    def work() -> list[Result]:
        results = []
        while True:
            with lock:
                if not queue or children.received is not None:
                    return results
                job, busy_before = queue.popleft()
                # Only a job met twice is waited for: by then everything else has had its turn.
                wait = busy_before or len(jobs) == 1
            result = children.call(job, wait, threads, f"[{job.run.id}] " if parallel > 1 else "")
            if result.code == BUSY:
                with lock:
                    queue.append((job, True))
            else:
                results.append(result)

    with Children() as children, ThreadPoolExecutor(parallel) as pool:
        workers = [pool.submit(work) for _ in range(parallel)]
        done += [result for worker in workers for result in worker.result()]
        received = children.received
    if received is not None:
        raise KeyboardInterrupt(received)
    order = {job.run.path: i for i, job in enumerate(jobs)}
    return sorted(done, key=lambda result: order[result.job.run.path])
