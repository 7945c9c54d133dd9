"""Configurations of one model alone, while its methods are in holder.

Models may share a configuration object, such as two that were made from it. What a model's methods
need of its configuration, its attention function and its longest text, must not reach another
model."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ATTENTION_KEY = "_attn_implementation_internal"


class ConfigHolder(NamedTuple):
    """Attribute of a module that holds a configuration, which is `shared`, and a `copy` of it."""

    module: nn.Module
    attribute: str
    shared: "PreTrainedConfig"
    copy: "PreTrainedConfig"


class OwnConfigs:
    """Context in which a model's modules hold copies of their configurations; equal objects stay
    one object.

    At its end the shared ones are back, with whatever the user set meanwhile. Nothing happens to a
    model that is forgotten before the end."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.holders: list[ConfigHolder] = []
        self.first_settings: dict[
            int, dict[str, object]
        ] = {}  # {id of a copy: its settings at first}

    def __enter__(self) -> None:
        """Give every module a copy of its configurations."""
        copies: dict[int, object] = {}  # {id of an object: its copy}, as copy.deepcopy fills it
        for module in self.model.modules():
            for attribute, config in _configs_of(module):
                config_copy = copy.deepcopy(config, copies)
                self.holders.append(ConfigHolder(module, attribute, config, config_copy))
                setattr(module, attribute, config_copy)
                self.first_settings[id(config_copy)] = copy.deepcopy(_settings(config_copy))

    def __exit__(self, *error: object) -> None:
        """Put the shared configurations back."""
        for holder in self.holders:
            _put_shared_back(holder, self.first_settings[id(holder.copy)])


def _configs_of(module: nn.Module) -> list[tuple[str, "PreTrainedConfig"]]:
    """(attribute, configuration) of each configuration that a module holds."""
    from transformers import PreTrainedConfig

    attributes = vars(module).items()
    return [(name, value) for name, value in attributes if isinstance(value, PreTrainedConfig)]


def _settings(config: "PreTrainedConfig") -> dict[str, object]:
    """Settings of a configuration, without those of its parts."""
    from transformers import PreTrainedConfig

    return {
        key: value
        for key, value in vars(config).items()
        if key != ATTENTION_KEY and not isinstance(value, PreTrainedConfig)
    }


def _put_shared_back(holder: ConfigHolder, first_settings: dict[str, object]) -> None:
    """Put a shared configuration back, with the settings that the user changed in its copy."""
    for key, value in _settings(holder.copy).items():
        if key not in first_settings or first_settings[key] != value:
            vars(holder.shared)[key] = value
    # unless the user has put another configuration there
    if vars(holder.module).get(holder.attribute) is holder.copy:
        setattr(holder.module, holder.attribute, holder.shared)


def attention_configs(model: nn.Module) -> list["PreTrainedConfig"]:
    """Distinct configurations of a model and its parts that say how to attend."""
    configs = {}  # {id of a configuration: itself}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    return list(configs.values())


@contextmanager
def attend_by(name: str | None, configs: list["PreTrainedConfig"]) -> Iterator[None]:
    """Context in which configurations name an attention function of transformers' registry.

    None leaves the choice to transformers."""
    names_before = [config._attn_implementation for config in configs]
    # Set without transformers' setter, which would change parts of a configuration as well.
    for config in configs:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, name_before in zip(configs, names_before, strict=True):
            config._attn_implementation_internal = name_before
