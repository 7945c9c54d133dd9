"""Results folders of others, whatever lies in them: one sentence, and no run costs another. What is
executed: test_safety.py.
"""

import csv
import io
import json
import os
import re
import shutil
import struct
import tracemalloc
import zipfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from script_calls import call
from spoils import edit
from synthetic import LENGTHS, TARGETS, write_eval

from posbench.common import defuse
from posbench.common.csv_records import from_csv, to_csv
from posbench.common.errors import ConfigError, RunError
from posbench.report.external_csv import read_others_csv
from posbench.report.records import MOST, CurvePoint, read_points
from posbench.report.report import collect_report
from posbench.results.evaluation import load_evaluation
from posbench.results.inventory import list_runs
from posbench.results.run_metadata import Training
from posbench.runs import rows
from posbench.runs.directory import Run
from posbench.runs.npz import read_npz
from posbench.runs.plain_yaml import read_yaml
from posbench.runs.rows import read_csv, write_csv

FLOOR = np.full(TARGETS, 3.0)


def link(target: str):
    return lambda path: path.symlink_to(target)


def text(content: str | bytes):
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two runs with an evaluation each."""
    for seed in (0, 1):
        path = write_eval(
            tmp_path / "runs", "rope", "none", "none", [FLOOR + seed] * 4, LENGTHS, seed=seed
        )
        (path.parents[2] / "config.yaml").write_text(
            json.dumps({"encoding": {}, "model": {}, "train": {"steps": 9}, "data": {}})
        )
    return tmp_path / "runs"


def evals(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/evals/*/*.json"))


PLAIN = {
    "a": 1,
    "b": [1.5, 1e-05, -0.0, float("inf"), 1e22],
    "c": {"d": None, "e": [], "f": {}},
    "g": True,
    "h": "",
    "i": "no",
    "j": "1e-3",
    "k": "2026-01-01",
    "l": "0x1f",
    "m": "1_000",
    "n": "${x}",
    "o": "~",
    "p": "a: b",
    "q": "1:30",
    "r": "\u00e9\u4e2d",
    "s": 2**63,  # fmt: skip
    "t": ["posbench.encodings.rope.Rope"],
    "u": "'",
    "v": "=1",
    "w": "null",
    "x": "12e03",
    "y": "a\nb",
    "z": "&a *b",
}


def test_a_plain_config_says_what_omegaconf_reads(tmp_path):
    (tmp_path / "written.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(PLAIN)))
    words = (
        "1e-3 12e03 1.5e3 2026-01-01 1_000 0x1f yes .5 1:30 .inf -.5e+3 1. 1_0.5 0o17 017 +1 1e5 e5"
        " 1.e+3 1:30.5 .5e3 1_0e2 0b1 ~"
    )
    typed = "".join(f"k{i}: {word}\n" for i, word in enumerate(words.split()))
    (tmp_path / "typed.yaml").write_text(typed + "7: 8\no: {<<: {p: 1}, q: 2}\n")
    for path in tmp_path.iterdir():
        expected = OmegaConf.to_container(OmegaConf.load(path))
        assert repr(read_yaml(path)) == repr(expected)
    assert {
        key: value for key, value in read_yaml(tmp_path / "written.yaml").items() if value == value
    } == PLAIN


def in_rows(**values):
    return lambda path: edit(path, lambda content: [row.update(values) for row in content["rows"]])


def in_first(name, value):
    return lambda path: edit(path, lambda content: content["rows"][0].update({name: value}))


def in_all(**values):
    return lambda path: edit(path, lambda content: content.update(values))


def bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("nll.npy", "w", force_zip64=True) as file,
    ):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": (2**30, 2)}
        )
        file.write(header.getvalue())
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02")
    path.write_bytes(content[: at + 24] + (2**32 - 2).to_bytes(4, "little") + content[at + 28 :])


def arrays(**changes):
    return lambda path: np.savez(path, **{**np.load(path), **changes})


CONFIG, ROWS, ARRAYS = "config.yaml", "none+none", ".npz is damaged"
SPOILED = [  # what the sentence names, what is spoiled, how
    (CONFIG, "a recursive alias", text("a: &a [*a]\n")),
    (CONFIG, "5,000 levels", text("a: " + "[" * 5_000 + "]" * 5_000)),
    (CONFIG, "30 MB", lambda path: os.truncate(path, 30 * 2**20)),
    (CONFIG, "a FIFO", os.mkfifo),
    (CONFIG, "a date", text("a: !!timestamp 2026-01-01\n")),
    (CONFIG, "a key twice", text("a: 1\na: 2\n")),
    (CONFIG, "a list", text("- a\n")),
    (CONFIG, "no UTF-8", text(b"a: \xff\xfe\n")),
    (ROWS, "no loss", in_rows(nll=None, n_targets=None)),
    (ROWS, "two seeds", in_first("seed", 7)),
    (ROWS, "rows that are lists", in_all(rows=[[]])),
    (ROWS, "rows that are null", in_all(rows=[None])),
    (ROWS, "no schema", text("{}")),
    (ROWS, "no configuration", in_all(config=None)),
    (ROWS, "a device", link("/dev/zero")),
    (ARRAYS, "strings", arrays(nll=np.full((4, TARGETS), "3.0"))),
    (ARRAYS, "objects", arrays(document=np.array([{}] * TARGETS, dtype=object))),
    (ARRAYS, "lengths that are no whole numbers", arrays(length=np.array(LENGTHS) + 0.5)),
    (ARRAYS, "other shapes", arrays(nll=np.zeros((4, TARGETS, 2), "f4"))),
    (ARRAYS, "a FIFO", os.mkfifo),
    (ARRAYS, "4 GB in 200 bytes", bomb),
]


@pytest.mark.parametrize(
    ("named", "kind", "spoil"), SPOILED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_spoiled_file_is_a_sentence_and_costs_no_other_run(folder, named, kind, spoil):
    run, sound = map(Run, sorted(folder.iterdir()))
    path, _ = evals(folder)
    path = {CONFIG: run.path / CONFIG, ROWS: path, ARRAYS: path.with_suffix(".npz")}[named]
    if kind in ("a FIFO", "a device"):
        path.unlink()
    spoil(path)
    with pytest.raises(RunError) as error:
        run.read_config() if named == CONFIG else load_evaluation(evals(folder)[0]).arrays
    assert (
        named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 800
    )
    report = collect_report(evals(folder), "", "", skip_damaged=True)
    if named == CONFIG:
        assert {entry.path: entry.state_in_words for entry in list_runs(folder)} == {
            run.path: "damaged: config.yaml cannot be read",
            sound.path: "unstarted",
        }
        assert len(report.rows) == 2 * len(LENGTHS)
    else:
        assert (
            len(report.rows) == len(LENGTHS)
            and report.notes[0].startswith("Left out: ")
            and "\n" not in report.notes[0]
        )


STRANGE = [None, [], {}, "x", 1e308, 10**30, True, "\x1b[31m", {"a": {"b": None}}, float("nan")]


def test_strange_values_anywhere_in_a_run_are_listed_and_reported(folder, capfd):
    """Of every file of a run's directory, each field with each of many values, a run each."""
    strange = min(folder.iterdir())
    base = {
        "encoding": {"_target_": "x.Rope"},
        "model": {"checkpoint": None},
        "seed": 0,
        "train": {"steps": 9},
        "data": {"name": "x"},
    }
    files = {
        "config.yaml": base,
        "train.json": {"sha256": "0", "steps": 9, "validation_loss": 2.5, "tokens": 3},
        "provenance.json": {
            "seed": 0,
            "versions": {"torch": "2"},
            "commit": "a",
            "threads": 2,
        },  # fmt: skip
        "train.jsonl": {"step": 3, "tokens": 3, "loss": 2.0, "validation_loss": 2.0},
    }
    keys = [(name, key) for name, content in files.items() for key in content] + [
        ("config.yaml", "encoding._target_")
    ]
    paths = []
    for name, key in keys:
        for i, value in enumerate(STRANGE):
            run = folder / f"rope-64-s{i}-{len(paths):010x}"
            shutil.copytree(strange, run)
            content = json.loads(json.dumps(files[name]))
            content.update({"encoding": {"_target_": value}} if "." in key else {key: value})
            for file, plain in files.items():
                (run / file).write_text(json.dumps(content if file == name else plain))
            (path,) = run.glob("evals/*/*.json")
            in_rows(run_id=run.name, seed=len(paths) + 10)(path)
            paths.append(path)
    listed = call(capfd, folder.parent, "runs", "list", f"results_dir={folder}").stdout
    assert listed.count("\n") == len(paths) + 3 and "\x1b" not in listed
    report = collect_report(paths, "", "")
    assert report.markdown() and report.latex() and len(report.rows) == len(paths) * len(LENGTHS)


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1", "@SUM(1)", "''-x", "a=b", "\t=1", "-"]
)
def test_names_are_no_formulas_in_a_csv_and_come_back(folder, name):
    strange, sound = evals(folder)
    in_rows(encoding=name, data=name)(strange)
    report = collect_report([strange, sound], "t", "")
    points = [point for section in report.sections for point in section]
    line = Training(
        **{
            field.name: name if field.type in (str, str | None) else None
            for field in fields(Training)
        }
    )
    write_csv(report.rows, folder / "rows.csv")
    (folder / "curve.csv").write_text(to_csv(points, CurvePoint))
    (folder / "trainings.csv").write_text(to_csv([line], Training))
    for path in folder.glob("*.csv"):
        cells = [
            cell for line in csv.reader(io.StringIO(path.read_text(), newline="")) for cell in line
        ]
        assert not [
            cell
            for cell in cells
            if cell.startswith(tuple("=+-@\t")) and not re.fullmatch(r"[-+]?[0-9.e+-]+", cell)
        ]
    assert (
        read_csv(folder / "rows.csv") == report.rows and read_points(folder / "curve.csv") == points
    )
    assert from_csv(folder / "trainings.csv", Training, "", "") == [line]
    again, _ = read_others_csv(folder / "rows.csv", "x")
    assert {evaluation.rows[0]["encoding"] for evaluation in again} == {
        name.replace("\t", "\ufffd"),
        "rope",
    }


