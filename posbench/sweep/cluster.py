"""Queue of trainings on a cluster: submit them through submitit, wait for them with progress, and
collect their outcomes.

A spec file describes the work of a task, SPEC.task holds its id and log, SPEC.outcome its outcome.
All lie beside submitit's own files, on the file system that the nodes share. Nothing is unpickled
here."""

import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, write_json
from posbench.common.machine import check_jobs, cores
from posbench.common.signals import PATIENT
from posbench.position.instantiate import DECLARED
from posbench.sweep.child_processes import run_jobs
from posbench.sweep.jobs import Job, Outcome, Result, plan_jobs
from posbench.sweep.ledger import TAIL, record
from posbench.sweep.live_progress import Live
from posbench.sweep.verdict import already_done

OWN = {
    "_target_",
    "via",
    "n_jobs",
    "submitit_folder",
    "max_num_timeout",
}  # posbench's own keys; the rest go to submitit
SHARED = {
    "name",
    "timeout_min",
    "mem_gb",
    "cpus_per_task",
    "gpus_per_node",
    "stderr_to_stdout",
}  # submitit's, for every cluster
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
LOOK_SECONDS = 1.0  # between two checks for outcomes
ASK_SECONDS = 5.0  # between two queries to the cluster
LOST_SECONDS = 10.0  # until an outcome is visible on a network file system
AGAIN = signal.SIGUSR2  # that submitit makes SLURM send before the time limit


@dataclass
class Submitted:
    """Submitted task of the cluster: its job, files, id and last known state."""

    job: Job
    spec: Path
    id: str
    log: Path
    handle: object = None  # submitit's job object, for tasks of this command
    lost: float | None = None  # time since when the cluster no longer knows the task


