"""Jobs that need no process of their own: nothing of them is missing, or all that is missing is refused or changes nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.sweep import failure
from posbench.sweep.jobs import Cell, Job, Outcome, Result
from posbench.sweep.ledger import record


def begin(jobs: list[Job], command: str, trained: bool) -> tuple[list[Result], list[Job]]:
    """(what became of the jobs that need no process, all others); the ledger has the former, under `command`.

    `trained`: of jobs that are not done, judge here those with a finished training alone. A process says of the others just as well what is
    refused; a task of a cluster is too dear for it.
    """
    done = there([job for job in jobs if is_done(job)], command)
    finished = {result.job.run.path for result in done}
    judged = [job for job in jobs if job.run.path not in finished and (job.run.finished or not trained)]
    settled = [result for job in judged if (result := settle(job))]
    record(settled, command)
    finished |= {result.job.run.path for result in settled}
    return done + settled, [job for job in jobs if job.run.path not in finished]


def is_done(job: Job) -> bool:
    """Whether nothing of a job is missing. One whose files are damaged is not done: its own process says so, and ends alone."""
    with contextlib.suppress(RunError):
        return job.done
    return False


def there(jobs: list[Job], command: str) -> list[Result]:
    """What becomes of jobs that miss nothing: they are skipped, and the ledger says so."""
    results = [Result(job, 0, [Outcome(cell.label, "exists") for cell in job.user_cells]) for job in jobs]
    for result in results:
        failure.keep(result, (), command)  # of an attempt that another process has made good since
    record(results, command)
    return results


def settle(job: Job) -> Result | None:
    """What becomes of a job of which all that is missing is refused or changes nothing: to say so takes no task. None for any other,
    and for a training that is to be made again under evaluations that are there.
    """
    from posbench.sweep.job_process import run_job

    try:
        if any(cell.missing() or not job.run.finished for cell in possible(job)):
            return None
        return Result(job, 0, run_job(job))
    except ConfigError as error:
        return Result(job, 2, [Outcome("", "refused", str(error))])
    except (Exception, SystemExit):
        return None  # its own process ends with the reason


def possible(job: Job) -> list[Cell]:
    """Cells that are neither refused nor without effect; none at all where that leaves references alone.

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
    """Evaluations that are not there and never will be: refused, or without effect."""
    never: set[Path] = set()
    for job in jobs:
        missing = {cell.path for cell in job.cells if not cell.path.exists()}
        if missing:
            with contextlib.suppress(ConfigError):
                missing -= {cell.path for cell in possible(job)}
            never |= missing
    return never