def test_names_are_no_html_in_markdown(folder):
    strange, sound = evals(folder)
    in_rows(encoding="<script>alert(1)</script>")(strange)
    words = collect_report([strange, sound], "<img src=x>", "").markdown()
    assert (
        "<script" not in words
        and "</script" not in words
        and "<img" not in words
        and "&lt;script>" in words
    )
    assert defuse.markdown("< gains, 1<2, a <b") == "< gains, 1<2, a &lt;b"


def test_words_of_others_move_no_cursor():
    for kind in (ConfigError, RunError):
        assert (
            str(kind("train.steps=\x1b]0;x\x07\x1b[2J refused\nnext"))
            == "train.steps=\ufffd]0;x\ufffd\ufffd[2J refused\nnext"
        )


def test_more_rows_than_are_read_are_a_sentence(folder, monkeypatch):
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    with pytest.raises(RunError, match="4 rows, and 3 are read"):
        load_evaluation(evals(folder)[0])


def test_what_no_report_can_show_is_a_sentence(folder, monkeypatch):
    path, _ = evals(folder)
    monkeypatch.setitem(MOST, "lengths or positions", 3)
    with pytest.raises(
        ConfigError,
        match="hold 4 lengths or positions, and a report shows at most 3: name fewer with runs=",
    ):
        collect_report([path], "", "")
    monkeypatch.setitem(MOST, "encodings", 1)
    in_rows(encoding="other")(path)
    with pytest.raises(ConfigError, match="hold 2 encodings"):
        collect_report(evals(folder), "", "")


