"""The leaderboard is that of the committed evidence, and its rule is the usable length."""

import csv
import re

import pytest

from posbench.report import leaderboard, pages
from posbench.report.records import read_points

CURVE = "protocol,data,tokenizer,train_len,setting,encoding,extension,scale_attention,untested,length,n_seeds,n_targets,nll,floor"
CURVE += ",difference,half_width"


def test_it_is_up_to_date():
    assert pages.LEADERBOARD.read_text() == leaderboard.leaderboard(pages.LEADERBOARD.parent), "run make pages"


def test_every_line_is_what_its_folder_measured():
    """By another route: from the CSVs, length by length."""
    shown = 0
    for part in pages.LEADERBOARD.read_text().split("\n## ")[1:]:
        if not (title := re.match(r"(\S+) \((\S+)\), trained on ([\d,]+) tokens", part)):
            continue
        for line in re.findall(r"^\| (?!encoding|:).*$", part, re.M):
            encoding, extension, scale, surely, perhaps, there, cost, seeds, folder, _ = line.strip("| ").split(" | ")
            path = pages.LEADERBOARD.parent / re.search(r"\((.*)\)", folder)[1] / "curve.csv"
            points = [
                one
                for one in read_points(path)
                if (one.protocol, one.data, one.tokenizer, f"{one.train_len:,}") == ("fixed_targets", *title.groups())
                and (one.encoding, one.extension, one.scale_attention) == (encoding, extension, scale) and one.length >= one.train_len
            ]  # fmt: skip
            tops = {one.length / one.train_len: one.difference + one.half_width for one in points}
            held = float(surely.rstrip("x+"))
            assert all(top <= 0.05 for length, top in tops.items() if length <= held)
            beyond = [length for length in tops if length > held]
            assert surely.endswith("+") == (not beyond) and (not beyond or tops[min(beyond)] > 0.05)
            assert float(perhaps.rstrip("x+")) >= held > 1
            means = {one.length / one.train_len: (f"{one.difference:+.3f} +- {one.half_width:.3f}", str(one.n_seeds)) for one in points}
            assert (there, seeds) == means[held] and cost == means[1][0]
            shown += 1
    assert shown > 20


@pytest.fixture
def folder(tmp_path):
    """One folder: {method: [(difference, half width) at 64, 128, 256]}."""

    def made(name, curves, runs):
        path = tmp_path / name
        path.mkdir()
        rows = [
            f"fixed_targets,text,bytes,64,,{method},none,none,False,{length},{len(runs)},9,3,3,{value},{half}"
            for method, points in curves.items()
            for length, (value, half) in zip((64, 128, 256), points, strict=True)
        ]
        (path / "curve.csv").write_text("\n".join([CURVE, *rows]))
        (path / "trainings.csv").write_text("\n".join(["run_id,encoding", *(f"{run},{method}" for run in runs for method in curves)]))
        (path / "rows.csv").write_text("\n".join(["run_id,commit", *(f"{run},0123456789ab+" for run in runs)]))
        for name in ("sums.npz", "configs.jsonl"):
            (path / name).write_text("")
        return path

    return made


def test_usable_length_by_hand(folder, tmp_path):
    curves = {
        "holds": [(0.0, 0.01), (0.03, 0.02), (-0.2, 0.1)],
        "back": [(0.0, 0.01), (0.2, 0.01), (0.0, 0.01)],  # what comes back later does not hold
        "wide": [(0.0, 0.01), (0.03, 0.03), (0.09, 0.03)],  # not shown to hold at 128, and may hold there
        "costly": [(0.2, 0.01), (0.0, 0.01), (0.0, 0.01)],
        "one|<b>": [(0.0, 0.01), (0.0, 0.01), (0.3, 0.01)],
        "alone": [(0.0, ""), (0.0, ""), (0.0, "")],
    }
    lines = {line.method[0]: line for line in leaderboard.lines_of(folder("mine", curves, ["a", "b"]))}
    found = {name: (line.surely, line.perhaps) for name, line in lines.items()}
    assert found == {"holds": (4, 4), "back": (1, 1), "wide": (1, 2), "costly": (0, 0), "one|<b>": (2, 2)}
    text = leaderboard.leaderboard(tmp_path)
    assert "2 of 5 methods hold beyond" in text and "| holds | none | none | 4x+ | 4x+ | -0.200 +- 0.100 |" in text
    assert "| one\\|&lt;b> | none | none | 2x | 2x | +0.000 +- 0.010 | +0.000 +- 0.010 | 2 | [mine](mine) | 0123456+ |" in text


def test_the_same_trainings_are_listed_once_and_other_trainings_beside_them(folder, tmp_path):
    good, better = [(0.0, 0.01)] * 3, [(-0.1, 0.01)] * 3
    folder("part", {"fox": better}, ["a", "b"])
    folder("whole", {"fox": good}, ["a", "b", "c"])
    folder("others", {"fox": good}, ["d", "e"])
    folder("single", {"fox": better, "rope": good}, ["f"])
    listed = re.findall(r"^\| (fox|rope) .*\[(\w+)\]", leaderboard.leaderboard(tmp_path), re.M)
    assert sorted(listed) == [("fox", "others"), ("fox", "whole"), ("rope", "single")]


def test_a_folder_of_the_page_has_evidence():
    named = {*re.findall(r"\| \[(\w+)\]\(", pages.LEADERBOARD.read_text())}
    assert named <= {path.name for path in leaderboard.folders(pages.LEADERBOARD.parent)} and named
    for name in named:
        with open(pages.LEADERBOARD.parent / name / "trainings.csv", newline="") as file:
            assert all(row["commit"] for row in csv.DictReader(file))
