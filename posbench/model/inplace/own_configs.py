"""Configurations of one model alone, while its methods are in place.

Models may share a configuration object, such as two that were made from it. What a model's methods
need of its configuration, its attention function and its longest text, must not reach another
model."""

import copy
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ATTENTION = "_attn_implementation_internal"


class Place(NamedTuple):
    """Attribute of a module that holds a configuration: `shared` as the model came, `own` a copy of
    it.
    """

    module: nn.Module
    attribute: str
    shared: "PreTrainedConfig"
    own: "PreTrainedConfig"


class OwnConfigs:
    """Context in which a model's modules hold copies of their configurations; equal objects stay
    one object.

    At its end the shared ones are back, with whatever the user set meanwhile. Nothing happens to a
    model that is forgotten before the end."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.places: list[Place] = []
        self.before: dict[int, dict[str, object]] = {}  # {id of a copy: its settings at first}

    def __enter__(self) -> None:
        copies: dict[int, object] = {}  # {id of an object: its copy}, as copy.deepcopy fills it
        for module in self.model.modules():
            for attribute, config in _configs(module):
                own = copy.deepcopy(config, copies)
                self.places.append(Place(module, attribute, config, own))
                setattr(module, attribute, own)
                self.before[id(own)] = copy.deepcopy(_settings(own))

    def __exit__(self, *error: object) -> None:
        for place in self.places:
            _adopt(place, self.before[id(place.own)])


def _configs(module: nn.Module) -> list[tuple[str, "PreTrainedConfig"]]:
    """(attribute, configuration) of a module."""
    from transformers import PreTrainedConfig

    return [
        (name, value) for name, value in vars(module).items() if isinstance(value, PreTrainedConfig)
    ]


def _settings(config: "PreTrainedConfig") -> dict[str, object]:
    """Settings of a configuration, without those of its parts."""
    from transformers import PreTrainedConfig

    settings = vars(config).items()
    return {
        key: value
        for key, value in settings
        if key != ATTENTION and not isinstance(value, PreTrainedConfig)
    }


def _adopt(place: Place, before: dict[str, object]) -> None:
    """Put a shared configuration back, with the settings that its copy has now and had not
    `before`.
    """
    for key, value in _settings(place.own).items():
        if key not in before or before[key] != value:
            vars(place.shared)[key] = value
    if vars(place.module).get(place.attribute) is place.own:
        setattr(place.module, place.attribute, place.shared)
