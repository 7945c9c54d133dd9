"""Methods from yaml nodes, also those inside other methods (hybrid layers, compose).

A user may name any class on the command line; trusted.py decides on those of stored runs."""

import inspect
from collections.abc import Iterator
from typing import Any

from posbench.common.errors import ConfigError
from posbench.config.identity import method_args, method_name
from posbench.config.typed_args import class_named, typed_arguments

OWN_PACKAGES = (
    "posbench.encodings.",
    "posbench.extensions.",
    "posbench.scale_attention.",
    "posbench.data.",
    "posbench.engines.",
)
GROUP_OF_CLASS = {
    "Encoding": "encoding",
    "Extension": "extension",
    "ScaleAttention": "scale_attention",
}


def make_method(node: dict, *args: Any, kind: type | None = None) -> Any:
    """Make a method from its yaml node: call `_target_` with `args` and the node's other keys.
    Attribute `node` keeps the node.

    Raises ConfigError for a class that cannot be imported or is not a `kind`, and for keys or
    values that the class does not take."""
    cls, keywords = class_and_arguments(node, kind, filled=len(args))
    try:
        inspect.signature(cls).bind(*args, **keywords)
    except TypeError as error:
        raise ConfigError(
            f"{node['_target_']} cannot be made from {method_args(node)}: {error}."
        ) from error
    method = cls(*args, **keywords)
    method.node = node
    return method


def class_and_arguments(
    node: dict, kind: type | None = None, name: str = "", filled: int | None = None
) -> tuple[type, dict]:
    """Class of a method and its typed arguments. Methods among the arguments are checked too.

    `name` is the node's key in error messages, by default the class's group. The first `filled`
    parameters of the class are given by posbench and not by the user: by default none for an
    extension, else one (the Shape). Raises ConfigError as `make_method` does."""
    method_name(node)  # raises for a node without a _target_
    cls = class_named(node["_target_"])
    group = _group_of(cls)
    if kind is not None and not issubclass(cls, kind):
        raise ConfigError(
            f"{name or GROUP_OF_CLASS[kind.__name__]}._target_={node['_target_']} is not of class"
            f" {kind.__name__}: choose one that is."
        )
    name = name or group
    if filled is None:
        filled = 0 if group == "extension" else 1
    filled_names = tuple(inspect.signature(cls).parameters)[:filled]
    keywords = typed_arguments(name, cls, method_args(node), filled_names)
    for key, inner in nodes_within(keywords, name):
        # A class from outside is checked when it is made.
        if str(inner["_target_"]).startswith(OWN_PACKAGES):
            class_and_arguments(inner, name=key)
    return cls, keywords


def _group_of(cls: type) -> str:
    """Group of configs/ that a class belongs to, such as "encoding"; "argument" for no method."""
    for base in cls.__mro__:
        if base.__module__ == "posbench.position.interfaces" and base.__name__ in GROUP_OF_CLASS:
            return GROUP_OF_CLASS[base.__name__]
    return "argument"


def nodes_within(value: object, name: str = "") -> Iterator[tuple[str, dict]]:
    """Yield (key, node) of every mapping with a `_target_`, at any depth of mappings and lists."""
    if isinstance(value, dict) and "_target_" in value:
        yield name, value
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        items = []
    for key, item in items:
        yield from nodes_within(item, f"{name}.{key}" if name else str(key))
