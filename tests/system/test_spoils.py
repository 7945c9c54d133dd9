"""Each kind of bad input and damaged file: one sentence, the exit code, and nothing lost."""

import logging

import pytest
from kinds import KINDS
from script_calls import call
from spoils import overrides


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
