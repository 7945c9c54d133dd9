"""Checkpoints of the hub by name, `org/name` or `org/name@revision`: a folder of the hub's cache, and the commit that it is."""

from __future__ import annotations

import re
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.data.hub import hub_miss, quiet_hub
from posbench.pretrained.config_files import weight_names

NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")
BESIDE = ["config.json", "tokenizer.json", "model.safetensors.index.json"]


def is_hub_name(path: str) -> bool:
    """True if a path may be a name of the hub."""
    return NAME.fullmatch(path) is not None


def snapshot(name: str, download: bool) -> tuple[str, Path]:
    """(name@commit, folder) of a checkpoint of the hub. What the cache holds whole is taken from it, else with `download` from the hub.

    Raises ConfigError when it is not there whole.
    """
    remedy = "or copy that cache from a machine where it lies."
    try:
        folder = _fetch(name, None, local=True)
        if folder is None or not _whole(folder):
            if not download:
                raise ConfigError(
                    f"model.path={name} is no longer whole in the hub's cache: run it once with model=hf model.path={name}, {remedy}"
                )
            quiet_hub()
            folder = _fetch(name, BESIDE)
            folder = _fetch(name, weight_names(folder))
            if not _whole(folder):  # offline the cache answers with what it has
                raise FileNotFoundError(f"{folder} lacks weights")
    except ConfigError:
        raise
    except Exception as error:  # the hub's errors have no common base class
        raise ConfigError(
            f"model.path={name} is neither a folder, a .gguf file, nor a hub name that answers: {hub_miss(error, remedy)}"
        ) from error
    return f"{name.partition('@')[0]}@{folder.name}", folder


def _fetch(name: str, files: list[str] | None, local: bool = False) -> Path | None:
    """Folder of a snapshot with these files; with `local`, the one that the cache holds, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=files, local_files_only=local))
    except LocalEntryNotFoundError:
        if local:
            return None
        raise


def _whole(folder: Path) -> bool:
    """True if a snapshot holds its configuration and all weights that its index names."""
    return (folder / "config.json").is_file() and all((folder / name).is_file() for name in weight_names(folder))
