"""Types of the configuration groups; the values and the reasons for them are in configs/.

OmegaConf checks an override against these (`train.steps=many` is refused with both words), the dataclasses' own checks see to ranges.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from dataclasses import dataclass, field
from typing import Any

from posbench.errors import ConfigError


@dataclass
class ModelConfig:
    d_model: int = 128
    n_layer: int = 4
    n_head: int = 2
    n_kv_head: int | None = None
    d_ff: int | None = None
    head_dim: int | None = None
    qkv_bias: bool = False
    qk_norm: str = "none"
    tied: bool = False
    norm_eps: float = 1e-5
    init_std: float = 0.02
    path: str | None = None
    checkpoint: dict[str, Any] | None = None


@dataclass
class TrainConfig:
    length: Any = 64
    steps: int = 1000
    tokens_per_step: int = 2048
    scale_attention: dict[str, Any] = field(default_factory=lambda: {"_target_": "posbench.scale_attention.none.NoScale"})
    micro_batches: int = 1
    optimizer: str = "muon"
    lr: float = 1e-2
    muon_lr: float = 1.5e-2
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    momentum: float = 0.95
    weight_decay: float = 0.05
    warmup: int = 40
    schedule: str = "linear"
    clip: float = 1.0
    dtype: str = "bf16"
    compile: bool = False
    seed_data: int | None = None
    log_every: int = 50
    validate_every: int = 0
    validate_windows: int = 256
    checkpoint_every: int = 500

    @property
    def lengths(self) -> list[int]:
        """Training lengths in tokens, ascending."""
        return sorted({int(n) for n in self.length}) if isinstance(self.length, list) else [int(self.length)]

    @property
    def train_len(self) -> int:
        """The longest training length, the one every extension refers to."""
        return self.lengths[-1]


@dataclass
class EvaluateConfig:
    lengths: list[int] | None = None
    max_length: int | None = None
    protocol: list[str] = field(default_factory=lambda: ["fixed_targets"])
    windows: int = 512
    targets: int | None = None
    stride: int | None = None
    split: str = "test"
    documents: str | None = None
    dtype: str = "fp32"
    seed: int = 0
    batch_tokens: int = 8192


@dataclass
class LogConfig:
    mode: str | None = None
    project: str = "posbench"
    entity: str | None = None
    group: str | None = None


CHOICES = {
    ("model", "qk_norm"): ("none", "rms", "l2", "key_l2"),
    ("train", "optimizer"): ("muon", "adamw"),
    ("train", "schedule"): ("linear", "cosine"),
    ("train", "dtype"): ("bf16", "fp32"),
    ("evaluate", "dtype"): ("bf16", "fp32"),
    ("evaluate", "split"): ("test", "validation"),
    ("log", "mode"): (None, "online", "offline", "disabled"),
}
LISTS = ("lengths", "protocol")  # one value may be given without brackets
POSITIVE = {
    "model": ("d_model", "n_layer", "n_head"),
    "train": ("tokens_per_step", "micro_batches", "log_every", "lr", "muon_lr"),
    "evaluate": ("windows", "targets", "stride", "batch_tokens"),
}
COUNTS = {
    "train": ("steps", "warmup", "weight_decay", "clip", "validate_every", "validate_windows", "checkpoint_every"),
    "evaluate": ("seed",),
}


def typed(group: str, values: dict) -> Any:
    """`values` of one group as its dataclass.

    Raises ConfigError for a wrong type, an unknown word where only some are legal, or a number out of range.
    """
    return copy.deepcopy(_typed(group, json.dumps(values)))


@functools.lru_cache(maxsize=1024)
def _typed(group: str, content: str) -> Any:
    """`typed`; a grid asks the same of each of its cells, and OmegaConf takes a hundredth of a second."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values = json.loads(content)
    values = {key: [value] if key in LISTS and not isinstance(value, list | None) else value for key, value in values.items()}
    schema = {"model": ModelConfig, "train": TrainConfig, "evaluate": EvaluateConfig, "log": LogConfig}[group]
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{group}.{getattr(error, 'full_key', '?')}: {str(error).splitlines()[0].rstrip('.')}.") from error
    for (owner, key), legal in CHOICES.items():
        if owner == group and getattr(config, key) not in legal:
            raise ConfigError(f"{group}.{key}={getattr(config, key)} is unknown: choose one of {', '.join(map(str, legal))}.")
    for key, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{group}.{key}={value} must be a finite number.")
    for key in POSITIVE.get(group, ()):
        if (value := getattr(config, key)) is not None and value <= 0:
            raise ConfigError(f"{group}.{key}={getattr(config, key)} must be above 0.")
    for key in COUNTS.get(group, ()):
        if getattr(config, key) < 0:
            raise ConfigError(f"{group}.{key}={getattr(config, key)} must be 0 or more.")
    return config


def resolve(cfg: dict) -> dict:
    """A job's configuration with every default that depends on another value filled in, so that ids hash numbers and not nulls.

    Raises ConfigError as `typed` does, and for lengths that max_length or the model cannot serve.
    """
    from dataclasses import asdict

    model, train, evaluate, log = (typed(group, cfg[group]) for group in ("model", "train", "evaluate", "log"))
    if min(train.lengths) < 2:
        raise ConfigError(f"train.length={train.length} must be at least 2 tokens.")
    evaluate.max_length = evaluate.max_length or 16 * train.train_len
    evaluate.lengths = sorted(
        set(evaluate.lengths or [n * train.train_len for n in (1, 2, 4, 8, 16) if n * train.train_len <= evaluate.max_length])
    )
    evaluate.targets = evaluate.targets or max(1, train.train_len // 8)
    if not evaluate.lengths:
        raise ConfigError(
            f"evaluate.max_length={evaluate.max_length} is shorter than train.length={train.train_len}: raise it, or give evaluate.lengths."
        )
    if evaluate.lengths[0] < evaluate.targets:
        raise ConfigError(
            f"evaluate.lengths={evaluate.lengths} must each hold the evaluate.targets={evaluate.targets} scored tokens: ask for more."
        )
    if evaluate.lengths[-1] > evaluate.max_length:
        raise ConfigError(
            f"evaluate.lengths={evaluate.lengths} goes beyond evaluate.max_length={evaluate.max_length}, which places the windows: "
            f"set evaluate.max_length to {evaluate.lengths[-1]} or more."
        )
    for key, least in (("seed", 0), ("jobs", 1), ("processes", 1)):
        value = cfg.get(key, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{key}={value} must be a whole number of {least} or more.")
    return {**cfg, "model": asdict(model), "train": asdict(train), "evaluate": asdict(evaluate), "log": asdict(log)}
