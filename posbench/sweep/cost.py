"""Size of a model, computed from its configuration: parameters, and floating-point operations (FLOP) of what it reads."""

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path

from posbench.common.files import read_json
from posbench.config.schema import JobConfig
from posbench.data.sources import TASK
from posbench.evaluation.protocol import ReadVolume


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
    from posbench.data.tokenizers import pretrained_file

    with contextlib.suppress(Exception):  # any error of a hub or a file: a foreign run may name either
        content = read_json(pretrained_file(tokenizer)) if Path(tokenizer).exists() else {}
        return len(content["model"]["vocab"]) + len(content.get("added_tokens") or [])
    return 0
