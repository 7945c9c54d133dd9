"""Cost of jobs: the size of a model and its floating-point operations (FLOP), and an estimate of
time and disk.

Time is computed FLOP times the seconds per FLOP of stored runs: of trainings of the same model size
if there are any, of texts of the same model size, method, number format and about the same length.
Work that took less than LEAST seconds is left out: most of it was beginning, which more work does
not repeat.

Where no such text is stored, those of a checkpoint are told by one layer measured now
(posbench/evaluation/speed_of_evaluation.py), those of other models by the rate of trainings."""

import contextlib
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.common.machine import cores
from posbench.config.identity import method_name
from posbench.config.schema import EvaluateConfig, JobConfig, typed
from posbench.data.sources import TASK
from posbench.evaluation.protocol import ReadVolume, protocol
from posbench.position.instantiate import make
from posbench.results.run_metadata import read_metadata
from posbench.results.search import run_directories
from posbench.runs.directory import Run
from posbench.sweep.cells import RECOMPUTE, EvaluationCell
from posbench.sweep.jobs import Job

DAMAGED = (
    ConfigError,
    RunError,
    OSError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    ZeroDivisionError,
)  # raised by damaged files
# seconds from which the time of work is about proportional to it; below, what is done once decides
LEAST = 1
STEP_FLOP = 5e11  # largest training step that is made to measure its time
BYTES, BYTES_PER_LOSS = 4, 8  # on disk, of a parameter and of a scored token

Missing = Sequence[
    tuple[Job, EvaluationCell, list[int]]
]  # evaluations, each with its missing lengths


@dataclass(frozen=True)
class ModelSize:
    """Size of a model for arithmetic: parameters of one layer and of the output head, and the
    channels of all heads.

    The few parameters of position are left out.
    """

    layer: int
    n_layer: int
    head: int
    tied: bool
    width: int

    @property
    def parameters(self) -> int:
        return self.n_layer * self.layer + (1 if self.tied else 2) * self.head

    def forward(self, read: ReadVolume) -> float:
        """FLOP of a forward pass: 2 per parameter and token, and 4 per channel and causal pair
        (scores and values).

        The last layer is computed only for the scored rows.
        """
        tokens, layers = read.tokens, self.n_layer - 1 + read.rows / read.tokens
        in_layers = 2 * self.layer * tokens + 4 * self.width * tokens**2 / 2
        return read.texts * (layers * in_layers + 2 * self.head * read.rows)

    def per_token(self, length: int) -> float:
        """FLOP per token of a text of `length` tokens, without the head."""
        return self.n_layer * (2 * self.layer + 2 * self.width * length)

    def training(self, length: int) -> float:
        """FLOP per token of a training at a length. Gradients cost twice the forward pass."""
        return 3 * self.forward(ReadVolume(1, length, length, 0)) / length


def model_size(cfg: JobConfig) -> ModelSize:
    """Size of the model of a training's configuration. Raises ConfigError for an illegal one."""
    model, head = cfg.model, vocabulary(cfg) * cfg.model.d_model
    return ModelSize(
        model.layer_parameters, model.n_layer, head, model.tied, model.head_width * model.n_head
    )


def vocabulary(cfg: JobConfig) -> int:
    """Vocabulary size of a training's text; 0 if the tokenizer is not available here."""
    if checkpoint := cfg.model.checkpoint:
        return checkpoint["vocab_size"]
    tokenizer, size = cfg.data["tokenizer"], cfg.data.get("vocab_size", 0)
    own = {"bytes": 256, "bpe": size, TASK: size}
    mixed = (cfg.data.get("mix") or {}).get("vocab_size", 0)
    return (
        (own[tokenizer] if tokenizer in own else _entries(tokenizer))
        + bool(cfg.data.get("bos"))
        + mixed
    )


@functools.cache
def _entries(tokenizer: str) -> int:
    from posbench.data.tokenizers import pretrained_file

    with contextlib.suppress(
        Exception
    ):  # any error of a hub or a file: a foreign run may name either
        content = read_json(pretrained_file(tokenizer)) if Path(tokenizer).exists() else {}
        return len(content["model"]["vocab"]) + len(content.get("added_tokens") or [])
    return 0


def texts_read(
    name: str, config: EvaluateConfig, train_len: int, crop: float, lengths: Iterable[int]
) -> list[ReadVolume]:
    """Texts that a protocol reads for some lengths. Beyond `crop` tokens each target has a text of
    its own, shared by all lengths.
    """
    return list(
        dict.fromkeys(
            protocol(name).reading(config, train_len, length, min(crop, length))
            for length in lengths
        )
    )


