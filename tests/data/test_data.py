"""From text to token files: splits, tokenizers' byte counts, damage, two processes at once."""

import copy
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time

import forked
import numpy as np
import pytest
from conftest import CONFIGS
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from script_calls import call
from spoils import PLACES, SMALL

from posbench.common.errors import RunError
from posbench.config.schema import JobConfig
from posbench.data import fingerprint, prepare
from posbench.data.tokenizers import PretrainedTokenizer, load_tokenizer, owned_bytes

ROOT = CONFIGS.parent
TEXTS = {
    "train/a.txt": "the cat sat on the mat, the dog sat on the log\n" * 30,
    "train/b.txt": "na\u00efve caf\u00e9 \U0001f600 \u4e2d\u6587 and the cat sat\r\n" * 20,
    "validation/c.txt": "the dog sat on the \u00e9clair\n" * 20,
    "test/d.txt": "a cat \U0001f680 sat\ton the mat  \n" * 20,
}


@functools.cache
def composed(choice, *overrides):
    with initialize_config_dir(str(ROOT / "configs" / "data"), version_base="1.3"):
        return OmegaConf.to_container(compose(choice, list(overrides)), resolve=True)


def data_config(choice, *overrides):
    """A choice of configs/data with these overrides; composed once for all its paths."""
    config = copy.deepcopy(
        composed(choice, *(typed for typed in overrides if not typed.startswith("path=")))
    )
    return config | dict(typed.split("=", 1) for typed in overrides if typed.startswith("path="))


def write(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture
def local(tmp_path):
    return data_config("local", f"path={write(tmp_path / 'texts', TEXTS)}")


def documents(corpus, split):
    tokens, tokenizer = getattr(corpus, split), load_tokenizer(corpus.tokenizer, corpus.folder)
    spans = zip(tokens.names, tokens.starts, tokens.starts[1:], strict=False)
    return {
        name: (tokenizer.decode(tokens.tokens[a:b]), int(tokens.n_bytes[a:b].sum()))
        for name, a, b in spans
    }


@pytest.mark.parametrize(
    "tokenizer", [{"tokenizer": "bytes"}, {"tokenizer": "bpe", "vocab_size": 290}]
)
def test_every_byte_is_kept_and_counted(local, tmp_path, tokenizer):
    corpus = prepare({**local, **tokenizer}, tmp_path / "cache")
    contents = {
        f"{name}": value
        for split in ("train", "validation", "test")
        for name, value in documents(corpus, split).items()
    }
    assert contents == {name: (text, len(text.encode())) for name, text in TEXTS.items()}
    assert corpus.vocab_size == (256 if corpus.tokenizer == "bytes" else 290)


def pretrained(path, normalizer=None):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    model = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    if normalizer:
        model.normalizer = normalizer
    model.train_from_iterator(
        TEXTS.values(),
        trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]"], show_progress=False),
    )
    model.save(str(path))
    return path


@pytest.mark.parametrize("lower", [False, True])
def test_bytes_of_a_pretrained_tokenizer_sum_to_the_document(local, tmp_path, lower):
    from tokenizers import normalizers

    normalizer = (
        normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()]) if lower else None
    )
    corpus = prepare(
        {**local, "tokenizer": str(pretrained(tmp_path / "mine.json", normalizer))},
        tmp_path / "cache",
    )
    for split in ("train", "validation", "test"):
        for name, (_, size) in documents(corpus, split).items():
            assert size == len(TEXTS[name].encode())
    assert corpus.tokenizer.startswith("mine-") and "/" not in corpus.tokenizer


@pytest.mark.parametrize("kind", ["ByteLevel", "Metaspace"])
def test_a_blank_that_the_tokenizer_puts_before_a_text_owns_no_byte(kind):
    import tokenizers
    from tokenizers.pre_tokenizers import ByteLevel, Metaspace

    letters = ["\u2581", *sorted(ByteLevel.alphabet())]
    model = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: at for at, letter in enumerate(letters)}, [])
    )
    model.pre_tokenizer = ByteLevel(add_prefix_space=True) if kind == "ByteLevel" else Metaspace()
    for text, owned in (("Hi x", [0, 1, 1, 1, 1]), (" Hi", [1, 1, 1])):
        assert PretrainedTokenizer(model, kind).encode([text])[0][1].tolist() == owned


def test_owned_bytes_count_dropped_text_and_split_characters_once():
    # "a e' <rocket>": the letter with an accent has 2 bytes, the rocket 4 and is two tokens; blanks
    # belong to no token of their own.
    text = "a \u00e9 \U0001f680 "
    assert owned_bytes(text, [(0, 1), (2, 3), (4, 5), (4, 5)]).tolist() == [1, 3, 5, 1]
    assert len(text.encode()) == 10


