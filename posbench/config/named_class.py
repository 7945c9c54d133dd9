"""Classes by the dotted names that users give them, as _target_ in a yaml or on the command line."""

import importlib
import inspect
import pkgutil

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.typed_args import shown


def class_named(target: str) -> type:
    """Class with the dotted name `target`. Raises ConfigError if it cannot be imported or is not a class."""
    first, *rest = str(target).split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        raise ConfigError(f"{shown(target)} is not the name of a class: give MODULE.CLASS, such as posbench.extensions.ntk.Ntk.")
    found, path = _module(first, target), first
    if found is None:
        way = "give its folder with --config-dir, or install it"
        raise ConfigError(f"{target} cannot be imported, since there is no module {first}: {way}.")
    for part in rest:
        within, above, path = found, path, f"{path}.{part}"
        found = getattr(within, part, None) or (_module(path, target) if inspect.ismodule(within) else None)
        if found is None:
            names = _names_inside(within)
            near, has = did_you_mean(part, [*names, *dir(within)]), ", ".join(names) or "no class"
            raise ConfigError(f"{target} cannot be imported, since there is no {part} in {above}{near}: it has {has}.")
    if not isinstance(found, type):
        listed = f": name one of its own, such as {target}.{_names_inside(found)[0]}" if _names_inside(found) else ": name one that is"
        raise ConfigError(f"{target} is of type {type(found).__name__} and is not a class{listed}.")
    return found


def _module(path: str, target: str) -> object | None:
    """The module `path`; None if there is none. Raises ConfigError if its own code fails."""
    try:
        return importlib.import_module(path)
    except Exception as error:  # whatever the user's code raises
        if isinstance(error, ModuleNotFoundError) and error.name == path:
            return None
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{target} cannot be imported, since {path} ends with {why}: correct it, or install what it needs.") from error


def _names_inside(found: object) -> list[str]:
    """Names that may follow that of a module: of its own classes, or of the modules of a package; none for others."""
    own = [name for name, one in inspect.getmembers(found, inspect.isclass) if one.__module__ == getattr(found, "__name__", None)]
    return own or [module.name for module in pkgutil.iter_modules(getattr(found, "__path__", []))]
