"""Protocols by name: a module of posbench/evaluation/protocols, or NAME.py in a folder that the
user gave as --config-dir.

The class is the module's name in capitals: FixedTargets of fixed_targets. A name that is only read
from a row, which may be anybody's, loads no other module than these."""

import functools
import importlib
import pkgutil

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.peer_words import choice_meant, normalized_word
from posbench.config.typed_args import class_named
from posbench.evaluation.protocol import Protocol

PROTOCOLS_PACKAGE = "posbench.evaluation.protocols"


def protocol(name: str) -> type[Protocol]:
    """Class of a protocol. Raises ConfigError for an unknown name."""
    protocol_class = find_protocol(name)
    if protocol_class is None:
        names = protocol_names()
        meant = choice_meant("protocol", str(name), names)
        hint = did_you_mean(name, names, meant)
        # by a word such as passkey, which is a task here
        if meant == "accuracy" and normalized_word(str(name)) != meant:
            hint = " (did you mean accuracy, with evaluate.tasks=[passkey]?)"
        raise ConfigError(
            f"evaluate.protocol={name} is unknown{hint}: choose from {', '.join(names)}."
        )
    return protocol_class


def find_protocol(name: str) -> type[Protocol] | None:
    """Class of a protocol, None for an unknown name: a row may come from other software.

    Raises ConfigError for a file of the user's that defines no such class.
    """
    if name in protocol_names():
        return _class_of_module(f"{PROTOCOLS_PACKAGE}.{name}")
    return _class_of_module(name) if _is_of_user(name) else None


@functools.cache
def protocol_names() -> tuple[str, ...]:
    """Names of posbench's protocols."""
    package = importlib.import_module(PROTOCOLS_PACKAGE)
    return tuple(module.name for module in pkgutil.iter_modules(package.__path__))


def class_name(name: str) -> str:
    """Name of a protocol's class.

    >>> class_name("fixed_targets")
    'FixedTargets'
    """
    return "".join(part.title() for part in name.split("_"))


def _is_of_user(name: str) -> bool:
    from posbench.position.trusted import config_dirs

    return name.isidentifier() and any((path / f"{name}.py").is_file() for path in config_dirs())


@functools.cache
def _class_of_module(module_name: str) -> type[Protocol]:
    """Class of a module, such as FixedTargets of fixed_targets. Raises ConfigError for another."""
    name = class_name(module_name.rpartition(".")[2])
    protocol_class = class_named(f"{module_name}.{name}")
    if not issubclass(protocol_class, Protocol):
        raise ConfigError(
            f"{module_name}.{name} is no protocol: derive it from"
            " posbench.evaluation.protocol.Protocol, or from another protocol."
        )
    return protocol_class