def test_bpe_is_deterministic(local, tmp_path):
    local = {**local, "tokenizer": "bpe", "vocab_size": 290}
    first, second = (prepare(local, tmp_path / name).folder for name in ("one", "two"))
    assert (
        json.loads((first / "manifest.json").read_text())["files"]
        == json.loads((second / "manifest.json").read_text())["files"]
    )


def test_bos_is_one_more_id_and_the_same_token_files(local, tmp_path):
    plain, bos = prepare(local, tmp_path), prepare({**local, "bos": True}, tmp_path)
    assert (plain.bos, plain.vocab_size, bos.bos, bos.vocab_size) == (None, 256, 256, 257)
    assert plain.folder == bos.folder and plain.fingerprint != bos.fingerprint


def test_fingerprint_follows_content_not_place(local, tmp_path):
    moved = write(tmp_path / "elsewhere", TEXTS)
    assert (
        fingerprint(local)
        == fingerprint({**local, "path": str(moved)}, tmp_path)
        == prepare(local, tmp_path).fingerprint
    )
    (moved / "train/a.txt").write_text("changed")
    assert fingerprint({**local, "path": str(moved)}, tmp_path) != fingerprint(local)
    assert fingerprint({**local, "tokenizer": "bpe"}) != fingerprint(local)


def test_fingerprint_loads_neither_torch_nor_datasets(local):
    code = f"import sys; from posbench.data import fingerprint; fingerprint({local!r}); "
    code += "print({'torch', 'datasets', 'tokenizers'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ran.stdout.strip() == "set()"


def test_a_document_of_the_test_split_is_not_trained_on(tmp_path):
    texts = {
        **TEXTS,
        "train/copy.txt": TEXTS["test/d.txt"],
        "train/again.txt": TEXTS["train/a.txt"],
        "train/empty.txt": "",
    }
    texts["validation/copy.txt"] = TEXTS["test/d.txt"]
    corpus = prepare(
        data_config("local", f"path={write(tmp_path / 'texts', texts)}"), tmp_path / "cache"
    )
    names = [corpus.train.names, corpus.validation.names, corpus.test.names]
    assert names == [["train/a.txt", "train/b.txt"], ["validation/c.txt"], ["test/d.txt"]]


SLOW = """
import time
from pathlib import Path
from posbench.data.sources import Source

class Slow(Source):
    def __init__(self, log): self.log = Path(log)
    def fingerprint(self): return "slow"
    def documents(self, split):
        if split == "train":
            self.log.open("a").write("built\\n")
            while not self.log.with_name("go").exists():
                time.sleep(0.02)
        yield split, f"text of {split}"
"""


def test_two_processes_build_once(tmp_path):
    (tmp_path / "slow_source.py").write_text(SLOW)
    config = {"name": "slow", "tokenizer": "bytes", "vocab_size": 0, "bos": False}
    config["source"] = {"_target_": "slow_source.Slow", "log": str(tmp_path / "log")}
    code = (
        f"from posbench.data import prepare; print(prepare({config!r},"
        f" {str(tmp_path / 'cache')!r}).train.names)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    arguments = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment,
    }
    first = forked.Popen([sys.executable, "-c", code], **arguments)
    while not (tmp_path / "log").exists():  # a test's time limit is the deadline
        time.sleep(0.02)
    second = forked.Popen([sys.executable, "-c", code], **arguments)
    assert re.search(
        rf"another process \(pid {first.pid} on [^)]+\) is preparing slow", second.stderr.readline()
    )
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [out for out, _ in outputs] == ["['train']\n"] * 2, outputs
    assert (tmp_path / "log").read_text() == "built\n" and not any(
        "another process" in err for _, err in outputs
    )


def edited_while_read(monkeypatch, path, text, keep_time):
    """Change a file between the fingerprint and the reading of it, as an editor would; its size
    stays, its time if `keep_time`.
    """
    from posbench.data import build_corpus

    make_source, before = build_corpus.make_source, path.stat()

    def edit_first(*arguments):
        path.write_text(text)
        if keep_time:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return make_source(*arguments)

    monkeypatch.setattr(build_corpus, "make_source", edit_first)


