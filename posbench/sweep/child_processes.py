"""Running jobs: each training with its evaluations in a child process, survivors counted, busy runs taken up again at the end."""

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
from posbench.sweep.jobs import BUSY, Job, Outcome, Result
from posbench.sweep.ledger import record
from posbench.sweep.live_progress import Live, channel, relay
from posbench.sweep.settled import begin

DRAIN_SECONDS = 5.0  # that a dead child's last words are waited for, since a grandchild may hold its stderr for ever


class Children:
    """The running child processes; a signal to this process is passed on to them, and no new one is started after it."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.running: set[subprocess.Popen] = set()
        self.received: int | None = None

    def __enter__(self) -> Children:
        self.previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
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
        """Run one job in a child; with a prefix, each of its lines bears it (several children share one terminal)."""
        began, tail = time.monotonic(), deque(maxlen=failure.TAIL)
        try:
            code, outcomes = self._run(job, wait, threads, prefix, tail)
        except (OSError, RunError) as error:  # no process, no room for its answer: this job's trouble and no other's
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
        """The child's exit code, and what it says became of its cells: None when it ended before it could say."""

        def feed(lines: list[str], drawing: str) -> None:
            tail.extend(lines)
            self.live.feed([prefix + line for line in lines], drawing and prefix + drawing, job.run.id)

        processes = processes_of(job)
        module = ["posbench.sweep.job_process"] if processes == 1 else ["posbench.sweep.torchrun_process", str(processes)]
        with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
            spec = Path(folder) / "job.json"
            with disk_errors(spec):
                spec.write_text(json.dumps({"cfgs": job.cfgs, "wait": wait}))
            environment = {"OMP_NUM_THREADS": str(max(1, threads // processes)), **os.environ}  # whoever set it knows better
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
                    process_group=0,  # Ctrl-C reaches the parent alone, which passes it on once
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
    """The processes that a job is run in: what is trained already is evaluated in one."""
    return 1 if job.run.finished or job.cfg["model"]["checkpoint"] else job.cfg["processes"]


def check(jobs: list[Job], launcher: dict | None = None) -> None:
    """Raise ConfigError, before any process is started, for a training in more processes than this machine or its batches have room for.

    With the `launcher` of a cluster it is its task that needs the room.
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
    """What `work` returns, called in so many threads at the same time."""
    with ThreadPoolExecutor(number) as pool:
        return [worker.result() for worker in [pool.submit(work) for _ in range(number)]]


def run_jobs(jobs: list[Job], parallel: int, command: str, pool: Callable = threads_pool) -> list[Result]:
    """Run what is not done yet, at most `parallel` at a time; a run that another process holds goes to the end of the queue.

    `pool` is told what to do how many times at once; each waits for its own child processes. A job that fails costs no other. Each one's
    end is in the ledger, under `command`, as soon as it comes. After SIGINT, SIGTERM or SIGHUP the running ones save and end, no new one
    starts, and KeyboardInterrupt(number) is raised. Raises ConfigError as `check` does.
    """
    done, left = begin(jobs, command, trained=True)
    check(left)
    queue = deque((job, False) for job in left)
    parallel = check_jobs(max(1, min(parallel, len(queue))), max(map(processes_of, left), default=1))
    threads = max(1, cores() // parallel)
    os.environ[provenance.COMMAND] = command
    lock = threading.Lock()

    def work() -> list[Result]:
        # A cluster signals every process of a task; what it says before a time limit is for this one, which tells the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        results = []
        while True:
            with lock:
                if not queue or children.received is not None:
                    return results
                job, busy_before = queue.popleft()
            live.start(job.run.id)
            # Only a job met twice is waited for: by then everything else has had its turn.
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
