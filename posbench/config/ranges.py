"""Ranges and choices of the configuration groups, beyond their types."""

from __future__ import annotations

from typing import Any

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.typed_args import shown

CHOICES = {
    ("model", "qk_norm"): ("none", "rms", "l2", "key_l2"),
    ("train", "optimizer"): ("muon", "adamw"),
    ("train", "schedule"): ("linear", "cosine"),
    ("train", "dtype"): ("bf16", "fp32"),
    ("evaluate", "dtype"): ("bf16", "fp32"),
    ("evaluate", "split"): ("test", "validation"),
    ("log", "mode"): (None, "online", "offline", "disabled"),
}
POSITIVE = {
    "model": ("d_model", "n_layer", "n_head", "n_kv_head", "d_ff"),
    "train": ("tokens_per_step", "micro_batches", "log_every", "lr", "muon_lr"),
    "evaluate": ("windows", "targets", "stride", "batch_tokens", "max_length"),
}
COUNTS = {
    "model": ("norm_eps", "init_std"),
    "train": ("steps", "warmup", "weight_decay", "clip", "validate_every", "validate_windows", "checkpoint_every", "seed_data"),
    "evaluate": ("seed",),
}
SHARES = {"train": ("betas", "momentum")}
RANGES = (
    (POSITIVE, lambda number: number > 0, "above 0"),
    (COUNTS, lambda number: number >= 0, "0 or more"),
    (SHARES, lambda number: 0 <= number < 1, "0 or more and below 1"),
)
OFF = ("off", "false", "False", "no", "none")  # words that people type for log.mode=disabled; YAML reads some of them as false


def check_ranges(group: str, config: Any) -> None:
    """Raise ConfigError if a value of a group (its dataclass) is not a legal word or is out of range."""
    for (owner, key), legal in CHOICES.items():
        if owner == group and (value := getattr(config, key)) not in legal:
            near = did_you_mean(value, filter(None, legal)) if value not in OFF else " (did you mean disabled?)"
            raise ConfigError(f"{group}.{key}={value} is unknown{near}: choose one of {', '.join(map(shown, legal))}.")
    for table, good, words in RANGES:
        for key in table.get(group, ()):
            value = getattr(config, key)
            if not all(number is None or good(number) for number in (value if isinstance(value, list) else [value])):
                raise ConfigError(f"{group}.{key}={shown(value)} must be {words}.")
    if group == "train" and min(config.lengths, default=0) < 2:
        raise ConfigError(f"train.length={shown(config.length)} must be at least 2 tokens, or a list of such lengths.")
    if group == "train" and len(config.betas) != 2:
        raise ConfigError(f"train.betas={shown(config.betas)} must be two numbers, such as [0.9,0.95].")
    if group == "evaluate" and not config.protocol:
        raise ConfigError("evaluate.protocol=[] measures nothing: name one or several, such as fixed_targets.")
