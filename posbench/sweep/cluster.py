"""Queue of trainings on a cluster: submit them by submitit, wait for them, collect their outcomes.

A spec file describes the work of a task, SPEC.task holds its id and log, SPEC.outcome its outcome.
All lie beside submitit's own files, on the file system that the nodes share. Nothing is unpickled
here. submitit would ask sacct for the states of tasks, which needs a database that not every
cluster has; squeue answers on all of them."""

import os
import subprocess
import sys
import time
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import read_json, write_json
from posbench.common.machine import cores, jobs_at_a_time
from posbench.common.outcome import Outcome
from posbench.common.quantities import plural
from posbench.common.signals import PATIENT_VARIABLE
from posbench.position.trusted import CONFIG_DIRS_VARIABLE
from posbench.sweep.cluster_executor import make_executor
from posbench.sweep.cluster_task import Task
from posbench.sweep.jobs import Job, Result
from posbench.sweep.ledger import TAIL, record
from posbench.sweep.live_progress import Live
from posbench.sweep.verdict import already_done

ENDED_STATES = set(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED"
    " TIMEOUT".split()
)
LOOK_SECONDS = 1.0  # between two checks for outcomes
ASK_SECONDS = 5.0  # between two queries to the cluster
LOST_SECONDS = 10.0  # until an outcome is visible on a network file system
SQUEUE = "squeue --noheader --array --states=all --format=%F_%K|%T"


@dataclass
class Submitted:
    """Submitted task of the cluster: its job, files, id and last known state."""

    job: Job
    spec: Path
    id: str
    log: Path
    handle: object = None  # submitit's job object, for tasks of this command
    # since when the cluster says that it ended, or no longer knows it
    ended_since: float | None = None


