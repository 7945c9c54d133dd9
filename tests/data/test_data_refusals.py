"""Refusals of data: what is typed, asked for or found in a file, and the words of the message."""

import gzip
import json
import shlex

import pytest
from omegaconf import OmegaConf
from test_data import data_config, write
from test_data_batches import numbered

from posbench.common.errors import ConfigError
from posbench.data import prepare
from posbench.data.addition import Addition
from posbench.data.batches import batches
from posbench.data.copy import Copy
from posbench.data.corpus import resolved_text
from posbench.data.mqar import Mqar
from posbench.data.mqar_uniform import MqarUniform
from posbench.data.reverse import Reverse
from posbench.data.sort import Sort
from posbench.data.task import TaskSplit

SPLITS = {"train/a.txt": "a text", "validation/b.txt": "b", "test/c.txt": "c"}
EXTRA = {"train-extra/d.txt": "d"}
NO_PATH = "does not exist: correct the path"
MIX_KEYS = "it takes task, share, "
TYPED = [
    ("data=local data.tokenizer=/no/tokenizer.json", "/no/tokenizer.json does not exist"),
    ("data=local data.tokenizer=../gpt2", NO_PATH),
    ("data=local 'data.tokenizer=a b'", NO_PATH),
    (f"data=local data.tokenizer=/{'a' * 5000}", NO_PATH),
    (f"data=local data.path=/{'a' * 5000}", "does not exist"),
    ("data=local data.path=/dev/zero", "has no file that ends in"),
    ("data=local data.source.colour=red", "colour"),
    ("data=local data.source._target_=posbench.data.local.NoSuch", "NoSuch"),
    ("data=wikitext103 data.source.revision=main", "revision=main is not a commit"),
    ("data=fineweb_edu data.source.revision=main", "revision=main is not a commit"),
    ("data=books data.source.test_extra=true", "test_extra=true needs the author of each book"),
    (
        "data=books data.source.train_extra=true data.source.test_extra=true",
        "leave one of them out",
    ),
    ("data=mqar data.bos=true", "data.bos=true"),
    ("data=mqar data.vocab_size=5", "data.vocab_size=5 cannot hold"),
    ("data=mqar data.tokenizer=bytes", "data.tokenizer=bytes and data=mqar do not go together"),
    ("data=mqar data.source.pairs=[5000]", r"must lie in 1 \.\. 4095"),
    ("data=mqar data.source.pairs=[]", r"must lie in 1 \.\. 4095"),
    (
        "data=mqar_uniform data.source.pairs=[4] data.source.window=12",
        "data.source.window=12 cannot hold 4 pairs and as many questions: give 16 or more",
    ),
    ("data=local 'data.mix={task: mqar}'", "share=None must be a number between 0 and 1"),
    ("data=local 'data.mix={task: mqar, share: 1}'", "data.mix.share=1 must"),
    (
        "data=local 'data.mix={task: mqra, share: 0.5}'",
        "mqra is no task.*mqar.*choose from addition, .*copy, mqar, mqar_uniform,"
        " niah.*passkey_ended, reverse, sort",
    ),
    (
        "data=local 'data.mix={task: mqar, share: 0.5, steps: 3}'",
        f"data.mix.steps is not a key .* {MIX_KEYS}vocab_size, pairs, power",
    ),
    (
        "data=local 'data.mix={task: passkey, share: 0.5, vocab_size: 9}'",
        f"data.mix.vocab_size is not a key .* {MIX_KEYS}haystack, depths",
    ),
    (
        "data=local 'data.mix={task: passkey, share: 0.5, haystack: hay}'",
        "haystack=hay of a text task",
    ),
    (
        "data=local 'data.mix={task: mine, share: 0.5, vocab_size: 9, source:"
        " {_target_: posbench.data.passkey.Passkey, haystack: corpus}}'",
        "data.mix.vocab_size=9: task=mine is a text task",
    ),
    (
        "data=local 'data.mix={task: mqar, share: 0.5, vocab_size: 4}'",
        "data.mix.vocab_size=4 cannot hold the tokens of data.mix.task=mqar: give 8 or more",
    ),
    (
        "data=local 'data.mix={task: mqar, share: 0.5, pairs: 4}'",
        "data.mix.pairs=4 must be a list",
    ),
    (
        "data=local 'data.mix={task: mqar_uniform, share: 0.5, pairs: [4], window: 12}'",
        "data.mix.window=12 cannot hold 4 pairs .* or fewer data.mix.pairs",
    ),
    (
        "data=local 'data.mix={task: copy, share: 0.5, vocab_size: 9, distinct: true, source:"
        " {_target_: posbench.data.copy.Copy}}'",
        "data.mix.distinct=True is not read beside .*: give data.mix.source.distinct",
    ),
    (
        "data=local 'data.mix={task: mine, share: 0.5, source:"
        " {_target_: posbench.data.copy.Copy}}'",
        "data.mix lacks vocab_size",
    ),
]


