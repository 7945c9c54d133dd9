"""dry=true: what it says of a few jobs, of many, and of what they would cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from script_calls import call
from test_cli import TINY

from posbench import dry
from posbench.cells import Cell, Job
from posbench.dry_cost import cost
from posbench.runs import Run

MODEL, OTHER = {"d_model": 16}, {"d_model": 512}
NTK, PI = ({"_target_": f"posbench.extensions.{name}.Any"} for name in ("ntk", "pi"))


def job(folder: Path, name: str, jobs: int = 1, model: dict = MODEL) -> Job:
    cfg = {"train": {"steps": 100, "tokens_per_step": 6000}, "model": model, "results_dir": str(folder), "jobs": jobs}
    return Job(cfg, Run(folder / name), "")


def cell(extension: dict, protocol: str = "fixed_targets") -> Cell:
    return Cell(protocol, extension, {}, {"windows": 10}, False, "", Path("nowhere"))


def measured(folder: Path, name: str, speed: float, model: dict, weights: int, **seconds: float) -> None:
    """A finished run of that speed (tokens/s) with one evaluation of 10 windows at length 100 for each extension in `seconds`."""
    path = folder / name
    (path / "evals" / "fixed_targets").mkdir(parents=True)
    (path / "config.yaml").write_text(json.dumps({"encoding": {}, "model": model, "train": {}, "data": {}}))
    (path / "train.json").write_text(json.dumps({"sha256": "x", "tokens_per_second": speed}))
    (path / "model.safetensors").write_bytes(b"x" * weights)
    for extension, took in seconds.items():
        node = {"_target_": f"posbench.extensions.{extension}.Any"}
        content = {"config": {"protocol": "fixed_targets", "extension": node, "evaluate": {"windows": 10}}}
        content["rows"] = [{"length": 100, "seconds": took}]
        file = path / "evals" / "fixed_targets" / f"{extension}+none-1.json"
        file.write_text(json.dumps(content).ljust(1000))
        file.with_suffix(".npz").write_bytes(b"x" * 2**20)


def test_nothing_measured_is_said_to_be_unknown(tmp_path):
    fresh = [job(tmp_path, "a-16-s0-0000000000")]
    (line,) = cost(fresh, fresh, [(fresh[0], cell(PI), [100, 900])])
    assert line == (
        "1 of 1 trainings to make, 0.6 M tokens; 1 evaluations, 10,000 tokens; time and disk unknown: nothing has been measured here yet"
    )
    assert cost(fresh, [], []) == ["0 of 1 trainings to make, 0 tokens; 0 evaluations, 0 tokens"]


def test_time_and_disk_are_those_of_the_same_model_and_method(tmp_path):
    measured(tmp_path, "a-16-s0-0000000001", 5000.0, MODEL, 3 * 2**20, pi=1.0, ntk=100.0)
    measured(tmp_path, "a-16-s0-0000000002", 50.0, OTHER, 99 * 2**20)
    (tmp_path / "a-16-s0-0000000002" / "train.json").with_name("failure.txt").touch()
    fresh = [job(tmp_path, "a-16-s0-0000000003", jobs=2)]
    _, said = cost(fresh, fresh, [(fresh[0], cell(PI), [100, 200])])
    # 600,000 tokens at 5,000 a second; 3,000 tokens at a millisecond each; 3 MiB of weights, twice 1 MiB and 1,000 bytes of evaluations
    assert said == (
        "about 2 min of training by the 2 runs that are there, 3 s of evaluation by the 2 evaluations that are there; "
        "jobs=2 divides the time as far as the machine has cores for it; 5.0 MiB of disk"
    )
    _, said = cost(fresh, [], [(fresh[0], cell(NTK), [1000])])
    assert said.startswith("about 17 min of evaluation")  # 10,000 tokens at 0.1 s
    other = job(tmp_path, "a-16-s0-0000000004", model=OTHER)
    assert "about 3.3 h of training" in cost([other], [other], [])[1]


def test_evaluations_are_told_by_trainings_where_none_is_there(tmp_path):
    measured(tmp_path, "a-16-s0-0000000001", 100.0, MODEL, 1)
    known = job(tmp_path, "a-16-s0-0000000001")
    _, said = cost([known], [], [(known, cell(PI), [300])])
    assert said.startswith("about 10 s of evaluation by a third of the trainings' time per token")


@pytest.fixture
def typed(tmp_path, text_folder):
    return [*TINY, f"data.path={text_folder}", "results_dir=runs", "cache_dir=cache", "dry=true"]


def test_few_evaluations_are_listed_and_many_are_counted(tmp_path, capfd, typed, monkeypatch):
    asked = ["-m", "encoding=none,alibi", "extension=ntk,none", "evaluate.lengths=[16]", *typed]
    asked.remove("evaluate.lengths=[16,32]")
    few = call(capfd, tmp_path, "run", *asked).stdout.splitlines()
    assert sum("to train" in line for line in few) == 2 and sum(": lengths 16" in line for line in few) == 2
    assert sum("no-op: encoding=none" in line for line in few) == 1 and sum("refused: encoding=alibi" in line for line in few) == 1
    monkeypatch.setattr(dry, "MANY", 5)
    many = call(capfd, tmp_path, "run", *asked).stdout.splitlines()
    assert len(many) == 2 + 2 + 1 and many[-1] == few[-1]
    assert many[0].endswith("to train; 3 evaluations to make (3 lengths), 1 left out")
    assert {line.split(":")[0] for line in many[2:4]} == {"1 x no-op", "1 x refused"}


def test_a_training_that_nothing_hangs_off_is_not_made(tmp_path, capfd, typed):
    done = call(capfd, tmp_path, "run", "encoding=alibi", "extension=ntk", *typed)
    assert "not to train, since nothing is left to evaluate" in done.stdout and "0 of 1 trainings to make" in done.stdout


def test_an_encoding_that_is_refused_costs_no_other_job(tmp_path, capfd, typed):
    typed.remove("model.d_model=16")
    done = call(capfd, tmp_path, "run", "-m", "encoding=rope,none", "model.d_model=18", "model.n_head=2", *typed)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 trainings to make" in done.stdout and done.stdout.count("to train") == 1 and done.stdout.count("  refused: ") == 1
