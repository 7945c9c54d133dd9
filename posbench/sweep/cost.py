"""Cost of jobs: size and floating-point operations (FLOP) of a model, estimates of time and disk.

Time is computed FLOP times the seconds per FLOP of stored runs: of trainings of the same model
size, of texts of the same model size, method, number format and about the same length. Where no
such training is stored, some steps are made to time them, if a step is short.
Work that took less than LEAST_SECONDS is left out: most of it was beginning, which more work does
not repeat.

Where no such text is stored, those of a checkpoint are told by one layer measured now
(posbench/evaluation/speed_of_evaluation.py), those of other models by the rate of trainings."""

import contextlib
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.common.machine import cores
from posbench.common.quantities import duration_words
from posbench.config.identity import NO_SCALE, method_name
from posbench.config.schema import EvaluateConfig, JobConfig, typed_group
from posbench.config.typed_args import class_named
from posbench.data.sources import TASK_TOKENIZER
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.registry import protocol
from posbench.position.instantiate import make_method, nodes_within
from posbench.results.run_metadata import read_metadata
from posbench.results.search import run_directories
from posbench.runs.directory import Run
from posbench.sweep.cells import RECOMPUTE, EvaluationCell
from posbench.sweep.jobs import Job
from posbench.sweep.validation import validation_texts
from posbench.sweep.work import Work, count_cells

if TYPE_CHECKING:
    from posbench.evaluation.speed_of_evaluation import EvaluationSpeed

# raised by damaged files
ERRORS_OF_DAMAGED_RUNS = (
    *(ConfigError, RunError, OSError, KeyError, TypeError),
    *(ValueError, AttributeError, ZeroDivisionError),
)
# seconds from which the time of work is about proportional to it; below, what is done once decides
LEAST_SECONDS = 1
MOST_STEP_FLOP = 5e11  # largest training step that is made to measure its time
BYTES_PER_WEIGHT, BYTES_PER_LOSS = 4, 8  # on disk

# evaluations, each with its missing lengths
Missing = Sequence[tuple[Job, EvaluationCell, list[int]]]


@dataclass(frozen=True)
class ModelSize:
    """Size of a model for arithmetic: parameters of a layer and of the head, channels of all heads.

    The few parameters of position are left out. `mixers` are the encodings that have no attention
    in their layers. Those are counted like attention, but take longer: a rate of theirs holds only
    for models with the same.
    """

    layer_parameters: int
    n_layer: int
    head_parameters: int
    tied: bool
    width: int
    mixers: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        tables = 1 if self.tied else 2
        return self.n_layer * self.layer_parameters + tables * self.head_parameters

    def forward_flop(self, read: ReadVolume) -> float:
        """FLOP of reading all texts: 2 per parameter and token, 4 per channel and causal pair.

        The pairs are of scores and values. The last layer is computed only for the scored rows.
        """
        tokens = read.tokens_per_text
        layers = self.n_layer - 1 + read.rows_per_text / tokens
        causal_pairs = tokens**2 / 2
        in_layer = 2 * self.layer_parameters * tokens + 4 * self.width * causal_pairs
        return read.texts * (layers * in_layer + 2 * self.head_parameters * read.rows_per_text)

    def flop_per_token(self, length: int) -> float:
        """FLOP per token of a text of `length` tokens, without the head."""
        return self.n_layer * (2 * self.layer_parameters + 2 * self.width * length)

    def training_flop_per_token(self, length: int) -> float:
        """FLOP per token of a training at a length. Gradients cost twice the forward pass."""
        text = ReadVolume(texts=1, tokens_per_text=length, rows_per_text=length, total_losses=0)
        return 3 * self.forward_flop(text) / length


def model_size(config: JobConfig) -> ModelSize:
    """Size of the model of a training's configuration. Raises ConfigError for an illegal one."""
    model = config.model
    return ModelSize(
        layer_parameters=model.layer_parameters,
        n_layer=model.n_layer,
        head_parameters=vocabulary(config) * model.d_model,
        tied=model.tied,
        width=model.head_width * model.n_head,
        mixers=tuple(_classes_without_attention(config.encoding)),
    )