@pytest.mark.parametrize(
    ("choice", "keep_time"), [(("local",), True), (("books", "source.skip_test_bytes=0"), False)]
)
def test_text_that_changes_while_it_is_read_is_never_kept(tmp_path, monkeypatch, choice, keep_time):
    config = data_config(*choice, f"path={write(tmp_path / 'texts', TEXTS)}")
    path, cache = tmp_path / "texts/train/a.txt", tmp_path / "cache"
    first, text = fingerprint(config, cache), TEXTS["train/a.txt"].replace("cat", "cow")
    with monkeypatch.context() as patch:
        edited_while_read(patch, path, text, keep_time)
        with pytest.raises(RunError, match="changed while it was read: run the same command again"):
            prepare(config, cache)
    corpus = prepare(config, cache)
    assert corpus.fingerprint == fingerprint(config, cache) != first
    assert documents(corpus, "train")["train/a.txt"][0] == text
    assert len(list(cache.glob("*/manifest.json"))) == 1


def test_a_run_is_not_trained_on_text_that_changed_after_it_was_named(local, tmp_path):
    from types import SimpleNamespace

    from posbench.sweep.train_job import corpus_of

    cfg = JobConfig(data=local, cache_dir=str(tmp_path / "cache"))
    run = SimpleNamespace(id="rope-64-s0-1", finished=False)
    job = SimpleNamespace(config=cfg, fingerprint=fingerprint(local), run=run, cells=[])
    assert corpus_of(job).fingerprint == job.fingerprint
    (tmp_path / "texts/train/a.txt").write_text("changed")
    with pytest.raises(
        RunError, match="changed after rope-64-s0-1 was named by it: run the same command again"
    ):
        corpus_of(job)


@pytest.mark.parametrize(
    "tokenizer", [{"tokenizer": "bytes"}, {"tokenizer": "bpe", "vocab_size": 290}]
)
def test_one_split_alone_is_the_same_as_in_the_whole(local, tmp_path, tokenizer):
    cfg = {**local, **tokenizer}
    part, corpus = prepare(cfg, tmp_path / "cache", ["test"]), prepare(cfg, tmp_path / "cache")
    assert (
        part.train is part.validation is None and corpus.folder.name + "_test" == part.folder.name
    )
    assert {file.name.split(".")[0] for file in part.folder.iterdir()} <= {
        "test",
        "manifest",
        "tokenizer",
    }
    assert documents(part, "test") == documents(corpus, "test") and np.array_equal(
        part.test.tokens, corpus.test.tokens
    )
    assert (part.vocab_size, part.fingerprint, part.tokenizer) == (
        corpus.vocab_size,
        corpus.fingerprint,
        corpus.tokenizer,
    )
    again = prepare(cfg, tmp_path / "cache", ["validation"])
    assert again.folder == corpus.folder and again.train is None  # what is there already is used


def test_all_splits_together_hold_the_documents_of_each_once(local, tmp_path):
    """Also where a training document is a copy of a test document."""
    write(
        tmp_path / "texts",
        {"train/e.txt": TEXTS["test/d.txt"], "validation/f.txt": TEXTS["train/a.txt"]},
    )
    corpus, every = prepare(local, tmp_path / "cache"), prepare(local, tmp_path / "cache", ["all"])
    assert (
        every.train is every.validation is every.test is corpus.all is None
        and every.folder.name == corpus.folder.name + "_all"
    )
    assert every.fingerprint == corpus.fingerprint
    parts = [documents(corpus, split) for split in ("train", "validation", "test")]
    assert list(documents(every, "all").items()) == [
        item for part in parts for item in part.items()
    ]
    assert (
        len(documents(every, "all"))
        == len({text for text, _ in documents(every, "all").values()})
        == 4
    )


def test_a_whole_copy_of_a_cut_book_is_no_second_document_of_all_splits(tmp_path):
    book = "a line of a title page\n" * 20 + "the prose itself\n" * 20
    path = write(
        tmp_path / "books",
        {"train/a.txt": book, "train/b.txt": "b", "validation/c.txt": "c", "test/d.txt": book},
    )
    every = prepare(
        data_config("books", f"path={path}", "tokenizer=bytes", "source.skip_test_bytes=100"),
        tmp_path / "cache",
        ["all"],
    )
    assert list(documents(every, "all")) == ["train/b.txt", "validation/c.txt", "test/d.txt"]


def test_an_evaluation_of_a_finished_run_tokenizes_only_what_it_scores(world, capfd):
    shutil.rmtree(world.root / "cache")
    assert call(capfd, world.root, "run", *SMALL, *PLACES, "extension=window").returncode == 0
    assert [path.name[24:] for path in (world.root / "cache").iterdir() if path.is_dir()] == [
        "_test"
    ]
    assert (
        call(
            capfd,
            world.root,
            "run",
            *SMALL,
            *PLACES,
            "extension=window",
            "evaluate.split=validation",
        ).returncode
        == 0
    )
    assert not list((world.root / "cache").glob("*/train*"))
