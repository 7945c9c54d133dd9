"""Each kind of bad input and damaged file: one sentence, the exit code, and nothing lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from kinds import KINDS
from script_calls import call
from spoils import PLACES, SMALL, World, overrides

from posbench import train
from posbench.data import sources


@pytest.fixture(scope="module")
def small_world(tmp_path_factory) -> Path:
    """Made once; each kind spoils a copy."""
    root = tmp_path_factory.mktemp("world")
    for split, count in (("train", 6), ("validation", 2), ("test", 3)):
        (root / "text" / split).mkdir(parents=True)
        for i in range(count):
            words = " ".join(f"{split} document {i} says word {n * (i + 3) % 37}." for n in range(40))
            (root / "text" / split / f"{i}.txt").write_text(words)
    return root


@pytest.fixture
def world(small_world, tmp_path, capfd, monkeypatch) -> World:
    if not (small_world / "runs").exists():
        assert call(capfd, small_world, "run", *SMALL, *PLACES).returncode == 0
        with monkeypatch.context() as patch:
            patch.setattr(train, "_finish", interrupt)
            assert call(capfd, small_world, "run", "seed=1", *SMALL, *PLACES).returncode != 0
        (small_world / "runs" / "ledger.jsonl").unlink()
    shutil.copytree(small_world, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(sources, "_seen", {})
    return World(tmp_path)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_world_has_a_finished_run_and_one_that_can_go_on(world):
    assert (world.run(0) / "train.json").exists() and not (world.run(1) / "train.json").exists()
    assert (world.run(1) / "state.pt").exists() and (world.run(1) / "state.previous.pt").exists()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_one_sentence_and_nothing_lost(world, capfd, monkeypatch, kind):
    typed = overrides(kind, world)
    kind.spoil(world)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # of libraries that log to a stream pytest has closed
    before = world.files()
    done = call(capfd, world.root, kind.script, *typed)
    assert done.returncode == kind.code
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith(("refused: ", "failed: "))]
    assert kind.said in sentence
    assert "Traceback" not in done.stderr
    after = world.files()
    assert {name: after.get(name) for name in before} == before
