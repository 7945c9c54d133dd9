"""Methods from yaml nodes, also those inside other methods (hybrid layers, compose).

A user may name any class on the command line. A run's config.yaml may come from somebody else, so
`trusted_config` accepts only posbench's own classes and those in folders that the user has
declared. It decides without importing anything."""

import argparse
import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError, RunError
from posbench.config.identity import method_args, method_name
from posbench.config.schema import TRAINING, JobConfig
from posbench.config.typed_args import arguments, class_named
from posbench.runs.directory import Run

OWN = (
    "posbench.encodings.",
    "posbench.extensions.",
    "posbench.scale_attention.",
    "posbench.data.",
    "posbench.engines.",
)
GROUPS = {"Encoding": "encoding", "Extension": "extension", "ScaleAttention": "scale_attention"}
PARTS = (
    "encoding",
    "model",
    "train",
    "data",
)  # keys of a run's config.yaml that objects are made from
# the parent's --config-dir, for child processes without a command line of their own
DECLARED = "POSBENCH_CONFIG_DIRS"


def make(node: dict, *args: Any, kind: type | None = None) -> Any:
    """Make a method from its yaml node: call `_target_` with `args` and the node's other keys.
    Attribute `node` keeps the node.

    Raises ConfigError for a class that cannot be imported or is not a `kind`, and for keys or
    values that the class does not take."""
    cls, given = checked(node, kind, own=len(args))
    try:
        inspect.signature(cls).bind(*args, **given)
    except TypeError as error:
        raise ConfigError(
            f"{node['_target_']} cannot be made from {method_args(node)}: {error}."
        ) from error
    made = cls(*args, **given)
    made.node = node
    return made


def checked(
    node: dict, kind: type | None = None, name: str = "", own: int | None = None
) -> tuple[type, dict]:
    """Class of a method and its typed arguments. Methods among the arguments are checked too.

    `name` is the node's key in error messages, by default the class's group. The first `own`
    parameters of the class are filled by posbench and not by the user: by default none for an
    extension, else one (the Shape). Raises ConfigError as `make` does."""
    method_name(node)
    cls = class_named(node["_target_"])
    groups = [
        one.__name__
        for one in cls.__mro__
        if one.__module__ == "posbench.position.interfaces" and one.__name__ in GROUPS
    ]
    group = GROUPS[groups[0]] if groups else "argument"
    if kind is not None and not issubclass(cls, kind):
        raise ConfigError(
            f"{name or GROUPS[kind.__name__]}._target_={node['_target_']} is not of class"
            f" {kind.__name__}: choose one that is."
        )
    name = name or group
    own = group != "extension" if own is None else own
    given = arguments(name, cls, method_args(node), tuple(inspect.signature(cls).parameters)[:own])
    for key, inner in _nodes(given, name):
        if str(inner["_target_"]).startswith(OWN):
            checked(inner, name=key)
    return cls, given


def _nodes(value: object, name: str = "") -> Iterator[tuple[str, dict]]:
    """Yield (key, node) of every mapping with a `_target_`, at any depth of mappings and lists."""
    if isinstance(value, dict) and "_target_" in value:
        yield name, value
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in items:
        yield from _nodes(one, f"{name}.{key}" if name else str(key))


def trusted_config(run: Run, trusted: Iterable[str] = ()) -> dict:
    """Read a run's configuration and check that every class it names may be instantiated.

    Allowed are posbench's methods and data sources, classes in a folder of this command's
    --config-dir, and classes in the packages `trusted`. Raises ConfigError for any other class,
    RunError for a file that is not a run's configuration."""
    cfg = run.read_config()
    if (
        not isinstance(cfg, dict)
        or not all(isinstance(cfg.get(part), dict) for part in PARTS)
        or "seed" not in cfg
    ):
        raise RunError(
            f"{run.config} is not a run's configuration (it lacks some of {', '.join(PARTS)},"
            " seed): restore it."
        )
    if "${" in repr([cfg[part] for part in PARTS]):
        # Resolving an interpolation could read this machine's environment, and a run writes only
        # resolved values.
        raise RunError(
            f"{run.config} holds an interpolation (${{...}}), which no run writes: restore it."
        )
    if isinstance(trusted, str):
        raise ConfigError(
            f"trusted={trusted!r} must be a list of packages: give trusted=({trusted!r},)."
        )
    rooms = [(folder, "") for folder in _config_dirs()] + [
        room for name in trusted for room in _rooms_of(name)
    ]
    for where, node in _nodes({part: cfg[part] for part in PARTS}):
        target = node["_target_"]
        if not _may(target, rooms):
            package = str(target).split(".")[0]
            raise ConfigError(
                f"{run.config} names {where}._target_={target}, which is neither a class of"
                " posbench's methods and data nor of a folder "
                "that you have declared: if you trust it, add --config-dir with the folder that"
                f" holds {package} to the command, "
                f'or trusted=("{package}",) to posbench.load.'
            )
    return cfg


def trained_config(run: Run) -> JobConfig:
    """The training of a run, by its configuration alone. Raises as `trusted_config`, and
    ConfigError for a wrong value.
    """
    cfg = trusted_config(run)
    return JobConfig.of({key: cfg[key] for key in TRAINING})


def _may(target: object, rooms: list[tuple[Path, str]]) -> bool:
    """True if `target` is a class defined by an allowed module:
    posbench.sweep.child_processes.subprocess.Popen is refused.

    A room is (folder, package): the folder that modules are imported from, and the one package in
    it that is allowed ("": all)."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        return False
    module, _, name = target.rpartition(".")
    top = module.split(".")[0]
    if top == "posbench":
        return target.startswith(OWN) and _defines(Path(__file__).parents[2], module, name, rooms)
    return any(
        _defines(folder, module, name, rooms) for folder, package in rooms if package in ("", top)
    )


def _defines(folder: Path, module: str, name: str, rooms: list[tuple[Path, str]]) -> bool:
    """True if `module`, a file below `folder`, defines a class `name` or imports it from another
    allowed module.
    """
    path = folder.joinpath(*module.split("."))
    files = [
        file
        for file in (path / "__init__.py", path.with_suffix(".py"))
        if module and file.is_file()
    ]
    if not files:
        return False
    package = module if files[0].name == "__init__.py" else module.rpartition(".")[0]
    try:
        body = ast.parse(files[0].read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in body):
        return True
    imported = [
        (node, alias)
        for node in body
        if isinstance(node, ast.ImportFrom) and (package or not node.level)
        for alias in node.names
    ]
    return any(
        _may(
            f"{importlib.util.resolve_name('.' * node.level + (node.module or ''), package)}.{alias.name}",
            rooms,
        )
        for node, alias in imported
        if (alias.asname or alias.name) == name
    )


def _config_dirs() -> list[Path]:
    """Folders of this command's --config-dir, else those of the command that started this
    process.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    if typed := parser.parse_known_args(sys.argv[1:])[0].config_dir:
        os.environ[DECLARED] = os.pathsep.join(map(os.path.abspath, typed))
    return [Path(folder) for folder in os.environ.get(DECLARED, "").split(os.pathsep) if folder]


def _rooms_of(package: str) -> list[tuple[Path, str]]:
    """Rooms of one package or module, found without importing it. Raises ConfigError if there is
    none.
    """
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:  # __main__
        spec = None
    places = (
        []
        if spec is None
        else spec.submodule_search_locations or ([spec.origin] if spec.has_location else [])
    )
    if not places:
        raise ConfigError(
            f"trusted={package} is not an importable package: give the first part of _target_."
        )
    return [(Path(place).parent, package) for place in places]
