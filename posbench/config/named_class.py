"""Classes by the dotted names that users give them, as _target_ in a yaml or on the command line."""

import pkgutil

from posbench.common.errors import ConfigError
from posbench.config.typed_args import shown


def class_named(target: str) -> type:
    """Class with the dotted name `target`. Raises ConfigError if it cannot be imported, whatever its code raises, or is not a class."""
    try:
        found = pkgutil.resolve_name(target)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        way = "name MODULE.CLASS, give its folder with --config-dir, or install what it needs"
        raise ConfigError(f"{shown(target)} cannot be imported ({why}): {way}.") from error
    if not isinstance(found, type):
        raise ConfigError(f"{target} is of type {type(found).__name__} and is not a class: name one, such as posbench.extensions.ntk.Ntk.")
    return found
