"""The leaderboard is that of the committed evidence, and its rule is the usable length."""

import csv
import re

import pytest

from posbench.report.published import leaderboard
from posbench.report.published import readme_pages as pages
from posbench.report.records import read_points

CURVE = (
    "protocol,data,tokenizer,train_len,setting,encoding,extension,scale_attention,untested,length"
    ",n_seeds,n_targets,nll,floor,difference,half_width,gain,gain_lower,change,change_half_width"
)


def test_it_is_up_to_date():
    assert pages.LEADERBOARD.read_text() == leaderboard.leaderboard(pages.LEADERBOARD.parent), (
        "run make pages"
    )


def test_every_line_is_what_its_folder_measured():
    """By another route: from the CSVs, length by length."""
    shown = 0
    for part in pages.LEADERBOARD.read_text().split("\n## ")[1:]:
        title = re.match(r"(\S+) \((\S+)\), trained on ([\d,]+) tokens", part)
        if not title:
            continue
        for line in re.findall(r"^\| (?!encoding|:).*$", part, re.M):
            *method, surely, perhaps, loss, difference, cost, seeds, folder, _ = line.strip(
                "| "
            ).split(" | ")
            path = pages.LEADERBOARD.parent / re.search(r"\((.*)\)", folder)[1] / "curve.csv"
            points = []
            for point in read_points(path):
                corpus = (point.data, point.tokenizer, f"{point.train_len:,}")
                if point.protocol != "fixed_targets" or corpus != title.groups():
                    continue
                if point.method[:3] == tuple(method) and point.length >= point.train_len:
                    points.append(point)
            tops = {
                point.length / point.train_len: point.difference + point.half_width
                for point in points
            }
            held = float(surely.rstrip("x+"))
            assert all(top <= 0.05 for length, top in tops.items() if length <= held)
            beyond = [length for length in tops if length > held]
            assert surely.endswith("+") == (not beyond) and (not beyond or tops[min(beyond)] > 0.05)
            assert float(perhaps.rstrip("x+")) >= held > 1
            (at,) = (point for point in points if point.length == held * point.train_len)
            assert (difference, seeds, loss) == (
                f"{at.difference:+.3f} +- {at.half_width:.3f}",
                str(at.n_seeds),
                f"{at.nll:.3f}",
            )
            (first,) = (point for point in points if point.length == point.train_len)
            assert cost == (
                "-"
                if first.change is None
                else f"{first.change:+.3f} +- {first.change_half_width:.3f}"
            )
            assert first.gain_lower > 0 and len(points) >= 3
            shown += 1
    assert shown > 20


def test_what_is_measured_is_ranked_or_listed_with_a_reason():
    """Every method that a folder of evidence measured by the protocol stands in a table, below it,
    or among those it counts.
    """
    reads = [
        leaderboard.read_folder(folder)
        for folder in leaderboard.evidence_folders(pages.LEADERBOARD.parent)
    ]
    for folder, read in zip(
        leaderboard.evidence_folders(pages.LEADERBOARD.parent), reads, strict=True
    ):
        measured = {
            (point.data, point.tokenizer, point.train_len, *point.method[:3])
            for point in read_points(folder / "curve.csv")
            if point.protocol == "fixed_targets"
        }
        assert {
            (*entry.corpus, *entry.method) for entry in (*read.lines, *read.exclusions)
        } == measured
        assert all(exclusion.reason for exclusion in read.exclusions)
    text = pages.LEADERBOARD.read_text()
    smollm2 = text.partition("## books (SmolLM2")[2].partition("\n## ")[0]
    assert (
        "gate failed: G of rope is 0.003, its lowest bound -0.001" in smollm2
        and "rope + streaming" in smollm2
    )
    assert "No method is ranked." in smollm2 and "| rope | dca |" not in text


@pytest.fixture
def folder(tmp_path):
    """One folder: {method: [(difference, half width) at 64, 128, 256]}; their G and its lowest
    bound, and what an extension costs.
    """

    def write_folder(name, curves, runs, gain=(0.1, 0.05), change=("", ""), extension="none"):
        path = tmp_path / name
        path.mkdir()
        rows = [
            f"fixed_targets,text,bytes,64,,{method},{extension},none,False,{length},{len(runs)},9,3,3,{value},{half},"
            + ",".join(map(str, (*gain, *change)))
            for method, points in curves.items()
            for length, (value, half) in zip((64, 128, 256), points, strict=False)
        ]
        (path / "curve.csv").write_text("\n".join([CURVE, *rows]))
        (path / "trainings.csv").write_text(
            "\n".join(
                ["run_id,encoding", *(f"{run},{method}" for run in runs for method in curves)]
            )
        )
        (path / "rows.csv").write_text(
            "\n".join(["run_id,commit", *(f"{run},0123456789ab+" for run in runs)])
        )
        for name in ("sums.npz", "configs.jsonl"):
            (path / name).write_text("")
        return path

    return write_folder


