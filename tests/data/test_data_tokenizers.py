"""Tokenizers of others: ids with holes, files that are damaged or no tokenizer."""

import base64
import json

import pytest
from test_data import data_config, write

from posbench.common.errors import ConfigError
from posbench.data import prepare
from posbench.data.tokenizers import read_tokenizer

TEXTS = {
    f"{split}/{n}.txt": f"a b {split} {n}\n" * 20
    for split in ("train", "validation", "test")
    for n in range(2)
}
WORDS = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"}


def tokenizer(**parts):
    nothing = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    return {
        "version": "1.0",
        "added_tokens": [],
        **nothing,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": WORDS,
        **parts,
    }


def words(**vocab):
    return tokenizer(model={**WORDS, "vocab": {"[UNK]": 0, **vocab}})


def prepared(tmp_path, content, name="mine.json", bos=False):
    write(tmp_path / "texts", TEXTS)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    config = data_config("local", f"path={tmp_path / 'texts'}", f"bos={bos}")
    return prepare({**config, "tokenizer": str(tmp_path / name)}, tmp_path / "cache")


@pytest.mark.parametrize("largest", [3, 300, 70_000])
def test_ids_with_holes_are_counted_to_the_largest(tmp_path, largest):
    corpus = prepared(tmp_path, words(a=1, b=largest), bos=True)
    assert (corpus.vocab_size, corpus.bos) == (largest + 2, largest + 1)
    assert {int(token) for token in corpus.train.tokens} == {0, 1, largest}


def test_a_folder_called_bpe_something_is_no_bpe_of_ours(tmp_path):
    corpus = prepared(tmp_path, words(long=1, b=2), name="bpe-words/tokenizer.json")
    size = len(TEXTS["train/0.txt"])
    assert corpus.train.n_bytes[: corpus.train.starts[1]].sum() == size


@pytest.mark.parametrize("name", ["task/tokenizer.json", "task-words.json"])
def test_a_file_called_task_is_no_task(tmp_path, name):
    corpus = prepared(tmp_path, words(a=1, b=2), name=name)
    assert corpus.train.tokens[:3].tolist() == [1, 2, 0]  # "a b train"


def test_the_digits_of_a_digest_are_no_size_of_a_bpe():
    # A file bpe.json whose SHA-256 begins with eight decimal digits, as one in 43 does.
    read = read_tokenizer("bpe-12345678", json.dumps(words(long=1, b=2)).encode())
    ((_, n_bytes),) = read.encode(["a b"])
    assert n_bytes.tolist() == [1, 2]


def charsmap(content):
    return tokenizer(
        normalizer={
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(content).decode(),
        }
    )


def pattern(regex):
    return tokenizer(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }
    )


DAMAGED = {
    "nothing": ("", "EOF"),
    "no model": (tokenizer(model=None), "ModelUntagged"),
    "empty": (tokenizer(model={**WORDS, "vocab": {}}), "holds no token"),
    "a huge id": (
        words(a=1, b=4_000_000_000),
        "has the id 4,000,000,000, and 1,048,575 is the largest",
    ),
    "no unknown token": (tokenizer(model={**WORDS, "unk_token": "other"}), "Missing .UNK. token"),
    "merges of no tokens": (
        tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}),
        "out of range|out of vocabulary",
    ),
    "charsmap of garbage": (charsmap((400).to_bytes(4, "little") + b"\x7f" * 404), "out of bounds"),
    "an endless pattern": (pattern("([ab0-9 trainvlidoes\\n]+)+$x"), "retry-limit"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_tokenizer_that_cannot_be_used_is_one_sentence(tmp_path, name):
    content, says = DAMAGED[name]
    with pytest.raises(
        ConfigError, match=f"data.tokenizer=mine-.*({says}).*: choose another.$"
    ) as error:
        prepared(tmp_path, content)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("*/manifest.json"))
