"""Child processes of a sweep: each runs one training with its evaluations after the other. Busy
runs are tried again at the end.

The configuration limits how many run at a time; so does the memory of one GPU, by an estimate of
each job's need."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from types import FrameType

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, read_json
from posbench.common.machine import (
    GPU_FILES,
    check_jobs,
    check_processes,
    check_share,
    check_task,
    cores,
)
from posbench.common.progress import SHOWN
from posbench.common.signals import Signals, kill_group, name_parent
from posbench.runs import provenance
from posbench.sweep.cost import model_size, vocabulary
from posbench.sweep.jobs import BUSY, Job, Outcome, Result
from posbench.sweep.ledger import TAIL, record, why_ended
from posbench.sweep.live_progress import Live
from posbench.sweep.worker import Worker

# a cluster stops parent and child alike, and the child may end before the parent has noted its own
# signal
NOTED_SECONDS = 1.0
# between looks for a signal: a kernel may hand it to another thread, and Python runs handlers in
# the main one alone
NOTICE_SECONDS = 0.1
CONTEXT = 700 * 2**20  # bytes that a process takes on a GPU before it has a tensor there
ASK = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]


class Children(Signals):
    """Running child processes. A signal to this process is passed on to them, and no new child
    starts after it; a second kills them.
    """

    def __init__(self, live: Live, threads: int, command: str) -> None:
        ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        super().__init__(
            [number for number in ends if signal.getsignal(number) != signal.SIG_IGN]
        )  # under nohup it stays ignored
        self.live, self.threads, self.command = live, threads, command
        self.running: set[Worker] = set()

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self.second()
        super()._note(number, frame)
        for worker in list(self.running):
            if again:
                kill_group(worker.process.pid)
            else:
                self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        worker.process.send_signal(
            signal.SIGTERM if self.received == signal.SIGHUP else self.received
        )

    def call(self, job: Job, wait: bool, idle: list[Worker]) -> Result:
        """Run one job in a child and record its result. `idle` holds at most one worker that waits
        for a job, before and after it.
        """
        began, tail, outcomes = (
            time.monotonic(),
            deque(maxlen=TAIL),
            None,
        )  # outcomes stay None if the child ends before it writes them

        def feed(raw: bytes) -> None:
            if (line := self.live.feed(raw, job.run.id)) is not None:
                tail.append(line)

        try:
            with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
                spec = Path(folder) / "job.json"
                with disk_errors(spec):
                    spec.write_text(json.dumps({"cfgs": job.cfgs, "wait": wait}))
                processes = processes_of(job)
                worker = idle.pop() if idle and processes == 1 else None
                if worker and worker.process.poll() is not None:  # it was killed while it waited
                    self.running.discard(worker)
                    worker = None
                worker = worker or self._start(spec, processes)
                if self.received is not None:
                    self._stop(worker)
                code, stays = worker.run(spec, feed)
                if stays:
                    idle.append(worker)
                else:
                    self.running.discard(worker)
                if (written := Path(f"{spec}.outcome")).exists():
                    outcomes = [Outcome(**values) for values in read_json(written)["outcomes"]]
        except (
            OSError,
            RunError,
        ) as error:  # no process or no disk for its outcome: only this job fails
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
                reason = (
                    "ended at once by a second signal; the same command goes on from its last"
                    " checkpoint"
                )
            code, outcomes = code or 1, [Outcome("", status, reason)]
        result = Result(job, code, outcomes, time.monotonic() - began)
        record([result], self.command, tail)
        return result

    def _start(self, spec: Path, processes: int) -> Worker:
        environment = {
            "OMP_NUM_THREADS": str(max(1, self.threads // processes)),
            **os.environ,
        }  # a value set by the user stays
        environment[SHOWN] = "terminal" if self.live.terminal else "lines"
        name_parent(environment)
        shared = [str(processes)] if processes > 1 else []
        worker = Worker(
            [sys.executable, "-P", "-m", "posbench.sweep.job_process", *shared, str(spec)],
            environment,
        )
        self.running.add(worker)
        return worker


def processes_of(job: Job) -> int:
    """Number of processes of a job. A finished training is evaluated in one."""
    return 1 if job.run.finished or not job.config.trains else job.config.processes


def check_resources(jobs: list[Job], launcher: dict | None = None) -> None:
    """Raise ConfigError before any process starts if a training has more processes than this
    machine or its batches can serve.

    For the `launcher` of a cluster, the resources of its task are checked instead of this machine.
    """
    for job in jobs:
        if (processes := processes_of(job)) > 1:
            if launcher and launcher.get("via") == "slurm":
                check_task(processes, job.config.device, launcher)
            else:
                check_processes(processes, job.config.device)
            train = job.config.train
            check_share(processes, train.tokens_per_step, train.train_len)


def needed(job: Job) -> int:
    """Estimate of the bytes that a job keeps on a GPU: weights, gradients and AdamW's averages in
    float32, and what a step keeps in bf16.

    That is, of each layer the inputs of both norms, q, k, v and the hidden layer, and the scores of
    the vocabulary once in float32."""
    model, train = job.config.model, job.config.train
    tokens = (
        train.tokens_per_step // train.micro_batches
        if job.config.trains and not job.run.finished
        else 0
    )
    in_layers = 2 * tokens * model.n_layer * (6 * model.d_model + 3 * model.hidden)
    return (
        CONTEXT
        + 16 * model_size(job.config).parameters
        + in_layers
        + 4 * tokens * vocabulary(job.config)
    )


def fitting_on_gpu(jobs: Sequence[Job], parallel: int) -> int:
    """Number of jobs at a time: `parallel`, or fewer if so many of the largest do not fit on the
    smallest GPU, with a note on stderr.
    """
    on_gpu = [
        job for job in jobs if job.config.device == "auto" or job.config.device.startswith("cuda")
    ]
    if parallel == 1 or not on_gpu or not any(map(os.path.exists, GPU_FILES)):
        return parallel
    try:
        said = subprocess.run(ASK, capture_output=True, text=True, timeout=20, check=True).stdout
        there = min(int(line) for line in said.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return parallel
    each = max(map(needed, on_gpu))
    most = max(1, there // each)
    if parallel > most:
        wanted, has = parallel * each / 2**30, there / 2**30
        said = (
            f"{parallel} trainings at a time need about {wanted:.0f} GiB on a GPU of {has:.0f}:"
            f" {most} at a time"
        )
        print(said, file=sys.stderr, flush=True)
    return min(parallel, most)


def run_jobs(jobs: list[Job], parallel: int, command: str, done: int = 0) -> list[Result]:
    """Run jobs in child processes, at most `parallel` at a time. A run that another process holds
    goes to the end of the queue.

    `done` is the number of the sweep's other jobs, which need no process. A failed job does not
    stop the others. Each outcome is written to the ledger, under `command`, as soon as the job
    ends. After SIGINT, SIGTERM or SIGHUP the running jobs save and end, no new one starts, and
    KeyboardInterrupt(number) is raised. Raises ConfigError as `check_resources` does."""
    check_resources(jobs)
    queue = deque((job, False) for job in jobs)
    parallel = check_jobs(
        max(1, min(parallel, len(queue))), max(map(processes_of, jobs), default=1)
    )
    parallel = fitting_on_gpu(jobs, parallel)
    os.environ[provenance.COMMAND] = command
    lock = threading.Lock()

    def work() -> list[Result]:
        # Before the time limit a cluster sends SIGUSR2 to every process of a task. Children inherit
        # the block; the parent tells them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        results, idle = [], []
        while True:
            with lock:
                if not queue or children.received is not None:
                    break
                job, busy_before = queue.popleft()
            live.start(job.run.id)
            # Wait only for a job met twice: by then all others have had their turn.
            wait = busy_before or len(jobs) == 1
            result = children.call(job, wait, idle)
            if result.code == BUSY and not result.outcomes:
                live.put_back(job.run.id)
                with lock:
                    queue.append((job, True))
            else:
                live.finish(result)
                results.append(result)
        for worker in idle:
            worker.close()
            children.running.discard(worker)
        return results

    live = Live(len(jobs) + done, done, parallel)
    received = None
    try:
        with (
            Children(live, max(1, cores() // parallel), command) as children,
            futures.ThreadPoolExecutor(parallel) as pool,
        ):
            workers = [pool.submit(work) for _ in range(parallel)]
            while futures.wait(workers, NOTICE_SECONDS).not_done:
                pass
            results = [result for worker in workers for result in worker.result()]
            received = children.received
    finally:
        live.close(received is None)
    if received is not None:
        reason = f"not started: the command was ended by {signal.Signals(received).name}"
        record(
            [Result(job, 128 + received, [Outcome("", "interrupted", reason)]) for job, _ in queue],
            command,
        )
        raise KeyboardInterrupt(received)
    return results
