"""Texts of a long evaluation that was stopped: found again by the same command, and only by it."""

import json

import numpy as np
import pytest
from test_cli import InProcess
from test_housekeeping import SUMMARY, make

from posbench.evaluation import scorer
from posbench.results.cleanup import find_waste
from posbench.results.inventory import list_runs
from posbench.runs import partial_evaluation, provenance
from posbench.runs.partial_evaluation import PART_ENDING, PartialEvaluation
from posbench.runs.rows import VOLATILE_COLUMNS, read_eval
from posbench.runs.target_losses import load_arrays

ASKED = (np.arange(8).reshape(2, 4), np.arange(4).reshape(2, 2), None)
READ = [
    np.array([[0.5, 1.5], [2.5, np.inf]], np.float32),
    np.array([[True, False], [False, False]]),
]
MADE = {"code": "a commit", "machine": {"threads": 2}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(partial_evaluation, "SECONDS_BETWEEN_WRITES", 0.0)


def test_a_batch_is_found_again_with_its_time_and_memory(tmp_path):
    path, key = tmp_path / f"ntk+none-1{PART_ENDING}", PartialEvaluation.key(4, ASKED)
    PartialEvaluation(path, MADE).add(key, READ, 7.0, 300.0)
    partial = PartialEvaluation(path, MADE)
    assert partial.seconds == partial.peak_mib == 0
    again = partial.find(key)
    assert len(again) == 2 and all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(again, READ, strict=True)
    )
    assert (partial.seconds, partial.peak_mib) == (7.0, 300.0)
    partial.end()
    assert not path.exists() and partial.find(key) is None


def test_a_batch_is_another_by_its_length_tokens_targets_or_choices():
    fed, targets, _ = ASKED
    others = [
        (5, ASKED),
        (4, (fed + 1, targets, None)),
        (4, (fed, targets + 1, None)),
        (4, (fed, targets, targets)),
        (4, (fed.T, targets, None)),
    ]
    assert len(
        {
            PartialEvaluation.key(4, ASKED),
            *(PartialEvaluation.key(*arguments) for arguments in others),
        }
    ) == 1 + len(others)


def test_nothing_is_written_of_what_is_quickly_read(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_evaluation, "SECONDS_BETWEEN_WRITES", 60.0)
    path = tmp_path / PART_ENDING
    PartialEvaluation(path, MADE).add("a", READ, 7.0, 300.0)
    assert not path.exists()


@pytest.mark.parametrize(
    ("spoil", "why"), [("code", "of other code or another machine"), ("bytes", "zip file")]
)
def test_a_file_of_other_code_and_a_damaged_one_are_told_and_not_used(tmp_path, capsys, spoil, why):
    path, key = tmp_path / PART_ENDING, PartialEvaluation.key(4, ASKED)
    PartialEvaluation(path, MADE).add(key, READ, 7.0, 300.0)
    if spoil == "bytes":
        path.write_bytes(path.read_bytes()[:-100])
    partial = PartialEvaluation(path, {**MADE, "code": "another"} if spoil == "code" else MADE)
    assert partial.find(key) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and why in line and line.endswith(": its texts are read again")


def test_gc_leaves_them(tmp_path):
    run = make(tmp_path / "runs", "1", train=SUMMARY)
    for name in (
        f"evals/fixed_targets/ntk+none-1{PART_ENDING}",
        "evals/fixed_targets/pi+none-1.npz",
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    assert [
        waste.path.name for waste in find_waste(tmp_path / "runs", list_runs(tmp_path / "runs"))
    ] == ["pi+none-1.npz"]


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate.lengths=[64]", "extension=ntk"],  # 9 windows, each a batch
        ["evaluate.lengths=[16,64]", "evaluate.protocol=by_position", "evaluate.windows=9"],
        [
            "evaluate.lengths=[64]",
            "evaluate.protocol=longppl",
            "evaluate.key_gain=0.0001",
            "evaluate.key_loss=20",
        ],
    ],
    ids=["fixed_targets", "by_position", "longppl"],
)
def test_an_evaluation_goes_on_after_the_texts_that_were_read(
    tmp_path, text_folder, capfd, monkeypatch, words
):
    monkeypatch.setattr(
        provenance, "commit_and_changes", lambda: ("the same", None)
    )  # a test is no reason not to write code meanwhile
    undisturbed, stopped = (
        InProcess(tmp_path / name, text_folder, capfd) for name in ("whole", "stopped")
    )
    words = [
        "evaluate.floor=false",
        "evaluate.max_length=64",
        "evaluate.windows=9",
        "evaluate.batch_tokens=64",
        *words,
    ]
    calls, read = [], scorer._target_scores
    monkeypatch.setattr(
        scorer, "_target_scores", lambda *arguments: calls.append(arguments) or read(*arguments)
    )
    for cli in (undisturbed, stopped):
        cli.folder.mkdir()
        cli(
            "evaluate.floor=false",
            "evaluate.max_length=64",
            "evaluate.windows=9",
            "evaluate.lengths=[16]",
        )
    calls.clear()
    undisturbed(*words)
    needed = len(calls)

    def interrupted(*arguments):
        if len(calls) == needed - 3:
            raise KeyboardInterrupt
        calls.append(arguments)
        return read(*arguments)

    calls.clear()
    monkeypatch.setattr(scorer, "_target_scores", interrupted)
    stopped(*words, code=1)  # as if the process of the job alone were stopped
    (part,) = stopped.folder.glob(f"runs/*/evals/*/*{PART_ENDING}")
    monkeypatch.setattr(
        scorer, "_target_scores", lambda *arguments: calls.append(arguments) or read(*arguments)
    )
    before, n_stored = len(calls), sum(name.startswith("spent") for name in np.load(part))
    assert n_stored >= 4
    stopped(*words)
    assert len(calls) == needed + before - n_stored and not part.exists()
    name = part.name.removesuffix(PART_ENDING)
    undisturbed_path, stopped_path = (
        next(cli.folder.glob(f"runs/*/evals/*/{name}.json")) for cli in (undisturbed, stopped)
    )
    assert [_steady(row) for row in read_eval(undisturbed_path)] == [
        _steady(row) for row in read_eval(stopped_path)
    ]
    assert all(row["seconds"] > 0 and row["peak_mib"] > 0 for row in read_eval(stopped_path))
    arrays = [load_arrays(path.with_suffix(".npz")) for path in (undisturbed_path, stopped_path)]
    assert all(
        np.array_equal(arrays[0][length]["nll"], arrays[1][length]["nll"]) for length in arrays[0]
    )
    assert json.loads(stopped_path.read_text())["machines"].keys() == {
        str(length) for length in arrays[1]
    }


def _steady(row: dict) -> dict:
    return {key: row[key] for key in row if key not in VOLATILE_COLUMNS}
