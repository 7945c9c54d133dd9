"""What is committed in results/reported agrees with itself: tables with CSVs, papers with tables,
rows with commits. Its evidence: test_committed_evidence.py.
"""

import hashlib
import re
import subprocess
from collections import Counter

import pytest
from conftest import CONFIGS
from labelled import labelled
from test_figures import texts

from posbench.common.csv_records import from_csv
from posbench.report.figures.method_lines import LineNames, panel_groups
from posbench.report.records import Score, grouped_by_section, read_points, records_by_method
from posbench.report.seed_marks import MARK_PATTERN
from posbench.report.tables import curve_tables, position_tables, score_tables
from posbench.results.run_metadata import Training
from posbench.results.search import CONFIGS as EVIDENCE
from posbench.runs.rows import read_csv

ROOT = CONFIGS.parent
REPORTED = ROOT / "results" / "reported"
FOLDERS = sorted(path.parent for path in REPORTED.glob("*/rows.csv"))


def named(folder):
    return folder.name


def accuracies(folder) -> list[list[Score]]:
    return (
        grouped_by_section(read_points(folder / "accuracy.csv", Score))
        if (folder / "accuracy.csv").exists()
        else []
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_tables_are_those_of_the_csv(folder):
    text, curves = (
        MARK_PATTERN.sub("", (folder / "table.md").read_text()),
        grouped_by_section(read_points(folder / "curve.csv")),
    )
    by_position = (
        grouped_by_section(read_points(folder / "position.csv"))
        if any(curve[0].window for curve in curves)
        else []
    )
    assert {curve[0].section for curve in curves if curve[0].window} == {
        stretches[0].section for stretches in by_position
    }
    shown = [table for curve in curves if not curve[0].window for table in curve_tables(curve)]
    shown += [table for stretches in by_position for table in position_tables(stretches)]
    shown += [table for section in accuracies(folder) for table in score_tables(section)]
    assert shown and all(
        MARK_PATTERN.sub("", table.markdown()) in text for table in shown
    )  # a CSV does not say which seeds a mean is over


def changes(folder) -> set[str]:
    """Hashes of the uncommitted changes that a folder shows in full: of lists of what to run alone,
    never of code.
    """
    shown = {path.stem: path.read_bytes() for path in (folder / "changes").glob("*.diff")}
    for digest, diff in shown.items():
        assert hashlib.sha256(diff).hexdigest()[:16] == digest
        assert all(
            b" b/configs/experiment/" in line
            for line in diff.splitlines()
            if line.startswith(b"diff --git")
        )
    return set(shown)


@pytest.mark.parametrize("folder", [*FOLDERS, REPORTED / "claims" / "headline"], ids=named)
def test_every_row_and_training_leads_to_a_commit_of_this_repository(folder):
    rows = read_csv(folder / "rows.csv")
    commits = {row["commit"] for row in rows}
    behind = from_csv(folder / "trainings.csv", Training, "trainings", "scripts/report.py")
    assert {row["run_id"] for row in rows} == {training.run_id for training in behind}
    listed = changes(folder)
    assert not [
        training.run_id
        for training in behind
        if training.changed and training.changed not in listed
    ], "trained by code that was not committed"
    commits = {commit.removesuffix("+") if listed else commit for commit in commits} | {
        training.commit for training in behind
    }
    git = ("git", "-C", str(ROOT))
    inside = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True
    )
    if inside.returncode or inside.stdout.strip() == "true":
        pytest.skip("no history to look into")
    for commit in sorted(commits):
        assert re.fullmatch(r"[0-9a-f]{12,40}", commit), f"{commit} is no commit of clean code"
        completed = subprocess.run(
            [*git, "merge-base", "--is-ancestor", commit, "HEAD"], capture_output=True
        )
        assert completed.returncode == 0, f"{commit} is no ancestor of the code that reports it"


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_figures_show_the_panels_and_lines_of_the_csv(folder):
    counted = Counter()
    for curve in grouped_by_section(read_points(folder / "curve.csv")):
        kind = "position" if curve[0].window else "curve"
        counted[kind] += 1
        shown_texts = texts(
            folder / f"{kind}{'' if counted[kind] == 1 else f'-{counted[kind]}'}.svg"
        )
        names = LineNames(labelled(curve))
        for panel in panel_groups(names.points):
            lines = [
                names.line(next(iter(cell.values())), panel.points)
                for cell in records_by_method(panel.points).values()
            ]
            if kind == "position":  # what is shown, or a value that the axis cuts, follows the name
                assert not [
                    text
                    for text in [panel.heading, *lines]
                    if text and not any(shown.startswith(text) for shown in shown_texts)
                ]
            else:
                assert not [
                    text for text in [panel.heading, *lines] if text and text not in shown_texts
                ]


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if accuracies(folder)], ids=named)
def test_figures_of_accuracy_show_the_tasks_and_values_of_the_csv(folder):
    for index, section in enumerate(accuracies(folder)):
        number = "" if index == 0 else f"-{index + 1}"
        curves, cells = texts(folder / f"accuracy{number}.svg"), texts(folder / f"map{number}.svg")
        assert not [
            score.task
            for score in section
            if not any(f"{text}: ".startswith(f"{score.task}: ") for text in curves)
        ]
        assert Counter(text for text in cells if re.fullmatch(r"[01]\.\d\d", text)) == Counter(
            f"{score.accuracy:.2f}" for score in section if score.shown and score.depth is None
        )


def test_what_is_published_names_no_folder_of_the_machine_it_was_made_on():
    for path in REPORTED.glob(f"*/{EVIDENCE}"):
        assert not re.search(r"[\" =]/\w", path.read_text(encoding="utf-8")), path


def test_trainings_that_a_reader_may_ask_for_have_their_weights_named():
    for folder in FOLDERS:
        for training in from_csv(
            folder / "trainings.csv", Training, "trainings", "scripts/report.py"
        ):
            if not (training.encoding or "").startswith("served"):  # an engine shows no weights
                assert re.fullmatch("[0-9a-f]{64}", training.weights_sha256) and (
                    training.validation_loss or training.run_id.startswith("hf-")
                )