@pytest.mark.parametrize(("typed", "message"), TYPED, ids=[typed[:90] for typed, _ in TYPED])
def test_what_is_typed_is_refused(typed, message, tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path / "texts", SPLITS | EXTRA))
    choice, *words = (word.removeprefix("data.") for word in shlex.split(typed))
    usual = data_config(choice.removeprefix("data="))
    if "path" in usual:
        usual["path"] = "."
    config = OmegaConf.to_container(OmegaConf.merge(usual, OmegaConf.from_dotlist(words)))
    with pytest.raises(ConfigError, match=message):
        prepare(config, tmp_path / "cache")


OTHER_TEXTS = [
    ("local", "locl", "evaluate.text=locl is not a text.*did you mean local"),
    (
        "local",
        "books",
        r"evaluate.text=books needs your own files: give 'evaluate.text=\{name: books,"
        r" path: PATH\}'",
    ),
    (
        "local",
        {"name": "local", "paht": "x"},
        "evaluate.text.paht is not a key of evaluate.text: it takes name, path, source",
    ),
    (
        "local",
        {"name": "local", "path": "mine"},
        "mine, which is already the text of the training",
    ),
    ("local", {"name": "local", "path": "/no/where"}, "/no/where does not exist"),
    ("mqar", "pysource", "data=mqar is a task: leave it out"),
]


@pytest.mark.parametrize(
    ("choice", "text", "message"), OTHER_TEXTS, ids=[str(text) for _, text, _ in OTHER_TEXTS]
)
def test_what_is_no_other_text_is_refused(choice, text, message, tmp_path, monkeypatch):
    write(tmp_path / "mine", SPLITS)
    monkeypatch.chdir(tmp_path)
    trained = data_config(choice, *(["path=mine"] if choice == "local" else []))
    with pytest.raises(ConfigError, match=message):
        resolved_text(text, trained, tmp_path / "cache")


TWO_LENGTHS = numbered(60, 12)
NO_ROOM = "has 16 and needs 17 of them at 36 tokens: give data.vocab_size=21 or more"


@pytest.mark.parametrize(
    ("split", "refused", "message", "accepted"),
    [
        (TWO_LENGTHS, (64, 128), "window of 65 tokens, the longest has 60", (59, 128)),
        (TWO_LENGTHS, (50, 32), "train.tokens_per_step=32 .* train.length=50", (50, 50)),
        (Copy(20), (64, 32), "cannot hold one example of train.length=64", (64, 64)),
        (Copy(20), (3, 64), "needs 4 tokens", (4, 64)),
        (Addition(15), (6, 64), "needs 7 tokens", (7, 64)),
        (Mqar(64, [4]), (15, 64), "needs 16 tokens", (16, 64)),
        (MqarUniform(64, [4]), (16, 64), "with 4 pairs needs 20 tokens, not 16", (20, 64)),
        (Copy(20, distinct=True), (36, 64), NO_ROOM, (34, 64)),
        (Reverse(20, distinct=True), (36, 64), NO_ROOM, (34, 64)),
        (Sort(20, distinct=True), (36, 64), NO_ROOM, (34, 64)),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value)[:40],
)
def test_batches_that_cannot_be_drawn_are_refused(split, refused, message, accepted):
    """`refused` and `accepted` are (train.length, train.tokens_per_step)."""
    drawn_from = split if split is TWO_LENGTHS else TaskSplit(split, "train")
    with pytest.raises(ConfigError, match=message):
        length, tokens = refused
        batches(drawn_from, [length], tokens, 0, None).at(0)
    length, tokens = accepted
    assert batches(drawn_from, [length], tokens, 0, None).at(0)[0].shape[1] == length


