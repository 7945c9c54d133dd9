"""Base class of engines: programs that others wrote, run with their own positions, which give the losses of texts.

A node of configs/model with `_target_` names one; its other keys are the engine's arguments. Torch-free.

Letters: L tokens fed, R scored rows.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from posbench.config.schema import ModelConfig


@dataclass(frozen=True)
class ServedModel:
    """Facts of the model behind an engine, known before a text is read.

    `train_len` is None where the engine does not say it. `identity` are facts that tell this model from others, beside `settings`, the
    arguments that change its losses and are not at their defaults. `model` holds sizes, for estimates.
    """

    vocab_size: int
    bos: int | None
    train_len: int | None
    tokenizer: str
    identity: dict
    settings: dict = field(default_factory=dict)
    model: ModelConfig = ModelConfig()


class Engine:
    """Base class of engines. `at_once` texts are asked for at the same time; one that is `remote` runs in another process."""

    kind: ClassVar[str]
    remote: ClassVar[bool] = False
    at_once: int = 1

    def served(self, cfg: dict) -> ServedModel:
        """Facts of its model, for a job's configuration. Raises ConfigError where there is none, or none that posbench can read."""
        raise NotImplementedError

    def start(self, cfg: dict) -> dict:
        """Make it ready to answer. Returns what the engine says of itself, for the provenance. Raises ConfigError, RunError."""
        raise NotImplementedError

    def losses(self, ids_L1: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """nll (nats) and correctness of the last n_rows of a text [L + 1], each token predicted from those before it: both [R].

        Raises RunError for an answer that is none.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Give up what `start` took, also while other threads wait for an answer."""
