"""Committed evidence holds together: each row is the mean of its sums, and points and tables are those of rows and sums."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from conftest import CONFIGS

from posbench.common.errors import RunError
from posbench.report.folder import texts_of
from posbench.report.report import collect
from posbench.runs.evidence import read_evidence

REPORTED = CONFIGS.parent / "results" / "reported"
FOLDERS = sorted(path.parent for path in REPORTED.glob("*/sums.npz"))


def wrong(folder) -> list[str]:
    """What does not hold together in a folder of evidence."""
    evaluations, _, _ = read_evidence(folder)
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


@pytest.mark.parametrize("protocol", ["fixed_targets", "disjoint", "accuracy"])
def test_seeds_that_scored_other_targets_are_not_pooled(protocol, tmp_path):
    """A folder with other seeds and, in one protocol, another set of targets is refused, though documents and counts are the same."""
    name = "claims3" if protocol == "accuracy" else "claims2" if protocol == "disjoint" else "demo"
    shutil.copytree(REPORTED / name, tmp_path / "other")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "other" / "rows.csv").read_text())))
    scored = {row["eval_id"] for row in rows if row["protocol"] == protocol}
    runs = {row["run_id"] for row in rows}
    lines = [json.loads(line) for line in (tmp_path / "other" / "configs.jsonl").read_text().splitlines()]
    sets = {one["targets"] for line in lines for key, one in line["evaluations"].items() if key in scored}
    assert len(sets) == 1
    for run in runs:  # another training, of another seed
        for file in ("rows.csv", "configs.jsonl"):
            path = tmp_path / "other" / file
            path.write_text(path.read_text().replace(run, f"{run[:-4]}ffff"))
    with open(tmp_path / "other" / "rows.csv", newline="") as file:
        table = list(csv.DictReader(file))
    with open(tmp_path / "other" / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "seed": int(row["seed"]) + 1000} for row in table)
    folders = [REPORTED / name, tmp_path / "other"]
    made = collect([], "pooled", "report.py", evidence=folders)  # with equal targets they are
    assert min(point.n_seeds for curve in [*made.sections, *made.scores] for point in curve) >= 2
    (whole,) = sets
    for file in ("configs.jsonl", "documents.csv"):
        path = tmp_path / "other" / file
        path.write_text(path.read_text().replace(whole, "0" * 64))
    with pytest.raises(RunError, match="scored different targets"):
        collect([], "pooled", "report.py", evidence=folders)
