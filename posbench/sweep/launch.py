"""Launchers: child processes on this machine, or tasks of a cluster. Chosen by hydra/launcher=NAME,
set by hydra.launcher.KEY=VALUE.

Hydra's joblib and submitit launchers run one cell at a time and stop waiting at the first error.
Here the unit is one training with all its evaluations, in a child process (a worker takes one after
the other)."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import FULL
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.sweep.child_processes import check_resources, run_jobs
from posbench.sweep.cluster import Queue, run_on
from posbench.sweep.jobs import Job, Outcome, Result, plan_methods
from posbench.sweep.ledger import record
from posbench.sweep.verdict import settle


def launch(jobs: list[Job], launcher: dict, command: str) -> list[Result]:
    """Run the unfinished jobs with a launcher (a yaml of configs/hydra/launcher), n_jobs at a time,
    and wait for them.

    Raises ConfigError for a launcher that is not installed or illegal settings, and for a
    results_dir that cannot be written; KeyboardInterrupt when a signal ended it."""
    for folder in {job.config.results_dir for job in jobs}:
        _check_writable(Path(folder))
    via, parallel, queue = launcher.get("via"), launcher["n_jobs"], None
    if via in ("slurm", "local"):
        queue = Queue(launcher, command)
    elif via == "joblib":
        parallel = _joblib(parallel)
    known: dict[str, Outcome] = {}
    settled = [settle(job, known, trained=queue is None) for job in jobs]
    done, left = (
        [result for result in settled if result],
        [job for job, result in zip(jobs, settled, strict=True) if result is None],
    )
    record(done, command)
    if queue:
        check_resources(left, launcher)
        made = run_on(queue, left, len(done))
    else:
        made = run_jobs(left, parallel, command, len(done))
    order = {job.run.path: i for i, job in enumerate(jobs)}
    return sorted(done + made, key=lambda result: order[result.job.run.path])


def launch_one(
    job: Job, launcher: dict, command: str, good: Sequence[str] = ("done", "exists")
) -> None:
    """Run one job. Raises as `launch`, ConfigError for a refused evaluation, and RunError for
    another outcome that is not `good`.
    """
    (result,) = launch([job], {"n_jobs": 1, **launcher}, command)
    for outcome in result.outcomes:
        if outcome.status not in good:
            error = ConfigError if outcome.status == "refused" else RunError
            raise error(f"{outcome.label or job.run.id}: {outcome.reason}")


def measure_methods(
    cfg: dict, served: Iterable[tuple[str, int]], launcher: dict, command: str, title: str
) -> dict[str, Evaluation]:
    """Evaluations of several methods by what `plan_methods` calls them, after those that are
    missing were made. Raises as `launch_one`.
    """
    job, cells = plan_methods(cfg, served)
    if missing := sum(len(cell.missing()) for cell in job.cells):
        print(
            f"{title}: {missing} evaluation{'s' * (missing != 1)} to make",
            file=sys.stderr,
            flush=True,
        )
    launch_one(job, launcher, command)
    return {methods: load_evaluation(cell.path) for methods, cell in cells.items()}


def _check_writable(folder: Path) -> None:
    """Make the folder of results. Raises ConfigError if no file can be made there; a full disk is
    left to the jobs to report.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno not in FULL:
            reason = os.strerror(errno.ENOTDIR if error.errno == errno.EEXIST else error.errno)
            raise ConfigError(
                f"results_dir={folder} cannot be written ({reason}): fix this, or choose another"
                " results_dir."
            ) from error


def _joblib(n_jobs: int) -> int:
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
