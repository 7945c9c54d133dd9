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
from typing import Any, NamedTuple

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
PARTS = ("encoding", "model", "train", "data")  # keys of config.yaml that objects are made from
# Variable with the parent's --config-dir, for child processes without a command line of their own.
DECLARED = "POSBENCH_CONFIG_DIRS"


def make(node: dict, *args: Any, kind: type | None = None) -> Any:
    """Make a method from its yaml node: call `_target_` with `args` and the node's other keys.
    Attribute `node` keeps the node.

    Raises ConfigError for a class that cannot be imported or is not a `kind`, and for keys or
    values that the class does not take."""
    cls, keywords = checked(node, kind, filled=len(args))
    try:
        inspect.signature(cls).bind(*args, **keywords)
    except TypeError as error:
        raise ConfigError(
            f"{node['_target_']} cannot be made from {method_args(node)}: {error}."
        ) from error
    method = cls(*args, **keywords)
    method.node = node
    return method


def checked(
    node: dict, kind: type | None = None, name: str = "", filled: int | None = None
) -> tuple[type, dict]:
    """Class of a method and its typed arguments. Methods among the arguments are checked too.

    `name` is the node's key in error messages, by default the class's group. The first `filled`
    parameters of the class are given by posbench and not by the user: by default none for an
    extension, else one (the Shape). Raises ConfigError as `make` does."""
    method_name(node)
    cls = class_named(node["_target_"])
    group = _group(cls)
    if kind is not None and not issubclass(cls, kind):
        raise ConfigError(
            f"{name or GROUPS[kind.__name__]}._target_={node['_target_']} is not of class"
            f" {kind.__name__}: choose one that is."
        )
    name = name or group
    if filled is None:
        filled = 0 if group == "extension" else 1
    filled_names = tuple(inspect.signature(cls).parameters)[:filled]
    keywords = arguments(name, cls, method_args(node), filled_names)
    for key, inner in nodes_within(keywords, name):
        if str(inner["_target_"]).startswith(OWN):
            checked(inner, name=key)
    return cls, keywords


def _group(cls: type) -> str:
    """Group of configs/ that a class belongs to, such as "encoding"; "argument" for no method."""
    for base in cls.__mro__:
        if base.__module__ == "posbench.position.interfaces" and base.__name__ in GROUPS:
            return GROUPS[base.__name__]
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


def trusted_config(run: Run, trusted: Iterable[str] = ()) -> dict:
    """Read a run's configuration and check that every class it names may be instantiated.

    Allowed are posbench's methods and data sources, classes in a folder of this command's
    --config-dir, and classes in the packages `trusted`. Raises ConfigError for any other class,
    RunError for a file that is not a run's configuration."""
    cfg = run.read_config()
    if not _is_config(cfg):
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
    sources = [Source(folder, package="") for folder in config_dirs()]
    for package in trusted:
        sources += _sources_of(package)
    for key, node in nodes_within({part: cfg[part] for part in PARTS}):
        target = node["_target_"]
        if not _allowed(target, sources):
            package = str(target).split(".")[0]
            raise ConfigError(
                f"{run.config} names {key}._target_={target}, which is neither a class of"
                " posbench's methods and data nor of a folder that you have declared: if you trust"
                f" it, add --config-dir with the folder that holds {package} to the command, or"
                f' trusted=("{package}",) to posbench.load.'
            )
    return cfg


def _is_config(cfg: object) -> bool:
    """True for a mapping that has what objects are made from."""
    if not isinstance(cfg, dict) or "seed" not in cfg:
        return False
    return all(isinstance(cfg.get(part), dict) for part in PARTS)


def trained_config(run: Run) -> JobConfig:
    """The training of a run, by its configuration alone. Raises as `trusted_config`, and
    ConfigError for a wrong value.
    """
    cfg = trusted_config(run)
    return JobConfig.of({key: cfg[key] for key in TRAINING})


class Source(NamedTuple):
    """A folder that modules are imported from, and the one `package` in it that is allowed.

    "" allows all."""

    folder: Path
    package: str


def _allowed(target: object, sources: list[Source]) -> bool:
    """True if `target` is a class defined by an allowed module:
    posbench.sweep.child_processes.subprocess.Popen is refused.
    """
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        return False
    module, _, name = target.rpartition(".")
    top = module.split(".")[0]
    if top == "posbench":
        repository = Path(__file__).parents[2]
        return target.startswith(OWN) and _defines(repository, module, name, sources)
    return any(
        _defines(source.folder, module, name, sources)
        for source in sources
        if source.package in ("", top)
    )


def _defines(folder: Path, module: str, name: str, sources: list[Source]) -> bool:
    """True if `module`, a file below `folder`, defines a class `name` or imports it from another
    allowed module.
    """
    if not module:
        return False
    path = folder.joinpath(*module.split("."))
    package_file = path / "__init__.py"
    module_file = path.with_suffix(".py")
    if package_file.is_file():
        file = package_file
        package = module
    elif module_file.is_file():
        file = module_file
        package = module.rpartition(".")[0]
    else:
        return False
    try:
        statements = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    for statement in statements:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return True
    return any(_allowed(target, sources) for target in _imported(statements, package, name))


def _imported(statements: list[ast.stmt], package: str, name: str) -> Iterator[str]:
    """Full names of what a module of `package` imports as `name`."""
    for statement in statements:
        if not isinstance(statement, ast.ImportFrom) or (statement.level and not package):
            continue
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                relative = "." * statement.level + (statement.module or "")
                yield f"{importlib.util.resolve_name(relative, package)}.{alias.name}"


def config_dirs() -> list[Path]:
    """Folders of this command's --config-dir, else those of the command that started this
    process.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    typed = parser.parse_known_args(sys.argv[1:])[0].config_dir
    if typed:
        os.environ[DECLARED] = os.pathsep.join(map(os.path.abspath, typed))
    return [Path(folder) for folder in os.environ.get(DECLARED, "").split(os.pathsep) if folder]


def _sources_of(package: str) -> list[Source]:
    """Sources of one package or module, found without importing it.

    Raises ConfigError if there is none."""
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:  # __main__
        spec = None
    places = []
    if spec is not None and spec.submodule_search_locations:
        places = spec.submodule_search_locations
    elif spec is not None and spec.has_location:
        places = [spec.origin]
    if not places:
        raise ConfigError(
            f"trusted={package} is not an importable package: give the first part of _target_."
        )
    return [Source(Path(place).parent, package) for place in places]
