"""Cost of trainings and evaluations, computed from configurations: parameters, floating-point operations (FLOP), tokens, losses."""

import contextlib
import functools
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from posbench.common.files import read_json
from posbench.config.identity import method_name
from posbench.config.schema import EvaluateConfig, JobConfig
from posbench.data.sources import TASK
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.protocols import protocol
from posbench.position.instantiate import make
from posbench.runs.unfinished import PART, made_by, texts_kept
from posbench.sweep.cells import Cell
from posbench.sweep.jobs import Job


@dataclass(frozen=True)
class ModelSize:
    """Size of a model for arithmetic: parameters of one layer and of the output head, and the channels of all heads.

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
        """FLOP of a forward pass: 2 per parameter and token, and 4 per channel and causal pair (scores and values).

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
    return ModelSize(model.layer_parameters, model.n_layer, head, model.tied, model.head_width * model.n_head)


def vocabulary(cfg: JobConfig) -> int:
    """Vocabulary size of a training's text; 0 if the tokenizer is not available here."""
    if checkpoint := cfg.model.checkpoint:
        return checkpoint["vocab_size"]
    tokenizer, size = cfg.data["tokenizer"], cfg.data.get("vocab_size", 0)
    own = {"bytes": 256, "bpe": size, TASK: size}
    mixed = (cfg.data.get("mix") or {}).get("vocab_size", 0)
    return (own[tokenizer] if tokenizer in own else _entries(tokenizer)) + bool(cfg.data.get("bos")) + mixed


@functools.cache
def _entries(tokenizer: str) -> int:
    from posbench.data.tokenizer_files import pretrained_file

    with contextlib.suppress(Exception):  # any error of a hub or a file: a foreign run may name either
        content = read_json(pretrained_file(tokenizer)) if Path(tokenizer).exists() else {}
        return len(content["model"]["vocab"]) + len(content.get("added_tokens") or [])
    return 0


@dataclass(frozen=True)
class EvaluationCost:
    """Cost of one evaluation of a model: its protocol and extension by name, what the model reads, and the number of losses kept."""

    model: ModelSize
    protocol: str
    extension: str
    reads: list[ReadVolume]
    losses: int

    @property
    def tokens(self) -> int:
        return sum(one.texts * one.tokens for one in self.reads)

    @property
    def flop(self) -> float:
        return sum(map(self.model.forward, self.reads))

    @property
    def alike(self) -> tuple[Hashable, ...]:
        """Keys of evaluations whose FLOP take about as long, the nearest first."""
        name, extension = self.protocol, self.extension
        return (self.model, name, extension), (self.model, name), self.model, (name, extension), name


def evaluation_cost(
    model: ModelSize,
    name: str,
    extension: dict,
    config: EvaluateConfig,
    crop: int,
    train_len: int,
    lengths: list[int],
    texts: Iterable[int] = (),
) -> EvaluationCost:
    """Cost of a protocol at some lengths. Beyond `crop` tokens each target is read from `crop` of its own, shared by all lengths.

    `texts`: the lengths that are read, if the others are evaluated by them (Protocol.texts).
    """
    one = protocol(name)
    reads = [one.reading(config, train_len, length, min(crop, length)) for length in texts or lengths]
    if crop < max(lengths):
        reads = list(dict.fromkeys(reads))
    losses = sum(one.reading(config, train_len, length, length).losses for length in lengths)
    return EvaluationCost(model, name, method_name(extension), reads, losses)


def costs_left(missing: Iterable[tuple[Job, Cell, list[int]]]) -> list[EvaluationCost]:
    """Costs of the missing lengths of evaluations, without the texts that a stopped one has kept (posbench/runs/unfinished.py).

    Kept texts are taken off once, however often their cell is given.
    """
    kept: dict[Path, Counter[int]] = {}
    found = []
    for job, cell, lengths in missing:
        if cell.path not in kept:
            kept[cell.path] = _kept_texts(job, cell)
        found.append(_cost_left(job, cell, lengths, kept[cell.path]))
    return found


def _cost_left(job: Job, cell: Cell, lengths: list[int], kept: Counter[int]) -> EvaluationCost:
    from posbench.position.legality import fed_length

    train_len = job.cfg.train.train_len
    crop = fed_length(make(cell.extension), train_len, max(lengths))
    one = protocol(cell.protocol)
    texts = _lengths_read(job, cell, lengths) if one.nested else lengths
    whole = evaluation_cost(model_size(job.cfg), cell.protocol, cell.extension, cell.evaluate, crop, train_len, lengths, texts)
    reads = one.reading_first(cell.evaluate, train_len)
    for read in whole.reads:
        done = min(kept[read.tokens], read.texts)
        kept[read.tokens] -= done
        if done < read.texts:
            reads.append(replace(read, texts=read.texts - done))
    return replace(whole, reads=reads)


def _lengths_read(job: Job, cell: Cell, lengths: list[int]) -> Iterable[int]:
    """Lengths of the texts that a nested protocol reads for `lengths`, as its evaluation finds them."""
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.position.effect import together
    from posbench.position.plan import make_plan

    encoding, extension = make_encoding(job.cfg), make(cell.extension)
    scales = {"scale": make(cell.scale_attention, encoding.shape), "trained_scale": make_trained_scale(job.cfg, encoding)}
    return together(lambda length: make_plan(encoding, extension, **scales, length=length), lengths)


def _kept_texts(job: Job, cell: Cell) -> Counter[int]:
    """Number of texts of each length that a stopped evaluation of a cell has kept."""
    path = cell.path.with_suffix(PART)
    if not path.exists():
        return Counter()
    from posbench.model.build import pick_device

    return texts_kept(path, made_by(pick_device(job.cfg.device)))
