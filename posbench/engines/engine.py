"""Engines: programs that others wrote, run with their own positions, which give the losses of
texts, and their jobs' configuration.

A node of configs/model with `_target_` names one; its other keys are the engine's arguments.
Torch-free.

Letters: L tokens fed, R scored rows.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.identity import method_name, typed_words
from posbench.config.schema import ModelConfig
from posbench.config.typed_args import Check
from posbench.position.instantiate import class_and_arguments
from posbench.pretrained.import_config import config_of_foreign_model
from posbench.pretrained.outline import Outline

SERVED_ENCODING = "posbench.encodings.served.Served"
ALLOWED_METHODS = {"extension": ("none", "recompute_window"), "scale_attention": ("none",)}
# Types of arguments.
Float = Annotated[float, float]  # a float, also where 1 is typed for 1.0
PositiveInt = Annotated[int, Check("a whole number of at least 1", lambda value: value >= 1)]
Count = Annotated[int, Check("a whole number of at least 0", lambda value: value >= 0)]


@dataclass(frozen=True)
class ServedModel:
    """Facts of the model behind an engine, known before a text is read.

    `train_len` is None where the engine does not say it. `identity` are facts that tell this model
    from others, beside `settings`, the arguments that change its losses and are not at their
    defaults. `model` holds sizes, for estimates."""

    vocab_size: int
    bos: int | None
    train_len: int | None
    tokenizer: str
    identity: dict
    settings: dict = field(default_factory=dict)
    model: ModelConfig = ModelConfig()


class Engine:
    """Base class of engines.

    `at_once` texts are asked for at the same time; one that is `remote` runs in another process."""

    kind: ClassVar[str]
    remote: ClassVar[bool] = False
    at_once: int = 1

    def describe_model(self, raw: dict) -> ServedModel:
        """Facts of its model, for a job's configuration.

        Raises ConfigError where there is none, or none that posbench can read."""
        raise NotImplementedError

    def start(self, raw: dict) -> dict:
        """Make it ready to answer. Returns what the engine says of itself, for the provenance.

        Raises ConfigError and RunError."""
        raise NotImplementedError

    def losses(self, ids_L1: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """nll (nats) and correctness of the last n_rows of a text [L + 1], each token predicted
        from those before it: both [R].

        Raises RunError for an answer that is none.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Give up what `start` took, also while other threads wait for an answer."""


def make_engine(node: dict) -> Engine:
    """Engine of a node of configs/model.

    Raises ConfigError for a class that is none, and for wrong arguments."""
    # the node fills every argument
    kind, arguments = class_and_arguments(node, name="model", filled=0)
    if not issubclass(kind, Engine):
        raise ConfigError(
            f"model._target_={node['_target_']} is no engine: choose a class such as"
            " posbench.engines.server.Server."
        )
    return kind(**arguments)


def config_from_engine(raw: dict) -> dict:
    """Job configuration with encoding, sizes and training length of the engine in model.engine.

    Raises ConfigError for methods and trainings that an engine does not take, and as
    Engine.describe_model."""
    node = raw["model"]["engine"]
    engine = make_engine(node)
    _check_methods(raw, engine)
    served = engine.describe_model(raw)
    facts = {**served.identity, "vocab_size": served.vocab_size, "bos": served.bos}
    outline = Outline(
        model=replace(served.model, engine=node, checkpoint=facts),
        encoding={"_target_": SERVED_ENCODING, "engine": engine.kind, **served.settings},
        vocab_size=served.vocab_size,
        bos=served.bos,
        length=served.train_len,
    )
    return config_of_foreign_model(raw, f"model={engine.kind}", outline, served.tokenizer)


def _check_methods(raw: dict, engine: Engine) -> None:
    """Raise ConfigError for methods and trainings that an engine does not take."""
    model = f"model={engine.kind}"
    for group, names in ALLOWED_METHODS.items():  # those that leave the positions as they are
        name = method_name(raw[group])
        if name not in names:
            raise ConfigError(
                f"{group}={name} is posbench's, and {model} has positions of its own: leave"
                f" {group} out."
            )
    # the default, and that of a configuration that `config_from_engine` returned
    if method_name(raw["encoding"]) not in ("rope", "served"):
        raise ConfigError(
            f"{typed_words('encoding', raw['encoding'])} cannot be chosen for {model}, which has"
            " positions of its own."
        )
    for key in ("check", "finetune"):
        if raw.get(key):
            raise ConfigError(
                f"{key}= needs weights, and {model} gives losses alone: leave it out."
            )
