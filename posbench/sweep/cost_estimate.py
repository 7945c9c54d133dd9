"""Cost estimate of jobs: time and disk, each with the measurements that it rests on.

Time is the computed cost (posbench/sweep/cost.py) times the seconds per FLOP of stored runs, of the same model size if there are any.
Work that took less than LEAST seconds is left out: most of it was beginning, which more work does not repeat.

The time of a checkpoint's evaluations goes text by text: by stored evaluations that read such texts, of the same model size, method,
number format and about the same length, else by one layer measured now (posbench/evaluation/probe.py). Stored ones of the same model size
and number format also correct what is measured now, perhaps beside other work: by how long the longest of their texts took and how long
it would take by the same measurement.
"""

import contextlib
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.common.machine import cores
from posbench.config.identity import method_name
from posbench.config.schema import JobConfig, typed
from posbench.evaluation.protocol import ReadVolume
from posbench.runs.directory import Run
from posbench.runs.run_metadata import read_metadata
from posbench.runs.search import run_directories
from posbench.sweep.cells import RECOMPUTE, Cell
from posbench.sweep.cost import EvaluationCost, ModelSize, costs_left, evaluation_cost, model_size, vocabulary
from posbench.sweep.jobs import Job

if TYPE_CHECKING:
    from posbench.evaluation.probe import Probe

DAMAGED = (ConfigError, RunError, OSError, KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError)  # raised by damaged files
LEAST = 1  # seconds from which the time of work is about proportional to it; below, what is done once decides
STEP_FLOP = 5e11  # largest training step that is made to measure its time
BYTES = 4  # bytes per parameter, if none was measured
BYTES_PER_LOSS = 8.0  # bytes per loss in an evaluation's files, if none of its protocol was measured


@dataclass
class Rates:
    """Measured numbers by key. Those of every key are also found under None."""

    found: dict[Hashable, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, value: float, *keys: Hashable) -> None:
        for key in (*keys, None):
            self.found[key].append(value)

    def of(self, *keys: Hashable) -> float | None:
        """Median of the numbers of the first known key; None if there are none."""
        return next((statistics.median(self.found[key]) for key in keys if key in self.found), None)


