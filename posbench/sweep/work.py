"""Work of trainings and evaluations, computed from configurations: parameters, floating-point operations (FLOP), tokens, losses."""

import contextlib
import functools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

from posbench.common.files import read_json
from posbench.config.identity import method_name
from posbench.config.schema import typed
from posbench.data.sources import TASK
from posbench.evaluation.protocols import protocol
from posbench.evaluation.reading import Reading


@dataclass(frozen=True)
class Size:
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

    def forward(self, reading: Reading) -> float:
        """FLOP of a reading: 2 per parameter and token, and 4 per channel and causal pair (scores and values).

        The last layer is computed only for the scored rows.
        """
        tokens, layers = reading.tokens, self.n_layer - 1 + reading.rows / reading.tokens
        in_layers = 2 * self.layer * tokens + 4 * self.width * tokens**2 / 2
        return reading.texts * (layers * in_layers + 2 * self.head * reading.rows)

    def per_token(self, length: int) -> float:
        """FLOP per token of a text of `length` tokens, without the head."""
        return self.n_layer * (2 * self.layer + 2 * self.width * length)

    def training(self, length: int) -> float:
        """FLOP per token of a training at a length. Gradients cost twice the forward pass."""
        return 3 * self.forward(Reading(1, length, length, 0)) / length


def size(cfg: dict) -> Size:
    """Size of the model of a training's configuration. Raises ConfigError for an illegal one."""
    model = typed("model", cfg["model"])
    head = vocabulary(cfg) * model.d_model
    return Size(model.layer_parameters, model.n_layer, head, model.tied, model.head_width * model.n_head)


def vocabulary(cfg: dict) -> int:
    """Vocabulary size of a training's text; 0 if the tokenizer is not available here."""
    if checkpoint := cfg["model"].get("checkpoint"):
        return checkpoint["vocab_size"]
    tokenizer = cfg["data"]["tokenizer"]
    size = cfg["data"].get("vocab_size", 0)
    own = {"bytes": 256, "bpe": size, TASK: size}
    mixed = (cfg["data"].get("mix") or {}).get("vocab_size", 0)
    return (own[tokenizer] if tokenizer in own else _entries(tokenizer)) + bool(cfg["data"].get("bos")) + mixed


@functools.cache
def _entries(tokenizer: str) -> int:
    from posbench.data.tokenizer_files import pretrained_file

    with contextlib.suppress(Exception):  # any error of a hub or a file: a foreign run may name either
        content = read_json(pretrained_file(tokenizer)) if Path(tokenizer).exists() else {}
        return len(content["model"]["vocab"]) + len(content.get("added_tokens") or [])
    return 0


@dataclass(frozen=True)
class Work:
    """Work of one evaluation of a model: its protocol and extension by name, what the model reads, and the number of losses kept."""

    model: Size
    protocol: str
    extension: str
    reading: list[Reading]
    losses: int

    @property
    def tokens(self) -> int:
        return sum(one.texts * one.tokens for one in self.reading)

    @property
    def flop(self) -> float:
        return sum(map(self.model.forward, self.reading))

    @property
    def alike(self) -> tuple[Hashable, ...]:
        """Keys of evaluations whose FLOP take about as long, the nearest first."""
        name, extension = self.protocol, self.extension
        return (self.model, name, extension), (self.model, name), self.model, (name, extension), name


def work(
    model: Size, name: str, extension: dict, evaluate: dict, crop: int, train_len: int, lengths: list[int], texts: Iterable[int] = ()
) -> Work:
    """Work of a protocol at some lengths. Beyond `crop` tokens each target is read from `crop` of its own, shared by all lengths.

    `texts`: the lengths that are read, if the others are evaluated by them (Protocol.texts).
    """
    one, config = protocol(name), typed("evaluate", evaluate)
    found = [one.reading(config, train_len, length, min(crop, length)) for length in texts or lengths]
    if crop < max(lengths):
        found = list(dict.fromkeys(found))
    losses = sum(one.reading(config, train_len, length, length).losses for length in lengths)
    return Work(model, name, method_name(extension), found, losses)
