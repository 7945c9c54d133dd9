"""Jobs that need no process: nothing is missing, or everything missing is refused or a no-op."""

from __future__ import annotations

import contextlib
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.sweep import failure
from posbench.sweep.jobs import Cell, Job, Outcome, Result
from posbench.sweep.ledger import record


def begin(jobs: list[Job], command: str, trained: bool) -> tuple[list[Result], list[Job]]:
    """(results of the jobs that need no process, remaining jobs). The results are written to the ledger under `command`.

    With `trained`, unfinished jobs are judged here only if their training is finished. The process of any other job reports refusals
    itself; for a cluster, a whole task would be too expensive for that.
    """
    done = there([job for job in jobs if is_done(job)], command)
    finished = {result.job.run.path for result in done}
    judged = [job for job in jobs if job.run.path not in finished and (job.run.finished or not trained)]
    settled = [result for job in judged if (result := settle(job))]
    record(settled, command)
    finished |= {result.job.run.path for result in settled}
    return done + settled, [job for job in jobs if job.run.path not in finished]


def is_done(job: Job) -> bool:
    """True if nothing of a job is missing. A job with damaged files is not done: its own process reports the damage."""
    with contextlib.suppress(RunError):
        return job.done
    return False


def there(jobs: list[Job], command: str) -> list[Result]:
    """Results of complete jobs: they are skipped, and the ledger records this."""
    results = [Result(job, 0, [Outcome(cell.label, "exists") for cell in job.user_cells]) for job in jobs]
    for result in results:
        failure.keep(result, (), command)  # deletes failure.txt of an attempt that another process has repaired since
    record(results, command)
    return results


def settle(job: Job) -> Result | None:
    """Result of a job whose missing evaluations are all refused or no-ops, which needs no process; None for any other job.

    A missing training below existing evaluations is made again, so such a job also gives None.
    """
    from posbench.sweep.job_process import run_job

    try:
        if any(cell.missing() or not job.run.finished for cell in possible(job)):
            return None
        return Result(job, 0, run_job(job))
    except ConfigError as error:
        return Result(job, 2, [Outcome("", "refused", str(error))])
    except (Exception, SystemExit):
        return None  # the process of the job will report the reason


def possible(job: Job) -> list[Cell]:
    """Cells that are neither refused nor no-ops; [] if only references remain.

    Raises ConfigError when the training itself is refused.
    """
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.sweep.job_process import judge

    def may_run(cell: Cell) -> bool:
        try:
            return not judge(encoding, cell).noop
        except ConfigError:
            return False

    encoding = make_encoding(job.cfg)
    make_trained_scale(job.cfg, encoding)
    cells = [cell for cell in job.cells if may_run(cell)]
    return cells if any(not cell.reference for cell in cells) else []


def left_out(jobs: list[Job]) -> set[Path]:
    """Paths of missing evaluations that will never exist, since they are refused or no-ops."""
    never: set[Path] = set()
    for job in jobs:
        missing = {cell.path for cell in job.cells if not cell.path.exists()}
        if missing:
            with contextlib.suppress(ConfigError):
                missing -= {cell.path for cell in possible(job)}
            never |= missing
    return never