@dataclass
class MeasuredRates:
    """Rates measured on the runs of a results folder: seconds per FLOP, bytes per parameter and per loss."""

    training: Rates = field(default_factory=Rates)
    evaluation: Rates = field(default_factory=Rates)
    text: Rates = field(default_factory=Rates)  # seconds per FLOP of single texts, by `_text_key`
    longest: dict[Hashable, tuple[ReadVolume, dict, dict]] = field(default_factory=dict)  # longest text, its extension and scale
    per_parameter: Rates = field(default_factory=Rates)
    per_loss: Rates = field(default_factory=Rates)
    stepped: bool = False  # True if the rate of training is that of some steps made just now

    def add(self, run: Run) -> None:
        """Add the rates of a run and its evaluations. Damaged files are skipped."""
        with contextlib.suppress(*DAMAGED):
            nested = read_metadata(run.path).nested
            cfg = JobConfig.of({key: nested[key] for key in ("model", "data", "train")})
            model, train_len = model_size(cfg), cfg.train.train_len
            summary = run.read_summary()
            if run.weights.exists():
                self.per_parameter.add(run.weights.stat().st_size / model.parameters, model)
            if summary["tokens_per_second"] and summary["seconds"] >= LEAST:
                self.training.add(1 / (summary["tokens_per_second"] * model.training(train_len)), model)
            for path in run.eval_files():
                with contextlib.suppress(*DAMAGED):
                    self._add_evaluation(path, read_json(path), model, train_len)

    def _add_evaluation(self, path: Path, content: dict, model: ModelSize, train_len: int) -> None:
        config, took = content["config"], _seconds(content["rows"])
        extension, evaluate, lengths = config["extension"], typed("evaluate", config["evaluate"]), sorted(took)
        if not extension["_target_"].startswith("posbench."):
            return  # its readings are unknown without running it
        crop = (extension.get("window") or train_len) if extension["_target_"] == RECOMPUTE else max(lengths)
        texts = {(content.get("texts") or {}).get(str(length), length) for length in lengths}
        done = evaluation_cost(model, config["protocol"], extension, evaluate, crop, train_len, lengths, texts)
        if sum(took.values()) >= LEAST:
            self.evaluation.add(sum(took.values()) / done.flop, *done.alike)
        self._add_texts(model, config, crop, train_len, {length: seconds for length, seconds in took.items() if length in texts})
        self.per_loss.add((path.stat().st_size + path.with_suffix(".npz").stat().st_size) / done.losses, done.protocol)

    def _add_texts(self, model: ModelSize, config: dict, crop: int, train_len: int, seconds: dict[int, float]) -> None:
        """Add the texts of one evaluation, whose `seconds` are {length: seconds of its own text}."""
        extension, evaluate = config["extension"], typed("evaluate", config["evaluate"])
        known: set[ReadVolume] = set()
        for length, took in sorted(seconds.items()):
            (text,) = evaluation_cost(model, config["protocol"], extension, evaluate, crop, train_len, [length]).reads
            if text not in known:  # beyond the crop every length reads the same texts, once
                known.add(text)
                if took >= LEAST:
                    kind = model, evaluate.dtype
                    self.text.add(took / model.forward(text), _text_key(*kind, extension, text))
                    if kind not in self.longest or text.tokens > self.longest[kind][0].tokens:
                        self.longest[kind] = text, extension, config["scale_attention"]

    def make_steps(self, fresh: list[Job], at_once: int) -> None:
        """If no training was measured, measure some steps of the first that is to make, unless one takes long."""
        job = fresh[0] if fresh and not self.training.found else None
        if job is None or model_size(job.cfg).training(job.cfg.train.train_len) * job.cfg.train.tokens_per_step > STEP_FLOP:
            return
        from posbench.training.probe import step_seconds

        with contextlib.suppress(*DAMAGED, RuntimeError):
            seconds = step_seconds(job.cfg, vocabulary(job.cfg), max(1, cores() // at_once))
            model, train = model_size(job.cfg), job.cfg.train
            self.training.add(seconds / (model.training(train.train_len) * train.tokens_per_step), model)
            self.stepped = True

    def correction(self, probe: "Probe", model: ModelSize, dtype: str) -> float:
        """Time that the longest stored text of a model size and number format took, over the one that a probe tells; 1 if there is none."""
        if (model, dtype) not in self.longest:
            return 1.0
        text, extension, scale = self.longest[model, dtype]
        return self.text.of(_text_key(model, dtype, extension, text)) * model.forward(text) / probe.seconds(text, extension, scale)


def _text_key(model: ModelSize, dtype: str, extension: dict, text: ReadVolume) -> tuple[Hashable, ...]:
    """Key of texts that take about as long per FLOP: their lengths have the same nearest power of two."""
    return model, dtype, method_name(extension), round(math.log2(text.tokens))


def _seconds(rows: list[dict]) -> dict[int, float]:
    """Wall time of each length. A task counts once: the row of a depth has its share alone, that of the choice the same time again."""
    took: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        task = (row.get("task") or "").removesuffix(" choice")
        took[row["length"]][task] = max(took[row["length"]][task], float(row["seconds"]))
    return {length: sum(tasks.values()) for length, tasks in took.items()}


def cost(jobs: list[Job], fresh: list[Job], missing: list[tuple[Job, Cell, list[int]]]) -> list[str]:
    """Lines with the cost of the trainings (and checkpoints) of `fresh` and of the missing lengths of evaluations."""
    taken = [job for job in fresh if not job.cfg.trains]
    fresh = [job for job in fresh if job not in taken]
    tokens = [job.cfg.train.steps * job.cfg.train.tokens_per_step for job in fresh]
    done = costs_left(missing)
    theirs = [(job, cell, one) for (job, cell, _), one in zip(missing, done, strict=True) if not job.cfg.trains]
    own = [one for (job, _, _), one in zip(missing, done, strict=True) if job.cfg.trains]
    trainings = sum(job.cfg.trains for job in jobs)
    words = [f"{len(fresh)} of {trainings} trainings to make, {_in_tokens(sum(tokens))} tokens"] if trainings else []
    words += [f"{len(taken)} of {len(jobs) - trainings} checkpoints to take"] if trainings < len(jobs) else []
    line = "; ".join([*words, f"{len(done)} evaluations, {_in_tokens(sum(one.tokens for one in done))} tokens"])
    if not fresh and not done:
        return [line]
    known = measured_rates(jobs)
    at_once = min(jobs[0].cfg.jobs, len({job.run.path for job in [*fresh, *(job for job, _, _ in missing)]}))
    known.make_steps(fresh, at_once)
    times = [_training_time(known, fresh)] if fresh else []
    times += [_evaluation_time(known, own)] if own else []
    if theirs:
        seconds, basis = _checkpoint_time(known, theirs)
        times.append(f"an unknown time of evaluation ({basis})" if seconds is None else f"{duration_words(seconds)} of evaluation {basis}")
    measured = known.training.found or known.evaluation.found or theirs
    told = f"about {', '.join(times)}" if measured else f"time unknown: nothing of {LEAST} s or more has been measured here yet"
    shared = f"; jobs={at_once} divides the time as far as the machine has cores for it" if at_once > 1 else ""
    sizes = [model_size(job.cfg) for job in fresh]  # the weights of a checkpoint stay where they are
    bytes_ = sum(model.parameters * (known.per_parameter.of(model, None) or BYTES) for model in sizes)
    bytes_ += sum(one.losses * (known.per_loss.of(one.protocol) or BYTES_PER_LOSS) for one in done)  # of a few answers most is not losses
    return [line, f"{told}{shared}; {bytes_ / 2**20:.1f} MiB of disk"]


def expected_seconds(jobs: list[Job], fresh: list[Job], missing: list[tuple[Job, Cell, list[int]]], at_once: int) -> list[float | None]:
    """Seconds of the trainings of `fresh`, and of the missing lengths of evaluations, all one after the other; None if unknown."""
    known = measured_rates(jobs)
    known.make_steps(fresh, at_once)
    return [_training_seconds(known, fresh), _evaluation_seconds(known, costs_left(missing))]


def _training_seconds(known: MeasuredRates, fresh: list[Job]) -> float | None:
    sizes = [model_size(job.cfg) for job in fresh]
    rates = [known.training.of(model, None) for model in sizes]
    if None in rates:
        return None
    trains = [job.cfg.train for job in fresh]
    flop = [model.training(train.train_len) * train.steps * train.tokens_per_step for model, train in zip(sizes, trains, strict=True)]
    return sum(rate * n for rate, n in zip(rates, flop, strict=True))


def _training_time(known: MeasuredRates, fresh: list[Job]) -> str:
    seconds = _training_seconds(known, fresh)
    if seconds is None:
        return f"an unknown time of training (nothing of {LEAST} s or more was measured)"
    basis = "by some steps made just now" if known.stepped else _basis(known.training, [model_size(job.cfg) for job in fresh], "run")
    return f"{duration_words(seconds)} of training {basis}"


def _evaluation_seconds(known: MeasuredRates, done: list[EvaluationCost]) -> float | None:
    rates = [known.evaluation.of(*one.alike, None) or known.training.of(one.model, None) for one in done]
    return None if None in rates else sum(rate * one.flop for rate, one in zip(rates, done, strict=True))


def _evaluation_time(known: MeasuredRates, done: list[EvaluationCost]) -> str:
    seconds = _evaluation_seconds(known, done)
    if seconds is None:
        return f"an unknown time of evaluation (nothing of {LEAST} s or more was measured)"
    told = f"{duration_words(seconds)} of evaluation"
    if not known.evaluation.found:
        return f"{told} by arithmetic from {'these' if known.stepped else 'trainings'}"
    return f"{told} {_basis(known.evaluation, [one.model for one in done], 'evaluation')}"


class ReadingTime:
    """Time of texts that checkpoints read: by stored ones like them, else by one layer measured when it is first asked for."""

    def __init__(self, known: MeasuredRates) -> None:
        self.known = known
        self.probes: dict[Hashable, tuple[Probe, float]] = {}  # with their corrections
        self.stored = False

    def seconds(self, job: Job, dtype: str, extension: dict, scale: dict, text: ReadVolume) -> float:
        """Seconds of a text. Raises ConfigError for a device that cannot be measured here."""
        model = model_size(job.cfg)
        if (rate := self.known.text.of(_text_key(model, dtype, extension, text))) is not None:
            self.stored = True
            return rate * model.forward(text)
        if (key := (job.run.path, dtype)) not in self.probes:
            from posbench.evaluation.probe import Probe

            probe = Probe(job.cfg, vocabulary(job.cfg), dtype)
            self.probes[key] = probe, self.known.correction(probe, model, dtype)
        probe, correction = self.probes[key]
        return correction * probe.seconds(text, extension, scale)

    @property
    def basis(self) -> str:
        """Basis of the times, in words."""
        return " and ".join(["stored evaluations of texts like these"] * self.stored + ["one layer measured just now"] * bool(self.probes))


def _checkpoint_time(known: MeasuredRates, cells: Iterable[tuple[Job, Cell, EvaluationCost]]) -> tuple[float | None, str]:
    """(seconds, their basis) of evaluations of checkpoints; None if their device cannot be measured here."""
    time, total = ReadingTime(known), 0.0
    for job, cell, planned in cells:
        try:
            total += sum(time.seconds(job, cell.evaluate.dtype, cell.extension, cell.scale_attention, text) for text in planned.reads)
        except ConfigError as error:
            return None, str(error)
    return total, f"by {time.basis}"


def measured_rates(jobs: Iterable[Job]) -> MeasuredRates:
    """Rates of all runs in the jobs' folders of results."""
    known = MeasuredRates()
    for folder in {Path(job.cfg.results_dir) for job in jobs}:
        for path in run_directories(folder):
            known.add(Run(path))
    return known


def _basis(rates: Rates, sizes: list[ModelSize], what: str) -> str:
    """Words for the basis of an estimate: how many measurements, on which models."""
    same = {model: len(rates.found[model]) for model in sizes if model in rates.found}
    words = [f"by {_measurements(sum(same.values()), what)} of this model size"] if same else []
    if len(same) < len(set(sizes)):
        words.append(f"by arithmetic from {_measurements(len(rates.found[None]) - sum(same.values()), what)} of other sizes")
    return " and ".join(words)


def _measurements(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _in_tokens(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,}"


def duration_words(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    if seconds < 5400:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days" if hours < 24 * 730 else f"{hours / 24 / 365:.0f} years"
