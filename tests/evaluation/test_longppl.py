"""longppl: key tokens and their loss beside a loop over targets, the same tokens for every method,
and what a user is told.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import TRAIN_LEN, small_model, small_shape
from known_models import VOCAB, Copier, evaluation, file
from script_calls import call

import posbench
from posbench.common.errors import ConfigError, RunError
from posbench.config.schema import EvaluateConfig
from posbench.encodings.rope import Rope
from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.evaluation.protocols.longppl import Longppl
from posbench.evaluation.registry import protocol
from posbench.extensions.none import NoExtension
from posbench.extensions.ntk import Ntk
from posbench.extensions.recompute_window import RecomputeWindow

RANDOM = np.random.default_rng(1)
# A dozen tokens over and over, a third of them replaced: some targets stood before within 4 tokens,
# some within 16, some never.
TOKENS = np.where(
    RANDOM.random(400) < 0.33,
    RANDOM.integers(0, 40, 400),
    np.tile(RANDOM.integers(0, 40, 12), 34)[:400],
)
TEXT = file(TOKENS, [150, 250])
KEYS = {"key_gain": 2.0, "key_loss": 2.0, "key_context": 4}


def copied(target: int, context: int) -> float:
    """Loss of a target for the model that copies what followed the last occurrence of the current
    token in its context.
    """
    seen = TOKENS[target - context : target].tolist()
    before = [at for at in range(len(seen) - 1) if seen[at] == seen[-1]]
    guess, p = (seen[before[-1] + 1], 0.9) if before else (0, 0.02)
    return -math.log(p if guess == TOKENS[target] else (1 - p) / VOCAB)


def test_key_tokens_and_their_perplexity_equal_a_loop_over_targets():
    longppl = Longppl(evaluation(Copier(), TEXT, targets=8, **KEYS))
    targets = longppl.windows.targets_NS.ravel().tolist()
    keys = [
        t for t in targets if copied(t, 4) - copied(t, TRAIN_LEN) > 2 and copied(t, TRAIN_LEN) < 2
    ]
    assert 1 < len(keys) < len(targets)
    within = {t: 7 - i % 8 for i, t in enumerate(targets)}  # targets after it in its window
    for length in (TRAIN_LEN, 64):
        (row,), arrays = longppl.run(length)
        losses = [copied(t, length - within[t]) for t in keys]
        assert arrays["nll"] == pytest.approx(losses, rel=1e-5) and row["nll"] == pytest.approx(
            np.mean(losses), rel=1e-5
        )
        assert row["n_targets"] == len(keys) and row["n_bytes"] == sum(
            int(TEXT.n_bytes[t]) for t in keys
        )
    shared = longppl.shared_arrays()
    assert (TEXT.starts[shared["document"]] + shared["offset"]).tolist() == keys
    assert shared["key_short"] == pytest.approx([copied(t, 4) for t in keys], rel=1e-5)
    assert longppl.target_facts() == {
        "key_tokens": {"share": len(keys) / len(targets), "number": len(keys), "of": len(targets)}
    }


@pytest.mark.parametrize("block", [1, 2])
def test_the_reading_of_the_reference_arm_is_told_and_counted_once(block):
    reports = []
    scorer = evaluation(Copier(), TEXT, targets=8, floor_block=block, **KEYS)
    scorer.progress = lambda n, part=False: reports.append(n)
    longppl, n_windows = Longppl(scorer), len(Longppl(scorer).windows.last_N)
    short = 8  # targets, each read after 4 tokens: an eighth of these is no block
    first = n_windows * (8 // block * TRAIN_LEN + short * 4)
    assert longppl.tokens_to_read_first() == first
    assert longppl.tokens_to_read(TRAIN_LEN) == n_windows * TRAIN_LEN
    reading = Longppl.read_volumes_first(scorer.config, TRAIN_LEN)
    assert (
        sum(volume.texts * volume.tokens_per_text for volume in reading)
        == scorer.config.windows * first / n_windows
    )
    longppl.run(TRAIN_LEN)
    assert (
        sum(reports) == first + longppl.tokens_to_read(TRAIN_LEN)
        and longppl.tokens_to_read_first() == 0
    )
    longppl.run(64)
    assert sum(reports) == first + longppl.tokens_to_read(TRAIN_LEN) + longppl.tokens_to_read(64)


def test_every_method_is_scored_on_the_tokens_that_the_model_without_methods_chooses():
    few = {"key_gain": 0.05, "key_loss": 100.0, "key_context": 3}
    protocols = [
        Longppl(evaluation(small_model(Rope(small_shape())), TEXT, each, **few))
        for each in (NoExtension(), Ntk(), RecomputeWindow())
    ]
    arrays = [longppl.run(64)[1] for longppl in protocols]
    first, *others = (longppl.shared_arrays() for longppl in protocols)
    for other in others:
        assert all(np.array_equal(first[name], other[name]) for name in first)
    assert not np.array_equal(arrays[0]["nll"], arrays[1]["nll"])
    floor = FixedTargets(
        evaluation(small_model(Rope(small_shape())), TEXT, RecomputeWindow())
    ).score(64)[0]
    assert np.array_equal(arrays[2]["nll"], first["key_long"]) and np.array_equal(
        floor[protocols[0].key_tokens().is_key_NS], first["key_long"]
    )
    assert (first["key_short"] - first["key_long"] > 0.05).all() and not (
        protocols[0].key_tokens().is_key_NS
    ).all()


@pytest.mark.parametrize("train_len", [TRAIN_LEN, 24])
def test_another_model_chooses_with_its_own_training_length(train_len):
    noted = {"key_run": {"path": "there", "run_id": "x", "sha256": "0", "train_len": train_len}}
    scorer = replace(
        evaluation(small_model(Rope(small_shape())), TEXT, targets=8, **KEYS, **noted),
        key_token_model=Copier(train_len),
    )
    longppl = Longppl(scorer)
    targets = longppl.windows.targets_NS.ravel().tolist()
    keys = [
        t for t in targets if copied(t, 4) - copied(t, train_len) > 2 and copied(t, train_len) < 2
    ]
    first = len(longppl.windows.last_N) * 8 * (train_len + 4)
    assert longppl.tokens_to_read_first() == first and sum(
        volume.texts * volume.tokens_per_text
        for volume in Longppl.read_volumes_first(scorer.config, TRAIN_LEN)
    ) == (scorer.config.windows * 8 * (train_len + 4))
    _, arrays = longppl.run(64)
    shared = longppl.shared_arrays()
    assert (TEXT.starts[shared["document"]] + shared["offset"]).tolist() == keys and len(
        arrays["nll"]
    ) == len(keys)
    assert shared["key_long"] == pytest.approx([copied(t, train_len) for t in keys], rel=1e-5)
    read = FixedTargets(evaluation(scorer.model, TEXT, targets=8)).score(64)[0]
    assert np.array_equal(arrays["nll"], read[longppl.key_tokens().is_key_NS])
    resolved = Longppl.resolve(EvaluateConfig(lengths=[16], **noted), TRAIN_LEN)
    assert resolved.key_context == train_len // 8
    with pytest.raises(ConfigError, match=f"must be below the training length {train_len}"):
        Longppl.check(
            NoExtension(), replace(scorer.config, lengths=[16], key_context=train_len), 99
        )


def test_a_gain_that_no_target_has_is_refused():
    usual = EvaluateConfig(lengths=[64], key_gain=2.0, key_loss=2.0, key_context=8, floor_block=1)
    settings = EvaluateConfig(lengths=[64], floor_block=1)
    assert Longppl.resolve(settings, 64) == usual
    assert Longppl.resolve(replace(settings, key_gain=1.0), 64) == replace(usual, key_gain=1.0)
    assert protocol("longppl") is Longppl and Longppl.floor is None
    message = (
        r"None of the 18 targets is a key token: .* lower evaluate\.key_gain \(the largest fall is"
        r" \d\.\d\d\)"
    )
    with pytest.raises(RunError, match=message):
        Longppl(evaluation(Copier(), TEXT, **{**KEYS, "key_gain": 30.0})).run(64)


def test_the_script_stores_the_share_and_the_report_says_what_was_scored(world, capfd):
    words = [
        f"run={world.run(0)}",
        "evaluate.lengths=[16,32]",
        "evaluate.max_length=128",
        "results_dir=runs",
        "cache_dir=cache",
    ]
    done = call(capfd, world.root, "run", *words, "evaluate.key_gain=1")
    assert done.returncode == 2 and "leave it out, or add longppl" in done.stderr
    keys = [
        "evaluate.protocol=longppl",
        "evaluate.key_gain=0.001",
        "evaluate.key_loss=9",
        "log.mode=disabled",
    ]
    done = call(capfd, world.root, "run", "-m", *words, *keys, "extension=none,pi")
    assert done.returncode == 0, done.stderr
    paths = sorted(world.run(0).glob("evals/longppl/*.json"))
    stored = [json.loads(path.read_text()) for path in paths]
    assert (
        len(stored) == 2 and stored[0]["config"]["key_tokens"] == stored[1]["config"]["key_tokens"]
    )
    number = stored[0]["config"]["key_tokens"]["number"]
    assert all(
        row["n_targets"] == number for evaluation_file in stored for row in evaluation_file["rows"]
    )
    assert stored[0]["config"]["evaluate"]["key_context"] == 2
    done = call(capfd, world.root, "report", f"runs={world.run(0)}", "report_dir=out")
    assert done.returncode == 0, done.stderr
    assert (
        "loss is below 9 nats in the model as it was trained and more than 0.001 higher after 2"
        " tokens" in done.stdout
    )
    other = call(capfd, world.root, "run", *words, *keys, "evaluate.key_gain=0.002", "extension=pi")
    assert other.returncode == 0 and len(list(world.run(0).glob("evals/longppl/*.json"))) == 3, (
        other.stderr
    )


def test_one_training_chooses_for_others(world, capfd):
    """The same key tokens of every training, in rows that say who chose; the training that chose
    reads the same as without.
    """
    shared_words = [
        "evaluate.lengths=[16]",
        "evaluate.max_length=128",
        "results_dir=runs",
        "cache_dir=cache",
        "log.mode=disabled",
    ]
    shared_words += ["evaluate.protocol=longppl", "evaluate.key_gain=0.001", "evaluate.key_loss=9"]
    chosen = f"evaluate.key_run={world.run(0)}"
    for words in (
        [f"run={world.run(0)}"],
        [f"run={world.run(0)}", chosen],
        [f"run={world.run(1)}", chosen],
    ):
        done = call(capfd, world.root, "run", *words, *shared_words)
        assert done.returncode == 0, done.stderr
    chooser_evals, other = (
        [json.loads(path.read_text()) for path in sorted(world.run(i).glob("evals/longppl/*.json"))]
        for i in (0, 1)
    )
    assert (
        len(chooser_evals) == 2
        and len({stored["rows"][0]["nll"] for stored in chooser_evals}) == 1
        and len({stored["rows"][0]["eval_id"] for stored in chooser_evals}) == 2
    )
    assert (
        other[0]["config"]["key_tokens"] == chooser_evals[0]["config"]["key_tokens"]
        and other[0]["rows"][0]["nll"] != chooser_evals[0]["rows"][0]["nll"]
    )
    assert other[0]["config"]["evaluate"]["key_run"]["run_id"] == world.run(0).name
    done = call(capfd, world.root, "report", f"runs={world.run(1)}", "report_dir=out")
    assert f"loss is below 9 nats in the model of {world.run(0).name} and more than" in done.stdout
    table = posbench.load(world.run(1), cache_dir=str(world.root / "cache")).evaluate(
        protocol="longppl",
        lengths=[16],
        max_length=128,
        key_gain=0.001,
        key_loss=9,
        key_run=str(world.run(0)),
    )
    assert table["nll"].tolist() == [other[0]["rows"][0]["nll"]]
    (world.run(0) / "train.json").unlink()
    for path, message in (
        (world.run(0), "holds no finished training"),
        ("runs", "holds no finished training"),
    ):
        done = call(
            capfd,
            world.root,
            "run",
            f"run={world.run(1)}",
            *shared_words,
            f"evaluate.key_run={path}",
        )
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_training_in_other_tokens_does_not_choose(world, capfd):
    words = [
        "results_dir=runs",
        "cache_dir=cache",
        "log.mode=disabled",
        "evaluate.protocol=longppl",
        f"evaluate.key_run={world.run(0)}",
    ]
    done = call(
        capfd,
        world.root,
        "run",
        "data=local",
        "data.path=text",
        "data.tokenizer=bytes",
        "data.bos=true",
        "train.steps=1",
        *words,
    )
    assert (
        done.returncode == 2 and "a model can only choose among tokens that it knows" in done.stderr
    )
