"""scripts/anatomy.py as a user meets it."""

import json
from dataclasses import asdict

import pytest
import torch
from conftest import node
from script_calls import call

from posbench.config.schema import ModelConfig, TrainConfig
from posbench.model.gpt import GPT
from posbench.model.weights import save_weights
from posbench.position.geometry import Shape
from posbench.position.instantiate import make
from posbench.runs.directory import Run


@pytest.fixture
def script(tmp_path, capfd):
    return lambda *overrides, name="anatomy": call(capfd, tmp_path, name, *overrides)


def test_the_script_writes_numbers_and_picture(tmp_path, script):
    done = script("encoding=rope", "extension=pi", "train.length=32", "length=128")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "anatomy"
    assert {path.name for path in folder.iterdir()} == {f"rope+pi+none.{kind}" for kind in ("json", "png", "svg")}
    assert all(f"results/anatomy/rope+pi+none.{kind}" in done.stdout for kind in ("json", "png", "svg"))
    numbers = json.loads((folder / "rope+pi+none.json").read_text())
    assert (numbers["train_len"], numbers["length"], numbers["distance"][4]) == (32, 128, 1.0)


def test_the_script_says_a_noop_and_writes_where_it_is_told(tmp_path, script):
    done = script("encoding=none", "extension=pi", "length=128", f"json={tmp_path}/a/numbers.json")
    assert done.returncode == 0 and "no-op: encoding=none has no positions" in done.stderr
    assert [path.name for path in tmp_path.rglob("*.[jps]*")] == ["numbers.json"]


def test_the_script_refuses_with_the_sentence_of_run(script):
    refused = [script("encoding=alibi", "extension=ntk", name=name) for name in ("anatomy", "run")]
    assert [done.returncode for done in refused] == [2, 2]
    assert "alibi has no spectrum to change" in refused[0].stderr
    said = refused[0].stderr.strip().splitlines()[-1]
    assert said.removeprefix("refused: ") in refused[1].stderr
    assert script("length=0").returncode == 2


def test_the_script_shows_a_trained_encoding(tmp_path, script):
    model_config, train = ModelConfig(d_model=16, n_layer=1, n_head=2, d_ff=32), {**asdict(TrainConfig()), "length": 16}
    model = GPT(model_config, make(node("encoding", "t5"), Shape(16, 1, 2, 2, 16)), 50)
    with torch.no_grad():
        model.encoding.weight.copy_(torch.arange(64).view(1, 32, 2))
    run = Run(tmp_path / "t5-16-s0-0000000000")
    with run.lock():
        run.write_config({"encoding": node("encoding", "t5"), "model": asdict(model_config), "train": train, "data": {}, "seed": 0})
        run.write_summary({"sha256": save_weights(run.weights, model)})
    done = script(f"run={run.path}", "length=16", "json=t5.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "t5.json").read_text())["bias"][1] == [2.0 * distance + 1 for distance in range(16)]
    assert "as trained" in done.stdout