def test_usable_length_by_hand(folder, tmp_path):
    curves = {
        "holds": [(0.0, 0.01), (0.03, 0.02), (-0.2, 0.1)],
        "back": [(0.0, 0.01), (0.2, 0.01), (0.0, 0.01)],  # what comes back later does not hold
        "wide": [
            (0.0, 0.01),
            (0.03, 0.03),
            (0.09, 0.03),
        ],  # not shown to hold at 128, and may hold there
        "costly": [(0.2, 0.01), (0.0, 0.01), (0.0, 0.01)],
        "one|<b>": [(0.0, 0.01), (0.0, 0.01), (0.3, 0.01)],
        "alone": [(0.0, ""), (0.0, ""), (0.0, "")],
    }
    lines = {
        line.method[0]: line
        for line in leaderboard.read_folder(folder("mine", curves, ["a", "b"])).lines
    }
    usable = {name: (line.holds_to, line.perhaps_holds_to) for name, line in lines.items()}
    assert usable == {
        "holds": (4, 4),
        "back": (1, 1),
        "wide": (1, 2),
        "costly": (0, 0),
        "one|<b>": (2, 2),
    }
    text = leaderboard.leaderboard(tmp_path)
    assert (
        "2 of 5 ranked methods hold beyond" in text
        and "| holds | none | none | 4x+ | 4x+ | 3.000 | -0.200 +- 0.100 | - | 2 |" in text
    )
    assert (
        "| one\\|&lt;b> | none | none | 2x | 2x | 3.000 | +0.000 +- 0.010 | - | 2 | [mine](mine) |"
        " 0123456+ |" in text
    )
    assert "- [mine](mine): no interval at the training length: alone" in text


def test_a_failed_gate_excludes_whatever_holds(folder, tmp_path):
    good = [(0.0, 0.01)] * 3
    folder("short", {"fox": good}, ["a", "b", "c"], gain=(0.002, -0.004))
    folder("unknown", {"cope": good}, ["d"], gain=("", ""))
    folder("document", {"alibi": good}, ["g"], gain=(0.05, ""))
    folder("passed", {"rope": good}, ["e", "f"])
    text = leaderboard.leaderboard(tmp_path)
    assert (
        "- [short](short): gate failed: G of fox is 0.002, its lowest bound -0.004: fox\n" in text
        and "| fox |" not in text
    )
    assert (
        "- [unknown](unknown): gate unknown: G was not measured: cope\n" in text
        and "| cope |" not in text
    )
    assert (
        "- [document](document): gate unknown: G of alibi is 0.050, without an interval: alibi\n"
        in text
    )
    assert "1 of 1 ranked methods hold" in text and "| rope | none | none | 4x+ |" in text


def test_few_lengths_are_a_reason_that_is_given(folder, tmp_path):
    folder("far", {"streaming": [(0.0, 0.01)] * 2}, ["a", "b"])
    text = leaderboard.leaderboard(tmp_path)
    assert (
        "- [far](far): measured at 2 lengths from the training length on, and 3 are needed:"
        " streaming\n" in text
    )
    assert "No method is ranked." in text


def test_a_cost_is_measured_against_no_extension(folder, tmp_path):
    """The floor itself differs from no extension by 0.010 at the training length, since a target
    has 57 to 64 tokens there.
    """
    folder("mine", {"rope": [(0.01, 0.002)] * 3}, ["a", "b"], change=(0.0, 0.001), extension="yarn")
    assert (
        "| rope | yarn | none | 4x+ | 4x+ | 3.000 | +0.010 +- 0.002 | +0.000 +- 0.001 | 2 |"
        in leaderboard.leaderboard(tmp_path)
    )


def test_all_lines_that_hold_to_the_end_are_shown_and_the_others_counted(folder, tmp_path):
    curves = {f"whole{number}": [(0.0, 0.01)] * 3 for number in range(13)}
    curves |= {f"part{number}": [(0.0, 0.01), (0.0, 0.01), (0.9, 0.01)] for number in range(2)}
    folder("mine", curves, ["a", "b"])
    text = leaderboard.leaderboard(tmp_path)
    assert len(re.findall(r"^\| whole\d+ ", text, re.M)) == 13 and "| part" not in text
    assert "And 2 more, which fail before their longest length." in text


def test_one_seed_stands_apart(folder, tmp_path):
    folder("many", {"rope": [(0.0, 0.01)] * 3}, ["a", "b"])
    folder("single", {"fox": [(-0.2, 0.01)] * 3}, ["c"])
    several, single = leaderboard.leaderboard(tmp_path).split(leaderboard.ONE_SEED_SENTENCE)
    assert (
        "| rope |" in several
        and "| fox |" not in several
        and "| fox |" in single
        and "| rope |" not in single
    )


def test_the_same_trainings_are_listed_once_and_other_trainings_beside_them(folder, tmp_path):
    good, better = [(0.0, 0.01)] * 3, [(-0.1, 0.01)] * 3
    folder("part", {"fox": better}, ["a", "b"])
    folder("whole", {"fox": good}, ["a", "b", "c"])
    folder("others", {"fox": good}, ["d", "e"])
    folder("single", {"fox": better, "rope": good}, ["f"])
    listed = re.findall(r"^\| (fox|rope) .*\[(\w+)\]", leaderboard.leaderboard(tmp_path), re.M)
    assert sorted(listed) == [("fox", "others"), ("fox", "whole"), ("rope", "single")]
    text = leaderboard.leaderboard(tmp_path)
    assert "- [part](part): whole has all its trainings: fox\n" in text
    assert "- [single](single): one seed, and whole has several: fox\n" in text


def test_a_folder_of_the_page_has_evidence():
    named = {*re.findall(r"\| \[(\w+)\]\(", pages.LEADERBOARD.read_text())}
    assert (
        named <= {path.name for path in leaderboard.evidence_folders(pages.LEADERBOARD.parent)}
        and named
    )
    for name in named:
        with open(pages.LEADERBOARD.parent / name / "trainings.csv", newline="") as file:
            assert all(row["commit"] for row in csv.DictReader(file))


def test_the_numbers_by_margin_begin_with_the_tables_own_and_fall_with_the_margin():
    text = pages.LEADERBOARD.read_text()
    counts = [int(number) for number in re.findall(r"(\d+) with 0\.\d+", text)]
    in_tables = [
        int(number) for number in re.findall(r"^(\d+) of \d+ ranked methods hold", text, re.M)
    ]
    assert (
        counts[0] == sum(in_tables) and counts == sorted(counts, reverse=True) and len(counts) == 3
    )
