"""Each kind of bad input and damaged file: one sentence, the exit code, and nothing lost."""

import logging

import pytest
from script_calls import call
from spoils import (
    Kind,
    edit,
    file_instead,
    flip,
    folder_instead,
    half,
    mine,
    other_state,
    overrides,
    users_file,
    yaml_line,
)

OWN = ("--config-dir", "mine")
GOES_ON = ("seed=1",)
AGAIN = ("extension=window",)

TYPED = [
    Kind("unknown key", ("encodng=rope",), "'encodng'"),
    Kind("unknown choice of a group", ("encoding=ropee",), "sinusoidal"),
    Kind("a word for a number", ("train.steps=many",), "train.steps"),
    Kind("negative steps", ("train.steps=-5",), "train.steps=-5"),
    Kind("a training length beyond every document",
        ("train.length=100000", "train.tokens_per_step=100000",
         "evaluate.lengths=null", "evaluate.max_length=null"), "the longest"),
    Kind("a length beyond max_length", ("evaluate.lengths=[16,256]",),
        "evaluate.max_length to 256"),
    Kind("unknown protocol", ("evaluate.protocol=[sideways]",), "by_position"),
    Kind("unknown optimizer", ("train.optimizer=sgd",), "muon"),
    Kind("unknown device", ("seed=3", "device=abacus"), "device=abacus"),
    Kind("an undefined pair", ("encoding=alibi", "extension=ntk"), "no spectrum"),
    Kind("an extension's argument out of range",
        ("extension=pi", "extension.mode=fixed", "extension.target_len=-4"), "target_len"),
    Kind("a run that is no run", ("run=text",), "run=text"),
    Kind("report of runs that are not there", ("runs=nothing-*",), "nothing-*", script="report"),
    Kind("report of nothing yet", ("results_dir=empty",), "nothing to report", script="report"),
]  # fmt: skip

DATA = [
    Kind("no data path", ("data.path=null",), "data.path"),
    Kind("a missing data path", ("data.path=nowhere",), "data.path=nowhere"),
    Kind("documents without a character", ("seed=3",), "test split",
         spoil=lambda w: [path.write_text("") for path in (w.root / "text/test").iterdir()]),
    Kind("a vocabulary larger than the text can teach",
        ("data.tokenizer=bpe", "data.vocab_size=50000"), "data.vocab_size=50000"),
    Kind("a vocabulary too small for bytes", ("data.tokenizer=bpe", "data.vocab_size=10"),
        "data.vocab_size=10"),
    Kind("a tokenizer file that is none", ("data.tokenizer=bad.json",), "bad-",
        spoil=lambda w: (w.root / "bad.json").write_text("{}")),
]  # fmt: skip

DAMAGED = [
    Kind("one bit of the weights flipped", AGAIN, "model.safetensors is damaged", 1,
        lambda w: flip(w.run(0) / "model.safetensors")),
    Kind("weights deleted", AGAIN, "model.safetensors is missing", 1,
        lambda w: (w.run(0) / "model.safetensors").unlink()),
    Kind("a folder where the weights should be", AGAIN, "model.safetensors", 1,
        lambda w: folder_instead(w.run(0) / "model.safetensors")),
    Kind("train.json cut short", AGAIN, "train.json is damaged", 1,
        lambda w: half(w.run(0) / "train.json")),
    Kind("config.yaml cut short", ("run={run}",), "config.yaml", 1,
        lambda w: half(w.run(0) / "config.yaml")),
    Kind("config.yaml with a class of somebody else's", ("run={run}",), "evil.Evil",
         spoil=lambda w: yaml_line(w, "posbench.encodings.rope.Rope", "evil.Evil")),
    Kind("config.yaml of another training", ("run={run}",), "restore config.yaml",
        spoil=lambda w: yaml_line(w, "seed: 0", "seed: 5")),
    Kind("an evaluation cut short", (), "none+none", 1,
        lambda w: half(w.evaluation("none+none-*.json"))),
    Kind("an evaluation with words for numbers", (), "none+none", 1,
         lambda w: edit(w.evaluation("none+none-*.json"),
             lambda content: content["rows"][0].update(nll="low"))),
    Kind("an evaluation of a newer posbench", (), "schema 99", 1,
         lambda w: edit(w.evaluation("none+none-*.json"),
             lambda content: content.update(schema=99))),
    Kind("arrays deleted, a length to add", ("evaluate.lengths=[16,64]",), "none+none", 1,
         lambda w: w.evaluation("none+none-*.npz").unlink()),
    Kind("both states damaged", GOES_ON, "state.previous.pt is damaged", 1,
         lambda w: [flip(w.run(1) / name) for name in ("state.pt", "state.previous.pt")]),
    Kind("a state of another model", GOES_ON, "belongs to another model", 1,
        lambda w: other_state(w.run(1) / "state.pt")),
    Kind("one bit of the tokens flipped", AGAIN, "failed: The token file", 1,
        lambda w: flip(w.tokens("train.tokens.bin"))),
    Kind("a token file deleted", AGAIN, "failed: The token file", 1,
        lambda w: w.tokens("test.n_bytes.bin").unlink()),
    Kind("the tokens' manifest cut short", AGAIN, "delete the folder", 1,
        lambda w: half(w.tokens("manifest.json"))),
    Kind("the tokens' manifest naming other files", AGAIN, "delete the folder", 1,
         lambda w: edit(w.tokens("manifest.json"),
             lambda content: content.update(files={"../../secret": {"size": 1, "sha256": ""}}))),
    Kind("the tokens' manifest deleted", AGAIN, "manifest.json lists no", 1,
        lambda w: w.tokens("manifest.json").unlink()),
]  # fmt: skip

