"""A method as chosen in Python: its yaml of configs/ by name, with arguments over it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.names import nodes


def node(group: str, chosen: str | dict | None, arguments: dict[str, Any], settings: Iterable[str] = ()) -> dict:
    """The configuration of a method (`_target_` and arguments) of `group`, extension or scale_attention.

    `chosen`: a name, {"name": NAME, ...}, {"_target_": CLASS, ...}, or None for none; `settings`: other keywords to suggest.
    Raises ConfigError for a name without a yaml and for an argument that the yaml lacks.
    """
    given = {**chosen, **arguments} if isinstance(chosen, dict) else dict(arguments)
    if "_target_" in given:
        return given
    name = given.pop("name", None) if isinstance(chosen, dict) else "none" if chosen is None else chosen
    if not isinstance(name, str):
        raise ConfigError(f'{group}={chosen} names no method: give a name, or a dict such as {{"name": "pi", "mode": "dynamic"}}.')
    known = nodes(group)
    if name not in known:
        raise ConfigError(f"{group}={name} is unknown{did_you_mean(name, known)}: choose from {', '.join(known)}.")
    legal = [key for key in known[name] if key != "_target_"]
    if unknown := [key for key in given if key not in legal]:
        near = did_you_mean(unknown[0], [*legal, *settings])
        raise ConfigError(f"{unknown[0]} is no argument of {group}={name}{near}: it takes {', '.join(legal) or 'nothing'}.")
    return {**copy.deepcopy(known[name]), **given}