def _classes_without_attention(node: dict) -> Iterator[str]:
    """Classes of an encoding, and of those in it, whose layers have no attention.

    Only posbench's: stored runs may name any class, and to ask it would import it."""
    for _, part in nodes_within(node):
        target = part["_target_"]
        if target.startswith("posbench.") and getattr(class_named(target), "mixes", False):
            yield target


def vocabulary(config: JobConfig) -> int:
    """Vocabulary size of a training's text, with its BOS and its mix. A tokenizer that is not
    available here counts as 0 entries.
    """
    if config.model.checkpoint:
        return config.model.checkpoint["vocab_size"]
    tokenizer = config.data["tokenizer"]
    if tokenizer == "bytes":
        entries = 256
    elif tokenizer in ("bpe", TASK_TOKENIZER):
        entries = config.data.get("vocab_size", 0)
    else:
        entries = _tokenizer_entries(tokenizer)
    bos = 1 if config.data.get("bos") else 0
    mix = config.data.get("mix") or {}
    return entries + bos + mix.get("vocab_size", 0)


@functools.cache
def _tokenizer_entries(tokenizer: str) -> int:
    """Number of entries in the file of a tokenizer; 0 if it is not here or damaged."""
    from posbench.data.tokenizers import pretrained_file

    if not Path(tokenizer).exists():
        return 0
    try:
        content = read_json(pretrained_file(tokenizer))
        return len(content["model"]["vocab"]) + len(content.get("added_tokens") or [])
    except Exception:  # any error of a hub or a file: a foreign run may name either
        return 0


def texts_read(
    name: str, config: EvaluateConfig, train_len: int, crop: float, lengths: Iterable[int]
) -> list[ReadVolume]:
    """Volumes that a protocol reads for some lengths, without those that are read once for several.

    Beyond `crop` tokens (inf: never) each target has a text of its own, which is the same at all
    lengths.
    """
    evaluator = protocol(name)
    readings = [
        evaluator.read_volume(config, train_len, length, min(crop, length)) for length in lengths
    ]
    # Equal volumes of one protocol are one text: lengths beyond the crop.
    return list(dict.fromkeys(readings))


def texts_left(missing: Missing) -> list[list[ReadVolume]]:
    """Texts that each evaluation has yet to read."""
    from posbench.position.legality import fed_length

    result = []
    for job, cell, lengths in missing:
        train_len = job.config.train.train_len
        evaluator = protocol(cell.protocol)
        # Tokens that the extension feeds of the longest text: fewer than it has where it crops.
        crop = fed_length(make_method(cell.extension), train_len, max(lengths))
        # A nested protocol takes a shorter length from the beginning of a longer text, if it can.
        read = _lengths_read(job, cell, lengths) if evaluator.nested else lengths
        texts = evaluator.read_volumes_first(cell.evaluate, train_len)  # before the first length
        texts = texts + texts_read(cell.protocol, cell.evaluate, train_len, crop, read)
        result.append(texts)
    return result


def _lengths_read(job: Job, cell: EvaluationCell, lengths: list[int]) -> Iterable[int]:
    """Lengths of the texts that a nested protocol reads for `lengths`, as its evaluation does."""
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.position.effect import shared_texts
    from posbench.position.plan import make_plan

    encoding = make_encoding(job.config)
    extension, scale = cell.methods(encoding.shape)
    scales = {
        "scale": scale,
        "trained_scale": make_trained_scale(job.config, encoding),
    }
    return shared_texts(
        lambda length: make_plan(encoding, extension, **scales, length=length), lengths
    )


