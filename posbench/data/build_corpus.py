"""Building of a corpus: documents of a source, each once, tokenized into the files of a folder."""

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_file, write_json
from posbench.data.sources import ALL, SPLITS, Source, make_source
from posbench.data.tokenfile import write_split
from posbench.data.tokenizers import (
    BPE_TRAIN_BYTES,
    Tokenizer,
    collect_characters,
    load_tokenizer,
    pretrained_json,
    tokenizer_name,
    train_bpe,
)

# characters per call of the tokenizer: enough for its threads, little memory
BATCH_CHARACTERS = 8 * 2**20
PROGRESS_SECONDS = 2.0  # seconds between two lines of progress

Document = tuple[str, str]  # name and text


def build_corpus(
    raw_data: dict, folder: Path, names: list[str], trained: dict | None, cache_dir: Path
) -> None:
    """Write all files of the splits of these names, the manifest last."""
    source = make_source(raw_data, cache_dir)
    excluded = _excluded_digests(source, trained, cache_dir)
    tokenizer_choice = raw_data["tokenizer"]
    if tokenizer_choice == "bpe":
        texts = _texts_for_bpe(_unique_documents(source, "train", excluded))
        train_bpe(texts, raw_data["vocab_size"]).model.save(str(folder / "tokenizer.json"))
    elif tokenizer_choice == "char":
        texts = (text for _, text in _unique_documents(source, "train", excluded))
        collect_characters(texts).model.save(str(folder / "tokenizer.json"))
    elif tokenizer_choice != "bytes":
        (folder / "tokenizer.json").write_bytes(pretrained_json(tokenizer_choice))
    name = tokenizer_name(tokenizer_choice, raw_data["vocab_size"])
    tokenizer = load_tokenizer(name, folder)
    token_dtype = np.uint16 if tokenizer.vocab_size < 2**16 else np.uint32
    splits = {}
    for split in names:
        label = f"tokenizing {raw_data['name']}/{split}"
        documents = _with_progress(_unique_documents(source, split, excluded), label)
        encoded = _encoded_documents(tokenizer, documents)
        splits[split] = write_split(folder, split, encoded, token_dtype, tokenizer.bytes_dtype)
        if not splits[split]["documents"]:
            raise ConfigError(
                f"data={raw_data['name']} has no document in its {split} split that has a token"
                " (behind data.source.skip_test_bytes) and stands in no held-out split and not in"
                " the text of the training: add other text."
            )
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {
        "name": raw_data["name"],
        "tokenizer": name,
        "vocab_size": tokenizer.vocab_size,
        "source": raw_data["source"],
        "splits": splits,
        "files": files,
    }
    write_json(folder / "manifest.json", manifest)


def _excluded_digests(
    source: Source, trained: dict | None, cache_dir: Path
) -> dict[str, set[bytes]]:
    """{split: digests of documents that it must not contain}: those of more protected splits, cut
    and uncut, and what `trained` read.
    """
    of_training = set()
    if trained:
        documents = make_source(trained, cache_dir).documents("train")
        of_training = {_digest(text) for _, text in documents}
    test = _document_digests(source, "test")
    validation = _document_digests(source, "validation")
    return {
        "test": of_training,
        "validation": of_training | test,
        "train": of_training | test | validation,
    }


def _document_digests(source: Source, split: str) -> set[bytes]:
    """Digests of the documents of a split, cut and uncut."""
    digests = {_digest(text) for _, text in source.documents(split)}
    return digests | {_digest(text) for text in source.uncut(split)}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _unique_documents(
    source: Source, split: str, excluded: dict[str, set[bytes]]
) -> Iterator[Document]:
    """Yield the documents of a split, or of all, without empty ones, exact duplicates and
    `excluded` ones.
    """
    for part in SPLITS if split == ALL else (split,):
        seen = set(excluded[part])
        for name, text in source.documents(part):
            digest = _digest(text)
            if text and digest not in seen:
                seen.add(digest)
                yield name, text


def _texts_for_bpe(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the texts up to BPE_TRAIN_BYTES."""
    done = 0
    for _, text in _with_progress(documents, "reading text for the BPE"):
        yield text
        done += len(text.encode())
        if done >= BPE_TRAIN_BYTES:
            return


def _encoded_documents(
    tokenizer: Tokenizer, documents: Iterable[Document]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name, ids, bytes per token) of each document that has a token, in order."""
    for batch in _document_batches(documents):
        pieces = tokenizer.encode([text for _, text in batch])
        for (name, text), (ids, n_bytes) in zip(batch, pieces, strict=True):
            assert n_bytes.sum(dtype=np.int64) == len(text.encode()) or not len(ids), name
            if len(ids):
                yield name, ids, n_bytes


def _document_batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield the documents in lists of about BATCH_CHARACTERS."""
    batch = []
    size = 0
    for name, text in documents:
        batch.append((name, text))
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _with_progress(documents: Iterable[Document], label: str) -> Iterator[Document]:
    """Yield the documents, and print the bytes so far at most every PROGRESS_SECONDS, so never for
    short work.
    """
    done = 0
    last = time.monotonic()
    for name, text in documents:
        yield name, text
        done += len(text.encode())
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            print(f"data: {label}: {done / 1e6:.0f} MB", file=sys.stderr, flush=True)
