"""Building of a corpus: documents of a source, each once, tokenized into the files of a folder."""

import hashlib
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import whole_folder, write_json
from posbench.data.identity import folder_key
from posbench.data.sources import ALL, SPLITS, Source, make_source
from posbench.data.tokenfile import file_record, write_split
from posbench.data.tokenizer_files import BPE_TRAIN_BYTES, pretrained_json, tokenizer_name
from posbench.data.tokenizers import Tokenizer, load_tokenizer, train_bpe

BATCH_BYTES = 8 * 2**20  # text per call of the tokenizer: enough for its threads, little memory
EVERY = 2.0  # seconds between two lines of progress
PROTECTED = {"test": (), "validation": ("test",), "train": ("test", "validation")}  # {split: splits whose documents it must not contain}


def build_corpus(cfg_data: dict, folder: Path, key: str, wanted: list[str], trained: dict | None) -> None:
    """Write all files, the manifest last, into a folder that is whole or absent.

    Raises RunError when the text changed since `key` was computed: its tokens would be stored under the key of another text.
    """
    with whole_folder(folder) as temporary:
        source = make_source(cfg_data, folder.parent)
        held_out, read = _digests(source), _read_documents(trained, folder.parent)
        tokenizer = _make_tokenizer(cfg_data, source, held_out, temporary)
        token_dtype = np.uint16 if tokenizer.vocab_size < 2**16 else np.uint32
        splits = {}
        for split in wanted:
            documents = _encoded(tokenizer, _telling(_unique(source, split, held_out, read), f"tokenizing {cfg_data['name']}/{split}"))
            splits[split] = write_split(temporary, split, documents, token_dtype, tokenizer.bytes_dtype)
            if not splits[split]["documents"]:
                raise ConfigError(
                    f"data={cfg_data['name']} has no document in its {split} split{_why_empty(source, split, held_out, read)}"
                )
        if folder_key(cfg_data, trained, folder.parent, again=True) != key:
            raise RunError(f"The text or tokenizer of data={cfg_data['name']} changed while it was read: run the same command again.")
        files = {path.name: file_record(path) for path in sorted(temporary.iterdir())}
        name = tokenizer_name(cfg_data["tokenizer"], cfg_data["vocab_size"])
        manifest = {"name": cfg_data["name"], "tokenizer": name, "vocab_size": tokenizer.vocab_size, "source": cfg_data["source"],
                    "origin": source.describe(), "splits": splits, "files": files}  # fmt: skip
        write_json(temporary / "manifest.json", manifest)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _digests(source: Source) -> dict[str, set[bytes]]:
    """{split: digests of its documents, cut and uncut} of the held-out splits. Other splits must not contain these documents."""
    return {
        split: {_digest(text) for _, text in source.documents(split)} | {_digest(text) for text in source.uncut(split)}
        for split in ("test", "validation")
    }


def _read_documents(trained: dict | None, cache_dir: Path) -> set[bytes]:
    """Digests of the documents that a training on the data configuration `trained` has read; none without one."""
    return {_digest(text) for _, text in make_source(trained, cache_dir).documents("train")} if trained else set()


def _why_empty(source: Source, split: str, held_out: dict[str, set[bytes]], read: set[bytes]) -> str:
    """Suffix of the error about an empty split: the reason why no document is left, and the way out."""
    all_texts = [text for part in _split_parts(split) for _, text in source.documents(part)]
    if again := sum(_digest(text) in read for text in all_texts):
        return f": the training has read {again} of its {len(all_texts)}: choose other text."
    copies = sum(_digest(text) in set().union(*(held_out[name] for name in PROTECTED.get(split, ()))) for text in all_texts if text)
    empty = sum(not text for text in all_texts)
    if copies:
        return (
            f": {copies} of its {len(all_texts)} are copies of {' or '.join(PROTECTED[split])} documents, which count once: add other text."
        )
    if empty:
        cut = getattr(source, "skip_test_bytes", 0) if split in ("test", ALL) else 0
        skipped = f" behind their first data.source.skip_test_bytes={cut}" if cut else ""
        return f": {empty} of its {len(all_texts)} are empty{skipped}: add text."
    return ": the tokenizer makes no token of them, choose another." if all_texts else ": add documents to it."


def _unique(source: Source, split: str, held_out: dict[str, set[bytes]], read: Collection[bytes] = ()) -> Iterator[tuple[str, str]]:
    """Yield the documents of a split, or of all, without empty ones, exact duplicates, those of a more protected split and `read` ones."""
    for part in _split_parts(split):
        seen: set[bytes] = set(read).union(*(held_out[name] for name in PROTECTED[part]))
        for name, text in source.documents(part):
            digest = _digest(text)
            if text and digest not in seen:
                seen.add(digest)
                yield name, text


def _split_parts(split: str) -> tuple[str, ...]:
    """Splits of a source that `split` stands for."""
    return SPLITS if split == ALL else (split,)


def _make_tokenizer(cfg_data: dict, source: Source, held_out: dict[str, set[bytes]], folder: Path) -> Tokenizer:
    choice, size = cfg_data["tokenizer"], cfg_data["vocab_size"]
    if choice == "bpe":
        train_bpe(_first_bytes(_unique(source, "train", held_out)), size).model.save(str(folder / "tokenizer.json"))
    elif choice != "bytes":
        (folder / "tokenizer.json").write_bytes(pretrained_json(choice))
    return load_tokenizer(tokenizer_name(choice, size), folder)


def _first_bytes(documents: Iterable[tuple[str, str]]) -> Iterator[str]:
    done = 0
    for _, text in _telling(documents, "reading text for the BPE"):
        yield text
        done += len(text.encode())
        if done >= BPE_TRAIN_BYTES:
            return


def _encoded(tokenizer: Tokenizer, documents: Iterable[tuple[str, str]]) -> Iterator[tuple]:
    """Yield (name, ids, bytes per token) of each document, in order. Documents are tokenized in batches."""
    batch, size = [], 0
    for name, text in documents:
        batch.append((name, text))
        size += len(text)
        if size >= BATCH_BYTES:
            yield from _encode_batch(tokenizer, batch)
            batch, size = [], 0
    yield from _encode_batch(tokenizer, batch)


def _encode_batch(tokenizer: Tokenizer, batch: list[tuple[str, str]]) -> Iterator[tuple]:
    found = tokenizer.encode([text for _, text in batch])
    for (name, text), (ids, n_bytes) in zip(batch, found, strict=True):
        assert n_bytes.sum(dtype=np.int64) == len(text.encode()) or not len(ids), name
        if len(ids):
            yield name, ids, n_bytes


def _telling(documents: Iterable[tuple[str, str]], label: str) -> Iterator[tuple[str, str]]:
    """Yield the documents, and print the bytes so far at most once in EVERY seconds, so never for short work."""
    done, last = 0, time.monotonic()
    for name, text in documents:
        yield name, text
        done += len(text.encode())
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(f"data: {label}: {done / 1e6:.0f} MB", file=sys.stderr, flush=True)
