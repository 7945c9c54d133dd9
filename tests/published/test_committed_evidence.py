"""Committed evidence holds together: each row is the mean of its sums, and points and tables are those of rows and sums."""

import csv
import io
import shutil

import numpy as np
import pytest
from conftest import CONFIGS

from posbench.report.folder import texts_of
from posbench.report.report import collect
from posbench.runs.evidence import read

REPORTED = CONFIGS.parent / "results" / "reported"
FOLDERS = sorted(path.parent for path in REPORTED.glob("*/sums.npz"))


def wrong(folder) -> list[str]:
    """What does not hold together in a folder of evidence."""
    evaluations, _, _ = read(folder)
    found = []
    for one in evaluations:
        for row in one.rows:
            for name, column in (("nll", "nll"), ("correct", "accuracy")):
                mean = float(one.sums(row, name).means[0])
                if row[column] is not None and np.isfinite(mean) and not np.isclose(mean, row[column], rtol=1e-9, atol=1e-9):
                    found.append(f"{row['run_id']} {row['protocol']} {row['length']}: {column} {row[column]}, its sums {mean}")
    for name, text in texts_of(collect([], "again", "report.py", evidence=[folder])).items():
        kept = (folder / name).read_text() if name != "table.tex" else ""
        if name.endswith(".csv") and not alike(text, kept):
            found.append(f"{name} is not what rows and sums give")
        if name == "table.md" and not set(text.splitlines()[1:]) <= set(kept.splitlines()):  # all but the title; notes may be more
            found.append("table.md is not what rows and sums give")
    return found


def alike(one: str, other: str) -> bool:
    """True if two CSVs have the same cells, numbers to 1e-9."""

    def same(first: str, second: str) -> bool:
        try:
            return first == second or bool(np.isclose(float(first), float(second), rtol=1e-9, atol=1e-9))
        except ValueError:
            return False

    rows, others = (list(csv.DictReader(io.StringIO(text))) for text in (one, other))
    keys = list(others[0]) if others else []  # a file of before a column came has none of it
    pairs = zip(*(sorted([row[key] for key in keys] for row in table) for table in (rows, others)), strict=True)
    return len(rows) == len(others) and all(all(map(same, *pair)) for pair in pairs)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_rows_points_and_trainings_are_those_of_the_evidence(folder):
    assert not wrong(folder)


def test_an_altered_loss_or_sum_is_noticed(tmp_path):
    shutil.copytree(REPORTED / "demo", tmp_path / "demo")
    rows = (tmp_path / "demo" / "rows.csv").read_text()
    nll = next(csv.DictReader(io.StringIO(rows)))["nll"]
    (tmp_path / "demo" / "rows.csv").write_text(rows.replace(nll, repr(float(nll) * 1.001), 1))
    assert any("nll" in one for one in wrong(tmp_path / "demo"))
    (tmp_path / "demo" / "rows.csv").write_text(rows)
    with np.load(tmp_path / "demo" / "sums.npz") as stored:
        arrays = {name: array.copy() for name, array in stored.items()}
    arrays["nll"][0] *= 1.5
    np.savez(tmp_path / "demo" / "sums.npz", **arrays)
    assert wrong(tmp_path / "demo")
