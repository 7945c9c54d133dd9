"""Mean reciprocal rank: against ranks by hand, ties, what was not learned, and where it stands in a
report.
"""

import csv
from dataclasses import replace

import pytest
from test_scores import write_scores

from posbench.report.ranks import method_ranks
from posbench.report.report import collect_report
from posbench.report.write_report import disagreements, write_report

SHARES = {  # {task: {encoding: accuracy at 64 (inside), 128, 256 and 512 tokens}}
    "copy": {
        "rope": (1, 0, 0, 0),
        "fox": (1, 1, 1, 0),
        "alibi": (1, 1, 0, 0),
        "none": (0, 1, 1, 1),
    },
    "sort": {
        "rope": (1, 1, 0, 0),
        "fox": (1, 0, 0, 0),
        "alibi": (1, 0, 0, 0),
        "none": (1, 1, 0, 0),
    },
    "sort inside 64": {
        "rope": (1, 1, 1, 1),
        "fox": (1, 0, 0, 0),
        "alibi": (1, 0, 0, 0),
        "none": (1, 0, 0, 0),
    },
}
# copy: 128, then 256; sort: 128. Elsewhere all are alike. none has not learned to copy.
BY_HAND = {
    "fox": (1 / 1.5 + 1 / 1 + 1 / 3.5) / 3,
    "alibi": (1 / 1.5 + 1 / 2.5 + 1 / 3.5) / 3,
    "rope": (1 / 3 + 1 / 2.5 + 1 / 1.5) / 3,
    "none": 1 / 1.5,
}


@pytest.fixture
def report(tmp_path):
    paths = [
        write_scores(
            tmp_path / f"runs-{task[:4]}{len(task)}",
            encoding,
            "none",
            0,
            dict(zip((64, 128, 256, 512), right, strict=True)),
            task,
        )[0]
        for task, of_encoding in SHARES.items()
        for encoding, right in of_encoding.items()
    ]
    return collect_report(paths, "tasks", "")


def test_ranks_are_those_by_hand(report):
    ranks = {line.encoding: line for line in method_ranks(report.scores)}
    assert {name: line.reciprocal_rank for name, line in ranks.items()} == pytest.approx(BY_HAND)
    assert [line.encoding for line in report.ranks] == sorted(
        BY_HAND, key=BY_HAND.get, reverse=True
    )
    assert {
        name: (line.cells, line.first, line.tasks, line.unlearned) for name, line in ranks.items()
    } == {
        "fox": (3, 2, 2, 0),
        "alibi": (3, 1, 2, 0),
        "rope": (3, 1, 2, 0),
        "none": (1, 1, 2, 1),
    }


def of_tables(folder):
    """What disagreements says of tables; the rows that these tests write are rounded."""
    return [line for line in disagreements(folder) if "its sums" not in line]


def test_a_report_shows_ranks_and_a_folder_of_before_stays_valid(report, tmp_path):
    write_report(report, tmp_path / "report")
    with open(tmp_path / "report" / "ranks.csv", newline="") as file:
        shown = {row["encoding"]: float(row["reciprocal_rank"]) for row in csv.DictReader(file)}
    assert shown == pytest.approx(BY_HAND)
    text = (tmp_path / "report" / "table.md").read_text()
    assert (
        "**Mean reciprocal rank beyond the training length**" in text
        and "| none | none | none | 0.67 | 1 | 1 | 1 |" in text
    )
    assert "Mean reciprocal rank" in (tmp_path / "report" / "report.html").read_text()
    assert not of_tables(tmp_path / "report")
    (tmp_path / "report" / "table.md").write_text(
        text.replace("| 0.67 | 1 | 1 | 1 |", "| 0.97 | 1 | 1 | 1 |")
    )
    assert of_tables(tmp_path / "report")
    (tmp_path / "report" / "ranks.csv").unlink()
    (tmp_path / "report" / "hashes.json").unlink()
    (tmp_path / "report" / "table.md").write_text(replace(report, ranked=False).markdown())
    assert not of_tables(tmp_path / "report")


def test_few_methods_or_tasks_have_no_ranks(report):
    one_task = [[score for score in section if score.task == "copy"] for section in report.scores]
    two_methods = [
        [score for score in section if score.encoding in ("rope", "fox")]
        for section in report.scores
    ]
    assert method_ranks(one_task) == method_ranks(two_methods) == []
