"""Cost estimate of jobs: time and disk, each with the measurements that it rests on.

Time is the computed work (posbench/sweep/work.py) times the seconds per FLOP of stored runs, of the same model size if there are any.
Work that took less than LEAST seconds is left out: most of it was beginning, which more work does not repeat.
That of checkpoints is in checkpoint_time.py.
"""

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.config.schema import typed
from posbench.runs.directory import Run
from posbench.runs.origins import read
from posbench.runs.search import run_directories
from posbench.sweep.cells import RECOMPUTE, Cell
from posbench.sweep.checkpoint_time import LEAST, Texts, checkpoint_time
from posbench.sweep.jobs import Job
from posbench.sweep.planned_work import planned_work
from posbench.sweep.work import Size, Work, size, work

DAMAGED = (ConfigError, RunError, OSError, KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError)  # raised by damaged files
BYTES = 4  # bytes per parameter, if none was measured
BYTES_PER_LOSS = 8.0  # bytes per loss in an evaluation's files, if none of its protocol was measured


@dataclass
class Rates:
    """Measured numbers by key. A lookup uses the first of several keys that is known, else all numbers."""

    found: dict[Hashable, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, value: float, *keys: Hashable) -> None:
        for key in (*keys, None):
            self.found[key].append(value)

    def of(self, *keys: Hashable) -> float | None:
        """Median of the numbers of the first known key, else of all numbers; None if there are none."""
        known = next((key for key in keys if key in self.found), None)
        return statistics.median(self.found[known]) if known in self.found else None


@dataclass
class Measured:
    """Rates measured on the runs of a results folder: seconds per FLOP, bytes per parameter and per loss."""

    training: Rates = field(default_factory=Rates)
    evaluation: Rates = field(default_factory=Rates)
    per_parameter: Rates = field(default_factory=Rates)
    per_loss: Rates = field(default_factory=Rates)
    texts: Texts = field(default_factory=Texts)

    def add(self, run: Run) -> None:
        """Add the rates of a run and its evaluations. Damaged files are skipped."""
        with contextlib.suppress(*DAMAGED):
            cfg = read(run.path).nested
            model, train_len = size(cfg), typed("train", cfg["train"]).train_len
            summary = run.read_summary()
            if run.weights.exists():
                self.per_parameter.add(run.weights.stat().st_size / model.parameters, model)
            if summary["tokens_per_second"] and summary["seconds"] >= LEAST:
                self.training.add(1 / (summary["tokens_per_second"] * model.training(train_len)), model)
            for path in run.eval_files():
                with contextlib.suppress(*DAMAGED):
                    self._add_evaluation(path, read_json(path), model, train_len)

    def bytes(self, planned: Work) -> float:
        """Bytes of an evaluation's files, by those of its protocol alone: of a few answers most is not losses."""
        measured = self.per_loss.found.get(planned.protocol)
        return planned.losses * (statistics.median(measured) if measured else BYTES_PER_LOSS)

    def _add_evaluation(self, path: Path, content: dict, model: Size, train_len: int) -> None:
        config, took = content["config"], _seconds(content["rows"])
        extension, lengths = config["extension"], sorted(took)
        if not extension["_target_"].startswith("posbench."):
            return  # its readings are unknown without running it
        crop = (extension.get("window") or train_len) if extension["_target_"] == RECOMPUTE else max(lengths)
        texts = {(content.get("texts") or {}).get(str(length), length) for length in lengths}
        done = work(model, config["protocol"], extension, config["evaluate"], crop, train_len, lengths, texts)
        if sum(took.values()) >= LEAST:
            self.evaluation.add(sum(took.values()) / done.flop, *done.alike)
        self.texts.add(model, config, crop, train_len, {length: seconds for length, seconds in took.items() if length in texts})
        self.per_loss.add((path.stat().st_size + path.with_suffix(".npz").stat().st_size) / done.losses, done.protocol)


def _seconds(rows: list[dict]) -> dict[int, float]:
    """Wall time of each length. A task counts once: the row of a depth has its share alone, that of the choice the same time again."""
    took: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        task = (row.get("task") or "").removesuffix(" choice")
        took[row["length"]][task] = max(took[row["length"]][task], float(row["seconds"]))
    return {length: sum(tasks.values()) for length, tasks in took.items()}


