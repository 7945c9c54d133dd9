"""Reported rows against a rerun: equal bit for bit here, green within the tolerance, red beyond
it.
"""

import json
import shutil

import pytest
from script_calls import call
from synthetic import derived
from test_cli import TINY
from test_rows import VALUES

from posbench.runs.rows import make_row, read_csv, write_csv
from posbench.tools.reproduce.command import comparison_lines, pair_rows

GRID = (
    "name: mini\ntitle: Mini\nbase: {}\ngrid: [{encoding: [rope, alibi], extension: [none,"
    " window]}]\ntolerance: {nll: 0.01, share: 0.1}\n"
)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Where `reported` is copied from."""
    return tmp_path_factory.mktemp("reported") / "whole"


@pytest.fixture
def reported(once, tmp_path, text_folder, capfd):
    """(words of the command line, folder of the committed rows) of a small experiment that was run
    and reported.
    """
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "mini.yaml").write_text(GRID)
    folder = tmp_path / "results" / "reported" / "mini"
    words = [
        "--config-dir",
        str(tmp_path / "mine"),
        *TINY,
        f"data.path={text_folder}",
        f"cache_dir={tmp_path}/cache",
        "experiment=mini",
    ]
    if once.exists():
        shutil.copytree(once, tmp_path, dirs_exist_ok=True)
        return words, folder
    assert call(capfd, tmp_path, "run", *words).returncode == 0
    assert call(capfd, tmp_path, "report", *words, f"report_dir={folder}").returncode == 0
    shutil.copytree(tmp_path, once, ignore=shutil.ignore_patterns("mine", "text"))
    return words, folder


def change(folder, by: float) -> None:
    """Move one reported loss, with what follows from it, as a wrong number in a committed file
    would be.
    """
    rows = read_csv(folder / "rows.csv")
    setting = {"setting": rows[0].pop("setting")} if "setting" in rows[0] else {}
    rows[0] = {**derived({**rows[0], "nll": rows[0]["nll"] + by}), **setting}
    write_csv(rows, folder / "rows.csv")
    for name in ("hashes.json", "sums.npz", "documents.csv", "configs.jsonl"):  # which would tell
        (folder / name).unlink(missing_ok=True)


def test_a_rerun_is_equal_bit_for_bit_and_a_changed_number_is_a_miss(reported, tmp_path, capfd):
    words, folder = reported
    planned = call(capfd, tmp_path, "reproduce", *words, "dry=true")
    assert (
        planned.returncode == 0
        and "2 of 2 trainings to make" in planned.stdout
        and "reproduced" in planned.stdout
    )
    assert not (tmp_path / "results" / "reproduced").exists()
    done = call(capfd, tmp_path, "reproduce", *words)
    rows = len(read_csv(folder / "rows.csv"))
    assert (
        done.returncode == 0
        and f"{rows} of {rows} reported rows reproduced, all of them bit for bit" in done.stdout
    )
    trained = sorted((tmp_path / "results" / "reproduced" / "mini").glob("*/train.json"))
    assert (
        len(trained) == 2
        and not json.loads((trained[0].parents[1] / "compared.json").read_text())["missed"]
    )
    before = [path.stat().st_mtime_ns for path in trained]
    done = call(capfd, tmp_path, "reproduce", *words, "dry=true")
    assert (
        done.returncode == 0 and "without dry=true they are deleted and made again" in done.stdout
    )
    assert before == [path.stat().st_mtime_ns for path in trained]

    change(folder, by=0.005)
    alibi_words = [*words, "encoding=alibi"]
    done = call(capfd, tmp_path, "reproduce", *alibi_words)
    assert done.returncode == 0 and "1 of its trainings" in done.stdout
    after = [path.stat().st_mtime_ns for path in trained]
    assert (
        sum(old != new for old, new in zip(before, after, strict=True)) == 1
    )  # made again, and the other one left alone

    change(folder, by=0.05)
    done = call(capfd, tmp_path, "reproduce", *words)
    assert (
        done.returncode == 1
        and "missed: " in done.stdout
        and f"{rows - 1} of {rows}" in done.stdout
    )


def test_a_rerun_leaves_the_runs_of_results_dir_alone(reported, tmp_path, capfd):
    """By any spelling of their folder: they are neither taken for the rerun, nor deleted by the
    next one.
    """
    words, _ = reported
    kept = sorted((tmp_path / "results" / "runs").glob("*/train.json"))
    before = [path.stat().st_mtime_ns for path in kept]
    for spelling in (f"{tmp_path}/results/runs", "results/runs/"):
        done = call(capfd, tmp_path, "reproduce", *words, f"results_dir={spelling}")
        assert done.returncode == 0, done.stderr
        rerun = sorted((tmp_path / "results" / "reproduced" / "mini").glob("*/train.json"))
        assert [path.parent.name for path in rerun] == [path.parent.name for path in kept]
        assert before == [path.stat().st_mtime_ns for path in kept]


def test_a_run_that_is_named_is_not_taken_for_the_rerun_and_deleted_by_the_next(
    reported, tmp_path, capfd
):
    words, _ = reported
    rope = next((tmp_path / "results" / "runs").glob("rope-*"))
    trained_at = (rope / "train.json").stat().st_mtime_ns
    others = [word for word in words if not word.startswith(("data=", "data.path="))]  # the run's
    for _ in range(2):
        done = call(capfd, tmp_path, "reproduce", *others, "encoding=rope", f"run={rope}")
        assert done.returncode == 2 and f"compare it as runs={rope}" in done.stderr
        assert (rope / "train.json").stat().st_mtime_ns == trained_at
    done = call(capfd, tmp_path, "reproduce", *words, "encoding=rope", f"runs={rope}")
    assert done.returncode == 0, done.stderr  # the way out


def test_the_parents_of_fine_tuned_trainings_are_trained_again_too(tmp_path, text_folder, capfd):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    tuned = "grid: [{finetune: longer, finetune.steps: 1, finetune.warmup: 0}]"
    grid = GRID.replace(GRID[GRID.index("grid:") : GRID.index("tolerance:")], f"{tuned}\n")
    (tmp_path / "mine" / "experiment" / "mini.yaml").write_text(grid)
    folder = tmp_path / "results" / "reported" / "mini"
    words = ["--config-dir", str(tmp_path / "mine"), *TINY, f"data.path={text_folder}"]
    words += [f"cache_dir={tmp_path}/cache", "experiment=mini"]
    for name, more in (("run", []), ("report", [f"report_dir={folder}"])):
        assert call(capfd, tmp_path, name, *words, *more).returncode == 0
    made = []  # times at which the parent's and the child's training ended, of each rerun
    for _ in range(2):
        done = call(capfd, tmp_path, "reproduce", *words)
        assert done.returncode == 0, done.stderr
        trained = sorted((tmp_path / "results" / "reproduced" / "mini").glob("*/train.json"))
        made.append([path.stat().st_mtime_ns for path in trained])
    first, second = made
    assert len(first) == len(second) == 2 and not {*first} & {*second}


def test_what_was_made_elsewhere_is_compared_without_a_rerun(reported, tmp_path, capfd):
    """The folder of a report with its evidence, or runs, of all or some trainings; a CSV of means
    is refused.
    """
    words, folder = reported
    rows, theirs = read_csv(folder / "rows.csv"), tmp_path / "theirs"
    assert call(capfd, tmp_path, "report", *words, f"report_dir={theirs}").returncode == 0
    done = call(capfd, tmp_path, "reproduce", *words, f"runs=[{theirs}]")
    assert (
        done.returncode == 0
        and f"{len(rows)} of {len(rows)} reported rows reproduced, all of them bit for bit"
        in done.stdout
    )
    change(folder, by=0.005)
    done = call(capfd, tmp_path, "reproduce", *words, f"runs=[{theirs}]")
    assert done.returncode == 0 and f"{len(rows) - 1} of them bit for bit" in done.stdout
    alibi = next((tmp_path / "results" / "runs").glob("alibi-*"))
    done = call(capfd, tmp_path, "reproduce", *words, f"runs=[{alibi}]")
    missing = sum(row["encoding"] == "rope" for row in rows)
    assert done.returncode == 1 and done.stdout.count("now missing") == min(missing, 10)
    assert (
        call(capfd, tmp_path, "reproduce", *words, f"runs=[{alibi}]", "encoding=alibi").returncode
        == 0
    )
    refused = call(capfd, tmp_path, "reproduce", *words, f"runs=[{alibi}]", "encoding=rope")
    assert (
        refused.returncode == 2
        and f"holds none of the {missing} rows" in refused.stderr
        and not refused.stdout
    )
    refused = call(capfd, tmp_path, "reproduce", *words, f"runs=[{folder}/rows.csv]")
    assert refused.returncode == 2 and "does not say by which weights" in refused.stderr
    assert not (tmp_path / "results" / "reproduced").exists()


def test_what_cannot_be_compared_is_refused(reported, tmp_path, capfd):
    words, _ = reported
    for word, message in (
        ("experiment=none", "tolerance"),
        ("train.steps=5", "has none of the requested losses"),
        (f"report_dir={tmp_path}/no", "rows.csv"),
    ):
        name = word.split("=")[0] + "="
        done = call(
            capfd,
            tmp_path,
            "reproduce",
            *[typed for typed in words if not typed.startswith(name)],
            word,
        )
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_an_experiment_without_a_tolerance_is_named_and_run_makes_its_rows_again(tmp_path, capfd):
    refused = call(capfd, tmp_path, "reproduce", "experiment=tuning")
    assert refused.returncode == 2 and "experiment=tuning has no tolerance" in refused.stderr
    assert "run.py experiment=tuning" in refused.stderr


def test_the_tolerance_grows_with_the_height_above_the_floor():
    def row(extension: str, nll: float | None, documents: int = 18) -> dict:
        args = {"window": None} if extension == "recompute_window" else {}
        values = {
            **VALUES,
            "eval_id": f"{extension} {documents}",
            "extension": extension,
            "extension_args": args,
            "train_len": 16,
        }
        return make_row(
            **{
                **values,
                "length": 32,
                "n_targets": 64,
                "n_units": documents,
                "n_bytes": 128,
                "nll": nll,
            }
        )

    rows = [row("recompute_window", 3.0), row("none", 5.0), row("pi", None)]
    again = [row("recompute_window", 3.011), row("none", 5.2)]
    floor, broken, unknown = pair_rows(rows, again, nll=0.01, share=0.1)
    assert floor.missed and not broken.missed and broken.allowed == pytest.approx(0.21)
    assert unknown.missed and "missing" in comparison_lines([unknown])[-1]
    assert not pair_rows(rows[2:], [row("pi", None)], nll=0.01, share=0.1)[
        0
    ].missed  # infinite in both
    few = pair_rows(rows[1:2], again, nll=0.01, token=0.4)
    assert few[0].missed and few[0].allowed == pytest.approx(0.01 + 0.4 / 8)  # 64 tokens
    others = [
        row("recompute_window", 4.0, 10),
        row("none", 5.0, 10),
    ]  # the same training on another text
    allowed = [
        pair.allowed
        for pair in pair_rows(rows + others, [], nll=0.01, share=0.1)
        if pair.reported["extension"] == "none"
    ]
    assert allowed == pytest.approx([0.21, 0.11])


def test_the_largest_difference_of_accuracy_is_shown_and_not_judged():
    def row(length: int, accuracy: float | None) -> dict:
        return make_row(**{**VALUES, "length": length, "accuracy": accuracy})

    reported = [row(64, 1.0), row(128, 0.75), row(256, None)]
    again = [row(64, 0.995), row(128, 0.5), row(256, None)]
    pairs = pair_rows(reported, again, nll=0.01)
    shown = [line for line in comparison_lines(pairs) if "accuracy" in line]
    assert not any(pair.missed for pair in pairs) and len(shown) == 1
    assert "accuracy -25.0 percentage points (not judged)" in shown[0] and "128" in shown[0]
    assert "accuracy" not in "".join(comparison_lines(pair_rows(reported, reported, nll=0.01)))
