"""Methods by the names of their yamls in configs/, as a user would type them."""

import copy
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.identity import CHOICE_KEY, POSBENCH_PREFIX, method_args, method_name
from posbench.config.peer_words import choice_meant
from posbench.config.schema import USUAL_METHODS

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


def repository_folder(name: str) -> Path:
    """Folder `name` of the repository, which lies within the package of an installed wheel."""
    within = PACKAGE_FOLDER / name
    return within if within.is_dir() else PACKAGE_FOLDER.parent / name


CONFIGS_FOLDER = repository_folder("configs")
SCRIPTS_FOLDER = repository_folder("scripts")
IS_INSTALLED = SCRIPTS_FOLDER.is_relative_to(PACKAGE_FOLDER)  # from a wheel


def with_command_names(text: str) -> str:
    """`text` with `posbench NAME` for `python scripts/NAME.py` in an installed package, whose
    scripts nobody types.
    """
    if not IS_INSTALLED:
        return text
    return re.sub(r"(?:python )?\bscripts/(\w+)\.py", r"posbench \1", text)


def yamls_in_folders(folders: list[Path], group: str) -> dict[str, dict]:
    """{name: content} of a group's yamls in all configuration folders; later folders win."""
    from omegaconf import OmegaConf

    paths = [
        path
        for folder in folders
        for path in sorted((folder / group).glob("*.yaml"))
        if not path.stem.startswith("_")  # _base.yaml: what choices share, and no choice
    ]
    return {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in paths}


@functools.cache
def shipped_yamls(group: str) -> dict[str, dict]:
    """{name: content} of the yamls of one of posbench's own groups, read once."""
    return yamls_in_folders([CONFIGS_FOLDER], group)


def base_yaml(group: str) -> dict:
    """Content of the _base.yaml of one of posbench's own groups, which its choices share."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(CONFIGS_FOLDER / group / "_base.yaml"))


def display_name(group: str, node: dict) -> str:
    """Display name of a method by its configuration. Raises ConfigError without a _target_."""
    return closest_yaml_name(group, method_name(node), method_args(node))


def closest_yaml_name(group: str, method: str, args: dict | None) -> str:
    """Display name of a method: the yaml of its class that shares most arguments.

    So it is fox_rope rather than fox. A class without a yaml is named by its module.
    """
    args = args or {}
    yamls = _yamls_of_class(group, method)

    def shared_arguments(name: str) -> tuple[int, bool]:
        """Number of arguments that a yaml shares with the method, then whether it has its name."""
        shared = sum(key in args and args[key] == value for key, value in yamls[name].items())
        return shared, name == method

    return max(yamls, key=shared_arguments, default=method)


@functools.cache
def _yamls_of_class(group: str, method: str) -> dict[str, dict]:
    """{name of a yaml: its arguments} of the yamls whose class has the short name `method`."""
    return {
        name: method_args(node)
        for name, node in shipped_yamls(group).items()
        if method_name(node) == method
    }


def with_choice_keys(values: dict, choices: Mapping[str, str]) -> dict:
    """Composed `values` in which methods of the user's own classes hold the name of their yaml, at
    CHOICE_KEY.

    `choices`: {group, or group@place: choice}, as Hydra gives them. A name that posbench's own
    methods have is not recorded: a table could not say which of the two it means. What is changed
    is copied."""
    for key, choice in choices.items():
        group, _, place = key.partition("@")
        if group in USUAL_METHODS and isinstance(choice, str):
            values = _with_choice_key(values, (place or group).split("."), group, choice)
    return values


def _with_choice_key(values: dict, place: list[str], group: str, choice: str) -> dict:
    """`values` with the choice of the method at the keys `place`, such as [train, encoding]."""
    key, *deeper = place
    part = values.get(key)
    if not isinstance(part, dict):
        return values
    if deeper:
        return {**values, key: _with_choice_key(part, deeper, group, choice)}
    target = str(part.get("_target_", POSBENCH_PREFIX))  # without a class there is no method
    # posbench's own classes are named by their files. A name of theirs on a user's class would mean
    # either of the two.
    if target.startswith(POSBENCH_PREFIX) or choice in _shipped_names(group):
        return values
    name = re.sub(r"[^\w.+-]", "_", choice)  # signs that a display name may have
    return {**values, key: {**part, CHOICE_KEY: name}}


@functools.cache
def _shipped_names(group: str) -> set[str]:
    """Names of posbench's own yamls of a group, and of the modules of their classes."""
    return {*shipped_yamls(group), *map(method_name, shipped_yamls(group).values())}


def chosen_node(
    group: str,
    chosen: str | dict | None,
    arguments: dict[str, Any],
    settings: Iterable[str] = (),
    yamls: dict[str, dict] | None = None,
) -> dict:
    """The configuration (`_target_` and arguments) of a method of a group, such as extension.

    `chosen`: a name, {"name": NAME, ...}, {"_target_": CLASS, ...}, or None for none; `settings`:
    other keywords to suggest; `yamls`: those of the group, by default posbench's own. Raises
    ConfigError for a name without a yaml and for an argument that the yaml lacks."""
    values = {**chosen, **arguments} if isinstance(chosen, dict) else dict(arguments)
    if "_target_" in values:
        return values
    name = "none" if chosen is None else chosen
    if isinstance(chosen, dict):
        name = values.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f'{group}={chosen} does not name a method: give a name, or a dict such as {{"name":'
            ' "pi", "mode": "dynamic"}.'
        )
    if yamls is None:
        yamls = shipped_yamls(group)
    if name not in yamls:
        hint = did_you_mean(name, yamls, choice_meant(group, name, yamls))
        raise ConfigError(f"{group}={name} is unknown{hint}: choose from {', '.join(yamls)}.")
    legal = [key for key in yamls[name] if key != "_target_"]
    for key in values:
        if key not in legal:
            near = did_you_mean(key, [*legal, *settings])
            raise ConfigError(
                f"{key} is not an argument of {group}={name}{near}: it takes"
                f" {', '.join(legal) or 'nothing'}."
            )
    if values.get("target_len") is not None and "mode" in legal:
        values = {"mode": "fixed", **values}  # it can mean nothing else
    return {**copy.deepcopy(yamls[name]), **values}