def cost(jobs: list[Job], fresh: list[Job], missing: list[tuple[Job, Cell, list[int]]]) -> list[str]:
    """Lines with the cost of the trainings (and checkpoints) of `fresh` and of the missing lengths of evaluations."""
    taken = [job for job in fresh if not job.trains]
    fresh = [job for job in fresh if job not in taken]
    tokens = [job.cfg["train"]["steps"] * job.cfg["train"]["tokens_per_step"] for job in fresh]
    done = planned_work(missing)
    theirs = [(job, cell, one) for (job, cell, _), one in zip(missing, done, strict=True) if not job.trains]
    own = [one for (job, _, _), one in zip(missing, done, strict=True) if job.trains]
    trainings = sum(job.trains for job in jobs)
    words = [f"{len(fresh)} of {trainings} trainings to make, {_number(sum(tokens))} tokens"] if trainings else []
    words += [f"{len(taken)} of {len(jobs) - trainings} checkpoints to take"] if trainings < len(jobs) else []
    line = "; ".join([*words, f"{len(done)} evaluations, {_number(sum(one.tokens for one in done))} tokens"])
    if not fresh and not done:
        return [line]
    known = Measured()
    for folder in {Path(job.cfg["results_dir"]) for job in jobs}:
        for path in run_directories(folder):
            known.add(Run(path))
    times = [_training(known, fresh, tokens)] if fresh else []
    times += [_evaluation(known, own)] if own else []
    if theirs:
        seconds, basis = checkpoint_time(known.texts, theirs)
        times.append(f"an unknown time of evaluation ({basis})" if seconds is None else f"{_time(seconds)} of evaluation {basis}")
    measured = known.training.found or known.evaluation.found or theirs
    told = f"about {', '.join(times)}" if measured else f"time unknown: nothing of {LEAST} s or more has been measured here yet"
    at_once = min(jobs[0].cfg["jobs"], len({job.run.path for job in [*fresh, *(job for job, _, _ in missing)]}))
    shared = f"; jobs={at_once} divides the time as far as the machine has cores for it" if at_once > 1 else ""
    sizes = [size(job.cfg) for job in fresh]  # the weights of a checkpoint stay where they are
    bytes_ = sum(model.parameters * (known.per_parameter.of(model) or BYTES) for model in sizes)
    bytes_ += sum(map(known.bytes, done))
    return [line, f"{told}{shared}; {bytes_ / 2**20:.1f} MiB of disk"]


def _training(known: Measured, fresh: list[Job], tokens: list[int]) -> str:
    sizes = [size(job.cfg) for job in fresh]
    rates = [known.training.of(model) for model in sizes]
    if None in rates:
        return f"an unknown time of training (none of {LEAST} s or more is there to go by)"
    flop = [model.training(typed("train", job.cfg["train"]).train_len) * n for model, job, n in zip(sizes, fresh, tokens, strict=True)]
    seconds = sum(rate * n for rate, n in zip(rates, flop, strict=True))
    return f"{_time(seconds)} of training {_basis(known.training, sizes, 'run')}"


def _evaluation(known: Measured, done: list[Work]) -> str:
    rates = [known.evaluation.of(*one.alike) or known.training.of(one.model) for one in done]
    if None in rates:
        return f"an unknown time of evaluation (none of {LEAST} s or more is there to go by)"
    told = f"{_time(sum(rate * one.flop for rate, one in zip(rates, done, strict=True)))} of evaluation"
    if not known.evaluation.found:
        return f"{told} by arithmetic from trainings"
    return f"{told} {_basis(known.evaluation, [one.model for one in done], 'evaluation')}"


def _basis(rates: Rates, sizes: list[Size], what: str) -> str:
    """Words for the basis of an estimate: how many measurements, on which models."""
    same = {model: len(rates.found[model]) for model in sizes if model in rates.found}
    words = [f"by {_count(sum(same.values()), what)} of this model size"] if same else []
    if len(same) < len(set(sizes)):
        words.append(f"by arithmetic from {_count(len(rates.found[None]) - sum(same.values()), what)} of other sizes")
    return " and ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _number(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,}"


def _time(seconds: float) -> str:
    if seconds < 5400:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days" if hours < 24 * 730 else f"{hours / 24 / 365:.0f} years"
