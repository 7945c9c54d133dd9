"""Refusal of options without effect on a command that evaluates one model with fixed_targets and chooses its own settings."""

from collections.abc import Iterable

from posbench.common.errors import ConfigError
from posbench.config.compose import Request
from posbench.config.schema import EvaluateConfig
from posbench.data import other_text

# Settings of evaluate that only other protocols use.
OTHER_PROTOCOLS = ("stride", "tasks", "chat", "rivals", "key_gain", "key_loss", "key_context", "key_run")


def one_model(request: Request, script: str, does: str, tuned: str) -> dict:
    """The one configuration of a request. Raises ConfigError where there are several, or a description of a fine-tuning."""
    cfg = request.cfgs[0]
    if request.sweep or cfg["runs"] is not None:
        raise ConfigError(f"{script} {does} one model: give it model.path= or run=, without -m, experiment= and runs=.")
    if cfg.get("finetune"):
        raise ConfigError(f"{script} {does} a model that is there: leave finetune= out, {tuned}.")
    return cfg


def refuse_settings(cfg: dict, script: str, decided: Iterable[str], why: str) -> None:
    """Raise ConfigError for a given setting of evaluate that the script has `decided`, as `why` says, or that has no effect."""
    other_text.refuse(cfg, script)
    usual = vars(EvaluateConfig())
    for key, said in [*((key, why) for key in decided), *((key, "of another protocol than fixed_targets") for key in OTHER_PROTOCOLS)]:
        if cfg["evaluate"].get(key, usual[key]) != usual[key]:
            raise ConfigError(f"evaluate.{key}={cfg['evaluate'][key]} is {said}: leave it out.")
