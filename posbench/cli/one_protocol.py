"""Refusal of settings of evaluate that have no say in commands whose one protocol is fixed_targets."""

from collections.abc import Iterable

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig

OTHERS = ("stride", "tasks", "chat", "rivals", "key_gain", "key_loss", "key_context", "key_run")  # of evaluate


def refuse(cfg: dict, decided: Iterable[str], why: str) -> None:
    """Raise ConfigError for a given setting of evaluate that a command has `decided`, as `why` says, or that only other protocols use."""
    usual = vars(EvaluateConfig())
    for key, said in [*((key, why) for key in decided), *((key, "of another protocol than fixed_targets") for key in OTHERS)]:
        if cfg["evaluate"].get(key, usual[key]) != usual[key]:
            raise ConfigError(f"evaluate.{key}={cfg['evaluate'][key]} is {said}: leave it out.")
