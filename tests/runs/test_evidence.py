"""Evidence: a report's folder stands for the runs it was made of, alone and beside others."""

import json
import math
import shutil
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from script_calls import call
from synthetic import (
    DOCUMENTS,
    LENGTHS,
    TARGETS,
    Built,
    derived,
    write_eval,
    write_positions,
    write_run,
)

import posbench
from posbench.common.errors import RunError
from posbench.report.report import collect_report
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.results.evidence import read_evidence, without_folders, write_evidence
from posbench.results.hashes import HASHES
from posbench.results.run_metadata import RunMetadata
from posbench.results.search import CONFIGS, SUMS, find_results
from posbench.runs.directory import Run
from posbench.runs.rows import read_csv, write_csv
from posbench.runs.target_losses import PooledLosses, TargetLosses


def numbers(report) -> list[tuple]:
    """Every point of a report, with losses to the digits that float64 sums carry."""
    points = [
        replace(point, seeds=None, by_seed=None) for section in report.sections for point in section
    ]
    points.sort(key=lambda point: (point.method, point.length))
    return [
        tuple(
            float(f"{value:.10g}") if isinstance(value, float) else value
            for value in astuple(point)
        )
        for point in points
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of two encodings: {seed: eval files}."""
    root = tmp_path_factory.mktemp("runs")
    paths_of_seeds = {
        seed: [path for encoding in ("rope", "alibi") for path in write_run(root, encoding, seed)]
        for seed in (0, 1, 2)
    }
    for run in root.iterdir():
        seed = int(run.name.split("-")[2].removeprefix("s"))
        (run / "config.yaml").write_text(
            json.dumps(
                {
                    "encoding": {"_target_": "x"},
                    "train": {"steps": 3},
                    "seed": seed,
                    "data": {},
                    "model": {},
                }
            )
        )
        (run / "provenance.json").write_text(json.dumps({"seed": seed, "platform": "one"}))
        (run / "train.json").write_text(json.dumps({"sha256": run.name, "tokens": 7}))
        lines = [
            json.dumps({"tokens": 1e5 * step, "loss": 3 - 0.01 * step}) for step in range(1, 40)
        ]
        (run / "train.jsonl").write_text("\n".join(lines))
    return paths_of_seeds


@pytest.fixture(scope="module")
def full_report(runs, tmp_path_factory):
    """The report of all runs, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "report"
    return Built([path for paths in runs.values() for path in paths], folder, "All", "x"), folder


def test_a_report_of_evidence_is_the_report_of_its_runs(full_report):
    report, folder = full_report
    again = collect_report([], "All", "x", evidence=[folder])
    assert numbers(again) == numbers(report) and len(numbers(again)) > 30
    assert again.markdown() == report.markdown() and "G" in again.markdown()
    assert again.rows == report.rows
    first, second = (either.origins for either in (report, again))
    assert [origin.provenance for origin in first.values()] == [
        origin.provenance for origin in second.values()
    ]
    assert find_results([folder]).evidence == [folder] and len(posbench.rows(folder)) == len(
        report.rows
    )


def test_a_bundle_of_runs_holds_the_evidence_of_their_report(runs, full_report, tmp_path, capfd):
    folder = runs[0][0].parents[3]
    done = call(capfd, tmp_path, "bundle", str(folder), "out=all.zip")
    assert done.returncode == 0, done.stderr
    results = find_results([tmp_path / "all.zip"])
    assert numbers(collect_report([], "All", "x", evidence=results.evidence)) == numbers(
        full_report[0]
    )
    assert str(folder) not in (results.evidence[0] / "report.html").read_text()
    beside = find_results([tmp_path / "all.zip", folder])  # each row once
    files = [path for run in beside.runs for path in Run(run).eval_files()]
    assert numbers(collect_report(files, "All", "x", evidence=beside.evidence)) == numbers(
        full_report[0]
    )


def test_seeds_of_several_machines_pool(runs, full_report, tmp_path):
    for name, seeds in {"here": (0, 2), "there": (1,)}.items():
        Built([path for seed in seeds for path in runs[seed]], tmp_path / name, "Part", "x")
    pooled = collect_report([], "All", "x", evidence=[tmp_path / "here", tmp_path / "there"])
    assert numbers(pooled) == numbers(full_report[0]) and {
        point.n_seeds for section in pooled.sections for point in section
    } == {3}
    beside = collect_report(
        runs[1], "All", "x", evidence=[tmp_path / "here"]
    )  # runs of one machine beside the evidence of another
    assert numbers(beside) == numbers(full_report[0])


def test_evidence_of_evidence_is_the_same(full_report, tmp_path):
    folder = full_report[1]
    evaluations, origins, _ = read_evidence(folder)
    write_csv([row for evaluation in evaluations for row in evaluation.rows], tmp_path / "rows.csv")
    write_evidence(tmp_path, evaluations, origins)
    again, others, _ = read_evidence(tmp_path)
    assert [evaluation.rows for evaluation in again] == [
        evaluation.rows for evaluation in evaluations
    ]
    assert (
        [origin.end_slope for origin in others.values()]
        == [origin.end_slope for origin in origins.values()]
        != [None] * len(origins)
    )
    for name in ("documents.csv", CONFIGS):
        assert (tmp_path / name).read_text() == (folder / name).read_text()


def test_other_targets_do_not_pair(tmp_path):
    losses = np.full(TARGETS, 3.0)
    floor = write_eval(
        tmp_path / "a",
        "rope",
        "recompute_window",
        "none",
        [losses] * 3,
        LENGTHS[1:],
        args={"window": None},
    )
    curve = write_eval(tmp_path / "b", "rope", "none", "none", [losses] * 4, LENGTHS)
    with np.load(curve.with_suffix(".npz")) as stored:
        arrays = {**stored, "offset": stored["offset"] + 1}
    np.savez(curve.with_suffix(".npz"), **arrays)
    for path, name in ((floor, "floor"), (curve, "curve")):
        Built([path], tmp_path / name, "t", "x")
    with pytest.raises(RunError, match="scored different targets"):
        collect_report([], "t", "x", evidence=[tmp_path / "floor", tmp_path / "curve"])


def test_a_renamed_folder_of_a_run_is_the_same_training(runs, full_report, tmp_path):
    """A copy of a run called best: its report can be read again, and is paired by the run's id."""
    run = runs[0][0].parents[2]
    shutil.copytree(run, tmp_path / "best")
    paths = Run(tmp_path / "best").eval_files()
    Built(paths, tmp_path / "report", "t", "x")
    lines = (tmp_path / "report" / CONFIGS).read_text().splitlines()
    assert [json.loads(line)["run_id"] for line in lines] == [run.name]
    assert f"\n{run.name}," in (tmp_path / "report" / "trainings.csv").read_text()
    again = collect_report([], "t", "x", evidence=[tmp_path / "report"])
    assert not again.notes
    of_this_run = [row for row in full_report[0].rows if row["run_id"] == run.name]
    assert sorted(row["nll"] for row in again.rows) == sorted(row["nll"] for row in of_this_run)
    (tmp_path / "best" / "train.json").write_text(json.dumps({"sha256": "elsewhere"}))
    with pytest.raises(RunError, match="the same training with different weights .*elsewhere"):
        collect_report([*paths, *Run(run).eval_files()], "t", "x")


def test_two_weights_of_one_training_are_refused(runs, tmp_path):
    first, *others = runs[0]
    Built([first], tmp_path / "one", "t", "x")
    lines = [json.loads(line) for line in (tmp_path / "one" / CONFIGS).read_text().splitlines()]
    (tmp_path / "one" / CONFIGS).write_text(
        "".join(json.dumps({**line, "summary": {"sha256": "elsewhere"}}) + "\n" for line in lines)
    )
    (tmp_path / "one" / HASHES).unlink()
    for beside in ([first], others):  # of the same rows one folder adds nothing
        with pytest.raises(RunError, match="the same training with different weights .*elsewhere"):
            collect_report(beside, "t", "x", evidence=[tmp_path / "one"])


@pytest.fixture
def twice(tmp_path):
    """A training, evaluated in two folders: one method in both, at other lengths, and one in each;
    {folder: files}.
    """
    paths, losses = {}, [np.full(TARGETS, 3.0)] * 2
    for place, methods, lengths in (
        ("a", ("none", "yarn"), LENGTHS[:2]),
        ("b", ("none", "pi"), LENGTHS[2:]),
    ):
        paths[place] = [
            write_eval(tmp_path / place, "rope", extension, "none", losses, lengths)
            for extension in methods
        ]
        run = paths[place][0].parents[2]
        (run / "train.json").write_text(json.dumps({"sha256": "x"}))
        (run / "provenance.json").write_text(json.dumps({"commit": place, "seed": 0}))
        for path in paths[place] if place == "b" else []:
            path.write_text(
                json.dumps(
                    {
                        **json.loads(path.read_text()),
                        "machines": dict.fromkeys(map(str, LENGTHS), {"device": "b"}),
                    }
                )
            )
    return paths


def commits(report) -> dict[tuple, str]:
    """{(extension, length): commit of the folder it was evaluated in}."""
    evaluated = [(evaluation, row) for evaluation in report.evaluations for row in evaluation.rows]
    return {
        (row["extension"], row["length"]): report.origins[evaluation.origin].provenance["commit"]
        for evaluation, row in evaluated
    }


def test_no_extension_of_one_folder_pairs_with_what_another_has_of_that_length(twice, tmp_path):
    """No extension read other lengths in each folder, and each has a method of its own at these."""
    for order in ("ab", "ba"):
        report = Built(
            [path for place in order for path in twice[place]], tmp_path / order, "All", "x"
        )
        points = [
            point
            for section in report.sections
            for point in section
            if point.extension in ("yarn", "pi")
        ]
        assert {(point.extension, point.length): point.change for point in points} == {
            **dict.fromkeys([("yarn", length) for length in LENGTHS[:2]], 0),
            **dict.fromkeys([("pi", length) for length in LENGTHS[2:]], 0),
        }


@pytest.mark.parametrize("new", ["a", "b"])
def test_a_training_evaluated_in_two_folders_keeps_what_was_evaluated_in_each(twice, tmp_path, new):
    report = Built([*twice["a"], *twice["b"]], tmp_path / "report", "All", "x")
    commit_of_row = commits(report)
    assert sorted(commit_of_row.values()) == [*"aaaa", *"bbbb"] and {
        length for name, length in commit_of_row if name == "none"
    } == set(LENGTHS)
    evaluations, _, notes = read_evidence(tmp_path / "report")
    assert [evaluation.rows for evaluation in evaluations] == [
        evaluation.rows for evaluation in report.evaluations
    ] and not notes
    more = write_eval(
        tmp_path / new, "rope", "ntk", "none", [np.full(TARGETS, 3.0)], LENGTHS[:1]
    )  # what comes later does not mix them up
    again = collect_report([more], "All", "x", evidence=[tmp_path / "report"])
    assert commits(again) == {**commit_of_row, ("ntk", LENGTHS[0]): new}
    write_evidence(tmp_path / "again", again.evaluations, again.origins)
    write_csv(again.rows, tmp_path / "again" / "rows.csv")
    third = collect_report([], "All", "x", evidence=[tmp_path / "again"])
    assert commits(third) == commits(again)
    lines = [json.loads(line) for line in (tmp_path / "again" / CONFIGS).read_text().splitlines()]
    assert sorted(line["provenance"]["commit"] for line in lines) == [
        "a",
        "b",
    ]  # a line of each folder, however often it was read
    assert sorted(
        length
        for line in lines
        for evaluation in line["evaluations"].values()
        for length in evaluation["machines"]
    ) == sorted(str(length) for _, length in commits(again))


def test_rows_without_sums_are_counted(runs, tmp_path):
    Built(runs[0], tmp_path / "one", "t", "x")
    lines = [json.loads(line) for line in (tmp_path / "one" / CONFIGS).read_text().splitlines()]
    lost = lines[0]["evaluations"].popitem()[0]
    (tmp_path / "one" / HASHES).unlink()
    (tmp_path / "one" / CONFIGS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read_csv(tmp_path / "one" / "rows.csv")
    count = sum(row["eval_id"] == lost for row in rows)
    assert count and f"one: {count} of {len(rows)} rows have no sums" in " ".join(
        collect_report([], "t", "x", evidence=[tmp_path / "one"]).notes
    )


def test_bins_of_positions_have_sums(tmp_path):
    nll = np.random.default_rng(0).normal(3, 1, (6, 16)).astype(np.float32)
    document = np.array([0, 0, 1, 4, 4, 4])
    np.savez(
        tmp_path / "a.npz",
        length=[16],
        nll_16=nll,
        correct_16=nll > 3,
        document=document,
        offset=np.arange(6),
    )
    edges, rows = (1, 2, 4, 8, 16), []
    for low, high in zip((0, *edges), edges, strict=False):
        rows.append({"length": 16, "position": high, "nll": float(nll[:, low:high].mean())})
    evaluation = Evaluation(
        rows, tmp_path / "a.json", stored=TargetLosses(tmp_path / "a.npz", {16})
    )
    for row, low in zip(rows, (0, *edges), strict=False):
        sums = evaluation.sums(row)
        assert sums.documents.tolist() == [0, 1, 4] and sums.counts.tolist() == [
            n * (row["position"] - low) for n in (2, 1, 3)
        ]
        assert (
            sums.means[0] == pytest.approx(row["nll"])
            and evaluation.sums(row, "correct").totals.sum()
            == (nll > 3)[:, low : row["position"]].sum()
        )


def test_a_report_by_position_is_that_of_its_runs(tmp_path):
    plain = np.random.default_rng(0).exponential(2.0, (5, 256))
    paths = [
        write_positions(tmp_path, name, plain + shift, document_N=np.array([0, 0, 1, 2, 7]))
        for name, shift in (("none", 0), ("pi", plain))
    ]
    report = Built(paths, tmp_path / "out", "t", "x")
    again = collect_report([], "t", "x", evidence=[tmp_path / "out"])
    assert (
        again.markdown() == report.markdown()
        and "+- " in again.markdown()
        and numbers(again) == numbers(report)
    )


def test_a_row_whose_targets_weigh_differently_has_none(tmp_path):
    path = write_eval(
        tmp_path,
        "rope",
        "none",
        "none",
        [np.full(TARGETS, 3.0)] * 4,
        LENGTHS,
        protocol="yarn_script",
    )
    content = json.loads(path.read_text())
    content["rows"][1] = derived({**content["rows"][1], "nll": 3.1})
    path.write_text(json.dumps(content))
    Built([path], tmp_path / "out", "t", "x")
    (evaluation,), *_ = read_evidence(tmp_path / "out")
    assert [evaluation.sums(row) is None for row in evaluation.rows] == [False, True, False, False]


def test_an_infinite_loss_stays_one(tmp_path):
    losses = np.full(TARGETS, 3.0)
    losses[5] = np.inf
    path = write_eval(tmp_path, "rope", "none", "none", [losses] * 4, LENGTHS)
    write_evidence(
        tmp_path, [load_evaluation(path)], {path.parents[2]: RunMetadata(path.parents[2], {}, {})}
    )
    write_csv(load_evaluation(path).rows, tmp_path / "rows.csv")
    (evaluation,), *_ = read_evidence(tmp_path)
    assert math.isinf(evaluation.sums(evaluation.rows[0]).means[0]) and isinstance(
        evaluation.stored, PooledLosses
    )
    assert (
        len(evaluation.stored.documents) == DOCUMENTS
        and sum(document.n_targets for document in evaluation.stored.documents) == TARGETS
    )


def copy_evidence(folder: Path, target: Path) -> None:
    for name in ("rows.csv", SUMS, "documents.csv", CONFIGS):
        shutil.copyfile(folder / name, target / name)


DAMAGE = {
    "short": lambda arrays: {name: array[:-1] for name, array in arrays.items()},
    "of other rows": lambda arrays: {**arrays, "row": arrays["row"] + 1},
    "unsorted": lambda arrays: {**arrays, "row": arrays["row"][::-1]},
    "of unequal lengths": lambda arrays: {**arrays, "nll": arrays["nll"][1:]},
    "a document twice": lambda arrays: {**arrays, "document": arrays["document"] * 0},
    "cut": "{",
    "of a wrong kind": '{"run_id": "a", "config": []}',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_evidence_is_one_sentence(full_report, tmp_path, damage):
    for name in ("rows.csv", SUMS, "documents.csv", CONFIGS):
        shutil.copyfile(full_report[1] / name, tmp_path / name)
    if isinstance(DAMAGE[damage], str):
        (tmp_path / CONFIGS).write_text(DAMAGE[damage] + "\n")
    else:
        with np.load(tmp_path / SUMS) as stored:
            arrays = dict(stored)
        np.savez(tmp_path / SUMS, **DAMAGE[damage](arrays))
    with pytest.raises(
        RunError, match="evidence in .* is damaged.*: recreate it with scripts/report.py, or leave"
    ):
        read_evidence(tmp_path)


TEMPLATE = "{{ '</think>' }} /no_think"


def test_values_that_are_paths_lose_their_folders():
    config = {
        "data": {
            "path": "/home/somebody/my books",
            "tokenizer": "/models/tiny.gguf",
            "source": {"exclude": ["/a/*"]},
        },
        "model": {"path": "org/name", "d_model": 64},
        "results_dir": "results/runs",
        "runs": ["/data/one", "here/two"],
        "evaluate": {
            "chat": {"template": TEMPLATE},
            "text": {"name": "local", "path": ["/x/a.txt", "b.txt"]},
        },
    }
    assert without_folders(config) == {
        "data": {"path": "my books", "tokenizer": "tiny.gguf", "source": {"exclude": ["/a/*"]}},
        "model": {"path": "org/name", "d_model": 64},
        "results_dir": "results/runs",
        "runs": ["one", "here/two"],
        "evaluate": {
            "chat": {"template": TEMPLATE},
            "text": {"name": "local", "path": ["a.txt", "b.txt"]},
        },
    }


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (
            "python scripts/run.py data.path=/home/somebody/books seed=0",
            "python scripts/run.py data.path=books seed=0",
        ),
        (
            "/opt/venv/bin/python scripts/run.py run=results/runs/x",
            "python scripts/run.py run=results/runs/x",
        ),
        (
            "python run.py 'runs=[/a/one,/b/two]' 'report_dir=/c/three four'",
            "python run.py 'runs=[one,two]' 'report_dir=three four'",
        ),
        ("python run.py data.path=https://example.org/a/b model.path=org/name", None),
        ("python run.py extension=yarn,ntk 'evaluate.lengths=[64,128]'", None),
        (None, None),
    ],
)
def test_the_words_of_a_command_lose_their_folders(typed, shown):
    assert without_folders(typed, "command") == (shown or typed)
    assert without_folders({"resumed": [{"command": typed}]}) == {
        "resumed": [{"command": shown or typed}]
    }