class Timing:
    """Times of trainings and texts by stored runs of the jobs' folders of results.

    What no stored run tells is measured when it is first needed.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        # seconds per FLOP of trainings, and of texts by `_text_key`
        self.rates_of_trainings: dict[ModelSize, list[float]] = defaultdict(list)
        self.rates_of_texts: dict[tuple[Hashable, ...], list[float]] = defaultdict(list)
        self.speeds: dict[tuple, EvaluationSpeed] = {}  # {(run, number format): speed}
        self.sizes_timed_now: set[ModelSize] = set()  # of which steps were made just now
        self.bases: dict[str, None] = {}  # {words for the basis of a time}, in their order
        for folder in {Path(job.config.results_dir) for job in jobs}:
            for path in run_directories(folder):
                with contextlib.suppress(*ERRORS_OF_DAMAGED_RUNS):
                    self._add_run(Run(path))

    @property
    def basis(self) -> str:
        """Basis of the times, in words."""
        return " and ".join(self.bases)

    def seconds_of_training(self, job: Job, at_once: int) -> float:
        """Seconds of a training beside others.

        Raises ConfigError if nothing was measured, and a step takes long.
        """
        model = model_size(job.config)
        train = job.config.train
        step_flop = model.training_flop_per_token(train.train_len) * train.tokens_per_step
        if model not in self.rates_of_trainings and step_flop <= MOST_STEP_FLOP:
            self._time_steps(job, model, step_flop, threads=max(1, cores() // at_once))
        if model in self.sizes_timed_now:
            basis = "some steps made just now"
        elif model in self.rates_of_trainings:
            basis = "runs of this model size"
        else:
            basis = "runs of other sizes"
        return self._seconds_per_training_flop(model, basis) * step_flop * train.last_step

    def seconds_of_validations(self, job: Job) -> float:
        """Seconds of all validations of a training at several lengths.

        Raises ConfigError where no training was timed.
        """
        train = job.config.train
        seconds = 0.0
        for extension, text in validation_texts(job.config):
            seconds += self.seconds_of_text(
                job, train.dtype, extension, NO_SCALE, text, measure=False
            )
        return seconds * len(train.validation_steps)

    def _time_steps(self, job: Job, model: ModelSize, step_flop: float, threads: int) -> None:
        """Make some steps of `step_flop` each, and keep their time as that of a training."""
        from posbench.training.time_training import step_seconds

        # A failure, such as of memory, is no reason to refuse: other sizes tell the time then.
        with contextlib.suppress(*ERRORS_OF_DAMAGED_RUNS, RuntimeError):
            seconds = step_seconds(job.config, vocabulary(job.config), threads)
            self.rates_of_trainings[model].append(seconds / step_flop)
            self.sizes_timed_now.add(model)

    def seconds_of_text(
        self,
        job: Job,
        dtype: str,
        extension: dict,
        scale: dict,
        text: ReadVolume,
        measure: bool = True,
    ) -> float:
        """Seconds of a text. Without `measure`, trainings tell what stored evaluations do not.

        Raises ConfigError for a device that cannot be measured here, or where no training was.
        """
        model = model_size(job.config)
        rates = self.rates_of_texts.get(_text_key(model, dtype, extension, text))
        if rates:
            self._note_basis("stored evaluations of texts like these")
            return statistics.median(rates) * model.forward_flop(text)
        if not measure:
            rate = self._seconds_per_training_flop(model, "arithmetic from trainings")
            return rate * model.forward_flop(text)
        key = (job.run.path, dtype)
        if key not in self.speeds:
            from posbench.evaluation.speed_of_evaluation import EvaluationSpeed

            self.speeds[key] = EvaluationSpeed(job.config, vocabulary(job.config), dtype)
        self._note_basis("one layer measured just now")
        return self.speeds[key].seconds(text, extension, scale)

    def _seconds_per_training_flop(self, model: ModelSize, basis: str) -> float:
        """Seconds per FLOP of trainings, of this size if there are any; `basis` is noted.

        Raises ConfigError without any.
        """
        rates = self.rates_of_trainings.get(model)
        if not rates:
            rates = [rate for of_size in self.rates_of_trainings.values() for rate in of_size]
        if not rates:
            raise ConfigError(f"nothing of {LEAST_SECONDS} s or more was measured here yet")
        self._note_basis(basis)
        return statistics.median(rates)

    def _note_basis(self, words: str) -> None:
        """Note words for the basis of a time, once."""
        self.bases[words] = None  # a dict serves as a set in order

    def _add_run(self, run: Run) -> None:
        """Add the times of a stored run: its training, and its evaluations."""
        nested = read_metadata(run.path).nested_config
        parts = ("encoding", "model", "data", "train")
        config = JobConfig.of({key: nested[key] for key in parts})
        model = model_size(config)
        train_len = config.train.train_len
        summary = run.read_summary()
        # A shorter training is mostly its beginning, such as compilation.
        if summary["tokens_per_second"] and summary["seconds"] >= LEAST_SECONDS:
            flop_per_token = model.training_flop_per_token(train_len)
            flop_per_second = summary["tokens_per_second"] * flop_per_token
            self.rates_of_trainings[model].append(1 / flop_per_second)
        for path in run.eval_files():  # a damaged one leaves the others their times
            with contextlib.suppress(*ERRORS_OF_DAMAGED_RUNS):
                content = read_json(path)
                seconds = _seconds_by_length(content["rows"])
                self._add_texts(content["config"], seconds, model, train_len)

    def _add_texts(
        self, config: dict, seconds: dict[int, float], model: ModelSize, train_len: int
    ) -> None:
        """Add the texts of one evaluation by its `seconds` of each length.

        A length that was read as a part of another took next to none.
        """
        extension = config["extension"]
        evaluate = typed_group("evaluate", config["evaluate"])
        if not extension["_target_"].startswith("posbench."):
            return  # its readings are unknown without running it
        crop = math.inf
        if extension["_target_"] == RECOMPUTE:  # which crops a text to its window
            crop = extension.get("window") or train_len
        for length, took in seconds.items():
            if took >= LEAST_SECONDS:
                (text,) = texts_read(config["protocol"], evaluate, train_len, crop, [length])
                key = _text_key(model, evaluate.dtype, extension, text)
                self.rates_of_texts[key].append(took / model.forward_flop(text))


def _text_key(
    model: ModelSize, dtype: str, extension: dict, text: ReadVolume
) -> tuple[Hashable, ...]:
    """Key of texts that take as long per FLOP: their lengths have the same nearest power of two."""
    return model, dtype, method_name(extension), round(math.log2(text.tokens_per_text))


def _seconds_by_length(rows: list[dict]) -> dict[int, float]:
    """Wall time of each length.

    A task counts once: the row of a depth has its share alone, that of the choice the same time.
    """
    by_length: dict[int, dict[str, float]] = defaultdict(dict)  # {length: {task: seconds}}
    for row in rows:
        task = (row.get("task") or "").removesuffix(" choice")  # of the same pass over the texts
        by_task = by_length[row["length"]]
        # The row of all depths has the time of all, the most.
        by_task[task] = max(by_task.get(task, 0.0), float(row["seconds"]))
    return {length: sum(by_task.values()) for length, by_task in by_length.items()}


def cost(
    jobs: list[Job], fresh: list[Job], missing: Missing, first: int | None = None
) -> list[str]:
    """Lines with the cost of the trainings (and checkpoints) of `fresh` and of missing lengths.

    Of more than `first` trainings, a first picture of so many is announced.
    """
    texts = texts_left(missing)
    counted = count_cells(cell for _, cell, _ in missing)
    lines = [work_words(jobs, fresh, texts, counted)]
    if fresh or missing:
        disk = f"{disk_bytes(fresh, missing) / 2**20:.1f} MiB of disk"
        lines.append(f"{time_words(jobs, fresh, missing, texts, first)}; {disk}")
    return lines


def work_words(
    jobs: list[Job], fresh: list[Job], texts: list[list[ReadVolume]], evaluations: Work
) -> str:
    """Text such as "2 of 3 trainings to make, 1.5 M tokens; 4 evaluations, 2,048 tokens".

    `texts` are those of all the `evaluations`, whose words name the floor windows among them apart.
    """
    trainings = [job for job in fresh if job.config.trains]
    n_trainings = sum(job.config.trains for job in jobs)
    n_checkpoints = len(jobs) - n_trainings
    parts = []
    if n_trainings:
        trains = [job.config.train for job in trainings]
        tokens = sum(train.last_step * train.tokens_per_step for train in trains)
        of_all = f"{len(trainings)} of {n_trainings} trainings to make"
        parts.append(f"{of_all}, {_number_of_tokens(tokens)} tokens")
        validation_tokens = sum(map(tokens_of_validations, trainings))
        if validation_tokens:
            number = _number_of_tokens(validation_tokens)
            parts.append(f"their validations by length, {number} tokens")
    if n_checkpoints:
        parts.append(f"{len(fresh) - len(trainings)} of {n_checkpoints} checkpoints to take")
    tokens = sum(text.texts * text.tokens_per_text for of_cell in texts for text in of_cell)
    parts.append(f"{str(evaluations) or '0 evaluations'}, {_number_of_tokens(tokens)} tokens")
    return "; ".join(parts)


def tokens_of_validations(job: Job) -> int:
    """Tokens that a training reads at its validations at several lengths."""
    tokens = sum(text.total_tokens for _, text in validation_texts(job.config))
    return tokens * len(job.config.train.validation_steps)


def time_words(
    jobs: list[Job],
    fresh: list[Job],
    missing: Missing,
    texts: list[list[ReadVolume]],
    first: int | None = None,
) -> str:
    """Estimated time of trainings and evaluations, each with its basis, and when a picture comes.

    "about 3 min of training by runs of other sizes, unknown time of evaluation (nothing of ...)".
    `texts` are those of the `missing` evaluations, as `texts_left` gives them.
    """
    trainings = [job for job in fresh if job.config.trains]
    timing = Timing(jobs)
    # Jobs of one run follow each other, so no more run at once than there are runs.
    runs = {job.run.path for job in [*trainings, *(job for job, _, _ in missing)]}
    at_once = min(jobs[0].config.jobs, len(runs))
    of_training = (timing.seconds_of_training(job, at_once) for job in trainings)
    training_words, training_seconds = _part_words(timing, "training", of_training)
    of_texts = _reading_seconds(timing, missing, texts)
    evaluation_words, _ = _part_words(timing, "evaluation", of_texts)
    of_validations = (timing.seconds_of_validations(job) for job in trainings)
    validation_words, validation_seconds = _part_words(timing, "validation", of_validations)
    training_seconds += validation_seconds
    words = ", ".join(filter(None, [training_words, validation_words, evaluation_words]))
    if at_once > 1:
        words += f"; jobs={at_once} divides the time as far as the machine has cores for it"
    if training_seconds and first and first < len(trainings):
        rounds = math.ceil(first / at_once)
        after = duration_words(rounds * training_seconds / len(trainings))
        words += f"; a first picture, of {first} models, after about {after}"
    return words


def _reading_seconds(
    timing: Timing, missing: Missing, texts: list[list[ReadVolume]]
) -> Iterator[float]:
    """Seconds of each text that the evaluations have yet to read."""
    for (job, cell, _), of_cell in zip(missing, texts, strict=True):
        methods = cell.extension, cell.scale_attention
        # Of a checkpoint there is no training to infer from, so a layer is timed.
        measure = not job.config.trains
        for text in of_cell:
            yield timing.seconds_of_text(job, cell.evaluate.dtype, *methods, text, measure=measure)


def _part_words(timing: Timing, part: str, seconds: Iterable[float]) -> tuple[str, float]:
    """(words for the time of a part of the work, its seconds); "" for none, 0.0 where unknown.

    `seconds` are estimated one after the other here, and note their basis in `timing`.
    """
    timing.bases.clear()
    try:
        total = sum(seconds)
    except ConfigError as error:
        return f"unknown time of {part} ({error})", 0.0
    if not total:
        return "", 0.0
    return f"about {duration_words(total)} of {part} by {timing.basis}", total


def disk_bytes(fresh: list[Job], missing: Missing) -> int:
    """Bytes of new weights and losses; the weights of a checkpoint stay where they are."""
    trainings = [job for job in fresh if job.config.trains]
    weights = 0
    for job in trainings:
        n_kept = 1 + len(job.config.train.kept_steps)  # those of the last step too
        weights += BYTES_PER_WEIGHT * n_kept * model_size(job.config).parameters
    losses = 0
    for job, cell, lengths in missing:
        train_len = job.config.train.train_len
        # A crop changes what is read, and not how many losses are kept.
        texts = texts_read(cell.protocol, cell.evaluate, train_len, crop=math.inf, lengths=lengths)
        losses += sum(text.total_losses for text in texts)
    return weights + BYTES_PER_LOSS * losses


def _number_of_tokens(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,}"
