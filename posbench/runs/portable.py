"""Paths of one machine in what others will read: the last name of each is kept."""

import re
from pathlib import PurePath

PATHS = {"path", "tokenizer", "cache_dir", "results_dir", "report_dir", "run", "runs", "key_run", "out"}  # keys of a configuration
TYPED = re.compile(r"(?<![^\s='\"\[,:])/(?:[^\s/'\",\]]+/)*([^\s/'\",\]]+)/?")  # an absolute path among the words of a command


def portable(value: object, key: str | None = None) -> object:
    """A configuration without the folders of absolute paths, which are values of the keys in PATHS, or in lists there."""
    if isinstance(value, dict):
        return {name: portable(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item, key) for item in value]
    return PurePath(value).name if key in PATHS and isinstance(value, str) and PurePath(value).is_absolute() else value


def portable_command(command: object) -> object:
    """A command as typed, without the folders of absolute paths. What is no text is returned as it is."""
    return TYPED.sub(r"\1", command) if isinstance(command, str) else command
