"""scripts/anatomy.py as a user meets it."""

import json

import pytest
from dissected import trained_t5
from script_calls import call


@pytest.fixture
def script(tmp_path, capfd):
    return lambda *overrides, name="anatomy": call(capfd, tmp_path, name, *overrides)


def test_the_script_writes_numbers_and_picture(tmp_path, script):
    done = script("encoding=rope", "extension=pi", "train.length=32", "length=128")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "anatomy"
    assert {path.name for path in folder.iterdir()} == {
        f"rope+pi+none.{kind}" for kind in ("json", "png", "svg")
    }
    assert all(
        f"results/anatomy/rope+pi+none.{kind}" in done.stdout for kind in ("json", "png", "svg")
    )
    numbers = json.loads((folder / "rope+pi+none.json").read_text())
    assert (numbers["train_len"], numbers["length"], numbers["distance"][4]) == (32, 128, 1.0)


def test_the_script_says_a_noop_and_writes_where_it_is_told(tmp_path, script):
    done = script("encoding=none", "extension=pi", "length=128", f"json={tmp_path}/a/numbers.json")
    assert done.returncode == 0 and "no-op: encoding=none has no positions" in done.stderr
    assert [path.name for path in tmp_path.rglob("*.[jps]*")] == ["numbers.json"]
    assert script("length=128", "out=there").returncode == 0
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        f"rope+none+none.{kind}" for kind in ("json", "png", "svg")
    }


def test_the_script_refuses_with_the_sentence_of_run(script):
    refused = [script("encoding=alibi", "extension=ntk", name=name) for name in ("anatomy", "run")]
    assert [done.returncode for done in refused] == [2, 2]
    assert "alibi has no spectrum to change" in refused[0].stderr
    sentence = refused[0].stderr.strip().splitlines()[-1]
    assert sentence.removeprefix("refused: ") in refused[1].stderr
    assert script("length=0").returncode == 2
    other_format = script("figure=shown.pdf")
    assert other_format.returncode == 2 and "give figure=shown." in other_format.stderr


def test_the_script_shows_a_trained_encoding(tmp_path, script):
    run = trained_t5(tmp_path / "t5-16-s0-0000000000")
    done = script(f"run={run.path}", "length=16", "json=t5.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "t5.json").read_text())["bias"][1] == [
        2.0 * distance + 1 for distance in range(16)
    ]
    assert "as trained" in done.stdout


def test_a_checkpoint_that_transformers_builds_is_dissected_as_it_turns(tmp_path, script):
    pytest.importorskip("transformers")
    from families import tiny

    original = tiny("gpt_neox")  # a quarter of its channels turns
    original.save_pretrained(tmp_path / "neox")
    done = script("model=hf", f"model.path={tmp_path}/neox", "length=64", "json=neox.json")
    assert done.returncode == 0, done.stderr
    spectrum = json.loads((tmp_path / "neox.json").read_text())["spectrum"]
    assert spectrum == pytest.approx(original.gpt_neox.rotary_emb.inv_freq.tolist(), rel=1e-5)
