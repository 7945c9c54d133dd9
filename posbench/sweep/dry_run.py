"""Output of dry=true: the fate of every job and evaluation, judged by the same rules as the jobs, before anything starts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, RunError
from posbench.model.build import make_encoding, make_trained_scale
from posbench.sweep.cost_estimate import cost
from posbench.sweep.job_process import judge
from posbench.sweep.jobs import Cell, Job

MANY = 40  # from this number on, evaluations are counted, not listed


@dataclass
class Fate:
    """Fate of one job: the reason if it is refused as a whole, its legal cells with their missing lengths, and notes about the others."""

    job: Job
    refused: str = ""
    missing: dict[Cell, list[int]] = field(default_factory=dict)
    reasons: dict[Cell, str] = field(default_factory=dict)  # "no-op: ..." or "refused: ...", else a note such as "untested pair"

    @property
    def trains(self) -> bool:
        """True if the job would train. It does not train for references alone."""
        return not self.job.run.finished and any(not cell.reference for cell in self.missing)

    @property
    def state(self) -> str:
        """Words for the planned work on the training, or on the checkpoint in its place."""
        before, after = ("checkpoint to take", "checkpoint taken") if self.job.cfg["model"].get("checkpoint") else ("to train", "trained")
        return after if self.job.run.finished else before if self.trains else f"not {before}, since nothing is left to evaluate"


def describe(jobs: list[Job]) -> list[str]:
    """Lines for each training and its evaluations (only counts if there are many), then their estimated cost."""
    fates = [_fate(job) for job in jobs]
    lines = _counted(fates) if sum(len(job.cells) for job in jobs) >= MANY else [line for fate in fates for line in _listed(fate)]
    lines += [f"{fate.job.run.path}  refused: {fate.refused}" for fate in fates if fate.refused]
    return lines + cost(jobs, [fate.job for fate in fates if fate.trains], [item for fate in fates for item in _work(fate)])


def _work(fate: Fate) -> list[tuple[Job, Cell, list[int]]]:
    to_do = fate.job.run.finished or fate.trains
    return [(fate.job, cell, lengths) for cell, lengths in fate.missing.items() if lengths and to_do]


def _fate(job: Job) -> Fate:
    fate = Fate(job)
    try:
        encoding = make_encoding(job.cfg)
        make_trained_scale(job.cfg, encoding)
    except ConfigError as error:
        fate.refused = str(error)
        return fate
    for cell in job.cells:
        try:
            verdict = judge(encoding, cell)
            if verdict.noop:
                fate.reasons[cell] = f"no-op: {verdict.noop}"
                continue
            fate.missing[cell] = cell.missing()
            if verdict.untested:
                fate.reasons[cell] = "untested pair"
        except ConfigError as error:
            fate.reasons[cell] = f"refused: {error}"
        except RunError as error:  # damaged file: the job would fail on it as well
            fate.reasons[cell] = f"would fail: {error}"
    return fate


def _listed(fate: Fate) -> list[str]:
    if fate.refused:
        return []
    lines = [f"{fate.job.run.path}  {fate.state}"]
    for cell in fate.job.cells:
        said = fate.reasons.get(cell, "")
        if cell in fate.missing:
            lengths = fate.missing[cell]
            said = ("lengths " + " ".join(map(str, lengths)) if lengths else "there already") + (f" ({said})" if said else "")
        lines.append(f"  {cell.label}: {said}")
    return lines


def _counted(fates: list[Fate]) -> list[str]:
    """One line per training, then each sentence once with its number of evaluations."""
    lines, sentences = [], defaultdict(int)
    for fate in fates:
        if fate.refused:
            continue
        fresh = [lengths for lengths in fate.missing.values() if lengths]
        there = len(fate.missing) - len(fresh)
        number = sum(map(len, fresh))
        words = [f"{len(fresh)} evaluations to make ({number} lengths)"] * bool(fresh) + [f"{there} there already"] * bool(there)
        left_out = len(fate.job.cells) - len(fate.missing)
        words += [f"{left_out} left out"] * bool(left_out)
        lines.append(f"{fate.job.run.path}  {fate.state}; {', '.join(words)}")
        for cell, said in fate.reasons.items():
            sentences[f"{cell.label}: {said}" if said == "untested pair" else said] += 1
    return lines + [f"{number} x {said}" for said, number in sentences.items()]