FOREIGN = {
    "method": "a",
    "length": "128",
    "nll": "3.0",
    "train_len": "64",
    "floor": "2.9",
    "low": "2.5",
    "high": "3.5",
}


def test_the_largest_values_are_reported_and_drawn(tmp_path, capfd):
    line = FOREIGN | {
        "length": "1e12",
        "train_len": "1e12",
        "nll": "1e9",
        "low": "-1e9",
        "high": "1e9",
    }
    other = line | {"length": "1", "nll": "-1e9"}
    text(f"{','.join(line)}\n{','.join(line.values())}\n{','.join(other.values())}\n")(
        tmp_path / "a.csv"
    )
    for script, *words in (
        ("report", "runs=a.csv", "report_dir=a"),
        ("plot", "a.csv", "out=a.svg"),
        ("explore", "a.csv", "out=a.html"),
    ):
        done = call(capfd, tmp_path, script, *words)
        assert done.returncode == 0 and "unforeseen" not in done.stderr, done.stderr


def lying(path: Path) -> None:
    """An npz with 64 MiB of zeros in 64 KiB, whose entry states another size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (16 * 2**20,)}
    )
    content = {"array": header.getvalue() + bytes(64 * 2**20), "no array": bytes(64 * 2**20)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array_bytes in content.items():
            file.writestr(f"{name}.npy", array_bytes)
    packed = bytearray(path.read_bytes())
    for array_bytes in content.values():
        real = struct.pack("<I", len(array_bytes))
        while (at := packed.find(real)) >= 0:
            packed[at : at + 4] = struct.pack("<I", 200)
    path.write_bytes(packed)


@pytest.mark.parametrize("name", ["array", "no array"])
def test_of_an_npz_no_more_is_unpacked_than_it_states(tmp_path, name):
    lying(tmp_path / "a.npz")
    tracemalloc.start()
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        read_npz(tmp_path / "a.npz", (name,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("make", [os.mkfifo, text(b"\xff\xfe"), text("a,b\n" + "x" * 200_000)])
def test_a_strange_csv_is_a_sentence(tmp_path, make):
    make(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match=r"a\.csv"):
        read_others_csv(tmp_path / "a.csv", "a")
    for read in (read_csv, lambda path: from_csv(path, Training, "a list", "x.py")):
        with pytest.raises(RunError, match=r"a\.csv"):
            read(tmp_path / "a.csv")
