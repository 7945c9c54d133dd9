"""Output of dry=true: the verdict on every job and evaluation, by the same rules as the jobs, before anything starts."""

from collections import defaultdict
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, RunError
from posbench.data.corpus import known_tokenizer
from posbench.evaluators.accuracy import Accuracy
from posbench.sweep.cells import Cell
from posbench.sweep.cost_estimate import cost
from posbench.sweep.jobs import Job, Outcome
from posbench.sweep.verdict import JobVerdict, judge_job

MANY = 40  # from this number on, evaluations are counted, not listed
NOTES = {"untested": "untested pair", "noop": "no-op: ", "refused": "refused: "}  # {verdict: note}, followed by its reason


@dataclass
class JobPlan:
    """Plan of one job: the verdict on it, its legal cells with their missing lengths, and notes about the others."""

    job: Job
    judged: JobVerdict
    missing: dict[Cell, list[int]] = field(default_factory=dict)
    notes: dict[Cell, str] = field(default_factory=dict)  # "no-op: ..." or "refused: ...", else a note such as "untested pair"

    @property
    def trains(self) -> bool:
        """True if the job would train. It does not train for references alone."""
        return not self.job.run.finished and any(not cell.reference for cell in self.missing)

    @property
    def work(self) -> list[tuple[Job, Cell, list[int]]]:
        """Evaluations to make, each with its missing lengths."""
        to_do = self.job.run.finished or self.trains
        return [(self.job, cell, lengths) for cell, lengths in self.missing.items() if lengths and to_do]

    @property
    def refusals(self) -> list[str]:
        """Reasons for which the job, or an evaluation that the user asked for, is refused."""
        cells = [verdict.reason for cell, verdict in self.judged.cells.items() if verdict.status == "refused" and not cell.reference]
        return [self.judged.refused] if self.judged.refused else cells

    @property
    def state(self) -> str:
        """Words for the planned work on the training, or on the checkpoint in its place."""
        before, after, no = ("to train", "trained", "not") if self.job.cfg.trains else ("checkpoint to take", "checkpoint taken", "no")
        if parent := self.job.cfg.train.parent:
            before, after = f"to fine-tune from {parent['run_id']}", f"fine-tuned from {parent['run_id']}"
        return after if self.job.run.finished else before if self.trains else f"{no} {before}, since nothing is left to evaluate"


def planned(jobs: list[Job]) -> list[JobPlan]:
    """Plan of each job."""
    known: dict[str, Outcome] = {}
    refused: dict[str, str] = {}  # by what is asked
    return [_plan(job, known, refused) for job in jobs]


def check_devices(jobs: list[Job], launcher: dict) -> None:
    """Raise ConfigError for a device of jobs that is not there. SLURM's nodes have other devices than this machine, which are not asked."""
    from posbench.model.build import check_device

    for device in {job.cfg.device for job in jobs} if launcher.get("via") != "slurm" else ():
        check_device(device)


def describe_plans(plans: list[JobPlan]) -> list[str]:
    """Lines for each training and its evaluations (only counts if there are many), then their estimated cost."""
    jobs, legal = [plan.job for plan in plans], [plan for plan in plans if not plan.judged.refused]
    lines = _counted_lines(legal) if sum(len(job.cells) for job in jobs) >= MANY else [line for plan in legal for line in _plan_lines(plan)]
    lines += [f"{plan.job.run.path}  refused: {plan.judged.refused}" for plan in plans if plan.judged.refused]
    fresh = [plan.job for plan in plans if plan.trains]
    parents = _missing_parents(fresh)
    lines = [f"{job.run.path}  {'to train' if job.cfg.trains else 'checkpoint to take'}, as a parent" for job in parents] + lines
    return lines + cost([*parents, *jobs], [*parents, *fresh], [item for plan in plans for item in plan.work])


def _missing_parents(fresh: list[Job]) -> list[Job]:
    """Missing parents of the trainings to make, each once, without those that are to be made in their own right."""
    own = {job.run.path for job in fresh}
    missing = [job.parent for job in fresh if job.parent and not job.parent.run.finished]
    return list({job.run.path: job for job in missing if job.run.path not in own}.values())


def _plan(job: Job, known: dict[str, Outcome], refused: dict[str, str]) -> JobPlan:
    plan = JobPlan(job, judge_job(job, known))
    for cell, verdict in plan.judged.cells.items():
        if verdict.status in NOTES:
            plan.notes[cell] = NOTES[verdict.status] + verdict.reason
        try:
            if not verdict.reason:
                plan.missing[cell] = cell.missing()
        except RunError as error:  # damaged file: the job would fail on it as well
            plan.notes[cell] = f"would fail: {error}"
    for _, cell, _ in plan.work:
        key = repr((job.cfg.data, cell.evaluate))
        if key not in refused:
            refused[key] = _too_short(job, cell)
        if refused[key]:
            return JobPlan(job, JobVerdict(refused[key]))
    return plan


def _too_short(job: Job, cell: Cell) -> str:
    """Refusal of a length without room for a question in words, as by the job; "" also where the tokenizer is yet to be trained."""
    data = job.cfg.data
    try:
        if cell.evaluate.tasks and (tokenizer := known_tokenizer(data, job.cfg.cache_dir)):
            Accuracy.check_tokens(cell.evaluate, tokenizer, 0 if data["bos"] else None)
    except ConfigError as error:
        return str(error)
    return ""


def _plan_lines(plan: JobPlan) -> list[str]:
    lines = [f"{plan.job.run.path}  {plan.state}"]
    for cell in plan.job.cells:
        said = plan.notes.get(cell, "")
        if cell in plan.missing:
            lengths = plan.missing[cell]
            said = ("lengths " + " ".join(map(str, lengths)) if lengths else "there already") + (f" ({said})" if said else "")
        lines.append(f"  {cell.label}: {said}")
    return lines


def _counted_lines(plans: list[JobPlan]) -> list[str]:
    """One line per training, then each sentence once with its number of evaluations."""
    lines, sentences = [], defaultdict(int)
    for plan in plans:
        fresh = [lengths for lengths in plan.missing.values() if lengths]
        there = len(plan.missing) - len(fresh)
        number = sum(map(len, fresh))
        words = [f"{len(fresh)} evaluations to make ({number} lengths)"] * bool(fresh) + [f"{there} there already"] * bool(there)
        left_out = len(plan.job.cells) - len(plan.missing)
        words += [f"{left_out} left out"] * bool(left_out)
        lines.append(f"{plan.job.run.path}  {plan.state}; {', '.join(words)}")
        for cell, said in plan.notes.items():
            sentences[f"{cell.label}: {said}" if said == "untested pair" else said] += 1
    return lines + [f"{number} x {said}" for said, number in sentences.items()]
