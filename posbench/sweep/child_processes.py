"""Child processes of a sweep: each runs one training with its evaluations. Busy runs are tried again at the end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent import futures
from pathlib import Path
from types import FrameType

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, read_json
from posbench.common.machine import check_jobs, check_processes, check_share, check_task, cores
from posbench.common.progress import SHOWN
from posbench.common.signals import Signals, kill_group, name_parent
from posbench.config.schema import typed
from posbench.runs import provenance
from posbench.sweep.jobs import BUSY, Job, Outcome, Result
from posbench.sweep.ledger import TAIL, record, why_ended
from posbench.sweep.live_progress import Live

DRAIN_SECONDS = 5.0  # to read the rest of a dead child's stderr, which a grandchild may hold open forever
NOTED_SECONDS = 1.0  # a cluster stops parent and child alike, and the child may end before the parent has noted its own signal
NOTICE_SECONDS = 0.1  # between looks for a signal: a kernel may hand it to another thread, and Python runs handlers in the main one alone


class Children(Signals):
    """Running child processes. A signal to this process is passed on to them, and no new child starts after it; a second kills them."""

    def __init__(self, live: Live) -> None:
        ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        super().__init__([number for number in ends if signal.getsignal(number) != signal.SIG_IGN])  # under nohup it stays ignored
        self.live = live
        self.running: set[subprocess.Popen] = set()

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self.second()
        super()._note(number, frame)
        for child in list(self.running):
            if again:
                kill_group(child.pid)
            else:
                self._stop(child)

    def _stop(self, child: subprocess.Popen) -> None:
        child.send_signal(signal.SIGTERM if self.received == signal.SIGHUP else self.received)

    def call(self, job: Job, wait: bool, threads: int, prefix: str, command: str) -> Result:
        """Run one job in a child and record its result. Its lines get `prefix`, if given, since several children share one terminal."""
        began, tail = time.monotonic(), deque(maxlen=TAIL)
        try:
            code, outcomes = self._run(job, wait, threads, prefix, tail)
        except (OSError, RunError) as error:  # no process or no disk for its outcome: only this job fails
            code, outcomes = 1, [Outcome("", "failed", f"could not be run: {error}")]
        if code == BUSY and not wait:
            return Result(job, BUSY)
        code = 128 - code if code < 0 else code
        if code - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and self.received is None:
            time.sleep(NOTED_SECONDS)
        if outcomes is None or (code and not outcomes):
            status = "failed" if self.received is None else "interrupted"
            reason = why_ended(code, tail)
            if self.received is not None and code == 128 + signal.SIGKILL:
                reason = "ended at once by a second signal; the same command goes on from its last checkpoint"
            code, outcomes = code or 1, [Outcome("", status, reason)]
        result = Result(job, code, outcomes, time.monotonic() - began)
        record([result], command, tail)
        return result

    def _run(self, job: Job, wait: bool, threads: int, prefix: str, tail: deque[str]) -> tuple[int, list[Outcome] | None]:
        """(exit code of the child, outcomes of its cells). Outcomes are None if it ended before it wrote them."""

        def read() -> None:
            with child.stderr:
                tail.extend(line for raw in child.stderr if (line := self.live.feed(raw, prefix, job.run.id)) is not None)

        processes = processes_of(job)
        module = ["posbench.sweep.job_process"] if processes == 1 else ["posbench.sweep.torchrun_process", str(processes)]
        with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
            spec = Path(folder) / "job.json"
            with disk_errors(spec):
                spec.write_text(json.dumps({"cfgs": job.cfgs, "wait": wait}))
            environment = {"OMP_NUM_THREADS": str(max(1, threads // processes)), **os.environ}  # a value set by the user stays
            environment[SHOWN] = "terminal" if self.live.terminal else "lines"
            name_parent(environment)
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", *module, str(spec)],
                env=environment,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C reaches only the parent, which passes it on once
            )
            reader = threading.Thread(target=read, daemon=True)
            reader.start()
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
    return 1 if job.run.finished or not job.trains else job.cfg["processes"]


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


def run_jobs(jobs: list[Job], parallel: int, command: str, done: int = 0) -> list[Result]:
    """Run jobs in child processes, at most `parallel` at a time. A run that another process holds goes to the end of the queue.

    `done` is the number of the sweep's other jobs, which need no process. A failed job does not stop the others. Each outcome is
    written to the ledger, under `command`, as soon as the job ends. After SIGINT, SIGTERM or SIGHUP the running jobs save and end, no
    new one starts, and KeyboardInterrupt(number) is raised. Raises ConfigError as `check` does.
    """
    check(jobs)
    queue = deque((job, False) for job in jobs)
    parallel = check_jobs(max(1, min(parallel, len(queue))), max(map(processes_of, jobs), default=1))
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
                live.finish(result)
                results.append(result)

    live = Live(len(jobs) + done, done, parallel)
    received = None
    try:
        with Children(live) as children, futures.ThreadPoolExecutor(parallel) as pool:
            workers = [pool.submit(work) for _ in range(parallel)]
            while futures.wait(workers, NOTICE_SECONDS).not_done:
                pass
            results = [result for worker in workers for result in worker.result()]
            received = children.received
    finally:
        live.close(received is None)
    if received is not None:
        reason = f"not started: the command was ended by {signal.Signals(received).name}"
        record([Result(job, 128 + received, [Outcome("", "interrupted", reason)]) for job, _ in queue], command)
        raise KeyboardInterrupt(received)
    return results
