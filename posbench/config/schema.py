"""Schema of the configuration: types, defaults and checks. configs/ explains the values.

Every script refuses `train.steps=many` with a sentence that names key and value.
"""

from __future__ import annotations

import copy
import functools
import json
import typing
from dataclasses import asdict, dataclass, field
from typing import Any

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.ranges import check_ranges
from posbench.config.typed_args import fitting, shown


@dataclass
class ModelConfig:
    """Shape of the model, or the checkpoint that replaces it."""

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
    """Settings of the training. Lengths are in tokens."""

    length: int | list[int] = 64
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
        return sorted(set(self.length)) if isinstance(self.length, list) else [self.length]

    @property
    def train_len(self) -> int:
        """The longest training length, the one every extension refers to."""
        return self.lengths[-1]


@dataclass
class EvaluateConfig:
    """Settings of the evaluation. Lengths, targets and stride are in tokens."""

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
    """Settings of wandb."""

    mode: str | None = None
    project: str = "posbench"
    entity: str | None = None
    group: str | None = None


LISTS = ("lengths", "protocol")  # keys that accept one value without brackets
NAMES = ("project", "entity", "group", "documents", "mode", "protocol")  # keys whose numbers are read as text
SCHEMAS = {"model": ModelConfig, "train": TrainConfig, "evaluate": EvaluateConfig, "log": LogConfig}
METHODS = {
    "encoding": "posbench.encodings.rope.Rope",
    "extension": "posbench.extensions.none.NoExtension",
    "scale_attention": "posbench.scale_attention.none.NoScale",
}
SOURCE = "posbench.data.local.LocalFiles"
# {key: type} outside the groups above, of run.yaml and of the other scripts' yamls.
JOB = {
    "seed": int, "device": str, "jobs": int, "processes": int, "allow_untested": bool, "dry": bool,
    "results_dir": str, "cache_dir": str, "report_dir": str | None, "run": str | None, "runs": str | list[str] | None, "out": str | None,
    "data": dict, "length": int | None, "json": str | None, "figure": str | None,
    **dict.fromkeys(SCHEMAS, dict), **dict.fromkeys(METHODS, Any),
}  # fmt: skip
DATA = {"tokenizer": str, "vocab_size": int, "bos": bool, "source": dict}


def check(cfg: dict) -> dict:
    """`cfg` with every value of the right type. Arguments of methods and sources are checked by `make` and `make_source`.

    Raises ConfigError for a wrong type, an unknown key, an illegal word, or a number out of range.
    """
    found = {key: fitting(key, value, JOB[key]) if key in JOB else value for key, value in cfg.items()}
    for key, least in (("seed", 0), ("jobs", 1), ("processes", 1)):
        if found.get(key, least) < least:
            raise ConfigError(f"{key}={found[key]} must be a whole number of {least} or more.")
    if found.get("device", "").split(":")[0] == "meta":
        raise ConfigError("device=meta holds no numbers to compute with: choose device=cpu or device=auto.")
    data = found.get("data", {})
    found |= {"data": {key: fitting(f"data.{key}", value, DATA.get(key, Any)) for key, value in data.items()}} if data else {}
    nodes = {group: found[group] for group in METHODS if group in found} | ({"data.source": data["source"]} if "source" in data else {})
    for name, node in nodes.items():
        if not isinstance(node, dict):
            raise ConfigError(f"{name}={shown(node)} must be a mapping, with _target_: {METHODS.get(name, SOURCE)} or another class.")
        if not isinstance(node.get("_target_"), str):
            raise ConfigError(f"{name}._target_={shown(node.get('_target_'))} must name a class, such as {METHODS.get(name, SOURCE)}.")
    for group in SCHEMAS:
        if group in found:
            typed(group, found[group])
    return found


def typed(group: str, values: dict) -> Any:
    """Dataclass of one group, built from `values`. Raises ConfigError as `check` does."""
    return copy.deepcopy(_typed(group, json.dumps(values)))


@functools.lru_cache(maxsize=1024)
def _typed(group: str, content: str) -> Any:
    """Cached part of `typed`: the cells of a grid mostly share these values."""
    values, schema = json.loads(content), SCHEMAS[group]
    hints = typing.get_type_hints(schema)
    if unknown := sorted(set(fitting(group, values, dict)) - set(hints)):
        raise ConfigError(f"{group}.{unknown[0]} is no key of {group}{did_you_mean(unknown[0], hints)}: --cfg job prints all of them.")
    values = {key: [value] if key in LISTS and not isinstance(value, list | None) else value for key, value in values.items()}
    values = {key: _as_name(value) if key in NAMES else value for key, value in values.items()}
    config = schema(**{key: _as_float(fitting(f"{group}.{key}", value, hints[key]), hints[key]) for key, value in values.items()})
    check_ranges(group, config)
    return config


def _as_name(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else [_as_name(one) for one in value] if isinstance(value, list) else value


def _as_float(value: Any, hint: Any) -> Any:
    """1 as 1.0 for a float field, as config.yaml of a run has always held it."""
    return float(value) if hint is float else [float(one) for one in value] if hint == list[float] else value


def resolve(cfg: dict) -> dict:
    """Fill in the defaults that depend on other values, so that ids hash numbers and not nulls.

    Raises ConfigError as `typed` does, and for lengths that contradict evaluate.targets or evaluate.max_length.
    """
    cfg = check(cfg)
    model, train, evaluate, log = (typed(group, cfg[group]) for group in SCHEMAS)
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
    return {**cfg, "model": asdict(model), "train": asdict(train), "evaluate": asdict(evaluate), "log": asdict(log)}
