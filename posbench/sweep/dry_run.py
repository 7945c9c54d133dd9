"""Output of dry=true: the verdict on every job and evaluation, by the same rules as the jobs."""

from collections import Counter

from posbench.common.errors import ConfigError
from posbench.common.outcome import Outcome
from posbench.data.corpus import known_tokenizer
from posbench.evaluation.protocols.accuracy import Accuracy
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.cost import cost
from posbench.sweep.jobs import Job
from posbench.sweep.verdict import JobVerdict, judge_job
from posbench.sweep.work import count_cells, missing_parents

MANY = 40  # from this number on, evaluations are counted, not listed
# {verdict: note}, followed by its reason
NOTES = {
    "untested": "untested pair",
    "own": "own method",
    "noop": "no-op: ",
    "refused": "refused: ",
}


def planned(jobs: list[Job]) -> list[JobVerdict]:
    """Verdict on each job, refused too for a length without room for a question in words.

    Whether there is room is only checked where the tokenizer is known already.
    """
    verdicts: dict[str, Outcome] = {}
    checked: set[str] = set()  # data and settings that have room, as `key` below
    plans = []
    for job in jobs:
        plan = judge_job(job, verdicts)
        for _, cell, _ in plan.missing_evaluations:
            key = repr((job.config.data, cell.evaluate))
            if key in checked:
                continue
            try:
                _check_room(job, cell)
                checked.add(key)
            except ConfigError as error:  # of several cells without room, the last is told
                plan = JobVerdict(job, str(error))
        plans.append(plan)
    return plans


def _check_room(job: Job, cell: EvaluationCell) -> None:
    """Raise ConfigError if a length of the cell has no room for a question in words."""
    data = job.config.data
    tokenizer = known_tokenizer(data, job.config.cache_dir) if cell.evaluate.tasks else None
    if tokenizer:
        Accuracy.check_tokens(cell.evaluate, tokenizer, 0 if data["bos"] else None)


def check_devices(jobs: list[Job], launcher: dict) -> None:
    """Raise ConfigError for a device of jobs that is not there.

    SLURM's nodes have other devices than this machine, which are not asked.
    """
    from posbench.model.build import check_device

    if launcher.get("via") != "slurm":
        for device in {job.config.device for job in jobs}:
            check_device(device)


def describe_plans(plans: list[JobVerdict]) -> list[str]:
    """Lines for each training and its evaluations, then their estimated cost.

    Many evaluations are only counted.
    """
    lines = []
    for parent in _missing_parents(plans):
        work = "to train" if parent.config.trains else "checkpoint to take"
        lines.append(f"{parent.run.path}  {work}, as a parent")
    legal = [plan for plan in plans if not plan.refused]
    if sum(len(plan.job.cells) for plan in plans) >= MANY:
        lines += _counted_lines(legal)
    else:
        for plan in legal:
            lines += _plan_lines(plan)
    lines += [f"{plan.job.run.path}  refused: {plan.refused}" for plan in plans if plan.refused]
    return lines + cost_of(plans)


def cost_of(plans: list[JobVerdict], first: int | None = None) -> list[str]:
    """Lines with the estimated cost of all plans and of the parents that they need.

    They tell when a picture of the `first` models comes.
    """
    parents = _missing_parents(plans)
    jobs = [*parents, *(plan.job for plan in plans)]
    fresh = [*parents, *(plan.job for plan in plans if plan.would_train)]
    missing = [evaluation for plan in plans for evaluation in plan.missing_evaluations]
    return cost(jobs, fresh, missing, first)


def _missing_parents(plans: list[JobVerdict]) -> list[Job]:
    """Missing parents of the trainings to make, without those to be made in their own right."""
    return missing_parents([plan.job for plan in plans if plan.would_train])


def _state(plan: JobVerdict) -> str:
    """Words for the planned work on the training, or on the checkpoint in its place.

    "trained", "to fine-tune from ID", "no checkpoint to take, since nothing is left to evaluate".
    """
    train = plan.job.config.train
    not_word = "not"  # "not to train", but "no checkpoint to take"
    if train.parent:
        missing_words = f"to fine-tune from {train.parent['run_id']}"
        finished_words = f"fine-tuned from {train.parent['run_id']}"
    elif plan.job.config.trains:
        missing_words = "to train"
        finished_words = "trained"
    else:
        missing_words = "checkpoint to take"
        finished_words = "checkpoint taken"
        not_word = "no"
    if plan.job.run.finished:
        return finished_words
    if plan.would_train:
        return missing_words
    return f"{not_word} {missing_words}, since nothing is left to evaluate"


def _note(verdict: Outcome) -> str:
    """Words for a verdict, such as "no-op: ..."; "" for legal."""
    return NOTES.get(verdict.status, "") + verdict.reason


def _plan_lines(plan: JobVerdict) -> list[str]:
    """Lines for a training and each of its evaluations, such as "  LABEL: lengths 64 128"."""
    lines = [f"{plan.job.run.path}  {_state(plan)}"]
    for cell, verdict in plan.cells.items():
        note = _note(verdict)
        if cell in plan.missing_lengths:
            lengths = plan.missing_lengths[cell]
            work = "lengths " + " ".join(map(str, lengths)) if lengths else "there already"
            note = f"{work} ({note})" if note else work
        lines.append(f"  {cell.label}: {note}")
    return lines


def _counted_lines(plans: list[JobVerdict]) -> list[str]:
    """One line per training, then each sentence once with its number of evaluations."""
    lines = []
    sentences = Counter()
    for plan in plans:
        # `missing_lengths` has every legal cell, with [] where nothing is missing, and no other.
        cells = {
            "to make": [cell for cell, lengths in plan.missing_lengths.items() if lengths],
            "there already": [
                cell for cell, lengths in plan.missing_lengths.items() if not lengths
            ],
            "left out": [cell for cell in plan.job.cells if cell not in plan.missing_lengths],
        }
        counted = ", ".join(f"{count_cells(part)} {word}" for word, part in cells.items() if part)
        lines.append(f"{plan.job.run.path}  {_state(plan)}; {counted}")
        for cell, verdict in plan.cells.items():
            note = _note(verdict)
            if not note:  # legal
                continue
            if verdict.status in ("untested", "own"):  # whose sentence names no method by itself
                note = f"{cell.label}: {note}"
            sentences[note] += 1
    return lines + [f"{number} x {sentence}" for sentence, number in sentences.items()]
