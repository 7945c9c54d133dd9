"""Committed evidence holds together: each row is the mean of its sums, and points and tables are
those of rows and sums.
"""

import csv
import io
import json
import shutil

import pytest
from conftest import CONFIGS

from posbench.common.errors import RunError
from posbench.config.identity import run_id
from posbench.report.report import collect_report
from posbench.report.write_report import disagreements
from posbench.results import evidence

REPORTED = CONFIGS.parent / "results" / "reported"
FOLDERS = sorted(path.parent for path in REPORTED.glob("*/sums.npz"))


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def evidence_of(request):
    """(a folder, what `read_evidence` gives of it), read once for the tests of the folder."""
    return request.param, evidence.read_evidence(request.param)


def test_rows_points_and_trainings_are_those_of_the_evidence(evidence_of, monkeypatch):
    folder, content = evidence_of
    monkeypatch.setattr(evidence, "read_evidence", {folder: content}.__getitem__)
    assert not disagreements(folder)


def test_evidence_holds_every_row_and_is_written_as_it_was_read(evidence_of, tmp_path):
    folder, (evaluations, origins, notes) = evidence_of
    n_rows = sum(len(evaluation.rows) for evaluation in evaluations)
    with open(folder / "rows.csv", newline="") as file:
        assert n_rows == sum(1 for _ in csv.DictReader(file)) and not notes
    evidence.write_evidence(tmp_path, evaluations, origins)
    written, committed = (
        [json.loads(line) for line in (path / evidence.CONFIGS).read_text().splitlines()]
        for path in (tmp_path, folder)
    )
    for line, old in zip(written, committed, strict=True):
        for key in ("run_id", "provenance", "summary"):
            assert line[key] == old[key]
        assert line["evaluations"].keys() == old["evaluations"].keys()
        for eval_id, facts in line["evaluations"].items():
            # Files of older code name lengths whose rows another folder had.
            machines = old["evaluations"][eval_id]["machines"]
            assert facts["machines"].items() <= machines.items()


@pytest.mark.parametrize("protocol", ["fixed_targets", "disjoint", "accuracy"])
def test_seeds_that_scored_other_targets_are_not_pooled(protocol, tmp_path):
    """A folder with other seeds and, in one protocol, another set of targets is refused, though
    documents and counts are the same.
    """
    name = "claims3" if protocol == "accuracy" else "claims2" if protocol == "disjoint" else "demo"
    shutil.copytree(REPORTED / name, tmp_path / "other")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "other" / "rows.csv").read_text())))
    scored = {row["eval_id"] for row in rows if row["protocol"] == protocol}
    lines = [
        json.loads(line) for line in (tmp_path / "other" / "configs.jsonl").read_text().splitlines()
    ]
    sets = {
        evaluation["targets"]
        for line in lines
        for key, evaluation in line["evaluations"].items()
        if key in scored
    }
    assert len(sets) == 1
    for line in lines:  # another training, of another seed
        line["config"]["seed"] += 1000
        line["old_id"] = line["run_id"]
        line["run_id"] = run_id(line["config"], line["provenance"]["data_fingerprint"])
    ids = {line.pop("old_id"): line["run_id"] for line in lines}
    (tmp_path / "other" / "configs.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    with open(tmp_path / "other" / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {**row, "run_id": ids[row["run_id"]], "seed": int(row["seed"]) + 1000} for row in rows
        )
    (tmp_path / "other" / "hashes.json").unlink(missing_ok=True)
    folders = [REPORTED / name, tmp_path / "other"]
    # with equal targets they are
    report = collect_report([], "pooled", "report.py", evidence=folders)
    assert (
        min(point.n_seeds for curve in [*report.sections, *report.scores] for point in curve) >= 2
    )
    (targets,) = sets
    for file in ("configs.jsonl", "documents.csv"):
        path = tmp_path / "other" / file
        path.write_text(path.read_text().replace(targets, "0" * 64))
    with pytest.raises(RunError, match="scored different targets"):
        collect_report([], "pooled", "report.py", evidence=folders)
