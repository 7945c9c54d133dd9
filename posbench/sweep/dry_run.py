"""Output of dry=true: the verdict on every job and evaluation, by the same rules as the jobs,
before anything starts.
"""

from collections import Counter

from posbench.common.errors import ConfigError
from posbench.data.corpus import known_tokenizer
from posbench.evaluation.protocols.accuracy import Accuracy
from posbench.sweep.cost import cost
from posbench.sweep.jobs import Job, Outcome
from posbench.sweep.verdict import JobVerdict, judge_job

MANY = 40  # from this number on, evaluations are counted, not listed
NOTES = {
    "untested": "untested pair",
    "noop": "no-op: ",
    "refused": "refused: ",
}  # {verdict: note}, followed by its reason


def planned(jobs: list[Job]) -> list[JobVerdict]:
    """Verdict on each job, refused too for a length without room for a question in words, where the
    tokenizer is known already.
    """
    known: dict[str, Outcome] = {}
    roomy, plans = set(), []
    for job in jobs:
        plan, data = judge_job(job, known), job.config.data
        for _, cell, _ in plan.work:
            key = repr((data, cell.evaluate))
            try:
                if (
                    key not in roomy
                    and cell.evaluate.tasks
                    and (tokenizer := known_tokenizer(data, job.config.cache_dir))
                ):
                    Accuracy.check_tokens(cell.evaluate, tokenizer, 0 if data["bos"] else None)
                roomy.add(key)
            except ConfigError as error:
                plan = JobVerdict(job, str(error))
        plans.append(plan)
    return plans


def check_devices(jobs: list[Job], launcher: dict) -> None:
    """Raise ConfigError for a device of jobs that is not there. SLURM's nodes have other devices
    than this machine, which are not asked.
    """
    from posbench.model.build import check_device

    for device in {job.config.device for job in jobs} if launcher.get("via") != "slurm" else ():
        check_device(device)


def describe_plans(plans: list[JobVerdict]) -> list[str]:
    """Lines for each training and its evaluations (only counts if there are many), then their
    estimated cost.
    """
    jobs, legal = [plan.job for plan in plans], [plan for plan in plans if not plan.refused]
    lines = (
        _counted_lines(legal)
        if sum(len(job.cells) for job in jobs) >= MANY
        else [line for plan in legal for line in _plan_lines(plan)]
    )
    lines += [f"{plan.job.run.path}  refused: {plan.refused}" for plan in plans if plan.refused]
    parents = _missing_parents(plans)
    lines = [
        f"{job.run.path}  {'to train' if job.config.trains else 'checkpoint to take'}, as a parent"
        for job in parents
    ] + lines
    return lines + cost_of(plans)


def cost_of(plans: list[JobVerdict], first: int | None = None) -> list[str]:
    """Lines with the estimated cost of all plans and of the parents that they need, and when a
    picture of the `first` models comes.
    """
    parents = _missing_parents(plans)
    fresh = [*parents, *(plan.job for plan in plans if plan.trains)]
    return cost(
        [*parents, *(plan.job for plan in plans)],
        fresh,
        [item for plan in plans for item in plan.work],
        first,
    )


def _missing_parents(plans: list[JobVerdict]) -> list[Job]:
    """Missing parents of the trainings to make, each once, without those that are to be made in
    their own right.
    """
    fresh = [plan.job for plan in plans if plan.trains]
    own = {job.run.path for job in fresh}
    missing = [job.parent for job in fresh if job.parent and not job.parent.run.finished]
    return list({job.run.path: job for job in missing if job.run.path not in own}.values())


def _state(plan: JobVerdict) -> str:
    """Words for the planned work on the training, or on the checkpoint in its place."""
    before, after, no = (
        ("to train", "trained", "not")
        if plan.job.config.trains
        else ("checkpoint to take", "checkpoint taken", "no")
    )
    if parent := plan.job.config.train.parent:
        before, after = (
            f"to fine-tune from {parent['run_id']}",
            f"fine-tuned from {parent['run_id']}",
        )
    return (
        after
        if plan.job.run.finished
        else before
        if plan.trains
        else f"{no} {before}, since nothing is left to evaluate"
    )


def _note(verdict: Outcome) -> str:
    return NOTES.get(verdict.status, "") + verdict.reason


def _plan_lines(plan: JobVerdict) -> list[str]:
    lines = [f"{plan.job.run.path}  {_state(plan)}"]
    for cell, verdict in plan.cells.items():
        said = _note(verdict)
        if cell in plan.missing:
            lengths = plan.missing[cell]
            said = ("lengths " + " ".join(map(str, lengths)) if lengths else "there already") + (
                f" ({said})" if said else ""
            )
        lines.append(f"  {cell.label}: {said}")
    return lines


def _counted_lines(plans: list[JobVerdict]) -> list[str]:
    """One line per training, then each sentence once with its number of evaluations."""
    lines, sentences = [], Counter()
    for plan in plans:
        fresh, legal = sum(map(bool, plan.missing.values())), len(plan.missing)
        counts = {
            "evaluations to make": fresh,
            "there already": legal - fresh,
            "left out": len(plan.job.cells) - legal,
        }
        lines.append(
            f"{plan.job.run.path}  {_state(plan)};"
            f" {', '.join(f'{number} {what}' for what, number in counts.items() if number)}"
        )
        for cell, verdict in plan.cells.items():
            if said := _note(verdict):
                sentences[f"{cell.label}: {said}" if verdict.status == "untested" else said] += 1
    return lines + [f"{number} x {said}" for said, number in sentences.items()]
