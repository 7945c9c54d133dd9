"""Verdict on a job: which evaluations may run, judged from its configuration, and what is there.

A job that needs no process is settled here: nothing is missing, or everything missing is refused or
a no-op."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.common.outcome import Outcome
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.jobs import Job, Result
from posbench.sweep.validation import check_validation
from posbench.sweep.work import lacks_lengths

if TYPE_CHECKING:
    from posbench.position.interfaces import Encoding

LEGAL_STATUSES = ("legal", "untested", "own")  # statuses of verdicts


@dataclass(frozen=True)
class JobVerdict:
    """Verdict on a job: `refused`, the reason if all of it is, else {cell: verdict}.

    The status of a verdict is legal, untested or own (and legal), noop or refused.
    """

    job: Job
    refused: str = ""
    cells: dict[EvaluationCell, Outcome] = field(default_factory=dict)

    @property
    def legal(self) -> list[EvaluationCell]:
        """Cells that may run."""
        return [cell for cell, verdict in self.cells.items() if verdict.status in LEGAL_STATUSES]

    @property
    def worth_running(self) -> bool:
        """True if a cell that the user asked for may run; references alone are not worth it."""
        return not all(cell.reference for cell in self.legal)

    @cached_property
    def missing_lengths(self) -> dict[EvaluationCell, list[int]]:
        """Missing lengths of each legal cell. Raises RunError for a damaged file, as a job does."""
        return {cell: cell.missing_lengths() for cell in self.legal}

    @property
    def would_train(self) -> bool:
        """True if the job would train. It does not train for references alone."""
        return not self.job.run.finished and self.worth_running

    @property
    def missing_evaluations(self) -> list[tuple[Job, EvaluationCell, list[int]]]:
        """Evaluations to make, each with its missing lengths."""
        if not self.worth_running:
            return []
        return [
            (self.job, cell, lengths) for cell, lengths in self.missing_lengths.items() if lengths
        ]

    @property
    def refusals(self) -> list[str]:
        """Reasons for which the job, or an evaluation that the user asked for, is refused."""
        if self.refused:
            return [self.refused]
        return [outcome.reason for outcome in self.outcomes() if outcome.status == "refused"]

    def outcomes(self, evaluated: Collection[EvaluationCell] = ()) -> list[Outcome]:
        """Outcomes of the user's cells once the legal ones are there; `evaluated` are new."""
        outcomes = []
        for cell, verdict in self.cells.items():
            if cell.reference:
                continue
            if verdict.status in LEGAL_STATUSES:
                status = "done" if cell in evaluated else "exists"
                outcomes.append(Outcome(cell.label, status))
            else:
                outcomes.append(verdict)
        return outcomes


def judge_job(job: Job, verdicts: dict[str, Outcome] | None = None) -> JobVerdict:
    """Judge a job by its configuration alone.

    `verdicts` keeps those on cells for other jobs that share methods, such as the other seeds.
    """
    verdicts = {} if verdicts is None else verdicts
    try:
        encoding = _judge_training(job)
    except ConfigError as error:
        return JobVerdict(job, str(error))
    # Only where the seed draws weights could a verdict depend on it.
    seed = job.config.seed if encoding.state_dict() else None
    cells = {}
    for cell in job.cells:
        methods = cell.extension, cell.scale_attention
        settings = cell.protocol, cell.evaluate, cell.allow_untested
        key = repr((encoding.node, encoding.shape, seed, methods, settings))
        if key not in verdicts:
            verdicts[key] = _judge_cell(cell, encoding)
        cells[cell] = verdicts[key]
    return JobVerdict(job, cells=cells)


def _judge_training(job: Job) -> "Encoding":
    """The encoding of a job. Raises ConfigError if its training, or its checkpoint, is refused."""
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.model.inherit import check_beginning
    from posbench.model.memory import check_batch
    from posbench.sweep.take_checkpoint import checkpoint_tensors
    from posbench.training.graph import check_graph

    config = job.config
    if job.parent:
        check_beginning(config, job.parent.config)
    encoding = make_encoding(config)
    make_trained_scale(config, encoding)  # for its checks
    if job.run.finished:
        return encoding
    if config.trains:
        check_validation(config, encoding)
        check_graph(config.train, config.device)
        check_batch(config.model, config.train.tokens_per_step, config.device)
    # An engine gives no tensors, and a child begins with the parent's, which its own job checks.
    if config.model.checkpoint and not config.model.engine and not job.parent:
        checkpoint_tensors(config, config.model.checkpoint["vocab_size"])  # for its checks
    return encoding


def _judge_cell(cell: EvaluationCell, encoding: "Encoding") -> Outcome:
    """Verdict on one evaluation: legal, untested, own (with a user's method, which no table of
    tested combinations knows), noop or refused.
    """
    from posbench.evaluation.registry import protocol
    from posbench.position.legality import verdict_of

    try:
        extension, scale = cell.methods(encoding.shape)
        protocol(cell.protocol).check(extension, cell.evaluate, encoding.shape.train_len)
        lengths = cell.evaluate.lengths
        legality = verdict_of(encoding, extension, scale, lengths, cell.allow_untested)
    except ConfigError as error:
        return Outcome(cell.label, "refused", str(error))
    if legality.noop:
        return Outcome(cell.label, "noop", legality.noop)
    if legality.untested:
        return Outcome(cell.label, "untested")
    return Outcome(cell.label, "own" if legality.of_user else "legal")


def settle(job: Job, verdicts: dict[str, Outcome], only_finished: bool = True) -> Result | None:
    """Result of a job that needs no process, None for any other. `verdicts` as in `judge_job`.

    With `only_finished`, an unfinished training gives None too, since to judge it runs the user's
    code. A cluster passes False: a whole task would be too expensive for a refusal. A missing
    training below existing evaluations is made again, so such a job also gives None."""
    result = already_done(job)
    if result:
        return result
    try:
        if only_finished and not job.run.finished:  # its process judges it
            return None
        judged = judge_job(job, verdicts)
        if judged.refused:
            # 2 is the exit code of a refusal, and "" stands for the whole job.
            return Result(job, 2, [Outcome("", "refused", judged.refused)])
        # The process writes a lost config.yaml again.
        config_lost = job.run.finished and not job.run.has_config
        if judged.would_train or judged.missing_evaluations or config_lost:
            return None
        return Result(job, 0, judged.outcomes())
    except (Exception, SystemExit):
        return None  # the process of the job will report the reason


def already_done(job: Job) -> Result | None:
    """Result of a job whose files are all there, config.yaml too; None for any other.

    Damaged files are left to the job's own process to report.
    """
    if not job.run.finished or not job.run.has_config:
        return None
    if any(map(lacks_lengths, job.cells)):
        return None
    outcomes = [Outcome(cell.label, "exists") for cell in job.user_cells]
    return Result(job, code=0, outcomes=outcomes)


def left_out(jobs: list[Job]) -> set[Path]:
    """Paths of missing evaluations that will never exist, since they are refused or no-ops."""
    verdicts: dict[str, Outcome] = {}
    paths: set[Path] = set()
    for job in jobs:
        missing = {cell.path for cell in job.cells if not cell.path.exists()}
        if missing:
            judged = judge_job(job, verdicts)
            to_come = {cell.path for cell in judged.legal} if judged.worth_running else set()
            paths |= missing - to_come
    return paths
