"""Launchers: child processes on this machine, or tasks of a cluster.

They are chosen by hydra/launcher=NAME, and set by hydra.launcher.KEY=VALUE. Hydra's joblib and
submitit launchers run one cell at a time and stop waiting at the first error. Here the unit is one
training with all its evaluations, in a child process (a worker takes one after the other)."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import FULL_DISK_ERRNOS
from posbench.common.outcome import Outcome, error_of
from posbench.common.quantities import plural
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.sweep.child_processes import check_resources, run_jobs
from posbench.sweep.cluster import Queue, run_on
from posbench.sweep.jobs import Job, Result, plan_methods
from posbench.sweep.ledger import record
from posbench.sweep.verdict import settle


def launch(jobs: list[Job], launcher: dict, command: str) -> list[Result]:
    """Run the unfinished jobs with a launcher (a yaml of configs/hydra/launcher), n_jobs at a time,
    and wait for them.

    Raises ConfigError for a launcher that is not installed or illegal settings, and for a
    results_dir that cannot be written; KeyboardInterrupt when a signal ended it."""
    for folder in {job.config.results_dir for job in jobs}:
        _check_writable(Path(folder))
    via = launcher.get("via")
    queue = Queue(launcher, command) if via in ("slurm", "local") else None
    # of child processes; a queue has its own limit
    parallel = _joblib(launcher["n_jobs"]) if via == "joblib" else launcher["n_jobs"]
    verdicts: dict[str, Outcome] = {}  # of `judge_job`, shared by the seeds
    settled = []  # results of jobs that need no process
    to_run = []
    for job in jobs:
        # Here the process of an unfinished training judges it. A task of a cluster that only
        # refuses would be too expensive.
        result = settle(job, verdicts, only_finished=queue is None)
        if result:
            settled.append(result)
        else:
            to_run.append(job)
    record(settled, command)
    if queue:
        check_resources(to_run, launcher)
        results = settled + run_on(queue, to_run, len(settled))
    else:
        results = settled + run_jobs(to_run, parallel, command, len(settled))
    # In the order of the jobs: those of a sweep end in any.
    order = {job.run.path: index for index, job in enumerate(jobs)}
    return sorted(results, key=lambda result: order[result.job.run.path])


def launch_one(
    job: Job, launcher: dict, command: str, good: Sequence[str] = ("done", "exists")
) -> None:
    """Run one job.

    Raises as `launch`, ConfigError for a refused evaluation, and RunError for another outcome that
    is not `good`.
    """
    (result,) = launch([job], {"n_jobs": 1, **launcher}, command)
    for outcome in result.outcomes:
        if outcome.status not in good:
            raise error_of(outcome, job.run.id)


def measure_methods(
    raw: dict, requests: Iterable[tuple[str, int]], launcher: dict, command: str, title: str
) -> dict[str, Evaluation]:
    """Evaluations of several methods by what `plan_methods` calls them; missing ones are made.

    Raises as `launch_one`.
    """
    job, cells = plan_methods(raw, requests)
    missing = sum(len(cell.missing_lengths()) for cell in job.cells)
    if missing:
        print(f"{title}: {plural(missing, 'evaluation')} to make", file=sys.stderr, flush=True)
    launch_one(job, launcher, command)
    return {methods: load_evaluation(cell.path) for methods, cell in cells.items()}


def _check_writable(folder: Path) -> None:
    """Make the folder of results. Raises ConfigError if no file can be made there.

    A full disk is left to the jobs to report.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno not in FULL_DISK_ERRNOS:
            # mkdir calls a file in place of the folder "File exists", which explains nothing.
            reason = os.strerror(errno.ENOTDIR if error.errno == errno.EEXIST else error.errno)
            raise ConfigError(
                f"results_dir={folder} cannot be written ({reason}): fix this, or choose another"
                " results_dir."
            ) from error


def _joblib(n_jobs: int) -> int:
    """Number of processes that joblib would start for n_jobs."""
    try:
        from joblib import effective_n_jobs
    except ImportError as error:
        raise ConfigError(
            "hydra/launcher=joblib needs joblib, which is not installed: pip install joblib."
        ) from error
    try:
        return effective_n_jobs(n_jobs)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"hydra.launcher.n_jobs={n_jobs} is not a number of processes: give 1 or more, or -1"
            " for all cores."
        ) from error
