"""The user's own files: names and contents of every kind, read as they are or refused in a
sentence.
"""

import gzip
import json
import os

import pytest
from test_data import data_config, write
from test_data_sources import splits_of

from posbench.common.errors import ConfigError
from posbench.data import fingerprint, prepare
from posbench.data.local import cut_text

FORMS = {
    "blank lines": ('{"text":"a"}\n\n{"text":"b"}\n  \n{"text":"c"}', ["a", "b", "c"]),
    "ends of Windows": ('{"text":"a"}\r\n{"text":"b\\r\\n"}\r\n', ["a", "b\r\n"]),
    "a mark before": ('\ufeff{"text":"a"}\n{"text":"b"}\n', ["a", "b"]),
    "missing and null": ('{"text":"a"}\n{"x":1}\n{"text":null}\n', ["a", "", ""]),
    "a list": ('[{"text":"a"},\n {"text":"b"}]', ["a", "b"]),
    "a list of strings": ('  ["a", "b"]', ["a", "b"]),
    "one object of several lines": ('{\n "text": "a"\n}', ["a"]),
    "dates": ('{"text":"2020-01-01"}\n', ["2020-01-01"]),
    "other ends of lines": (
        '{"text":"a\u2028b\x85c"}\n{"text":"d\\u0000"}\n',
        ["a\u2028b\x85c", "d\0"],
    ),
    "many keys": (
        "".join(json.dumps({f"key {n}": 1}) + "\n" for n in range(120)) + '{"text":"a"}',
        [""] * 120 + ["a"],
    ),
    "nothing": ("", []),
    "an empty list": ("[]", []),
}


def local(path, *overrides):
    return data_config("local", *overrides) | {"path": str(path)}


def rows_of(folder, name, content):
    """Texts of a file that is the training split."""
    write(folder, {"test/t.txt": "t", "validation/v.txt": "v"})
    (folder / "train").mkdir()
    (folder / "train" / name).write_bytes(content)
    return list(splits_of(local(folder))["train"].items())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_json_is_read_in_every_form(tmp_path, form, packed):
    content, expected = FORMS[form]
    name, content = (
        ("a.jsonl.gz", gzip.compress(content.encode())) if packed else ("a.json", content.encode())
    )
    assert rows_of(tmp_path, name, content) == [
        (f"train/{name}:{row}", text) for row, text in enumerate(expected)
    ]


LINE = b'{"text": "a"}\n'


@pytest.mark.parametrize("name", ["a[0].jsonl", "http::x.jsonl", "{a,b}.jsonl", "%41.jsonl"])
def test_names_mean_nothing_but_themselves(tmp_path, name):
    write(tmp_path / "train", {"0.jsonl": '{"text": "other"}', "a0.jsonl": '{"text": "other"}'})
    for file in (tmp_path / "train").iterdir():
        file.rename(tmp_path / file.name)
    (tmp_path / "train").rmdir()
    data = tmp_path / "data[1]::#x"
    assert rows_of(data, name, LINE) == [(f"train/{name}:0", "a")]


@pytest.mark.parametrize("choice", ["local", "books"])
def test_a_name_that_is_not_utf8_is_refused(tmp_path, choice):
    write(tmp_path, {"train/a.txt": "a", "test/t.txt": "t", "validation/v.txt": "v"})
    try:
        with open(os.fsencode(tmp_path) + b"/train/\xff.txt", "w") as file:
            file.write("b")
    except OSError:
        pytest.skip("a file system that has no such names")
    with pytest.raises(ConfigError, match=r"whose name is not UTF-8 \('.*udcff.txt'\): rename it"):
        fingerprint(data_config(choice) | {"path": str(tmp_path)})


@pytest.mark.parametrize(
    "text",
    [
        "line\n" * 10_000,
        "paragraph of words\nand more\n\n" * 5000,
        "a" * 50_000,
        "\u00e9\r\n" * 4000,
        "",
        "a",
    ],
)
def test_one_text_is_cut_without_a_loss(text):
    parts = cut_text(text)
    assert "".join(parts) == text
    assert not text or len(parts) >= len(text) / 2 / max(256, len(text) / 20)
    if "\n" in text:
        assert all(part.endswith("\n") for part in parts)
    if "\n\n" in text:
        assert all(part.endswith("\n\n") for part in parts)


def test_one_large_text_is_dealt_into_splits_and_said(tmp_path, capfd):
    text = "".join(f"line {n} of the play\n" + "\n" * (n % 7 == 0) for n in range(20_000))
    write(tmp_path, {"input.txt": text})
    corpus = prepare(local(tmp_path / "input.txt"), tmp_path / "cache")
    printed = capfd.readouterr().err
    parts = {split: len(getattr(corpus, split).names) for split in ("test", "validation", "train")}
    assert all(parts.values()) and sum(
        len(getattr(corpus, split).tokens) for split in parts
    ) == len(text)
    dealt = ", ".join(f"{count} for {split}" for split, count in parts.items())
    assert (
        f"input.txt is one text, cut into {sum(parts.values())} documents at line ends, dealt out:"
        f" {dealt}" in printed
    )
    assert printed.count("is one text") == 1
    corpus = prepare(local(tmp_path / "input.txt"), tmp_path / "cache")
    assert capfd.readouterr().err == ""


def test_few_test_documents_name_the_share(tmp_path, capfd):
    write(tmp_path / "few", {f"{n}.txt": f"text {n}" for n in range(20)})
    prepare(local(tmp_path / "few"), tmp_path / "cache")
    printed = capfd.readouterr().err
    assert (
        "20 documents, dealt out: 2 for test, 1 for validation, 17 for train" in printed
        and "raise data.source.test_share" in printed
    )
    prepare(local(tmp_path / "few", "source.test_share=0.4"), tmp_path / "cache")
    assert "test_share" not in capfd.readouterr().err
