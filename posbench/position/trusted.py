"""Configurations of stored runs, which may come from somebody else: what of them may be made.

`trusted_config` accepts only posbench's own classes and those in folders that the user has
declared. It decides without importing anything."""

import argparse
import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from posbench.common.errors import ConfigError, RunError
from posbench.config.schema import TRAINING_PARTS, JobConfig
from posbench.position.instantiate import OWN_PACKAGES, nodes_within
from posbench.runs.directory import Run

# Keys of config.yaml that objects are made from.
PARTS_WITH_OBJECTS = ("encoding", "model", "train", "data")
# Variable with the parent's --config-dir, for child processes without a command line of their own.
CONFIG_DIRS_VARIABLE = "POSBENCH_CONFIG_DIRS"


def trusted_config(run: Run, trusted: Iterable[str] = ()) -> dict:
    """Read a run's configuration and check that every class it names may be instantiated.

    Allowed are posbench's methods and data sources, classes in a folder of this command's
    --config-dir, and classes in the packages `trusted`. Raises ConfigError for any other class,
    RunError for a file that is not a run's configuration."""
    raw = run.read_config()
    if not _is_config(raw):
        raise RunError(
            f"{run.config} is not a run's configuration (it lacks some of"
            f" {', '.join(PARTS_WITH_OBJECTS)}, seed): restore it."
        )
    if "${" in repr([raw[part] for part in PARTS_WITH_OBJECTS]):
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
    for key, node in nodes_within({part: raw[part] for part in PARTS_WITH_OBJECTS}):
        target = node["_target_"]
        if not _is_allowed(target, sources):
            package = str(target).split(".")[0]
            raise ConfigError(
                f"{run.config} names {key}._target_={target}, which is neither a class of"
                " posbench's methods and data nor of a folder that you have declared: if you trust"
                f" it, add --config-dir with the folder that holds {package} to the command, or"
                f' trusted=("{package}",) to posbench.load.'
            )
    return raw


def _is_config(raw: object) -> bool:
    """True for a mapping that has what objects are made from."""
    if not isinstance(raw, dict) or "seed" not in raw:
        return False
    return all(isinstance(raw.get(part), dict) for part in PARTS_WITH_OBJECTS)


def trained_config(run: Run) -> JobConfig:
    """The training of a run, by its configuration alone.

    Raises as `trusted_config`, and ConfigError for a wrong value.
    """
    raw = trusted_config(run)
    return JobConfig.of({key: raw[key] for key in TRAINING_PARTS})


class Source(NamedTuple):
    """A folder that modules are imported from, and the one `package` in it that is allowed.

    "" allows all."""

    folder: Path
    package: str


def _is_allowed(target: object, sources: list[Source]) -> bool:
    """True if `target` is a class that an allowed module defines.

    >>> _is_allowed("posbench.sweep.child_processes.subprocess.Popen", [])
    False
    """
    # Its parts become names of folders and files.
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        return False
    module, _, name = target.rpartition(".")
    top = module.split(".")[0]
    if top == "posbench":
        repository = Path(__file__).parents[2]
        return target.startswith(OWN_PACKAGES) and _module_defines(
            repository, module, name, sources
        )
    return any(
        _module_defines(source.folder, module, name, sources)
        for source in sources
        if source.package in ("", top)  # "": a folder of --config-dir, with any package
    )


def _module_defines(folder: Path, module: str, name: str, sources: list[Source]) -> bool:
    """True if `module`, a file below `folder`, defines a class `name`.

    Also if it imports the class from another allowed module.
    """
    if not module:  # a class without a module is a builtin
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
    return any(
        _is_allowed(target, sources) for target in _imported_targets(statements, package, name)
    )


def _imported_targets(statements: list[ast.stmt], package: str, name: str) -> Iterator[str]:
    """Full names of what a module of `package` imports as `name`."""
    for statement in statements:
        # A relative import fails outside of a package.
        if not isinstance(statement, ast.ImportFrom) or (statement.level and not package):
            continue
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                relative = "." * statement.level + (statement.module or "")
                yield f"{importlib.util.resolve_name(relative, package)}.{alias.name}"


def config_dirs() -> list[Path]:
    """Folders of this command's --config-dir, else of the command that started this process."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    typed = parser.parse_known_args(sys.argv[1:])[0].config_dir
    if typed:  # the processes of jobs inherit it
        os.environ[CONFIG_DIRS_VARIABLE] = os.pathsep.join(map(os.path.abspath, typed))
    return [
        Path(folder)
        for folder in os.environ.get(CONFIG_DIRS_VARIABLE, "").split(os.pathsep)
        if folder
    ]


def _sources_of(package: str) -> list[Source]:
    """Sources of one package or module, found without importing it.

    Raises ConfigError if there is none."""
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:  # __main__
        spec = None
    locations = []
    if spec is not None and spec.submodule_search_locations:
        locations = spec.submodule_search_locations
    elif spec is not None and spec.has_location:
        locations = [spec.origin]
    if not locations:
        raise ConfigError(
            f"trusted={package} is not an importable package: give the first part of _target_."
        )
    return [Source(Path(location).parent, package) for location in locations]