class Queue:
    """Queue of one launcher's cluster. `states` is {task id: last state that the cluster
    reported}.
    """

    array = 1000  # tasks per array; the default of SLURM's MaxArraySize is 1001

    def __init__(self, launcher: dict, command: str) -> None:
        self.slurm, self.command = launcher["via"] == "slurm", command
        self.states: dict[str, str] = {}
        self.asked = 0.0
        # SLURM queues tasks without room; submitit's local stand-in starts everything at once.
        self.room = sys.maxsize if self.slurm else check_jobs(max(1, launcher["n_jobs"]))
        self.executor = _executor(launcher)
        self.folder = Path(os.path.abspath(launcher["submitit_folder"].partition("%")[0]))
        self.environment = {
            name: os.environ[name] for name in ("PYTHONPATH", DECLARED) if name in os.environ
        }
        self.environment[PATIENT] = (
            # before a time limit SLURM sends SIGTERM behind SIGUSR2, and kills by itself what does
            # not end
            "1"
        )
        if not self.slurm:
            self.environment["OMP_NUM_THREADS"] = os.environ.get(
                "OMP_NUM_THREADS", str(max(1, cores() // self.room))
            )

    def submit(self, jobs: list[Job]) -> list[Submitted]:
        """Submit jobs, several as one array. Raises RunError when the cluster refuses them."""
        specs = [self.folder / f"{job.run.id}-{uuid.uuid4().hex[:8]}.json" for job in jobs]
        for spec, job in zip(specs, jobs, strict=True):
            write_json(
                spec, {"cfgs": job.cfgs, "command": self.command, "environment": self.environment}
            )
        try:
            handles = self.executor.map_array(Task(), map(str, specs))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            for spec in specs:
                spec.unlink()
            said = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
            raise RunError(f"The cluster does not take the jobs: {said[-1]}") from error
        tasks = []
        for job, spec, handle in zip(jobs, specs, handles, strict=True):
            tasks.append(Submitted(job, spec, handle.job_id, handle.paths.stderr, handle))
            write_json(
                _beside(spec, "task"), {"id": handle.job_id, "log": str(handle.paths.stderr)}
            )
        if self.slurm:
            number = f"{len(jobs)} training{'s' if len(jobs) > 1 else ''}"
            print(
                f"{number} submitted to SLURM as job {_ids(tasks)}, logs in {self.folder}",
                file=sys.stderr,
                flush=True,
            )
        return tasks

    def attach(self, left: deque[Job]) -> list[Submitted]:
        """Tasks of an earlier command with the same configuration that the cluster still has. Their
        jobs are removed from `left`.
        """
        known = []
        for job in left if self.slurm else ():
            for path in self.folder.glob(f"{job.run.id}-????????.json.task"):
                spec = path.with_suffix("")
                task = read_json(path)
                if spec.exists() and read_json(spec)["cfgs"] == job.cfgs:
                    known.append(Submitted(job, spec, task["id"], Path(task["log"])))
        if known:
            self._ask(
                known
                # asked after the ids were read, so that a task submitted meanwhile does not seem gone
            )
        found = {
            task.job.run.path: task
            for task in known
            if self.states.get(task.id, "CANCELLED") not in ENDED
        }
        for task in found.values():
            left.remove(task.job)
        return list(found.values())

    def ended(self, tasks: list[Submitted]) -> list[tuple[Submitted, Result]]:
        """(task, result) of the tasks that ended since the last call. Their files are deleted."""
        found, now = [], time.monotonic()
        if now - self.asked > ASK_SECONDS:
            self._ask(tasks)
            for task in tasks:
                gone = self.states.get(task.id, "CANCELLED") in ENDED
                task.lost = (task.lost or now) if gone else None
        names = set(os.listdir(self.folder))
        for task in tasks:
            told = _beside(task.spec, "outcome").name in names
            if told or (task.lost and now - task.lost > LOST_SECONDS):
                found.append((task, self._told(task) if told else self._gone(task)))
                for path in (task.spec, _beside(task.spec, "task"), _beside(task.spec, "outcome")):
                    path.unlink(missing_ok=True)
        return found

    def _told(self, task: Submitted) -> Result:
        said = read_json(_beside(task.spec, "outcome"))
        file = Path(os.path.relpath(said["file"])) if said["file"] else None
        return Result(
            task.job,
            said["code"],
            [Outcome(**values) for values in said["outcomes"]],
            said["seconds"],
            file,
        )

    def _gone(self, task: Submitted) -> Result:
        """Result of a task without an outcome file: cancelled, killed with its node, or collected
        by another command.
        """
        state = self.states.get(task.id, "gone")
        reason = (
            f"task {task.id} ended as {state} without an outcome; the same command goes on from its"
            " last checkpoint"
        )
        result = already_done(task.job) or Result(task.job, 1, [Outcome("", "failed", reason)])
        record(
            [result],
            self.command,
            task.log.read_text(errors="replace").splitlines()[-TAIL:] if task.log.exists() else [],
        )
        return result

    def _ask(self, tasks: list[Submitted]) -> None:
        """Query the states of all tasks. If the cluster does not answer, the last known states
        stay.
        """
        self.asked = time.monotonic()
        if not self.slurm:
            self.states = {
                task.id: "COMPLETED" if task.handle.done() else "RUNNING" for task in tasks
            }
            return
        command = [
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            f"--user={os.getuid()}",
            "--format=%F_%K|%T",
        ]
        try:
            said = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=60
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return
        pairs = [line.strip().split("|") for line in said.splitlines() if "|" in line]
        self.states = {name.removesuffix("_N/A"): state for name, state in pairs}


def _beside(spec: Path, kind: str) -> Path:
    return spec.with_name(f"{spec.name}.{kind}")


def _ids(tasks: list[Submitted]) -> str:
    return " ".join(dict.fromkeys(task.id.partition("_")[0] for task in tasks))


def _executor(launcher: dict):
    via = launcher["via"]
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(
            f"hydra/launcher=submitit_{via} needs submitit, which is not installed: pip install"
            " submitit."
        ) from error
    lacking = [
        name for name in ("sbatch", "srun", "squeue") if via == "slurm" and not shutil.which(name)
    ]
    if lacking:
        raise ConfigError(
            f"hydra/launcher=submitit_slurm needs SLURM, and there is no {lacking[0]} on this"
            " machine's PATH: type the command on a login node of the cluster, or choose"
            " hydra/launcher=grid."
        )
    settings = {
        key: value for key, value in launcher.items() if key not in OWN and value is not None
    }
    if via == "slurm" and "cpus_per_task" in settings:
        # Since SLURM 22.05, srun does not inherit it from sbatch.
        settings["srun_args"] = [
            *settings.get("srun_args", []),
            f"--cpus-per-task={settings['cpus_per_task']}",
        ]
    try:
        times = {f"{via}_max_num_timeout": launcher["max_num_timeout"]}
        executor = submitit.AutoExecutor(folder=launcher["submitit_folder"], cluster=via, **times)
        executor.update_parameters(
            **{key if key in SHARED else f"{via}_{key}": value for key, value in settings.items()}
        )
    except (AssertionError, NameError, TypeError, ValueError) as error:
        raise ConfigError(
            f"submitit does not take these hydra.launcher settings: {str(error).splitlines()[0]}"
        ) from error
    return executor


def run_on(queue: Queue, jobs: list[Job], done: int = 0) -> list[Result]:
    """Run jobs as tasks of a cluster, one per training, and wait for all of them. `done` as in
    `run_jobs`.

    A task of an earlier command that is still queued is not submitted again. Raises RunError when
    the cluster refuses the jobs, KeyboardInterrupt for Ctrl-C, after which the tasks continue on
    the cluster."""
    left, results = deque(jobs), []
    tasks = queue.attach(left)
    if tasks:
        print(
            f"{len(tasks)} of {len(jobs) + done} trainings are in the queue already",
            file=sys.stderr,
        )
    live = Live(len(jobs) + done, done, 1)
    try:
        while left or tasks:
            while left and len(tasks) < queue.room:
                tasks += queue.submit(
                    [
                        left.popleft()
                        for _ in range(min(len(left), queue.room - len(tasks), queue.array))
                    ]
                )
            time.sleep(LOOK_SECONDS)
            for task, result in queue.ended(tasks):
                tasks.remove(task)
                live.finish(result)
                results.append(result)
            for task in tasks:
                name, running = task.job.run.id, queue.states.get(task.id) == "RUNNING"
                if running and name not in live.started:
                    live.start(name)
                elif name in live.started and not running:
                    live.put_back(name)  # preempted, or at its time limit: queued again
            live.parallel = max(live.parallel, len(live.started))
    except KeyboardInterrupt:
        how = (
            f"scancel {_ids(tasks)} ends them, saved" if queue.slurm else f"processes {_ids(tasks)}"
        )
        left_alone = f"{len(tasks)} trainings go on by themselves ({how})"
        print(
            f"\nno longer waiting: {left_alone}; the same command waits for them again",
            file=sys.stderr,
            flush=True,
        )
        raise
    finally:
        live.close(not left and not tasks)
    return results


class Task:
    """Callable that submitit runs on the node, in a process of its own: the job of a spec file,
    whose outcome it writes to SPEC.outcome.

    SIGTERM, from scancel or a preemption, saves and ends without an outcome: the cluster decides if
    the task starts again. SIGUSR2, shortly before the time limit, saves and puts the task back into
    the queue, at most max_num_timeout times."""

    def checkpoint(self, spec: str):
        """Submission for a restarted task: the same call, since a run continues from its own
        checkpoint. Called by submitit.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, spec)

    def __call__(self, spec: str) -> None:
        wanted = read_json(spec)
        os.environ.update(wanted["environment"])
        put_back, told = signal.getsignal(AGAIN), []

        def stop(number: int, _: object) -> None:
            told.append(number)
            os.kill(
                os.getpid(), signal.SIGTERM
            )  # the job saves and ends first; then the task is put back

        signal.signal(AGAIN, stop)
        code, seconds, file = 1, 0.0, None
        try:
            (job,) = plan_jobs(wanted["cfgs"])
            (result,) = run_jobs([job], 1, wanted["command"])
            code, seconds, file, outcomes = (
                result.code,
                result.seconds,
                result.file,
                result.outcomes,
            )
        except ConfigError as error:
            code, outcomes = 2, [Outcome("", "refused", str(error))]
        except RunError as error:
            outcomes = [Outcome("", "failed", str(error))]
        except Exception as error:
            traceback.print_exc()
            outcomes = [Outcome("", "failed", f"{type(error).__name__}: {error}")]
        except KeyboardInterrupt as interrupt:
            if not told:
                sys.exit(128 + (interrupt.args[0] if interrupt.args else signal.SIGINT))
            try:
                put_back(
                    AGAIN, None
                )  # ends this process, unless the task has used all its restarts
            except RuntimeError as error:
                outcomes = [
                    Outcome(
                        "", "failed", f"{error} All is saved: the same command goes on from there."
                    )
                ]
        found = {
            "code": code,
            "seconds": seconds,
            "file": file and str(file.resolve()),
            "outcomes": [asdict(one) for one in outcomes],
        }
        write_json(f"{spec}.outcome", found)
        if any(outcome.status == "failed" for outcome in outcomes):
            sys.exit(1)  # squeue, sacct and --dependency then see a failed task
