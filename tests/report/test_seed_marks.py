"""Means over other seeds than most of a table are marked, in every table and in every form of
it.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from synthetic import LENGTHS, TARGETS, Built, write_eval, write_positions, write_run
from test_figures import texts
from test_scores import write_scores

from posbench.report.figures.differences import heatmap, intervals
from posbench.report.figures.style import write_figure
from posbench.report.records import scores_by_task
from posbench.report.report import collect_report
from posbench.report.seed_marks import Seeds, mark_lines, usual_seeds
from posbench.report.tables import curve_tables

NO_SEED = re.compile(r"\[(?:seeds?|\d+ seed)")


def evaluation(root, extension, seed, shift=0.0, lengths=LENGTHS):
    """Evaluation of rope whose loss at seed s is 3.9 + s / 100 and `shift` more."""
    losses = [np.full(TARGETS, 3.9 + seed / 100 + shift)] * len(lengths)
    return write_eval(root, "rope", extension, "none", losses, lengths, seed)


def line_of(markdown: str, extension: str) -> str:
    return next(
        line for line in markdown.splitlines() if line.startswith(f"| rope | {extension} |")
    )


def test_a_method_with_one_seed_beside_three_is_marked_wherever_it_stands(tmp_path):
    """pi is worse than ntk on seed 0, which both have, and its mean is lower."""
    paths = [evaluation(tmp_path, name, seed) for name in ("none", "ntk") for seed in (0, 1, 2)]
    paths.append(evaluation(tmp_path, "pi", 0, shift=0.005))
    report = Built(paths, tmp_path / "out", "t", "command")
    markdown = (tmp_path / "out" / "table.md").read_text()
    assert line_of(markdown, "pi").startswith("| rope | pi | none [seed 0] | 3.905 |")
    assert line_of(markdown, "ntk").startswith("| rope | ntk | none | 3.910 |")
    assert (
        len(re.findall(r"^\| rope \| pi \| none \[seed 0\] \|", markdown, re.M))
        == len(curve_tables(report.sections[0]))
        == 2
    )
    sentence = "- [seed 0]: a mean over these seeds; unmarked means are over seeds 0 to 2."
    assert markdown.count(sentence) == 1 and sentence[2:] in report.table_text()
    assert "none [seed 0]" in report.table_text() and "none {[}seed 0]" in report.latex()
    assert "none [seed 0]" in (tmp_path / "out" / "report.html").read_text()
    narrow = report.table_text(width=60)
    assert len(re.findall(r"\[seed\s*0\]|\[seed", narrow)) >= 2  # of the tables in pieces too


def test_maps_and_intervals_of_methods_are_marked(tmp_path):
    """Figures whose rows are ranked as those of a table are."""
    paths = [path for seed in (0, 1, 2) for path in write_run(tmp_path / "a", "rope", seed)]
    shown_paths = [
        path for path in paths if not (path.name.startswith("pi+none") and "-s0-" not in str(path))
    ]
    (curve,) = collect_report(shown_paths, "t", "command").sections
    for figure in (heatmap(curve, "t"), intervals(curve, "t")):
        write_figure(figure, tmp_path / "figure", ("svg",))
        shown_text = " ".join(texts(tmp_path / "figure.svg"))
        assert "pi [seed 0]" in shown_text and "pi + log_n [seed" not in shown_text
        assert (
            "[seed 0]: a mean over these seeds; unmarked means are over seeds 0 to 2." in shown_text
        )


def test_equal_seeds_have_no_mark(tmp_path):
    report = collect_report(
        [evaluation(tmp_path, name, seed) for name in ("none", "ntk") for seed in (0, 1, 2)],
        "t",
        "command",
    )
    assert not NO_SEED.search(report.markdown() + report.table_text())


def test_as_many_other_seeds_are_other_trainings(tmp_path):
    paths = [evaluation(tmp_path, name, seed) for name in ("none", "ntk") for seed in (0, 1)]
    paths += [evaluation(tmp_path, "pi", seed) for seed in (0, 2)]
    assert "| rope | pi | none [seeds 0, 2] |" in collect_report(paths, "t", "command").markdown()


def test_a_length_that_fewer_seeds_have_is_marked_alone(tmp_path):
    paths = [evaluation(tmp_path, name, seed) for name in ("none", "ntk") for seed in (0, 1)]
    paths += [evaluation(tmp_path, "pi", 0), evaluation(tmp_path, "pi", 1, lengths=LENGTHS[:2])]
    cells = [
        cell.strip()
        for cell in line_of(collect_report(paths, "t", "command").markdown(), "pi").split("|")
    ][1:-1]
    assert cells == ["rope", "pi", "none", "3.905", "3.905", "3.900 [seed 0]", "3.900 [seed 0]"]


def test_tables_by_position_are_marked(tmp_path):
    losses = np.full((8, 256), 3.0)
    paths = [
        write_positions(tmp_path, name, losses, seed=seed)
        for name in ("none", "ntk")
        for seed in (0, 1)
    ]
    paths.append(write_positions(tmp_path, "pi", losses, seed=1))
    assert "| rope | pi | none [seed 1] |" in collect_report(paths, "t", "command").markdown()


def test_scores_over_the_seeds_that_learned_are_marked(tmp_path):
    good, bad = {64: 1.0, 128: 0.9}, {64: 0.1, 128: 0.1}
    paths = [
        write_scores(tmp_path, "rope", name, seed, good)[0]
        for name in ("none", "ntk")
        for seed in (0, 1)
    ]
    paths += [
        write_scores(tmp_path, "alibi", "none", seed, share)[0]
        for seed, share in ((0, good), (1, bad))
    ]
    report = collect_report(paths, "t", "command")
    assert (
        "| alibi | none | none [seed 0] |" in report.markdown()
        and "| rope | ntk | none | 1.000" in report.markdown()
    )
    assert any(line.startswith("[seed 0]: ") for line in report.parts[0].lines)


def test_points_of_a_csv_are_told_apart_by_their_number_of_seeds(tmp_path):
    paths = [evaluation(tmp_path, name, seed) for name in ("none", "ntk") for seed in (0, 1, 2)]
    (curve,) = collect_report([*paths, evaluation(tmp_path, "pi", 0)], "t", "command").sections
    read = [replace(point, seeds=None) for point in curve]  # as a CSV gives them
    assert mark_lines(read)[0].startswith(
        "[1 seed]: a mean over these seeds; unmarked means are over 3 seeds"
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((4,), "seed 4"),
        ((0, 1), "seeds 0, 1"),
        ((3, 4, 5), "seeds 3 to 5"),
        ((0, 1, 3), "seeds 0, 1, 3"),
        ((0, 2, 4, 6, 8, 10, 12), "7 seeds"),
        (None, "2 seeds"),
    ],
)
def test_seeds_in_words(numbers, text):
    assert str(Seeds(2 if numbers is None else len(numbers), numbers)) == text


def test_the_usual_seeds_are_those_of_most_methods(tmp_path):
    paths = [evaluation(tmp_path, "none", 0), evaluation(tmp_path, "ntk", 0)]
    paths += [evaluation(tmp_path, "pi", seed) for seed in (0, 1, 2)]
    (curve,) = collect_report(paths, "t", "command").sections
    assert "| rope | pi | none [seeds 0 to 2] |" in curve_tables(curve)[0].markdown()
    assert usual_seeds([]) is None and not scores_by_task([])