def texts_left(missing: Missing) -> list[list[ReadVolume]]:
    """Texts that each evaluation has yet to read."""
    from posbench.position.legality import fed_length

    found = []
    for job, cell, lengths in missing:
        train_len, one = job.config.train.train_len, protocol(cell.protocol)
        crop = fed_length(make(cell.extension), train_len, max(lengths))
        read = _lengths_read(job, cell, lengths) if one.nested else lengths
        first = one.reading_first(cell.evaluate, train_len)
        found.append(first + texts_read(cell.protocol, cell.evaluate, train_len, crop, read))
    return found


def _lengths_read(job: Job, cell: EvaluationCell, lengths: list[int]) -> Iterable[int]:
    """Lengths of the texts that a nested protocol reads for `lengths`, as its evaluation finds
    them.
    """
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.position.effect import shared_texts
    from posbench.position.plan import make_plan

    encoding, extension = make_encoding(job.config), make(cell.extension)
    scales = {
        "scale": make(cell.scale_attention, encoding.shape),
        "trained_scale": make_trained_scale(job.config, encoding),
    }
    return shared_texts(
        lambda length: make_plan(encoding, extension, **scales, length=length), lengths
    )


class Timing:
    """Times of trainings and texts: by stored runs of the jobs' folders of results, else by what is
    measured when it is first asked for.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.training: dict[ModelSize, list[float]] = defaultdict(
            list
        )  # seconds per FLOP of trainings
        self.text: dict[tuple[Hashable, ...], list[float]] = defaultdict(
            list
        )  # and of texts, by `_text_key`
        self.probes = {}  # {(run, number format): EvaluationSpeed}
        self.stepped, self.bases = (
            False,
            dict[str, None](),
        )  # words for what was told, in their order
        for folder in {Path(job.config.results_dir) for job in jobs}:
            for path in run_directories(folder):
                with contextlib.suppress(*DAMAGED):
                    self._add(Run(path))

    @property
    def basis(self) -> str:
        """Basis of the times, in words."""
        return " and ".join(self.bases)

    def of_training(self, job: Job, at_once: int) -> float:
        """Seconds of a training beside others. Raises ConfigError if nothing was measured, and a
        step takes long.
        """
        model, train = model_size(job.config), job.config.train
        step = model.training(train.train_len) * train.tokens_per_step
        if not self.training and step <= STEP_FLOP:
            from posbench.training.time_training import step_seconds

            with contextlib.suppress(*DAMAGED, RuntimeError):
                seconds = step_seconds(
                    job.config, vocabulary(job.config), max(1, cores() // at_once)
                )
                self.training[model].append(seconds / step)
                self.stepped = True
        basis = (
            "some steps made just now"
            if self.stepped
            else f"runs of {'this model size' if model in self.training else 'other sizes'}"
        )
        return self._trained(model, basis) * step * train.steps

    def of_text(
        self,
        job: Job,
        dtype: str,
        extension: dict,
        scale: dict,
        text: ReadVolume,
        probes: bool = True,
    ) -> float:
        """Seconds of a text. Raises ConfigError for a device that cannot be measured here; without
        `probes` where no training was.
        """
        model = model_size(job.config)
        if rates := self.text.get(_text_key(model, dtype, extension, text)):
            self.bases["stored evaluations of texts like these"] = None
            return statistics.median(rates) * model.forward(text)
        if not probes:
            return self._trained(model, "arithmetic from trainings") * model.forward(text)
        if (key := (job.run.path, dtype)) not in self.probes:
            from posbench.evaluation.speed_of_evaluation import EvaluationSpeed

            self.probes[key] = EvaluationSpeed(job.config, vocabulary(job.config), dtype)
        self.bases["one layer measured just now"] = None
        return self.probes[key].seconds(text, extension, scale)

    def _trained(self, model: ModelSize, basis: str) -> float:
        """Seconds per FLOP of trainings, of this size if there are any; `basis` is noted. Raises
        ConfigError without any.
        """
        rates = self.training.get(model) or [
            rate for each in self.training.values() for rate in each
        ]
        if not rates:
            raise ConfigError(f"nothing of {LEAST} s or more was measured here yet")
        self.bases[basis] = None
        return statistics.median(rates)

    def _add(self, run: Run) -> None:
        nested = read_metadata(run.path).nested
        cfg = JobConfig.of({key: nested[key] for key in ("model", "data", "train")})
        model, train_len, summary = model_size(cfg), cfg.train.train_len, run.read_summary()
        if summary["tokens_per_second"] and summary["seconds"] >= LEAST:
            self.training[model].append(
                1 / (summary["tokens_per_second"] * model.training(train_len))
            )
        for path in run.eval_files():
            with contextlib.suppress(*DAMAGED):
                content = read_json(path)
                self._add_texts(content["config"], _seconds(content["rows"]), model, train_len)

    def _add_texts(
        self, config: dict, seconds: dict[int, float], model: ModelSize, train_len: int
    ) -> None:
        """Add the texts of one evaluation. `seconds` of a length are next to none where it was read
        as a part of another.
        """
        extension, evaluate = config["extension"], typed("evaluate", config["evaluate"])
        if not extension["_target_"].startswith("posbench."):
            return  # its readings are unknown without running it
        crop = (
            (extension.get("window") or train_len)
            if extension["_target_"] == RECOMPUTE
            else math.inf
        )
        for length, took in seconds.items():
            if took >= LEAST:
                (text,) = texts_read(config["protocol"], evaluate, train_len, crop, [length])
                self.text[_text_key(model, evaluate.dtype, extension, text)].append(
                    took / model.forward(text)
                )


def _text_key(
    model: ModelSize, dtype: str, extension: dict, text: ReadVolume
) -> tuple[Hashable, ...]:
    """Key of texts that take about as long per FLOP: their lengths have the same nearest power of
    two.
    """
    return model, dtype, method_name(extension), round(math.log2(text.tokens))


def _seconds(rows: list[dict]) -> dict[int, float]:
    """Wall time of each length. A task counts once: the row of a depth has its share alone, that of
    the choice the same time again.
    """
    took: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        task = (row.get("task") or "").removesuffix(" choice")
        took[row["length"]][task] = max(took[row["length"]][task], float(row["seconds"]))
    return {length: sum(tasks.values()) for length, tasks in took.items()}


def cost(
    jobs: list[Job], fresh: list[Job], missing: Missing, first: int | None = None
) -> list[str]:
    """Lines with the cost of the trainings (and checkpoints) of `fresh` and of the missing lengths
    of evaluations.

    Of more than `first` trainings, a first picture of so many is announced.
    """
    taken = [job for job in fresh if not job.config.trains]
    fresh = [job for job in fresh if job.config.trains]
    trainings, left = sum(job.config.trains for job in jobs), texts_left(missing)
    tokens = sum(job.config.train.steps * job.config.train.tokens_per_step for job in fresh)
    words = (
        [f"{len(fresh)} of {trainings} trainings to make, {_in_tokens(tokens)} tokens"]
        if trainings
        else []
    )
    words += (
        [f"{len(taken)} of {len(jobs) - trainings} checkpoints to take"]
        if trainings < len(jobs)
        else []
    )
    tokens = sum(text.texts * text.tokens for texts in left for text in texts)
    line = "; ".join([*words, f"{len(left)} evaluations, {_in_tokens(tokens)} tokens"])
    if not fresh and not missing:
        return [line]
    at_once = min(
        jobs[0].config.jobs,
        len({job.run.path for job in [*fresh, *(job for job, _, _ in missing)]}),
    )
    time, told, picture = Timing(jobs), [], ""
    texts = [
        (job, cell, text)
        for (job, cell, _), reads in zip(missing, left, strict=True)
        for text in reads
    ]
    parts = {
        "training": (time.of_training(job, at_once) for job in fresh),
        "evaluation": (
            time.of_text(
                job,
                cell.evaluate.dtype,
                cell.extension,
                cell.scale_attention,
                text,
                probes=not job.config.trains,
            )
            for job, cell, text in texts
        ),
    }
    for what, each in parts.items():
        time.bases.clear()
        try:
            if seconds := sum(each):
                told.append(f"about {duration_words(seconds)} of {what} by {time.basis}")
                if what == "training" and first and first < len(fresh):
                    after = duration_words(-(-first // at_once) * seconds / len(fresh))
                    picture = f"; a first picture, of {first} models, after about {after}"
        except ConfigError as error:
            told.append(f"unknown time of {what} ({error})")
    shared = (
        f"; jobs={at_once} divides the time as far as the machine has cores for it"
        if at_once > 1
        else ""
    )
    bytes_ = sum(
        BYTES * model_size(job.config).parameters for job in fresh
    )  # the weights of a checkpoint stay where they are
    for job, cell, lengths in missing:
        reads = texts_read(
            cell.protocol, cell.evaluate, job.config.train.train_len, math.inf, lengths
        )
        bytes_ += BYTES_PER_LOSS * sum(text.losses for text in reads)
    return [line, f"{', '.join(told)}{shared}{picture}; {bytes_ / 2**20:.1f} MiB of disk"]


def _in_tokens(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,}"


def duration_words(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    if seconds < 5400:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return (
        f"{hours:.1f} h"
        if hours < 48
        else f"{hours / 24:.0f} days"
        if hours < 24 * 730
        else f"{hours / 24 / 365:.0f} years"
    )