class Queue:
    """Queue of one launcher's cluster. `states` is {task id: last state that it reported}."""

    tasks_per_array = 1000  # tasks per array; the default of SLURM's MaxArraySize is 1001

    def __init__(self, launcher: dict, command: str) -> None:
        self.slurm = launcher["via"] == "slurm"
        self.command = command
        self.states: dict[str, str] = {}
        self.query_time = 0.0
        # SLURM queues tasks without room; submitit's local stand-in starts everything at once.
        self.most_tasks = sys.maxsize if self.slurm else jobs_at_a_time(max(1, launcher["n_jobs"]))
        self.executor = make_executor(launcher)
        # What follows holds %j, the id of a job, which is not known yet.
        self.folder = Path(os.path.abspath(launcher["submitit_folder"].partition("%")[0]))

    def submit(self, jobs: list[Job]) -> list[Submitted]:
        """Submit jobs, several as one array. Raises RunError when the cluster refuses them."""
        specs = [self.folder / f"{job.run.id}-{uuid.uuid4().hex[:8]}.json" for job in jobs]
        shared = {"command": self.command, "environment": self._environment()}
        for spec, job in zip(specs, jobs, strict=True):
            write_json(spec, {"job": job.as_dict(), **shared})
        try:
            handles = self.executor.map_array(Task(), map(str, specs))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            for spec in specs:
                spec.unlink()
            message = str(error).strip() or repr(error)
            last_line = message.splitlines()[-1]
            raise RunError(f"The cluster does not take the jobs: {last_line}") from error
        tasks = []
        for job, spec, handle in zip(jobs, specs, handles, strict=True):
            log = handle.paths.stderr
            tasks.append(Submitted(job, spec, handle.job_id, log, handle))
            write_json(_file_beside(spec, "task"), {"id": handle.job_id, "log": str(log)})
        if self.slurm:
            number = plural(len(jobs), "training")
            _say(f"{number} submitted to SLURM as job {_array_ids(tasks)}, logs in {self.folder}")
        return tasks

    def attach(self, queued: deque[Job]) -> list[Submitted]:
        """Tasks of an earlier command with the same jobs that the cluster still has.

        Their jobs are removed from `queued`.
        """
        if not self.slurm:
            return []
        earlier = []
        for job in queued:
            content = job.as_dict()
            for path in self.folder.glob(f"{job.run.id}-????????.json.task"):
                spec = path.with_suffix("")  # `submit` writes SPEC and SPEC.task
                task = read_json(path)
                if spec.exists() and read_json(spec).get("job") == content:
                    earlier.append(Submitted(job, spec, task["id"], Path(task["log"])))
        if earlier:
            # after the ids were read, so that a task submitted meanwhile does not seem gone
            self._query(earlier)
        # One task for each job, if two commands submitted it.
        running = {task.job.run.path: task for task in earlier if not self._has_ended(task)}
        for task in running.values():
            queued.remove(task.job)
        return list(running.values())

    def ended(self, tasks: list[Submitted]) -> list[tuple[Submitted, Result]]:
        """(task, result) of the tasks that ended since the last call. Their files are deleted."""
        now = time.monotonic()
        if now - self.query_time > ASK_SECONDS:
            self._query(tasks)
            for task in tasks:
                # Since when it has ended, unless it was put back meanwhile.
                has_ended = self._has_ended(task)
                task.ended_since = (task.ended_since or now) if has_ended else None
        names = set(os.listdir(self.folder))
        results = []
        for task in tasks:
            outcome = _file_beside(task.spec, "outcome")
            if outcome.name in names:
                results.append((task, self._written_result(task)))
            elif task.ended_since and now - task.ended_since > LOST_SECONDS:
                # On a network file system an outcome would have appeared by now.
                results.append((task, self._lost_result(task)))
            else:
                continue
            for path in (task.spec, _file_beside(task.spec, "task"), outcome):
                path.unlink(missing_ok=True)
        return results

    def _environment(self) -> dict[str, str]:
        """Environment variables of a task beside those of its node."""
        environment = {
            name: os.environ[name]
            for name in ("PYTHONPATH", CONFIG_DIRS_VARIABLE)
            if name in os.environ
        }
        # Before a time limit SLURM sends SIGTERM behind SIGUSR2. A task must not take that for a
        # second stop, which kills at once: SLURM kills by itself what does not end.
        environment[PATIENT_VARIABLE] = "1"
        if not self.slurm:
            threads = str(max(1, cores() // self.most_tasks))
            environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", threads)
        return environment

    def _has_ended(self, task: Submitted) -> bool:
        """True if the cluster says that the task ended, or no longer knows it."""
        return self.states.get(task.id, "CANCELLED") in ENDED_STATES

    def _written_result(self, task: Submitted) -> Result:
        """Result of a task by its outcome file."""
        content = read_json(_file_beside(task.spec, "outcome"))
        outcomes = [Outcome(**values) for values in content["outcomes"]]
        file = Path(os.path.relpath(content["file"])) if content["file"] else None
        return Result(task.job, content["code"], outcomes, content["seconds"], file)

    def _lost_result(self, task: Submitted) -> Result:
        """Result of a task without an outcome file.

        It was cancelled, killed with its node, or collected by another command.
        """
        state = self.states.get(task.id, "gone")
        reason = (
            f"task {task.id} ended as {state} without an outcome; the same command goes on from its"
            " last checkpoint"
        )
        result = already_done(task.job) or Result(task.job, 1, [Outcome("", "failed", reason)])
        lines = task.log.read_text(errors="replace").splitlines() if task.log.exists() else []
        record([result], self.command, lines[-TAIL:])
        return result

    def _query(self, tasks: list[Submitted]) -> None:
        """Query the states of all tasks. If the cluster does not answer, the last states stay."""
        self.query_time = time.monotonic()
        if not self.slurm:
            for task in tasks:
                self.states[task.id] = "COMPLETED" if task.handle.done() else "RUNNING"
            return
        command = [*SQUEUE.split(), f"--user={os.getuid()}"]
        options = {"capture_output": True, "text": True, "check": True, "timeout": 60}
        try:
            answer = subprocess.run(command, **options).stdout
        except (OSError, subprocess.SubprocessError):
            return
        pairs = [line.strip().split("|") for line in answer.splitlines() if "|" in line]
        # squeue writes the index of a job that is no array as N/A.
        self.states = {name.removesuffix("_N/A"): state for name, state in pairs}


def _file_beside(spec: Path, kind: str) -> Path:
    return spec.with_name(f"{spec.name}.{kind}")


def _array_ids(tasks: list[Submitted]) -> str:
    """Ids of the tasks' arrays, each once, such as "7 8" for tasks 7_0, 7_1 and 8_0."""
    return " ".join(dict.fromkeys(task.id.partition("_")[0] for task in tasks))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_on(queue: Queue, jobs: list[Job], done: int = 0) -> list[Result]:
    """Run jobs as tasks of a cluster, one per training, and wait for all of them.

    `done` as in `run_jobs`. A task of an earlier command that is still queued is not submitted
    again. Raises RunError when the cluster refuses the jobs, KeyboardInterrupt for Ctrl-C, after
    which the tasks continue on the cluster."""
    queued = deque(jobs)
    results = []
    tasks = queue.attach(queued)
    if tasks:
        _say(f"{len(tasks)} of {len(jobs) + done} trainings are in the queue already")
    live = Live(len(jobs) + done, done, parallel=1)  # raised as tasks begin to run
    try:
        while queued or tasks:
            while queued and len(tasks) < queue.most_tasks:
                number = min(len(queued), queue.most_tasks - len(tasks), queue.tasks_per_array)
                tasks += queue.submit([queued.popleft() for _ in range(number)])
            time.sleep(LOOK_SECONDS)
            for task, result in queue.ended(tasks):
                tasks.remove(task)
                live.finish(result)
                results.append(result)
            _show_states(live, queue, tasks)
    except KeyboardInterrupt:
        ids = _array_ids(tasks)
        way = f"scancel {ids} ends them, saved" if queue.slurm else f"processes {ids}"
        _say(
            f"\nno longer waiting: {len(tasks)} trainings go on by themselves ({way}); the same"
            " command waits for them again"
        )
        raise
    finally:
        live.close(finished=not queued and not tasks)
    return results


def _show_states(live: Live, queue: Queue, unfinished: list[Submitted]) -> None:
    """Tell the progress line which tasks run now, and which do no longer."""
    for task in unfinished:
        name = task.job.run.id
        runs = queue.states.get(task.id) == "RUNNING"
        if runs and name not in live.started:
            live.start(name)
        elif name in live.started and not runs:
            live.put_back(name)  # preempted, or at its time limit: queued again
    live.parallel = max(live.parallel, len(live.started))
