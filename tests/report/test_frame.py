"""Results as a DataFrame: the numbers of a report's CSVs, with the values behind the labels."""

import csv

import pytest
from conftest import CONFIGS

import posbench
from posbench.runs.rows import COLUMNS

REPORTED = CONFIGS.parent / "results" / "reported"


@pytest.mark.parametrize(
    ("folder", "what"),
    [("demo", "curve"), ("headline", "context"), ("tasks", "accuracy"), ("gemma3", "position")],
)
def test_a_frame_holds_the_lines_of_the_csv(folder, what):
    frame = posbench.frame(REPORTED / folder, what)
    with open(REPORTED / folder / f"{what}.csv", newline="") as lines:
        table = list(csv.DictReader(lines))
    assert len(frame) == len(table) and list(frame.columns[: len(table[0])]) == list(table[0])
    for name, dtype in frame.dtypes.items():
        if name in table[0] and str(dtype) in ("float64", "Int64"):
            expected = [float(line[name] or "nan") for line in table]
            assert frame[name].astype("float64").tolist() == pytest.approx(
                expected, rel=1e-12, nan_ok=True
            ), name


def test_labels_have_their_values_beside_them():
    frame = posbench.frame(REPORTED / "finetune")
    tuned = frame[frame.tuned_from == "rope-64"]
    assert set(tuned.train_steps) == {0, 10, 30, 100} and set(tuned.encoding_name) >= {
        "rope",
        "none",
        "pose",
    }
    assert set(tuned[tuned.trained_in].extension_name) >= {"pi", "ntk", "yarn", "longrope"}
    assert (
        tuned[tuned.trained_in].extension
        == tuned[tuned.trained_in].extension_name + " (trained in)"
    ).all()


def test_help_names_every_column():
    for name in COLUMNS:
        assert f"    {name} (" in posbench.rows.__doc__
