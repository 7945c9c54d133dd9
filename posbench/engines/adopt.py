"""Configuration of a job on a running engine, which replaces the training. Torch-free."""

from dataclasses import asdict, replace

from posbench.common.errors import ConfigError
from posbench.config.identity import as_typed, method_name
from posbench.config.schema import TrainConfig
from posbench.engines.engine import Engine
from posbench.position.instantiate import checked

ENCODING = "posbench.encodings.served.Served"
ALLOWED = {"extension": ("none", "recompute_window"), "scale_attention": ("none",)}


def make_engine(node: dict) -> Engine:
    """Engine of a node of configs/model. Raises ConfigError for a class that is none, and for wrong arguments."""
    kind, given = checked(node, name="model", own=0)
    if not issubclass(kind, Engine):
        raise ConfigError(f"model._target_={node['_target_']} is no engine: choose a class such as posbench.engines.server.Server.")
    return kind(**given)


def adopt_engine(cfg: dict) -> dict:
    """Job configuration with the encoding, the sizes and the training length of the engine in model.engine.

    Raises ConfigError for methods and trainings that an engine does not take, and as Engine.served.
    """
    engine, train = make_engine(cfg["model"]["engine"]), cfg["train"]
    kind = f"model={engine.kind}"
    for group, names in ALLOWED.items():
        if method_name(cfg[group]) not in names:
            raise ConfigError(
                f"{group}={method_name(cfg[group])} is posbench's, and {kind} has positions of its own: start the engine with its own "
                f"setting, and leave {group} out."
            )
    if method_name(cfg["encoding"]) not in ("rope", "served"):
        raise ConfigError(f"{as_typed('encoding', cfg['encoding'])} cannot be chosen for {kind}, which has positions of its own.")
    for key in ("check", "finetune"):
        if cfg.get(key):
            raise ConfigError(f"{key}= needs weights, and {kind} gives losses alone: leave it out.")
    if method_name(train.get("scale_attention") or TrainConfig().scale_attention) != "none":
        raise ConfigError(f"train.scale_attention was not trained into {kind}: leave it out.")
    found = engine.served(cfg)
    length = found.train_len if train["length"] == TrainConfig().length else train["length"]
    if length is None:
        raise ConfigError(f"{kind} does not say for how many tokens its model was trained: add train.length=TOKENS.")
    return {
        **cfg,
        "encoding": {"_target_": ENCODING, "engine": engine.kind, **found.settings},
        "model": {
            **asdict(replace(found.model, engine=cfg["model"]["engine"])),
            "checkpoint": {**found.identity, "vocab_size": found.vocab_size, "bos": found.bos},
        },
        "train": asdict(TrainConfig(length=length, steps=0, dtype="bf16")),
        "seed": 0,
        "data": {**cfg["data"], "tokenizer": found.tokenizer},
    }
