"""Child processes of a sweep: each runs one training with its evaluations after the other.

Busy runs are tried again at the end. The configuration limits how many run at a time; so does the
memory of one GPU, by an estimate of each job's need."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent import futures
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, read_json
from posbench.common.machine import (
    GPU_FILES,
    check_processes,
    check_processes_of_task,
    check_windows_for_processes,
    cores,
    jobs_at_a_time,
)
from posbench.common.outcome import BUSY, Outcome
from posbench.common.progress import PLACE_AT_PARENT
from posbench.common.signals import Signals, kill_group, name_parent
from posbench.runs import provenance
from posbench.sweep.cost import model_size, vocabulary
from posbench.sweep.jobs import Job, Result
from posbench.sweep.ledger import TAIL, record, why_ended
from posbench.sweep.live_progress import Live
from posbench.sweep.worker import Worker

# a cluster stops parent and child alike, and the child may end before the parent has noted its own
# signal
NOTED_SECONDS = 1.0
# between looks for a signal: a kernel may hand it to another thread, and Python runs handlers in
# the main one alone
NOTICE_SECONDS = 0.1
CUDA_CONTEXT_BYTES = 700 * 2**20  # bytes that a process takes on a GPU before it has a tensor there
GPU_MEMORY_COMMAND = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildEnd(NamedTuple):
    """End of a job in a child: exit code, and the outcomes; None if it wrote none before."""

    code: int
    outcomes: list[Outcome] | None


class Children(Signals):
    """Running child processes.

    A signal to this process is passed on to them, and no new child starts after it; a second kills
    them.
    """

    def __init__(self, live: Live, threads: int, command: str) -> None:
        # under nohup SIGHUP stays ignored
        super().__init__(
            [stop for stop in STOP_SIGNALS if signal.getsignal(stop) != signal.SIG_IGN]
        )
        self.live = live
        self.threads = threads
        self.command = command
        self.running: set[Worker] = set()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on: the first one stops the children, a second one kills them."""
        again = self.is_second_stop()
        super().note(number, frame)
        for worker in list(self.running):
            if again:
                kill_group(worker.process.pid)
            else:
                self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        number = signal.SIGTERM if self.received == signal.SIGHUP else self.received
        worker.process.send_signal(number)

    def call(self, job: Job, wait: bool, idle: list[Worker]) -> Result:
        """Run one job in a child and record its result.

        `idle` holds at most one worker that waits for a job, before and after it.
        """
        began = time.monotonic()
        tail = deque(maxlen=TAIL)

        def feed(raw: bytes) -> None:
            line = self.live.feed(raw, job.run.id)
            if line is not None:
                tail.append(line)

        try:
            code, outcomes = self._run(job, wait, idle, feed)
        except (OSError, RunError) as error:
            # no process or no disk for its outcome: only this job fails
            code = 1
            outcomes = [Outcome(label="", status="failed", reason=f"could not be run: {error}")]
        # A job that waits for its run does not end as busy: with this code it has failed.
        if code == BUSY and not wait:
            return Result(job, BUSY)
        if code < 0:  # Popen's code of a signal; 128 + signal is a shell's
            code = 128 - code
        # The child was stopped: this process may be about to note the same signal.
        if code - 128 in STOP_SIGNALS and self.received is None:
            time.sleep(NOTED_SECONDS)
        # None: it ended before it wrote any. []: there was none to tell, which is right for one
        # that succeeded; one that was stopped writes [] once its work is saved.
        if outcomes is None or (code and not outcomes):
            outcomes = [self._unwritten_outcome(code, tail)]
            code = code or 1  # a job that tells nothing has failed
        result = Result(job, code, outcomes, time.monotonic() - began)
        record([result], self.command, tail)
        return result

    def _run(
        self, job: Job, wait: bool, idle: list[Worker], feed: Callable[[bytes], None]
    ) -> ChildEnd:
        """Run one job in the idle worker, or in a new one. Raises OSError if none can start."""
        with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
            spec = Path(folder) / "job.json"
            with disk_errors(spec):
                spec.write_text(json.dumps({"job": job.as_dict(), "wait": wait}))
            processes = processes_of(job)
            # A worker is one process: a training of several gets new ones.
            worker = idle.pop() if idle and processes == 1 else None
            if worker and worker.process.poll() is not None:  # it was killed while it waited
                self.running.discard(worker)
                worker = None
            worker = worker or self._start(spec, processes)
            if self.received is not None:  # a signal that came before the worker was in `running`
                self._stop(worker)
            end = worker.run(spec, feed)
            if end.stays:
                idle.append(worker)
            else:
                self.running.discard(worker)
            outcome_file = Path(f"{spec}.outcome")
            if not outcome_file.exists():
                return ChildEnd(end.code, None)
            outcomes = [Outcome(**values) for values in read_json(outcome_file)["outcomes"]]
            return ChildEnd(end.code, outcomes)

    def _unwritten_outcome(self, code: int, tail: Collection[str]) -> Outcome:
        """Outcome of a child that ended by this code before it wrote one.

        Its label is "", for the job as a whole: no cell is known to be the cause."""
        if self.received is None:
            return Outcome(label="", status="failed", reason=why_ended(code, tail))
        if code == 128 + signal.SIGKILL:
            reason = (
                "ended at once by a second signal; the same command goes on from its last"
                " checkpoint"
            )
            return Outcome(label="", status="interrupted", reason=reason)
        return Outcome(label="", status="interrupted", reason=why_ended(code, tail))

    def _start(self, spec: Path, processes: int) -> Worker:
        """A new worker, which begins with the job of a spec file."""
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, self.threads // processes)))
        # how this process shows the progress of the worker
        environment[PLACE_AT_PARENT] = "terminal" if self.live.terminal else "lines"
        name_parent(environment)
        words = [str(processes), str(spec)] if processes > 1 else [str(spec)]
        # -P: no file of the working directory is taken for a module.
        command = [sys.executable, "-P", "-m", "posbench.sweep.job_process", *words]
        worker = Worker(command, environment)
        self.running.add(worker)
        return worker


