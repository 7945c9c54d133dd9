"""Launchers: child processes on this machine, or tasks of a cluster. Chosen by hydra/launcher=NAME, set by hydra.launcher.KEY=VALUE.

Hydra's joblib and submitit launchers run one cell at a time and stop waiting at the first error. Here the unit is one training with
all its evaluations, in a child process of its own.
"""

from __future__ import annotations

from posbench.common.errors import ConfigError
from posbench.sweep.child_processes import run_jobs
from posbench.sweep.jobs import Job, Result


def launch(jobs: list[Job], launcher: dict, command: str) -> list[Result]:
    """Run the unfinished jobs with a launcher (a yaml of configs/hydra/launcher), n_jobs at a time, and wait for them.

    Raises ConfigError for a launcher that is not installed or illegal settings, KeyboardInterrupt when a signal ended it.
    """
    via = launcher.get("via")
    if via in ("slurm", "local"):
        from posbench.sweep.cluster.wait import run_on

        return run_on(jobs, launcher, command)
    if via == "joblib":
        return _joblib(jobs, launcher["n_jobs"], command)
    return run_jobs(jobs, launcher["n_jobs"], command)


def _joblib(jobs: list[Job], n_jobs: int, command: str) -> list[Result]:
    try:
        from joblib import Parallel, delayed, effective_n_jobs
    except ImportError as error:
        raise ConfigError("hydra/launcher=joblib needs joblib, which is not installed: pip install joblib.") from error
    try:
        parallel = effective_n_jobs(n_jobs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.n_jobs={n_jobs} is no number of processes: give 1 or more, or -1 for all cores.") from error

    def pool(work, number):
        # Threads, since each worker only waits for its child: joblib's processes would block signals and progress lines.
        return Parallel(n_jobs=number, backend="threading")(delayed(work)() for _ in range(number))

    return run_jobs(jobs, parallel, command, pool)
