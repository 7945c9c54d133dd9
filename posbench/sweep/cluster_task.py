"""Task of a cluster: what submitit runs on a node, the job of a spec file.

It is told by the spec file alone, and writes SPEC.outcome; nothing is unpickled but its name."""

import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, write_json
from posbench.common.outcome import Outcome, outcome_of
from posbench.sweep.child_processes import run_jobs
from posbench.sweep.jobs import Job, plan_jobs

NEAR_LIMIT = signal.SIGUSR2  # that submitit makes SLURM send before the time limit


class TaskEnd(NamedTuple):
    """End of a task: exit code, outcomes, seconds, and the file with the end of a failed one."""

    code: int
    outcomes: list[Outcome]
    seconds: float = 0.0
    file: Path | None = None


class Task:
    """Callable that submitit runs on the node, in a process of its own.

    SIGTERM, from scancel or a preemption, saves and ends without an outcome: the cluster decides if
    the task starts again. SIGUSR2, shortly before the time limit, saves and puts the task back into
    the queue, at most max_num_timeout times."""

    def checkpoint(self, spec: str):
        """Submission for a restarted task: the same call, since a run has its own checkpoint.

        Called by submitit.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, spec)

    def __call__(self, spec: str) -> None:
        """Run the job of a spec file and write its outcome beside it. Called by submitit."""
        content = read_json(spec)
        os.environ.update(content["environment"])
        put_back = signal.getsignal(NEAR_LIMIT)  # submitit's handler
        signals = []

        def stop(number: int, _: object) -> None:
            signals.append(number)
            # the job saves and ends first; then the task is put back
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(NEAR_LIMIT, stop)
        try:
            end = _run(content)
        except KeyboardInterrupt as interrupt:
            if not signals:  # cancelled, not near the time limit: no outcome, and not put back
                sys.exit(outcome_of(interrupt).code)
            try:
                put_back(NEAR_LIMIT, None)  # ends this process, unless all restarts are used
            except RuntimeError as error:
                reason = f"{error} All is saved: the same command goes on from there."
                # "" is the label of the job as a whole
                failure = Outcome(label="", status="failed", reason=reason)
                end = TaskEnd(code=1, outcomes=[failure])
        outcome_file = {
            "code": end.code,
            "seconds": end.seconds,
            "file": end.file and str(end.file.resolve()),
            "outcomes": [asdict(outcome) for outcome in end.outcomes],
        }
        write_json(f"{spec}.outcome", outcome_file)
        if any(outcome.status == "failed" for outcome in end.outcomes):
            sys.exit(1)  # squeue, sacct and --dependency then see a failed task


def _run(content: dict) -> TaskEnd:
    """Run the job of a spec file's content. Raises KeyboardInterrupt for a signal."""
    try:
        (result,) = run_jobs([_job_of(content)], parallel=1, command=content["command"])
    except Exception as error:
        # These two are sentences, which the outcome holds. Any other needs its traceback.
        if not isinstance(error, ConfigError | RunError):
            traceback.print_exc()
        code, outcome = outcome_of(error)
        return TaskEnd(code, [outcome])
    return TaskEnd(result.code, result.outcomes, result.seconds, result.file)


def _job_of(content: dict) -> Job:
    """The job of a spec file. That of an earlier version holds configurations, planned here."""
    if "job" in content:
        return Job.of(content["job"])
    (job,) = plan_jobs(content["cfgs"])
    return job
