"""Child processes of a sweep: each runs one training with its evaluations. Busy runs are tried again at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, read_json
from posbench.common.machine import check_jobs, check_processes, check_share, check_task, cores
from posbench.common.signals import name_parent
from posbench.config.schema import typed
from posbench.runs import provenance
from posbench.sweep import failure
from posbench.sweep.fate import begin
from posbench.sweep.jobs import BUSY, Job, Outcome, Result
from posbench.sweep.ledger import record
from posbench.sweep.live_progress import Live, channel, relay

DRAIN_SECONDS = 5.0  # to read the rest of a dead child's stderr, which a grandchild may hold open forever


class Children:
    """Running child processes. A signal to this process is passed on to them, and no new child starts after it."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.running: set[subprocess.Popen] = set()
        self.received: int | None = None

    def __enter__(self) -> Children:
        self.previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # under nohup it stays ignored
                    self.previous[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _: object) -> None:
        self.received = number
        for child in list(self.running):
            self._stop(child)

    def _stop(self, child: subprocess.Popen) -> None:
        child.send_signal(signal.SIGTERM if self.received == signal.SIGHUP else self.received)

    def call(self, job: Job, wait: bool, threads: int, prefix: str, command: str) -> Result:
        """Run one job in a child. Its lines get `prefix`, if given, since several children share one terminal."""
        began, tail = time.monotonic(), deque(maxlen=failure.TAIL)
        try:
            code, outcomes = self._run(job, wait, threads, prefix, tail)
        except (OSError, RunError) as error:  # no process or no disk for its outcome: only this job fails
            code, outcomes = 1, [Outcome("", "failed", f"could not be run: {error}")]
        if code == BUSY and not wait:
            return Result(job, BUSY)
        code = 128 - code if code < 0 else code
        if outcomes is None or (code and not outcomes):
            status = "failed" if self.received is None else "interrupted"
            code, outcomes = code or 1, [Outcome("", status, failure.reason(code, tail))]
        result = Result(job, code, outcomes, time.monotonic() - began)
        failure.keep(result, tail, command)
        return result

    def _run(self, job: Job, wait: bool, threads: int, prefix: str, tail: deque[str]) -> tuple[int, list[Outcome] | None]:
        """(exit code of the child, outcomes of its cells). Outcomes are None if it ended before it wrote them."""

        def feed(lines: list[str], drawing: str) -> None:
            tail.extend(lines)
            self.live.feed([prefix + line for line in lines], drawing and prefix + drawing, job.run.id)

        processes = processes_of(job)
        module = ["posbench.sweep.job_process"] if processes == 1 else ["posbench.sweep.torchrun_process", str(processes)]
        with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
            spec = Path(folder) / "job.json"
            with disk_errors(spec):
                spec.write_text(json.dumps({"cfgs": job.cfgs, "wait": wait}))
            environment = {"OMP_NUM_THREADS": str(max(1, threads // processes)), **os.environ}  # a value set by the user stays
            name_parent(environment)
            read, write = channel(self.live.terminal)
            reader = threading.Thread(target=relay, args=(read, feed), daemon=True)
            reader.start()
            try:
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", *module, str(spec)],
                    env=environment,
                    stderr=write,
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C reaches only the parent, which passes it on once
                )
            finally:
                os.close(write)
            self.running.add(child)
            if self.received is not None:
                self._stop(child)
            code = child.wait()
            self.running.discard(child)
            reader.join(DRAIN_SECONDS)
            outcome = Path(f"{spec}.outcome")
            return code, [Outcome(**values) for values in read_json(outcome)["outcomes"]] if outcome.exists() else None


def processes_of(job: Job) -> int:
    """Number of processes of a job. A finished training is evaluated in one."""
    return 1 if job.run.finished or job.cfg["model"]["checkpoint"] else job.cfg["processes"]


def check(jobs: list[Job], launcher: dict | None = None) -> None:
    """Raise ConfigError before any process starts if a training has more processes than this machine or its batches can serve.

    For the `launcher` of a cluster, the resources of its task are checked instead of this machine.
    """
    for job in jobs:
        if (processes := processes_of(job)) > 1:
            if launcher and launcher.get("via") == "slurm":
                check_task(processes, job.cfg["device"], launcher)
            else:
                check_processes(processes, job.cfg["device"])
            train = typed("train", job.cfg["train"])
            check_share(processes, train.tokens_per_step, train.train_len)


def threads_pool(work: Callable[[], list[Result]], number: int) -> list[list[Result]]:
    """Results of `work`, called in this many threads at the same time."""
    with ThreadPoolExecutor(number) as pool:
        return [worker.result() for worker in [pool.submit(work) for _ in range(number)]]


def run_jobs(jobs: list[Job], parallel: int, command: str, pool: Callable = threads_pool) -> list[Result]:
    """Run unfinished jobs, at most `parallel` at a time. A run that another process holds goes to the end of the queue.

    `pool(work, n)` calls `work` n times at once; each call waits for its own child processes. A failed job does not stop the others.
    Each outcome is written to the ledger, under `command`, as soon as the job ends. After SIGINT, SIGTERM or SIGHUP the running jobs
    save and end, no new one starts, and KeyboardInterrupt(number) is raised. Raises ConfigError as `check` does.
    """
    done, left = begin(jobs, command, trained=True)
    check(left)
    queue = deque((job, False) for job in left)
    parallel = check_jobs(max(1, min(parallel, len(queue))), max(map(processes_of, left), default=1))
    threads = max(1, cores() // parallel)
    os.environ[provenance.COMMAND] = command
    lock = threading.Lock()

    def work() -> list[Result]:
        # Before the time limit a cluster sends SIGUSR2 to every process of a task. Children inherit the block; the parent tells them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        results = []
        while True:
            with lock:
                if not queue or children.received is not None:
                    return results
                job, busy_before = queue.popleft()
            live.start(job.run.id)
            # Wait only for a job met twice: by then all others have had their turn.
            wait = busy_before or len(jobs) == 1
            result = children.call(job, wait, threads, f"[{job.run.id}] " if parallel > 1 else "", command)
            if result.code == BUSY and not result.outcomes:
                live.put_back(job.run.id)
                with lock:
                    queue.append((job, True))
            else:
                record([result], command)
                live.finish(result.seconds, "; ".join(f"{job.run.id}: {outcome.reason}" for outcome in result.failures), job.run.id)
                results.append(result)

    live = Live(len(jobs), len(done), parallel)
    received = None
    try:
        with Children(live) as children:
            done += [result for found in pool(work, parallel) for result in found]
            received = children.received
    finally:
        live.close(received is None)
    if received is not None:
        reason = f"not started: the command was ended by {signal.Signals(received).name}"
        record([Result(job, 0, [Outcome("", "interrupted", reason)]) for job, _ in queue], command)
        raise KeyboardInterrupt(received)
    order = {job.run.path: i for i, job in enumerate(jobs)}
    return sorted(done, key=lambda result: order[result.job.run.path])
