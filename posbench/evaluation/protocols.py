"""Lookup of protocols by name: a protocol is a module of posbench/evaluators, and no list names it."""

import functools
import importlib
import pkgutil

from posbench.common.errors import ConfigError
from posbench.evaluation.protocol import Protocol

EVALUATORS = "posbench.evaluators"


def protocol(name: str) -> type[Protocol]:
    """Class of a protocol: fixed_targets is posbench.evaluators.fixed_targets.FixedTargets. Raises ConfigError for an unknown name."""
    found = known(name)
    if found is None:
        raise ConfigError(f"evaluate.protocol={name} is unknown: choose from {', '.join(protocol_names())}.")
    return found


@functools.cache
def known(name: str) -> type[Protocol] | None:
    """Class of a protocol, None for an unknown name: a row may come from other software."""
    if name not in protocol_names():
        return None
    module = importlib.import_module(f"{EVALUATORS}.{name}")
    return getattr(module, "".join(part.title() for part in name.split("_")))


def protocol_names() -> list[str]:
    """Names of all protocols."""
    return [module.name for module in pkgutil.iter_modules(importlib.import_module(EVALUATORS).__path__)]