def processes_of(job: Job) -> int:
    """Number of processes of a job. A finished training is evaluated in one."""
    return 1 if job.run.finished or not job.config.trains else job.config.processes


def check_resources(jobs: list[Job], launcher: dict | None = None) -> None:
    """Raise ConfigError if a training has more processes than the machine or its batches serve.

    It is called before any process starts. For the `launcher` of a cluster, the resources of its
    task are checked instead of this machine.
    """
    for job in jobs:
        processes = processes_of(job)
        if processes > 1:
            if launcher and launcher.get("via") == "slurm":
                check_processes_of_task(processes, job.config.device, launcher)
            else:
                check_processes(processes, job.config.device)
            train = job.config.train
            check_windows_for_processes(processes, train.tokens_per_step, train.train_len)


def needed_gpu_bytes(job: Job) -> int:
    """Estimate of the bytes that a job keeps on a GPU.

    These are weights, gradients and AdamW's averages in float32, and what a step keeps in bf16: of
    each layer six vectors of the model's width (the inputs of both norms, q, k, v and the output of
    attention) and three of the hidden layer's (gate, up and their product). The scores of the
    vocabulary are there once, in float32."""
    model = job.config.model
    train = job.config.train
    tokens = 0  # an evaluation keeps nothing for a backward pass
    if job.config.trains and not job.run.finished:
        tokens = train.tokens_per_step // train.micro_batches
    in_weights = 16 * model_size(job.config).parameters  # four numbers of 4 bytes
    in_layers = 2 * tokens * model.n_layer * (6 * model.d_model + 3 * model.hidden)  # 2 bytes
    in_scores = 4 * tokens * vocabulary(job.config)  # 4 bytes
    return CUDA_CONTEXT_BYTES + in_weights + in_layers + in_scores


