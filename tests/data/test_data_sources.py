"""Where documents come from: the user's files, books, the hub."""

import hashlib
import json

import pytest
from test_data import data_config, write

from posbench.common.errors import ConfigError
from posbench.data import fingerprint, prepare
from posbench.data.books import from_next_line
from posbench.data.hub import join_articles
from posbench.data.sources import make_source


def splits_of(raw_data):
    source = make_source(raw_data)
    return {split: dict(source.documents(split)) for split in ("train", "validation", "test")}


def test_dealt_documents_are_disjoint_and_complete(tmp_path):
    rows = [{"text": f"row {n}", "other": n} for n in range(40)]
    write(
        tmp_path,
        {
            "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
            "b.txt": "one\r\ntwo\r\n",
            ".git/c.txt": "no",
        },
    )
    splits = splits_of(data_config("local", f"path={tmp_path}"))
    assert {split: len(part) for split, part in splits.items()} == {
        "test": 4,
        "validation": 2,
        "train": 35,
    }
    merged = splits["train"] | splits["validation"] | splits["test"]
    assert merged == {"b.txt": "one\r\ntwo\r\n", **{f"a.jsonl:{n}": f"row {n}" for n in range(40)}}


@pytest.mark.parametrize("name", ["train.jsonl", "test.txt"])
def test_a_file_given_alone_is_dealt_out_whatever_its_name_says(tmp_path, name):
    texts = [f"{n}" * 300 + "\n" for n in range(9)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    write(tmp_path, {name: rows if name == "train.jsonl" else "".join(texts)})
    splits = splits_of(data_config("local", f"path={tmp_path / name}"))
    assert {split: len(part) for split, part in splits.items()} == {
        "test": 1,
        "validation": 1,
        "train": 7,
    }
    assert sorted(text for part in splits.values() for text in part.values()) == texts


def test_parquet_rows_by_named_files(tmp_path):
    import pyarrow
    import pyarrow.parquet

    for split in ("train", "validation", "test"):
        pyarrow.parquet.write_table(
            pyarrow.table({"body": [f"{split} text", None]}), tmp_path / f"{split}-00000.parquet"
        )
    splits = splits_of(data_config("local", f"path={tmp_path}", "source.column=body"))
    assert splits["test"] == {"test-00000.parquet:0": "test text", "test-00000.parquet:1": ""}
    with pytest.raises(ConfigError, match="no column text: set data.source.column to one of body"):
        splits_of(data_config("local", f"path={tmp_path}"))


BOOKS = {
    "train/b.txt": "second\n",
    "train/a.txt": "first\n",
    "train-extra/e.txt": "extra\n",
    "validation/v.txt": "held\n",
}
BOOKS["test/t.txt"] = "Title\nContents\nIt was a dark night.\n"


BOOKS_OF = {"train": "a", "validation": "v", "test": "t"}


def manifest(order, books=BOOKS):
    row = {name: hashlib.sha256(books[name].encode()).hexdigest() for name in order}
    lines = (
        {"file": f"books/{name}", "order": n, "sha256": digest}
        for n, (name, digest) in enumerate(row.items())
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_books_follow_their_manifest_and_skip_title_pages(tmp_path):
    path = f"path={write(tmp_path, BOOKS)}"
    splits = splits_of(data_config("books", path, "source.skip_test_bytes=8"))
    assert list(splits["train"].values()) == ["first\n", "second\n"] and list(
        splits["test"].values()
    ) == ["It was a dark night.\n"]
    before = fingerprint(data_config("books", path))
    write(
        tmp_path,
        {
            "MANIFEST.jsonl": manifest(
                [
                    "train/b.txt",
                    "train-extra/e.txt",
                    "train/a.txt",
                    "validation/v.txt",
                    "test/t.txt",
                ]
            )
        },
    )
    assert list(splits_of(data_config("books", path))["train"].values()) == ["second\n", "first\n"]
    assert list(
        splits_of(data_config("books", path, "source.train_extra=true"))["train"].values()
    ) == ["second\n", "first\n", "extra\n"]
    assert fingerprint(data_config("books", path)) != before
    (tmp_path / "train/a.txt").write_text("another\n")
    with pytest.raises(ConfigError, match="differs from the book"):
        splits_of(data_config("books", path))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("skip", [0, 8])
def test_a_copy_of_a_test_book_is_in_no_other_split_whatever_is_skipped(tmp_path, skip, listed):
    copies = {
        **BOOKS,
        "train/copy.txt": BOOKS["test/t.txt"],
        "validation/copy.txt": BOOKS["test/t.txt"],
    }
    copies["train-extra/rest.txt"] = from_next_line(BOOKS["test/t.txt"], 8)
    write(
        tmp_path,
        {**copies, **({"MANIFEST.jsonl": manifest(sorted(copies), copies)} if listed else {})},
    )
    config = data_config(
        "books", f"path={tmp_path}", f"source.skip_test_bytes={skip}", "source.train_extra=true"
    )
    corpus = prepare(config, tmp_path / "cache")
    expected = ["train/a.txt", "train/b.txt", "train-extra/e.txt"] + ["train-extra/rest.txt"] * (
        skip == 0
    )
    assert [corpus.train.names, corpus.validation.names, corpus.test.names] == [
        expected,
        ["validation/v.txt"],
        ["test/t.txt"],
    ]


def test_books_are_called_as_before_unless_one_was_in_two_splits(tmp_path):
    config = data_config("books", f"path={write(tmp_path, BOOKS)}", "source.skip_test_bytes=8")
    assert fingerprint(config) == "86def101c16ece9ae831e3ec030cb1d4113787a70f349b1996b2fff5b70eddaf"
    write(
        tmp_path,
        {
            "MANIFEST.jsonl": manifest(
                ["train/b.txt", "train/a.txt", "validation/v.txt", "test/t.txt"]
            )
        },
    )
    assert fingerprint(config) == "5d23513b376330af02c8d1e8ac4943cce8224cd3864d8388668253f10f56e095"


def test_extra_books_are_scored_where_their_author_was_not_trained_on(tmp_path):
    texts = {**BOOKS, "train-extra/f.txt": "Title\nby a new author\n"}
    extra = {"train-extra/e.txt": "A", "train-extra/f.txt": "F"}
    authors = {
        "train/a.txt": "A",
        "train/b.txt": "B",
        **extra,
        "validation/v.txt": "V",
        "test/t.txt": "T",
    }
    path = write(tmp_path, texts)
    config = data_config(
        "books", f"path={path}", "source.skip_test_bytes=6", "source.test_extra=true"
    )
    listed = [json.loads(line) for line in manifest(authors, texts).splitlines()]
    lines = [
        line | {"author": author} for line, author in zip(listed, authors.values(), strict=True)
    ]
    write(tmp_path, {"MANIFEST.jsonl": "".join(json.dumps(line) + "\n" for line in lines)})
    splits = splits_of(config)
    assert splits["test"] == {
        "test/t.txt": "Contents\nIt was a dark night.\n",
        "train-extra/f.txt": "by a new author\n",
    }
    assert list(splits["train"]) == ["train/a.txt", "train/b.txt"]
    usual = data_config("books", f"path={path}", "source.skip_test_bytes=6")
    assert fingerprint(config) != fingerprint(usual)
    del next(line for line in lines if line["file"].endswith("f.txt"))["author"]
    write(tmp_path, {"MANIFEST.jsonl": "".join(json.dumps(line) + "\n" for line in lines)})
    with pytest.raises(ConfigError, match="has none of train-extra/f.txt"):
        splits_of(config)


def test_a_stratum_of_the_manifest_is_part_of_the_name(tmp_path):
    write(tmp_path, BOOKS)
    names = [f"{split}/{BOOKS_OF[split]}.txt" for split in BOOKS_OF]
    lines = [json.loads(line) for line in manifest(names).splitlines()]
    write(
        tmp_path,
        {
            "MANIFEST.jsonl": "".join(
                json.dumps({**line, "stratum": "novel" * (n != 0)}) + "\n"
                for n, line in enumerate(lines)
            )
        },
    )
    splits = splits_of(data_config("books", f"path={tmp_path}"))
    assert [list(part) for part in splits.values()] == [
        ["train/a.txt"],
        ["validation/novel/v.txt"],
        ["test/novel/t.txt"],
    ]


def test_skipping_ends_at_a_line_and_in_a_book_of_one_line_at_a_character():
    assert from_next_line("abc\ndef\nghi", 4) == "def\nghi"
    assert from_next_line("abc\ndef\nghi", 5) == "ghi"
    assert (
        from_next_line("abc\u00e9def", 4),
        from_next_line("abc\u00e9def\n", 4),
        from_next_line("abc", 4),
    ) == ("def", "def\n", "")


def test_wikitext_lines_become_articles():
    rows = [
        "",
        " = One = \n",
        "",
        " text\n",
        " = not a title = \n",
        " more\n",
        "",
        " = = Part = = \n",
        "",
        " = Two = \n",
        "",
        " b\n",
    ]
    articles = list(join_articles(rows))
    assert [article.splitlines()[0] for article in articles] == [" = One = ", " = Two = "]
    assert "".join(articles) == "".join(rows)


def test_hub_rows_are_taken_by_number_at_the_pinned_commit(monkeypatch):
    import datasets

    requests = []

    def load(repo, config, revision, split, streaming):
        requests.append((repo, config, revision, split, streaming))
        return datasets.Dataset.from_dict(
            {"text": [f"page {n}" for n in range(6)], "id": list(range(6))}
        ).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    config = data_config("fineweb_edu")
    config["source"]["splits"] = {
        "test": {"split": "train", "skip": 0, "take": 2},
        "validation": {"split": "train", "skip": 2, "take": 1},
        "train": {"split": "train", "skip": 3, "take": None},
    }
    splits = splits_of(config)
    pages = {
        split: [int(page.split()[1]) for page in part.values()] for split, part in splits.items()
    }
    assert pages == {"test": [0, 1], "validation": [2], "train": [3, 4, 5]}
    assert set(requests) == {
        ("HuggingFaceFW/fineweb-edu", "sample-10BT", config["source"]["revision"], "train", True)
    }


def test_a_column_that_the_hub_does_not_have_is_refused(monkeypatch):
    import datasets

    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_dict({"body": ["page"]})
    )
    with pytest.raises(ConfigError, match="emozilla/pg19 cannot be read: .*text"):
        splits_of(data_config("pg19"))


@pytest.mark.parametrize("choice", ["wikitext103", "fineweb_edu"])
def test_hub_configurations_pin_a_commit(choice):
    assert len(fingerprint(data_config(choice))) == 64


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("resource", ["tokenizer", "rows", "rows as a stream"])
def test_without_a_network_or_told_so_the_hub_is_missed_at_once(
    tmp_path, monkeypatch, capfd, caplog, resource, offline
):
    import socket

    import datasets.config
    import huggingface_hub.constants
    from huggingface_hub.utils import _http

    def nowhere(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    def tried_again(_):
        raise AssertionError("the hub is tried again")

    for name in (
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(_http.time, "sleep", tried_again)
    if resource == "tokenizer":
        config = data_config(
            "local",
            f"path={write(tmp_path, {'a.txt': 'a'})}",
            "tokenizer=nobody/nothing-of-this-name",
        )
    else:
        config = data_config(
            "fineweb_edu" if resource.endswith("stream") else "wikitext103",
            "source.repo=nobody/nothing-of-this-name",
        )
    why = "HF_HUB_OFFLINE is set" if offline else "its name has no address: no network"
    with pytest.raises(
        ConfigError,
        match=(
            rf"nobody/nothing-of-this-name .*the caches .*\({why}\).*`unset"
            r" HF_HUB_OFF.*prepare_data.py"
        ),
    ):
        prepare(config, tmp_path / "cache")
    output = capfd.readouterr().err + caplog.text
    assert "Retrying" not in output and "thrown while" not in output
