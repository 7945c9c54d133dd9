"""Methods by the names of their yamls in configs/, as a user would type them."""

import copy
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.identity import CHOICE, OURS, method_args, method_name
from posbench.config.schema import METHODS

PACKAGE = Path(__file__).resolve().parents[1]


def repository_folder(name: str) -> Path:
    """Folder `name` of the repository: in a checkout it lies beside the package, in an installed
    wheel configs and scripts lie within.
    """
    return next(
        (folder for folder in (PACKAGE / name, PACKAGE.parent / name) if folder.is_dir()),
        PACKAGE.parent / name,
    )


CONFIGS, SCRIPTS = repository_folder("configs"), repository_folder("scripts")
INSTALLED = SCRIPTS.is_relative_to(PACKAGE)  # from a wheel


def as_command(text: str) -> str:
    """`text` with `posbench NAME` for `python scripts/NAME.py` in an installed package, whose
    scripts nobody types.
    """
    return re.sub(r"(?:python )?\bscripts/(\w+)\.py", r"posbench \1", text) if INSTALLED else text


def choices(configs: list[Path], group: str) -> dict[str, dict]:
    """{name: content} of a group's yamls in all configuration folders; later folders win."""
    from omegaconf import OmegaConf

    paths = sorted(
        path
        for folder in configs
        for path in (folder / group).glob("*.yaml")
        if not path.stem.startswith("_")
    )
    return {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in paths}


@functools.cache
def group_yamls(group: str) -> dict[str, dict]:
    """{name: content} of the yamls of one of posbench's own groups, read once."""
    return choices([CONFIGS], group)


def base_yaml(group: str) -> dict:
    """Content of the _base.yaml of one of posbench's own groups, which its choices share."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(CONFIGS / group / "_base.yaml"))


def display_name(group: str, node: dict) -> str:
    """Display name of a method by its configuration. Raises ConfigError for one without
    _target_.
    """
    return closest_yaml(group, method_name(node), method_args(node))


def closest_yaml(group: str, method: str, args: dict | None) -> str:
    """Display name of a method: among the yamls of its class the one that shares most arguments
    (fox_rope, not fox).

    A class without a yaml is named by its module.
    """
    alike, own, absent = _alike(group, method), args or {}, object()

    def common(stem: str) -> tuple[int, bool]:
        return (
            sum(own.get(key, absent) == value for key, value in alike[stem].items()),
            stem == method,
        )

    return max(alike, key=common, default=method)


@functools.cache
def _alike(group: str, method: str) -> dict[str, dict]:
    return {
        stem: method_args(node)
        for stem, node in group_yamls(group).items()
        if method_name(node) == method
    }


def with_choices(values: dict, choices: Mapping[str, str]) -> dict:
    """Composed `values` in which each method of somebody's own class holds the yaml that it was
    chosen by, under CHOICE.

    `choices`: {group, or group@place: choice}, as Hydra gives them. A name that posbench's own
    methods have is not recorded: a table could not say which of the two it means. What is changed
    is copied."""
    for key, choice in choices.items():
        group, _, place = key.partition("@")
        if group in METHODS and isinstance(choice, str):
            values = _with_choice(values, (place or group).split("."), group, choice)
    return values


def _with_choice(values: dict, place: list[str], group: str, choice: str) -> dict:
    key, *rest = place
    part = values.get(key)
    if not isinstance(part, dict):
        return values
    if rest:
        return {**values, key: _with_choice(part, rest, group, choice)}
    if str(part.get("_target_", OURS)).startswith(OURS) or choice in _names_of_ours(group):
        return values
    return {**values, key: {**part, CHOICE: re.sub(r"[^\w.+-]", "_", choice)}}


@functools.cache
def _names_of_ours(group: str) -> set[str]:
    """Names of posbench's own yamls of a group, and of the modules of their classes."""
    return {*group_yamls(group), *map(method_name, group_yamls(group).values())}


def chosen_node(
    group: str, chosen: str | dict | None, arguments: dict[str, Any], settings: Iterable[str] = ()
) -> dict:
    """The configuration of a method (`_target_` and arguments) of `group`, extension or
    scale_attention.

    `chosen`: a name, {"name": NAME, ...}, {"_target_": CLASS, ...}, or None for none; `settings`:
    other keywords to suggest. Raises ConfigError for a name without a yaml and for an argument that
    the yaml lacks."""
    given = {**chosen, **arguments} if isinstance(chosen, dict) else dict(arguments)
    if "_target_" in given:
        return given
    name = (
        given.pop("name", None)
        if isinstance(chosen, dict)
        else "none"
        if chosen is None
        else chosen
    )
    if not isinstance(name, str):
        raise ConfigError(
            f'{group}={chosen} does not name a method: give a name, or a dict such as {{"name":'
            ' "pi", "mode": "dynamic"}.'
        )
    known = group_yamls(group)
    if name not in known:
        raise ConfigError(
            f"{group}={name} is unknown{did_you_mean(name, known)}: choose from {', '.join(known)}."
        )
    legal = [key for key in known[name] if key != "_target_"]
    if unknown := [key for key in given if key not in legal]:
        near = did_you_mean(unknown[0], [*legal, *settings])
        raise ConfigError(
            f"{unknown[0]} is not an argument of {group}={name}{near}: it takes"
            f" {', '.join(legal) or 'nothing'}."
        )
    return {**copy.deepcopy(known[name]), **given}
