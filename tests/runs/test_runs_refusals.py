"""Values that make no row of losses, and tables and files of rows that cannot be read."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from test_rows import VALUES
from test_strange_folders import FOREIGN

from posbench.common.csv_records import from_csv, to_csv
from posbench.common.errors import ConfigError, RunError
from posbench.report.external_csv import read_others_csv
from posbench.results.run_metadata import Training
from posbench.runs import rows

NOT_SCORED = "means over targets that were not all scored"


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"extra": 1}, TypeError, "extra"),
        ({"ppl": 3.0}, TypeError, "ppl"),
        ({"seed": "0"}, TypeError, "seed"),
        ({"seed": True}, TypeError, "seed"),
        ({"length": 128.0}, TypeError, "length"),
        ({"untested": 1}, TypeError, "untested"),
        ({"nll_sem": ...}, TypeError, "nll_sem"),
        ({"nll": np.float32("nan")}, ValueError, NOT_SCORED),
        ({"accuracy": np.float32("nan")}, ValueError, NOT_SCORED),
    ],
    ids=str,
)
def test_no_row_is_made_of(values, error, words):
    """... stands for a column that is not given."""
    columns = {name: value for name, value in {**VALUES, **values}.items() if value is not ...}
    with pytest.raises(error, match=words):
        rows.make_row(**columns)


def doubled(text: str) -> str:
    """A table whose first column stands there again, as its last."""
    return "".join(f"{line},{line.split(',')[0]}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda text: text[: text.rindex("fp32,64")],
            r"rows\.csv, line 2, has no column train_len, nor",
        ),
        (lambda text: text.replace("fp32,64", "fp32,many"), r"rows\.csv.*many"),
        (lambda text: text.replace("schema", "scheme"), r"rows\.csv has no column schema"),
        (doubled, "two columns named schema"),
        (
            lambda text: text.rstrip("\n") + ",5,\n",
            r"rows\.csv, line 2, goes on behind the last column with 5,: remove",
        ),
    ],
    ids=["cut", "word for a number", "another column", "column twice", "a cell more"],
)
def test_rows_are_not_read_from(tmp_path: Path, spoil: Callable[[str], str], words: str):
    path = tmp_path / "rows.csv"
    rows.write_csv([rows.make_row(**VALUES)], path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(RunError, match=words):
        rows.read_csv(path)


def test_a_number_with_a_comma_is_no_smaller_number(tmp_path: Path):
    """2,5 is two cells; the loss was read as 2."""
    path = tmp_path / "others.csv"
    path.write_text("method,train_len,length,nll\nmine,64,128,2,5\n")
    with pytest.raises(ConfigError, match="line 2, goes on behind the last column with 5"):
        read_others_csv(path, source=None)


def test_rows_that_a_spreadsheet_saved_are_read(tmp_path: Path):
    """With the mark of UTF-8 at the beginning, and empty cells at the end."""
    path = tmp_path / "rows.csv"
    rows.write_csv([rows.make_row(**VALUES)], path)
    expected = rows.read_csv(path)
    header, line = path.read_text().splitlines()
    path.write_bytes(f"\ufeff{header}\r\n{line},,\r\n".encode())
    assert rows.read_csv(path) == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("length", 10**20),
        ("train_len", 10**20),
        ("target_len", 10**20),
        ("n_bytes", 10**20),
        ("nll", -1e308),
    ],
)
def test_rows_are_not_read_with_an_absurd_value(tmp_path: Path, column: str, value: float):
    path = tmp_path / "rows.csv"
    rows.write_csv([rows.make_row(**VALUES) | {column: value}], path)
    words = re.escape(f"{column}={value:g}, and at most ")
    with pytest.raises(RunError, match=rf"rows\.csv .*{words}"):
        rows.read_csv(path)


def test_trainings_are_not_read_with_a_column_twice(tmp_path: Path):
    training = Training(**dict.fromkeys(field.name for field in fields(Training)))
    (tmp_path / "trainings.csv").write_text(doubled(to_csv([training], Training)))
    with pytest.raises(RunError, match="two columns named"):
        from_csv(tmp_path / "trainings.csv", Training, "a list", "x.py")


ABSURD = {
    "length": ("1e20", "1" + "0" * 20, "1e308", "0", "-5", "1.5"),
    "train_len": ("1e20", "1" + "0" * 20, "0"),
    "nll": ("-1e308", "1e308", "1e10"),
    "floor": ("1e308",),
    "low": ("-1e308",),
    "high": ("1e308",),
}


def csv_of(line: dict[str, str]) -> str:
    return f"{','.join(line)}\n{','.join(line.values())}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            pytest.param(
                csv_of(FOREIGN | {column: value}),
                f", line 2: {column}={re.escape(value)} ",
                id=f"{column}={value}",
            )
            for column, values in ABSURD.items()
            for value in values
        ),
        ("method,length,nll,nll,train_len\n1,2,3,4,5\n", " has two columns named nll: "),
        ("method,length,nll, NLL ,train_len\n1,2,3,4,5\n", " has two columns named nll: "),
        ("length,method,length,nll,x\n1,2,3,4,5\n", " has two columns named length: "),
    ],
)
def test_a_csv_of_others_is_refused(tmp_path: Path, text: str, words: str):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.csv{words}"):
        read_others_csv(tmp_path / "a.csv", "a")


def evaluation(**changes: object) -> dict:
    return {**rows.eval_content([rows.make_row(**VALUES)], {}), **changes}


def without_commit() -> dict:
    row = rows.make_row(**VALUES)
    row.pop("commit")
    return evaluation(rows=[row])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (evaluation(schema=rows.SCHEMA + 1), f"row schema {rows.SCHEMA + 1}"),
        (without_commit(), "commit"),
    ],
    ids=["newer schema", "missing column"],
)
def test_an_evaluation_is_not_read_from(tmp_path: Path, content: dict, words: str):
    (tmp_path / "eval.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=words):
        rows.read_eval(tmp_path / "eval.json")
