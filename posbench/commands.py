"""What the scripts do with the configurations they are given."""

from __future__ import annotations

import sys
from collections import Counter

from omegaconf import DictConfig

from posbench.cells import plan_jobs
from posbench.sweep import Result, run_jobs

WORDS = {"done": "evaluated", "exists": "there already", "noop": "no-op", "refused": "refused", "failed": "failed"}


def run(cfgs: list[dict], experiment: DictConfig | None) -> int:
    """scripts/run.py: make what is missing, say what became of each job."""
    jobs = plan_jobs(cfgs)
    if cfgs[0]["dry"]:
        for job in jobs:
            print(f"{job.run.path}  {'trained' if job.run.finished else 'to train'}")
            for cell in job.cells:
                missing = cell.missing()
                print(f"  {cell.label}: {'there already' if not missing else 'lengths ' + ' '.join(map(str, missing))}")
        return 0
    if all(job.done for job in jobs):
        print(f"nothing to do: {_count(len(jobs), 'training')} and {_count(sum(len(job.cells) for job in jobs), 'evaluation')} are there already")
        for job in jobs:
            print(f"  {job.run.path}")
        return 0
    results = run_jobs(jobs, cfgs[0]["jobs"])
    _tell(results, single=len(cfgs) == 1)
    if any(result.code not in (0, 2) for result in results):
        return 1
    refused = [outcome for result in results for outcome in result.outcomes if outcome.status == "refused"]
    return 2 if refused and len(cfgs) == 1 else 0


def _tell(results: list[Result], single: bool) -> None:
    for result in results:
        for outcome in result.outcomes:
            if outcome.reason:
                label = "" if single or not outcome.label else f" ({result.job.run.id}: {outcome.label})"
                print(f"{WORDS[outcome.status]}{label}: {outcome.reason}", file=sys.stderr)
    counted = Counter(outcome.status for result in results for outcome in result.outcomes)
    print(", ".join(f"{number} {WORDS[status]}" for status, number in counted.items()))
    for path in dict.fromkeys(result.job.run.path for result in results if result.job.run.finished):
        print(f"  {path}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
