"""CSVs beside runs, damaged evaluations, checkpoints of one encoding: what a report makes of
them.
"""

import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from conftest import CONFIGS
from script_calls import call
from synthetic import CURVES, LENGTHS, TARGETS, with_settings, write_eval, write_run
from test_report_html import Page, describe

from posbench.common.csv_records import to_csv
from posbench.common.errors import ConfigError, RunError
from posbench.report.figures.captions import curve_caption
from posbench.report.records import CurvePoint, read_points
from posbench.report.report import collect_report
from posbench.report.table_formats import METHOD_COLUMNS, MOST_ROWS_OF_PAGE, Table
from posbench.report.write_report import write_report
from posbench.results.search import find_results, shortest_endings
from posbench.runs.rows import write_csv

REPORTED = CONFIGS.parent / "results" / "reported"
CELL = ("rope", "pi", "log_n")
FEW = {cell: CURVES[cell] for cell in (CELL, ("rope", "none", "none"), ("rope", "ntk", "none"))}
T3 = 4.302652729911275  # Student's t, 97.5 %, two degrees of freedom: printed in every table of it


def cells(path, title):
    """{line without its numbers: the line} of one table of a table.md."""
    part = path.read_text().split(f"**{title}")[1].split("\n\n")[1]
    return [line for line in part.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", ["headline", "books", "catalogue", "ladder"])
def test_the_folder_of_a_report_without_sums_keeps_the_intervals_it_states(name):
    folder = REPORTED / name
    measured = {
        place(point): point
        for part in collect_report([], "t", "x", [folder / "rows.csv"]).sections
        for point in part
    }
    stated_points = read_points(folder / "curve.csv")
    assert len(measured) == len(stated_points) > 20
    for point in stated_points:
        our_point = measured[place(point)]
        for name in ("half_width", "over", "gain", "change_half_width"):
            assert getattr(our_point, name) == getattr(point, name)


def place(point):
    return (
        *point.section[:4],
        *point.method[:3],
        point.length,
        point.window,
        round(point.nll, 8),
    )  # books has two settings


def test_stated_intervals_are_of_these_means_alone(tmp_path):
    for name in ("rows.csv", "curve.csv"):
        shutil.copy(REPORTED / "headline" / name, tmp_path)
    stated_points = read_points(tmp_path / "curve.csv")
    (tmp_path / "curve.csv").write_text(
        to_csv([replace(point, nll=point.nll * 1.001) for point in stated_points], CurvePoint)
    )
    assert {
        point.over
        for part in collect_report([], "t", "x", [tmp_path / "rows.csv"]).sections
        for point in part
    } <= {"seeds", None}
    write_run(tmp_path / "own", "rope")
    beside = collect_report(
        sorted((tmp_path / "own").rglob("*.json")), "t", "x", [REPORTED / "headline" / "rows.csv"]
    )
    over = {
        (point.source is None, point.over)
        for part in beside.sections
        for point in part
        if point.half_width is not None
    }
    assert (False, "seeds x documents") in over and (True, "seeds x documents") not in over


def test_rows_alone_give_the_means_that_the_losses_of_all_targets_gave_and_intervals_over_seeds(
    tmp_path,
):
    folder = REPORTED / "headline"
    shutil.copy(folder / "rows.csv", tmp_path)
    text = collect_report([], "t", "x", [tmp_path / "rows.csv"]).markdown()
    means = re.sub(
        r" \+- [\d.]+ [<>~]", "", text
    )  # documents are known to the losses of all targets alone
    for title in ("Loss (", "Loss minus the floor", "At 16x"):
        expected_lines = [
            re.sub(r" \+- [\d.]+ [<>~]", "", line) for line in cells(folder / "table.md", title)
        ]
        assert len(expected_lines) > 40 and all(line in means for line in expected_lines)
    assert "G is unknown" in text and "gate" not in text and "Student's t over seeds;" in text


def test_rows_of_one_seed_have_differences_without_intervals(tmp_path):
    shutil.copy(REPORTED / "demo" / "rows.csv", tmp_path)
    (curve,) = collect_report([], "t", "x", [tmp_path / "rows.csv"]).sections
    reported = read_points(REPORTED / "demo" / "curve.csv")
    assert [point.difference for point in curve] == pytest.approx(
        [point.difference for point in reported], abs=1e-6
    )
    assert {point.half_width for point in curve} == {None} and {
        point.source for point in curve
    } == {None}


def test_a_csv_beside_evidence_keeps_its_name_and_overwrites_nothing(tmp_path):
    our_paths, their_paths = (
        write_run(tmp_path / "own", "rope", curves=FEW),
        write_run(tmp_path / "other", "rope", seed=1, curves=FEW),
    )
    for path in (*our_paths, *their_paths):
        with_settings(path, windows=20, targets=12)
    write_report(measured := collect_report(our_paths, "t", "x"), tmp_path / "evidence")
    (section,) = measured.sections
    write_csv(collect_report(their_paths, "t", "x").rows, tmp_path / "rows.csv")
    (curve,) = collect_report(
        [], "t", "x", [tmp_path / "rows.csv"], evidence=[tmp_path / "evidence"]
    ).sections  # one table, as of the same runs
    assert [point for point in curve if point.source is None] == section and {
        point.source for point in curve
    } == {None, "rows.csv"}
    again = collect_report(
        [], "t", "x", [tmp_path / "evidence" / "rows.csv"], evidence=[tmp_path / "evidence"]
    )
    assert (
        again.sections == [section] and "with the same numbers" in again.notes[0]
    )  # a mean takes no interval away
    csv = paper_csv(
        tmp_path, "encoding,extension,scale_attention,length,nll\nrope,pi,log_n,64,9.0\n"
    )
    (curve,) = collect_report([], "t", "x", [csv], evidence=[tmp_path / "evidence"]).sections
    assert [point.source for point in curve if point.nll == 9] == ["paper.csv"] and curve[
        :-1
    ] == section


def test_the_settings_of_a_csv_are_kept_apart(tmp_path):
    losses = np.full((4, TARGETS), 3.0)
    paths = [
        write_eval(tmp_path / str(n), "rope", "none", "none", losses, LENGTHS, eval_id=str(n))
        for n in (2, 64, 512)
    ]
    for path, windows in zip(paths, (2, 64, 512), strict=True):
        with_settings(path, windows=windows)
    write_csv(collect_report(paths, "t", "x").rows, tmp_path / "rows.csv")
    again = collect_report([], "t", "x", [tmp_path / "rows.csv"])
    shown = [curve[0].setting for curve in again.sections]
    assert [re.search(r"(\d+) windows", setting)[1] for setting in shown] == ["2", "64", "512"]
    write_csv(again.rows, tmp_path / "rows.csv")
    assert [
        curve[0].setting for curve in collect_report([], "t", "x", [tmp_path / "rows.csv"]).sections
    ] == shown
    (beside, *_), *others = collect_report(paths[2:], "t", "x", [tmp_path / "rows.csv"]).sections
    assert len(others) == 2 and beside.setting.startswith("512 windows")


def paper_csv(tmp_path, text, **options):
    path = tmp_path / "paper.csv"
    path.write_text(text, **options)
    return path


def test_losses_of_others_are_overlaid_and_enter_no_statistics(tmp_path):
    csv = paper_csv(
        tmp_path,
        "\ufeffMethod;Length;PPL;low;high;floor;train_len\nOur net;64;20;19;21;18;64\nOur"
        " net;512;30;;;18;64\nOld net;512;nan;;;18;64\n",
        encoding="utf-8",
    )
    paths, beside = write_run(tmp_path, "rope", curves=FEW), tmp_path / "b"
    alone, report = collect_report(paths, "t", "x"), collect_report(paths, "t", "x", [csv])
    (curve,) = report.sections
    first, second, lost = [point for point in curve if point.source]
    assert (first.encoding, first.length, first.nll) == ("Our net", 64, pytest.approx(math.log(20)))
    assert (first.low, first.high) == (pytest.approx(math.log(19)), pytest.approx(math.log(21)))
    assert first.difference == pytest.approx(
        math.log(20 / 18)
    ) and second.difference == pytest.approx(math.log(30 / 18))
    assert lost.nll is None and {point.half_width for point in (first, second)} == {
        point.change for point in (first, second)
    } == {None}
    assert [point for point in curve if not point.source] == alone.sections[0]
    text = report.markdown()
    assert (
        "| Our net (paper.csv) | none | none | 2.996 | - | - | 3.401 |" in text
        and "paper.csv: losses as the file states them" in text
    )
    assert (
        "| Our net (paper.csv) | none | none | +0.105 |" in text
        and "| Our net (paper.csv) | none | none | 30.00 | - |" in text
    )
    assert any(
        "as paper.csv states them" in line and "not paired" in line
        for line in curve_caption(curve, relative=True)
    )
    write_report(report, beside)
    assert (
        "Our net" in (beside / "heatmap.svg").read_text()
        and "Our net" not in (beside / "differences.svg").read_text()
    )
    assert "Our net (paper.csv)" in Page(beside / "report.html").text


def test_without_a_floor_the_figure_shows_losses_and_says_so(tmp_path):
    csv = paper_csv(tmp_path, "label,length,nll\nOurs,64,3.0\nOurs,512,3.4\n")
    report = collect_report(write_run(tmp_path, "rope"), "t", "x", [csv])
    assert report.sections[0][-1].train_len == 64  # of the runs it is beside
    assert any(
        "paper.csv states no floor" in line
        for line in curve_caption(report.sections[0], relative=False)
    )


def test_seeds_of_others_are_averaged_over_seeds(tmp_path):
    lines = [f"rope,pi,256,{nll},{seed},64" for seed, nll in enumerate((3.0, 3.1, 3.5))]
    (point,) = collect_report(
        [],
        "t",
        "x",
        [paper_csv(tmp_path, "encoding,extension,length,nll,seed,train_len\n" + "\n".join(lines))],
    ).sections[0]
    assert (point.encoding, point.extension, point.n_seeds, point.nll) == (
        "rope",
        "pi",
        3,
        pytest.approx(3.2),
    )
    assert point.high - point.nll == pytest.approx(T3 * np.std([3.0, 3.1, 3.5], ddof=1) / 3**0.5)


def test_what_speaks_against_a_section_stays_out_of_it(tmp_path):
    csv = paper_csv(
        tmp_path,
        "method,length,nll,train_len,tokenizer\na,64,3,64,bpe-1024\nb,64,3,64,bytes\nc,64,3,128,\n",
    )
    sections = collect_report(write_run(tmp_path, "rope"), "t", "x", [csv]).sections
    assert [{point.encoding for point in curve if point.source} for curve in sections] == [
        {"a"},
        {"b"},
        {"c"},
    ]


def test_files_of_one_name_are_told_apart(tmp_path):
    assert list(
        shortest_endings([tmp_path / "a" / "rows.csv", tmp_path / "b" / "rows.csv"]).values()
    ) == ["a/rows.csv", "b/rows.csv"]
    assert list(
        shortest_endings([tmp_path / "a" / "one.csv", tmp_path / "b" / "two.csv"]).values()
    ) == ["one.csv", "two.csv"]


def test_the_script_takes_csvs_beside_runs(tmp_path, capfd):
    describe(write_run(tmp_path / "runs", "rope", curves={CELL: CURVES[CELL]})[0].parents[2])
    paper_csv(tmp_path, "method,length,nll\nOurs,64,3.0\n")
    (tmp_path / "only").mkdir()
    shutil.copy(REPORTED / "demo" / "rows.csv", tmp_path / "only")
    done = call(capfd, tmp_path, "report", "runs=[runs,paper.*]", "report_dir=out")
    assert (
        done.returncode == 0 and "Ours (paper.csv)" in (tmp_path / "out" / "table.md").read_text()
    )
    done = call(
        capfd, tmp_path, "report", "runs=[runs,only]", "report_dir=beside"
    )  # the folder of a report that has rows alone
    assert done.returncode == 0 and "sinusoidal" in (tmp_path / "beside" / "table.md").read_text()
    with pytest.raises(ConfigError, match="a CSV of losses"):
        find_results(["nowhere*.csv"])


@pytest.mark.parametrize("kind", ["half a json", "wrong type", "bad npz", "other lengths"])
def test_a_damaged_evaluation_is_left_out_with_a_note(tmp_path, kind):
    paths = write_run(tmp_path, "alibi")
    broken, beside = paths[-1], paths[-1].with_suffix(".npz")
    if kind == "half a json":
        broken.write_bytes(broken.read_bytes()[:200])
    elif kind == "wrong type":
        content = json.loads(broken.read_text())
        content["rows"][0]["nll"] = "three"
        broken.write_text(json.dumps(content))
    elif kind == "bad npz":
        content = bytearray(beside.read_bytes())
        content[len(content) // 4 : len(content) // 2] = b"x" * (
            len(content) // 2 - len(content) // 4
        )
        beside.write_bytes(content)
    else:
        with np.load(beside) as stored:
            np.savez(beside, **{**stored, "length": stored["length"] + 1})
    with pytest.raises(RunError, match="evaluate again|same command again"):
        collect_report(paths, "t", "x")
    paths += write_run(tmp_path, "rope")
    report = collect_report(paths, "t", "x", skip_damaged=True)
    (note,) = report.notes
    assert note.startswith("Left out: ") and broken.stem in note and note.count("delete it") == 1
    assert "| alibi |" not in report.markdown() and "| rope | pi | none |" in report.markdown()
    with pytest.raises(RunError, match=re.escape(broken.stem)):
        collect_report([broken], "t", "x", skip_damaged=True)


def test_two_checkpoints_of_one_encoding_are_told_apart(tmp_path):
    for name, folder, sha in (
        ("hf-64-s0-aaaa", "models/small", "a" * 64),
        ("hf-64-s0-bbbb", "models/large", "b" * 64),
    ):
        path = write_eval(
            tmp_path / name,
            "rope",
            "none",
            "none",
            [np.full(TARGETS, 3.0)] * 4,
            LENGTHS,
            eval_id=name,
            run_id=name,
        )
        run = path.parents[2].rename(tmp_path / name / name)
        (run / "config.yaml").write_text(
            f"model:\n  path: {folder}\n  checkpoint: {{sha256: {sha}, vocab_size: 9}}\ntrain:"
            " {length: 64}\n"
        )
    text = collect_report(sorted(tmp_path.glob("*/*/evals/*/*.json")), "t", "x").markdown()
    assert (
        "| rope checkpoint=small |" in text
        and "| rope checkpoint=large |" in text
        and "aaaaaaaaaaa" not in text
    )


def test_a_long_table_goes_on_over_pages():
    def table_of(rows):
        return Table(
            "Loss & more",
            [*METHOD_COLUMNS, "1x (64)"],
            [["rope", f"x_{n}", "none", "-0.1 +- 0.2 <"] for n in range(rows)],
        ).latex()

    assert (
        r"\begin{tabular}" in table_of(3)
        and r"\begin{longtable}" in table_of(MOST_ROWS_OF_PAGE + 1)
        and r"\endhead" in table_of(MOST_ROWS_OF_PAGE + 1)
    )