SURROUNDINGS = [
    Kind("results_dir is a file", ("results_dir=text/train/0.txt",),
        "cannot be written (Not a directory)"),
    Kind("report_dir is a file", ("report_dir=text/train/0.txt",), "Not a directory", 1,
        script="report"),
    Kind("a file where the evaluations should be", (), "evals", 1,
        lambda w: file_instead(w.run(0) / "evals")),
    Kind("a file where a run should be", ("seed=1",), "Not a directory", 1,
        lambda w: file_instead(w.run(1))),
    Kind("a folder where a run's lock should be", ("seed=1",), ".lock cannot be written", 1,
        lambda w: folder_instead(w.run(1) / ".lock")),
    Kind("a yaml in --config-dir that does not parse", (*OWN, "encoding=broken"), "broken",
         spoil=users_file("encoding/broken.yaml", "a: [1, 2\n")),
    Kind("a yaml in --config-dir with keys nobody takes", (*OWN, "encoding=broken"), "volume",
         spoil=users_file("encoding/broken.yaml",
                          "_target_: posbench.encodings.rope.Rope\nvolume: 11\n")),
    Kind("a class in --config-dir that does not import", (*OWN, "encoding=broken"), "mistake",
         spoil=lambda w: (mine(w, "encoding/broken.yaml", "_target_: mistake.X\n"),
             mine(w, "mistake.py", "def (:\n"))),
    Kind("an experiment whose grid does not compose", (*OWN, "experiment=broken"), "ropee",
         spoil=users_file("experiment/broken.yaml",
             "name: broken\nbase: {}\ngrid: [{encoding: [rope, ropee]}]\n")),
    Kind("a word that a cell of an experiment does not fit",
        (*OWN, "experiment=broken", "extension=none"), "it is of extension=ntk",
         spoil=users_file("experiment/broken.yaml",
             "name: broken\nbase: {}\ngrid: [{extension: ntk, extension.multiplier: 2}]\n")),
]  # fmt: skip

KINDS = [*TYPED, *DATA, *DAMAGED, *SURROUNDINGS]


def test_the_world_has_a_finished_run_and_one_that_can_go_on(world):
    assert (world.run(0) / "train.json").exists() and not (world.run(1) / "train.json").exists()
    assert (world.run(1) / "state.pt").exists() and (world.run(1) / "state.previous.pt").exists()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_one_sentence_and_nothing_lost(world, capfd, monkeypatch, kind):
    typed = overrides(kind, world)
    kind.spoil(world)
    monkeypatch.setattr(
        logging, "raiseExceptions", False
    )  # of libraries that log to a stream pytest has closed
    before = world.files()
    done = call(capfd, world.root, kind.script, *typed)
    assert done.returncode == kind.code
    (sentence,) = [
        line for line in done.stderr.splitlines() if line.startswith(("refused: ", "failed: "))
    ]
    assert kind.message in sentence
    assert "Traceback" not in done.stderr
    after = world.files()
    assert {name: after.get(name) for name in before} == before
