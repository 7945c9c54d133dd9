"""What jobs would cost, by the measure of the runs and evaluations that are there: time and disk, and what each figure rests on."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from posbench.cells import Cell, Job
from posbench.errors import RunError
from posbench.files import read_json
from posbench.identity import method_name
from posbench.listing import read_config, run_directories
from posbench.runs import Run

FORWARD_SHARE = 1 / 3  # of a training step's time per token: reading is one of its three passes


@dataclass
class Measured:
    """What the runs of a results folder took: tokens/s and bytes of weights by model, evaluations' seconds per token and bytes per length.

    A token of an evaluation is one of windows x length, whatever its method reads: seconds are kept by (protocol, extension).
    """

    runs: int = 0
    evaluations: int = 0
    speeds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    weights: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    bytes_per_length: list[float] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Take a run and its evaluations into account; what is damaged tells nothing."""
        model = repr(read_config(run)[0].get("model"))
        with contextlib.suppress(RunError, OSError, KeyError, TypeError):
            summary = run.read_summary()
            self.runs += 1
            self.weights[model].append(run.weights.stat().st_size)
            if summary["tokens_per_second"]:
                self.speeds[model].append(float(summary["tokens_per_second"]))
        for path in run.eval_files():
            with contextlib.suppress(RunError, OSError, KeyError, TypeError, ValueError):
                self._add_evaluation(path, read_json(path))

    def _add_evaluation(self, path: Path, content: dict) -> None:
        windows = content["config"]["evaluate"]["windows"]
        took = {row["length"]: float(row["seconds"]) for row in content["rows"]}
        kind = content["config"]["protocol"], method_name(content["config"]["extension"])
        self.seconds[kind] += [seconds / (windows * length) for length, seconds in took.items()]
        self.bytes_per_length.append((path.stat().st_size + path.with_suffix(".npz").stat().st_size) / len(took))
        self.evaluations += 1

    def speed(self, job: Job) -> float | None:
        """Tokens/s of trainings of this model, else of any."""
        return _median(self.speeds, repr(job.cfg["model"]))

    def weight(self, job: Job) -> float | None:
        """Bytes of this model's weights, else of any."""
        return _median(self.weights, repr(job.cfg["model"]))

    def reading(self, job: Job, cell: Cell) -> float | None:
        """Seconds per token of evaluations of this protocol and extension, else of this protocol, else of any, else by trainings."""
        extension = method_name(cell.extension)
        alike = [s for (protocol, _), found in self.seconds.items() if protocol == cell.protocol for s in found]
        known = self.seconds.get((cell.protocol, extension)) or alike or [s for found in self.seconds.values() for s in found]
        if known:
            return statistics.median(known)
        speed = self.speed(job)
        return FORWARD_SHARE / speed if speed else None


def cost(jobs: list[Job], fresh: list[Job], work: list[tuple[Job, Cell, list[int]]]) -> list[str]:
    """One or two lines for the trainings of `fresh` and the missing lengths in `work`."""
    tokens = {job.run.path: job.cfg["train"]["steps"] * job.cfg["train"]["tokens_per_step"] for job in fresh}
    read = [(job, cell, cell.evaluate["windows"] * sum(lengths)) for job, cell, lengths in work]
    line = f"{len(fresh)} of {len(jobs)} trainings to make, {_number(sum(tokens.values()))} tokens; "
    line += f"{len(work)} evaluations, {_number(sum(n for _, _, n in read))} tokens"
    if not fresh and not work:
        return [line]
    known = Measured()
    for folder in {Path(job.cfg["results_dir"]) for job in jobs}:
        for path in run_directories(folder):
            known.add(Run(path))
    if not known.runs:
        return [f"{line}; time and disk unknown: nothing has been measured here yet"]
    words = []
    speeds = [known.speed(job) for job in fresh]
    if fresh:
        whole = None if None in speeds else sum(tokens[job.run.path] / speed for job, speed in zip(fresh, speeds, strict=True))
        words.append(f"{_time(whole)} of training by the {known.runs} runs that are there")
    if read:
        rates = [known.reading(job, cell) for job, cell, _ in read]
        whole = None if None in rates else sum(rate * n for rate, (_, _, n) in zip(rates, read, strict=True))
        by = f"the {known.evaluations} evaluations that are there" if known.evaluations else "a third of the trainings' time per token"
        words.append(f"{_time(whole)} of evaluation by {by}")
    weights = sum(known.weight(job) or 0 for job in fresh)
    per_length = statistics.median(known.bytes_per_length or [0])
    size = weights + per_length * sum(len(lengths) for _, _, lengths in work)
    shared = f"; jobs={jobs[0].cfg['jobs']} divides the time as far as the machine has cores for it" if jobs[0].cfg["jobs"] > 1 else ""
    return [line, f"about {', '.join(words)}{shared}; {size / 2**20:.1f} MiB of disk"]


def _median(found: dict[str, list], model: str) -> float | None:
    values = found.get(model) or [value for values in found.values() for value in values]
    return statistics.median(values) if values else None


def _number(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
