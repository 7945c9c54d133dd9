"""Refusal of settings that only other protocols use, for commands whose one protocol is fixed_targets."""

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig

OTHERS = ("stride", "tasks", "chat", "rivals", "key_gain", "key_loss", "key_context", "key_run")  # of evaluate


def refuse_others(cfg: dict) -> None:
    """Raise ConfigError for a setting of a protocol other than fixed_targets."""
    usual = vars(EvaluateConfig())
    for key in OTHERS:
        if cfg["evaluate"].get(key, usual[key]) != usual[key]:
            raise ConfigError(f"evaluate.{key}={cfg['evaluate'][key]} is of another protocol than fixed_targets: leave it out.")