LINE = b'{"text": "a"}\n'
UNREAD = "train/a.* cannot be read"
BAD_FILES = {
    "two in a line": (
        {"a.jsonl": LINE[:-1] + LINE},
        rf"{UNREAD} \(row 0: Extra data.*: give one object in each line",
    ),
    "no json": ({"a.jsonl": LINE + b"{]\n"}, rf"{UNREAD} \(row 1: "),
    "not utf-8": ({"a.jsonl": LINE + b'{"text": "\xff"}\n'}, f"{UNREAD} .*utf-8"),
    "deep": ({"a.jsonl": b"[" * 200_000}, UNREAD),
    "a large number": ({"a.jsonl": b'{"text": ' + b"9" * 5000 + b"}\n"}, UNREAD),
    "a list in a line": ({"a.jsonl": LINE + b"[1]\n"}, "train/a.jsonl.*int instead of an object"),
    "a zero": ({"a.jsonl": LINE + b'{"text": 0}\n'}, "Row 1 of .* has int in text"),
    "a false": ({"a.jsonl": LINE + b'{"text": false}\n'}, "Row 1 of .* has bool in text"),
    "no messages": ({"a.jsonl": LINE + b'{"text": []}\n'}, "Row 1 of .* has list in text"),
    "no text": (
        {"a.jsonl": LINE + b'{"text": 5}\n'},
        "Row 1 of .*/train/a.jsonl has int in text: set data.source.column",
    ),
    "half a pair": (
        {"a.jsonl": LINE + b'{"text": "\\ud800"}\n'},
        rf"{UNREAD} \(row 1: .*surrogates not allowed",
    ),
    "no such column": (
        {"a.jsonl": b'{"a\\u001b[31m": 1, "b": 2}\n'},
        "train/a.jsonl.* no column text: set data.source.column to one of a.*, b",
    ),
    "hundreds of columns": (
        {"a.json": json.dumps({f"column {n}": n for n in range(500)}).encode()},
        r"set data.source.column to one of column 0, column 1, .* \.\.\.\.$",
    ),
    "no gzip": ({"a.jsonl.gz": LINE}, f"{UNREAD} .*gzip"),
    "gzip cut off": ({"a.jsonl.gz": gzip.compress(LINE * 99)[:-9]}, UNREAD),
    "garbage of a parquet": (
        {"a.parquet": b"PAR1" + b"\xff" * 99 + b"\x20\0\0\0PAR1"},
        UNREAD,
    ),
    "a text that is none": ({"a.txt": b"caf\xe9"}, r"train/a.txt is not UTF-8 text \(byte 3\)"),
}
NO_TOKEN = "has no document in its train split that has a token"
BAD_FOLDERS = {
    "too few": ({"a.txt": b"a", "b.txt": b"b"}, "2 documents"),
    "one missing": ({"train/a.txt": b"a", "test/b.txt": b"b"}, "no validation"),
    "one beside": (
        {"train/a.txt": b"a", "test/b.txt": b"b", "validation/c.txt": b"c", "d.txt": b"d"},
        "d.txt is in none",
    ),
    "a csv": ({"a.csv": b"a"}, "no file that ends in"),
    "all alike": ({f"{n}.txt": b"the same" for n in range(9)}, NO_TOKEN),
    "all empty": ({f"{n}.txt": b"" for n in range(9)}, NO_TOKEN),
}
BOOK = {"file": "test/c.txt", "order": 1, "sha256": "a"}
ORDERS = json.dumps({**BOOK, "order": [1]}) + "\n" + json.dumps(BOOK)
BAD_MANIFESTS = {
    "cut short": b"{",
    "a list": b"[]",
    "a number as file": json.dumps({**BOOK, "file": 5}).encode(),
    "orders of two types": ORDERS.encode(),
    "no UTF-8": b"\xff",
}
COMPLETE = {name: text.encode() for name, text in SPLITS.items() if name != "train/a.txt"}
FILES = {
    f"local: {name}": (
        "local",
        COMPLETE | {f"train/{file}": content for file, content in files.items()},
        message,
    )
    for name, (files, message) in BAD_FILES.items()
}
FILES |= {f"local: {name}": ("local", *row) for name, row in BAD_FOLDERS.items()}
FILES |= {
    f"books: {name}": (
        "books",
        COMPLETE | {"train/a.txt": b"a", "MANIFEST.jsonl": content},
        "MANIFEST.jsonl|not UTF-8",
    )
    for name, content in BAD_MANIFESTS.items()
}


@pytest.mark.parametrize(("choice", "files", "message"), FILES.values(), ids=FILES)
def test_files_that_are_no_text_are_refused(choice, files, message, tmp_path):
    for name, content in files.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refusal:
        prepare(data_config(choice, f"path={tmp_path / 'texts'}"), tmp_path / "cache")
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 1000
