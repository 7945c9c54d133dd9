"""Verdict on a job: which of its evaluations may run, judged once from its configuration, and if
all that may run is there.

A job that needs no process is settled here: nothing is missing, or everything missing is refused or
a no-op."""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.jobs import Job, Outcome, Result


@dataclass(frozen=True)
class JobVerdict:
    """Verdict on a job: `refused`, the reason if all of it is, else {cell: verdict}: legal,
    untested (and legal), noop or refused.
    """

    job: Job
    refused: str = ""
    cells: dict[EvaluationCell, Outcome] = field(default_factory=dict)

    @property
    def legal(self) -> list[EvaluationCell]:
        """Cells that may run."""
        return [
            cell for cell, verdict in self.cells.items() if verdict.status in ("legal", "untested")
        ]

    @property
    def runs(self) -> bool:
        """True if a cell that the user asked for may run; references alone are not worth a
        training.
        """
        return not all(cell.reference for cell in self.legal)

    @cached_property
    def missing(self) -> dict[EvaluationCell, list[int]]:
        """Missing lengths of each legal cell. Raises RunError for a damaged file, as the job
        would.
        """
        return {cell: cell.missing() for cell in self.legal}

    @property
    def trains(self) -> bool:
        """True if the job would train. It does not train for references alone."""
        return not self.job.run.finished and self.runs

    @property
    def work(self) -> list[tuple[Job, EvaluationCell, list[int]]]:
        """Evaluations to make, each with its missing lengths."""
        return [
            (self.job, cell, lengths)
            for cell, lengths in self.missing.items()
            if lengths and self.runs
        ]

    @property
    def refusals(self) -> list[str]:
        """Reasons for which the job, or an evaluation that the user asked for, is refused."""
        return (
            [self.refused]
            if self.refused
            else [one.reason for one in self.outcomes() if one.status == "refused"]
        )

    def outcomes(self, made: Collection[EvaluationCell] = ()) -> list[Outcome]:
        """Outcomes of the user's cells when the legal ones are there, those in `made` since just
        now.
        """
        there = {
            cell: Outcome(cell.label, "done" if cell in made else "exists") for cell in self.legal
        }
        return [
            there.get(cell, verdict) for cell, verdict in self.cells.items() if not cell.reference
        ]


def judge_job(job: Job, known: dict[str, Outcome] | None = None) -> JobVerdict:
    """Judge a job by its configuration alone. `known` keeps verdicts for other jobs that share
    methods, such as the other seeds.
    """
    from posbench.evaluation.registry import protocol
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.model.inherit import check_beginning
    from posbench.model.memory import check_batch
    from posbench.position.instantiate import make
    from posbench.position.interfaces import Extension, ScaleAttention
    from posbench.position.legality import check
    from posbench.sweep.take_checkpoint import check_whole
    from posbench.training.graph import check_graph

    known = {} if known is None else known
    try:
        if job.parent:
            check_beginning(job.config, job.parent.config)
        encoding = make_encoding(job.config)
        make_trained_scale(job.config, encoding)
        if job.config.trains and not job.run.finished:
            check_graph(job.config.train, job.config.device)
            check_batch(job.config.model, job.config.train.tokens_per_step, job.config.device)
        if (
            job.config.model.checkpoint
            and not job.config.model.engine
            and not job.run.finished
            and not job.parent
        ):
            check_whole(job.config, job.config.model.checkpoint["vocab_size"])
    except ConfigError as error:
        return JobVerdict(job, str(error))
    # Only where the seed draws weights could a verdict depend on it.
    trained = encoding.node, encoding.shape, job.config.seed if encoding.state_dict() else None
    cells = {}
    for cell in job.cells:
        key = repr(
            (
                trained,
                cell.protocol,
                cell.extension,
                cell.scale_attention,
                cell.evaluate,
                cell.allow_untested,
            )
        )
        if key not in known:
            try:
                extension = make(cell.extension, kind=Extension)
                scale = make(cell.scale_attention, encoding.shape, kind=ScaleAttention)
                protocol(cell.protocol).check(extension, cell.evaluate, encoding.shape.train_len)
                found = check(
                    encoding, extension, scale, cell.evaluate.lengths, cell.allow_untested
                )
                status = "noop" if found.noop else "untested" if found.untested else "legal"
                known[key] = Outcome(cell.label, status, found.noop or "")
            except ConfigError as error:
                known[key] = Outcome(cell.label, "refused", str(error))
        cells[cell] = known[key]
    return JobVerdict(job, cells=cells)


def settle(job: Job, known: dict[str, Outcome], trained: bool = True) -> Result | None:
    """Result of a job that needs no process, None for any other job. `known` as in `judge_job`.

    With `trained`, an unfinished training gives None too, since to judge it runs the user's code.
    For a cluster, a whole task would be too expensive for a refusal. A missing training below
    existing evaluations is made again, so such a job also gives None."""
    if there := already_done(job):
        return there
    try:
        if trained and not job.run.finished:
            return None
        judged = judge_job(job, known)
        if judged.refused:
            return Result(job, 2, [Outcome("", "refused", judged.refused)])
        config_lost = (
            job.run.finished and not job.run.has_config
        )  # the process of the job writes it again
        return (
            None
            if judged.trains or judged.work or config_lost
            else Result(job, 0, judged.outcomes())
        )
    except (Exception, SystemExit):
        return None  # the process of the job will report the reason


def already_done(job: Job) -> Result | None:
    """Result of a job of which nothing is missing, config.yaml neither; None for any other.

    Damaged files are left to the job's own process to report.
    """
    with contextlib.suppress(RunError):
        if (
            job.run.finished
            and job.run.has_config
            and not any(cell.missing() for cell in job.cells)
        ):
            return Result(job, 0, [Outcome(cell.label, "exists") for cell in job.user_cells])
    return None


def left_out(jobs: list[Job]) -> set[Path]:
    """Paths of missing evaluations that will never exist, since they are refused or no-ops."""
    known: dict[str, Outcome] = {}
    never: set[Path] = set()
    for job in jobs:
        missing = {cell.path for cell in job.cells if not cell.path.exists()}
        if missing:
            judged = judge_job(job, known)
            never |= missing - {cell.path for cell in judged.legal if judged.runs}
    return never
