import json
import math

import numpy as np
import pytest
from conftest import CONFIGS

from posbench.common.errors import RunError
from posbench.runs import rows
from posbench.runs.columns import Column
from posbench.runs.directory import Run

CONTRACT = """schema, run_id, eval_id, encoding, encoding_args, extension, extension_args,
scale_attention, trained_scale, finetune, untested, seed, data, tokenizer, dtype, train_len,
length, target_len, protocol, position, task, depth, n_targets, n_bytes, n_units, sem_unit, nll,
nll_sem, ppl, bpb, accuracy, max_distance, seconds, peak_mib, commit, step"""
VALUES = {
    "run_id": "rope-64-s0-1a2b3c4d5e", "eval_id": "0123456789abcdef", "encoding": "rope",
    "encoding_args": {"base": 10000.0, "layout": "half"}, "extension": "yarn",
    "extension_args": {"betas": [32, 1], "note": 'a "b", c'},
    "scale_attention": "none", "trained_scale": "none", "finetune": None, "untested": False,
    "seed": 0, "data": "pysource", "tokenizer": "bpe-1024", "dtype": "fp32", "train_len": 64,
    "length": 128, "target_len": 128, "protocol": "fixed_targets", "position": None, "task": None,
    "depth": None, "n_targets": 1000, "n_bytes": 2000, "n_units": 20, "sem_unit": "document",
    "nll": 0.1 + 0.2, "nll_sem": 1e-17, "accuracy": 1.0, "max_distance": 63.0, "seconds": 2.5,
    "peak_mib": 100.0, "commit": "0123456789ab+", "step": None,
}  # fmt: skip


def stored(run: Run, **changes) -> dict:
    """A row as an evaluation leaves it on disk."""
    row = rows.make_row(**{**VALUES, **changes})
    path = run.eval_path(row["protocol"], row["extension"], "none", row["eval_id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows.eval_content([row], {})))
    return row


def test_columns_are_the_contract_in_its_order():
    assert list(rows.COLUMNS) == [name.strip() for name in CONTRACT.replace("\n", " ").split(",")]
    assert list(rows.make_row(**VALUES)) == list(rows.COLUMNS)


def test_the_page_of_columns_shows_the_table_of_the_code():
    text = (CONFIGS.parent / "results" / "columns.md").read_text()
    shown = [line for line in text.splitlines() if line.startswith("| `")]
    assert shown == [
        f"| `{c.name}` | {c.kind.__name__} | {c.unit} | {c.meaning} |" for c in rows.TABLE
    ]


def test_derived_columns():
    row = rows.make_row(**{**VALUES, "nll": math.log(8.0)})
    assert row["ppl"] == pytest.approx(8.0)
    assert row["bpb"] == pytest.approx(1.5)  # 3 bits per token, 2 bytes per token
    assert rows.make_row(**{**VALUES, "nll": 800.0})["ppl"] is None
    broken = rows.make_row(**{**VALUES, "nll": float("inf"), "nll_sem": np.float32("nan")})
    assert [broken[name] for name in ("nll", "nll_sem", "ppl", "bpb")] == [None] * 4


def test_numpy_numbers_become_plain_ones():
    row = rows.make_row(
        **{**VALUES, "nll": np.float32(2.5), "n_targets": np.int64(7), "accuracy": 1}
    )
    assert [type(row[name]) for name in ("nll", "n_targets", "accuracy")] == [float, int, float]


def test_csv_and_json_give_back_what_was_written(tmp_path):
    written = [
        rows.make_row(**VALUES),
        rows.make_row(
            **{
                **VALUES,
                "position": 64,
                "task": "copy",
                "depth": 0.5,
                "untested": True,
                "nll": 999.0,
            }
        ),
    ]
    rows.write_csv(written, tmp_path / "rows.csv")
    back = rows.read_csv(tmp_path / "rows.csv")
    assert back == written
    assert [[type(value) for value in row.values()] for row in back] == [
        [type(value) for value in row.values()] for row in written
    ]
    (tmp_path / "eval.json").write_text(json.dumps(rows.eval_content(written, {})))
    assert rows.read_eval(tmp_path / "eval.json") == written


def test_a_csv_keeps_the_setting_of_its_rows_and_one_of_before_it_is_read(tmp_path):
    written = [
        {**rows.make_row(**VALUES), "setting": setting}
        for setting in ("2 windows asked for", "512 windows asked for", None)
    ]
    rows.write_csv(written, tmp_path / "rows.csv")
    assert rows.read_csv(tmp_path / "rows.csv") == written
    rows.write_csv([rows.make_row(**VALUES)], tmp_path / "before.csv")
    (before,) = rows.read_csv(tmp_path / "before.csv")
    assert "setting" not in before and rows.same_values(before, written[0])


def test_rows_agree_but_for_what_no_two_runs_agree_on_and_arguments_that_came_later():
    row = rows.make_row(**VALUES)
    assert rows.same_values(row, {**row, "seconds": 9.0, "commit": "ba"})
    assert rows.same_values(
        row, {**row, "encoding_args": {**row["encoding_args"], "fraction": 1.0}}
    )
    assert not rows.same_values(
        row, {**row, "encoding_args": {**row["encoding_args"], "fraction": 0.5}}
    )
    assert not rows.same_values(
        row, {**row, "extension_args": {**row["extension_args"], "fraction": 1.0}}
    )
    assert not rows.same_values(row, {**row, "nll": row["nll"] + 1e-16})


def test_a_column_that_is_added_leaves_earlier_files_readable(tmp_path, monkeypatch):
    row = rows.make_row(**VALUES)
    rows.write_csv([row], tmp_path / "rows.csv")
    (tmp_path / "eval.json").write_text(json.dumps(rows.eval_content([row], {})))
    added = Column("joules", float, "J", "energy of this length", since=3, missing=0.5)
    monkeypatch.setattr(rows, "TABLE", (*rows.TABLE, added))
    monkeypatch.setattr(rows, "COLUMNS", (*rows.COLUMNS, "joules"))
    monkeypatch.setattr(rows, "SCHEMA", 3)
    new = {**row, "schema": 3, "joules": 0.5}
    assert rows.read_csv(tmp_path / "rows.csv") == rows.read_eval(tmp_path / "eval.json") == [new]
    assert rows.make_row(**VALUES, joules=0.5) == new
    rows.write_csv([new], tmp_path / "new.csv")
    text = (tmp_path / "new.csv").read_text()
    (tmp_path / "unknown.csv").write_text(text.replace("joules", "watts"))
    with pytest.raises(RunError, match=r"differ from schema 3: \['joules', 'watts'\]"):
        rows.read_csv(tmp_path / "unknown.csv")
