"""Launchers: child processes on this machine, or tasks of a cluster. Chosen by hydra/launcher=NAME, set by hydra.launcher.KEY=VALUE.

Hydra's joblib and submitit launchers run one cell at a time and stop waiting at the first error. Here the unit is one training with
all its evaluations, in a child process (a worker takes one after the other).
"""

from posbench.common.errors import ConfigError
from posbench.sweep.child_processes import check_resources, run_jobs
from posbench.sweep.cluster.queue import Queue, run_on
from posbench.sweep.jobs import Job, Result
from posbench.sweep.verdict import begin


def launch(jobs: list[Job], launcher: dict, command: str) -> list[Result]:
    """Run the unfinished jobs with a launcher (a yaml of configs/hydra/launcher), n_jobs at a time, and wait for them.

    Raises ConfigError for a launcher that is not installed or illegal settings, KeyboardInterrupt when a signal ended it.
    """
    via, parallel, queue = launcher.get("via"), launcher["n_jobs"], None
    if via in ("slurm", "local"):
        queue = Queue(launcher, command)
    elif via == "joblib":
        parallel = _joblib(parallel)
    done, left = begin(jobs, command, trained=queue is None)
    if queue:
        check_resources(left, launcher)
        made = run_on(queue, left, len(done))
    else:
        made = run_jobs(left, parallel, command, len(done))
    order = {job.run.path: i for i, job in enumerate(jobs)}
    return sorted(done + made, key=lambda result: order[result.job.run.path])


def _joblib(n_jobs: int) -> int:
    """Number of trainings at a time for joblib's n_jobs, such as -1 for all cores."""
    try:
        from joblib import effective_n_jobs
    except ImportError as error:
        raise ConfigError("hydra/launcher=joblib needs joblib, which is not installed: pip install joblib.") from error
    try:
        return effective_n_jobs(n_jobs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.n_jobs={n_jobs} is no number of processes: give 1 or more, or -1 for all cores.") from error
