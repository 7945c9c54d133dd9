"""A method's yaml node as an object; methods that hold other methods (hybrid layers, compose) make theirs here too."""

from __future__ import annotations

import inspect
from typing import Any

from posbench.errors import ConfigError
from posbench.runs import method_args


def make(node: dict, *args: Any) -> Any:
    """The object a method's yaml node describes: its `_target_` called with `args` and the node's other keys.

    Raises ConfigError for a class that cannot be imported, or that does not take these keys.
    """
    from hydra.utils import get_class

    try:
        cls = get_class(node["_target_"])
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{node['_target_']} cannot be imported ({reason}): is its folder given with --config-dir, or installed?"
        ) from error
    try:
        inspect.signature(cls).bind(*args, **method_args(node))
    except TypeError as error:
        raise ConfigError(f"{node['_target_']} cannot be made from {method_args(node)}: {error}.") from error
    return cls(*args, **method_args(node))
