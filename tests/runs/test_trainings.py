"""trainings.csv: what a run's directory says, and a slope known beforehand."""

import json

import pytest

from posbench.common.csv_records import from_csv, to_csv
from posbench.results.run_metadata import Training, read_metadata, training_records


def run(folder, losses, summary=True):
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 3\n")
    (folder / "provenance.json").write_text(
        json.dumps({"seed": 3, "commit": "ab" * 20, "threads": 2, "versions": {"torch": "2.13.0"}})
    )
    lines = [
        json.dumps({"step": n, "tokens": 100_000 * n, "loss": loss})
        for n, loss in enumerate(losses, 1)
    ]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    if summary:
        (folder / "train.json").write_text(
            json.dumps({"validation_loss": 2.5, "tokens": 2_000_000, "sha256": "cd" * 32})
        )
    return folder


def test_a_line_says_what_the_directory_says(tmp_path):
    # Falls by 0.3 nat per million tokens in the last fifth, whatever came before.
    falling = [9.0] * 15 + [3 - 0.03 * n for n in range(5)]
    (training,) = training_records(
        [read_metadata(run(tmp_path / "rope-64-s3-0", falling))], {"rope-64-s3-0": "rope base=27"}
    )
    assert training.encoding == "rope base=27"
    assert training.end_slope == pytest.approx(-0.3) and (
        training.seed,
        training.commit,
        training.changed,
    ) == (
        3,
        "ab" * 20,
        None,
    )
    assert (
        training.validation_loss,
        training.weights_sha256,
        training.torch,
        training.threads,
    ) == (
        2.5,
        "cd" * 32,
        "2.13.0",
        2,
    )
    (tmp_path / "trainings.csv").write_text(to_csv([training], Training))
    assert from_csv(tmp_path / "trainings.csv", Training, "", "") == [training]


def test_what_is_not_there_is_empty(tmp_path):
    (training,) = training_records(
        [read_metadata(run(tmp_path / "rope-64-s3-0", [3.0], summary=False))]
    )
    assert (training.end_slope, training.validation_loss, training.weights_sha256) == (
        None,
        None,
        None,
    )
    (tmp_path / "rope-64-s3-0" / "train.jsonl").write_text("no json\n")
    assert training_records([read_metadata(tmp_path / "rope-64-s3-0")])[0].end_slope is None
    assert training_records([read_metadata(tmp_path / "nothing")]) == []