def fitting_on_gpu(jobs: Sequence[Job], parallel: int) -> int:
    """Number of jobs at a time: `parallel`, or as many of the largest as fit on the smallest GPU.

    A note on stderr says that they are fewer.
    """
    on_gpu = [
        job for job in jobs if job.config.device == "auto" or job.config.device.startswith("cuda")
    ]
    if parallel == 1 or not on_gpu or not any(map(os.path.exists, GPU_FILES)):
        return parallel
    try:
        answer = subprocess.run(
            GPU_MEMORY_COMMAND, capture_output=True, text=True, timeout=20, check=True
        ).stdout
        smallest = min(int(line) for line in answer.split()) * 2**20  # it answers in MiB
    except (OSError, ValueError, subprocess.SubprocessError):
        return parallel  # nothing is known of the memory, so the user's number stands
    largest_need = max(needed_gpu_bytes(job) for job in on_gpu)
    most = max(1, smallest // largest_need)
    if parallel <= most:
        return parallel
    print(
        f"{parallel} trainings at a time need about {parallel * largest_need / 2**30:.0f} GiB on a"
        f" GPU of {smallest / 2**30:.0f}: {most} at a time",
        file=sys.stderr,
        flush=True,
    )
    return most


def run_jobs(jobs: list[Job], parallel: int, command: str, done: int = 0) -> list[Result]:
    """Run jobs in child processes, at most `parallel` at a time.

    A run that another process holds goes to the end of the queue. `done` is the number of the
    sweep's other jobs, which need no process. A failed job does not stop the others. Each outcome
    is written to the ledger, under `command`, as soon as the job ends. After SIGINT, SIGTERM or
    SIGHUP the running jobs save and end, no new one starts, and KeyboardInterrupt(number) is
    raised. Raises ConfigError as `check_resources` does."""
    check_resources(jobs)
    most_processes = max(map(processes_of, jobs), default=1)
    parallel = jobs_at_a_time(max(1, min(parallel, len(jobs))), most_processes)
    parallel = fitting_on_gpu(jobs, parallel)
    os.environ[provenance.COMMAND_VARIABLE] = command
    queue = deque((job, False) for job in jobs)  # (job, whether its run was busy before)
    live = Live(len(jobs) + done, done, parallel)
    received = None
    try:
        with (
            Children(live, max(1, cores() // parallel), command) as children,
            futures.ThreadPoolExecutor(parallel) as pool,
        ):
            only_job = len(jobs) == 1
            threads = [
                pool.submit(_results_of_thread, queue, children, only_job) for _ in range(parallel)
            ]
            while futures.wait(threads, NOTICE_SECONDS).not_done:
                pass  # Python runs the handler of a signal here, in the main thread
            results = [result for thread in threads for result in thread.result()]
            received = children.received
    finally:
        live.close(finished=received is None)
    if received is not None:
        reason = f"not started: the command was ended by {signal.Signals(received).name}"
        # "": of the whole job, not of one evaluation.
        outcome = Outcome(label="", status="interrupted", reason=reason)
        record([Result(job, 128 + received, [outcome]) for job, _ in queue], command)
        raise KeyboardInterrupt(received)
    return results


def _results_of_thread(
    queue: deque[tuple[Job, bool]], children: Children, only_job: bool
) -> list[Result]:
    """Results of the jobs that one thread takes from the queue, until that is empty.

    Each item is a job, and whether its run was busy before. Several threads share a queue.
    """
    # Before the time limit a cluster sends SIGUSR2 to every process of a task. Children inherit
    # the block; the parent tells them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    results: list[Result] = []
    idle: list[Worker] = []
    while children.received is None:
        try:
            job, busy_before = queue.popleft()
        except IndexError:
            break
        children.live.start(job.run.id)
        # Wait only for a job met twice: by then all others have had their turn.
        result = children.call(job, wait=busy_before or only_job, idle=idle)
        # `call` gives an outcome to every end but that of a busy run that did not wait.
        try_again = result.code == BUSY and not result.outcomes
        if try_again:
            children.live.put_back(job.run.id)
            queue.append((job, True))
        else:
            children.live.finish(result)
            results.append(result)
    for worker in idle:
        worker.close()
        children.running.discard(worker)
    return results
