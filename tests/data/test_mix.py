"""Text mixed with a task: which steps are whose, what each sees, and what is refused."""

import json
import re

import numpy as np
import pytest
import torch
from conftest import CONFIGS, node
from test_cli import cli  # noqa: F401
from test_train import VOCAB, config, log_of, make_corpus, run_child, tiny, train

from posbench.common.errors import ConfigError
from posbench.data import fingerprint, prepare
from posbench.data.batches import MixedBatches, TaskBatches, batches
from posbench.data.copy import Copy
from posbench.data.mix import Mix, resolved_data
from posbench.data.mqar import Mqar
from posbench.data.task import IGNORED, TaskSplit
from posbench.runs.rows import read_eval
from posbench.training.trainer import Trainer

MQAR = {"task": "mqar", "share": 0.25, "vocab_size": 64, "pairs": [2]}


def mixed(share: float = 0.3) -> MixedBatches:
    parts = (
        batches(split, [8, 16], 64, 5, None)
        for split in (make_corpus().train, TaskSplit(Copy(20), "train", VOCAB))
    )
    return MixedBatches(*parts, share)


def data(**changed) -> dict:
    base = {
        "name": "local",
        "tokenizer": "bytes",
        "vocab_size": 1024,
        "bos": False,
        "path": str(CONFIGS.parent / "scripts"),
    }
    return base | {"source": node("data", "local")["source"]} | changed


@pytest.mark.parametrize("share", [0.01, 0.25, 1 / 3, 0.5, 0.9])
def test_the_task_has_its_share_of_the_steps_evenly(share):
    mix = mixed(share)
    task_steps = [mix.is_task_step(step) for step in range(1000)]
    assert abs(sum(task_steps) - 1000 * share) < 1 + 1e-6
    for first in range(0, 900, 100):
        assert abs(sum(task_steps[first : first + 100]) - 100 * share) <= 1


def test_each_sees_the_batches_it_would_see_alone_and_steps_need_no_order():
    mix, seen = mixed(), {True: 0, False: 0}
    forward = [mixed().at(step) for step in range(20)]
    for step in range(20):
        is_task_step = mix.is_task_step(step)
        inputs_BT, targets_BT = (mix.task if is_task_step else mix.text).at(seen[is_task_step])
        seen[is_task_step] += 1
        assert inputs_BT.equal(forward[step][0]) and targets_BT.equal(forward[step][1])
        assert mix.n_targets(step) == int((targets_BT != IGNORED).sum())
        parts = [
            mix.at(step, lambda n, i=i: slice(i * n // 3, (i + 1) * n // 3)) for i in range(3)
        ]  # of three processes
        assert torch.cat([inputs for inputs, _ in parts]).equal(inputs_BT) and torch.cat(
            [targets for _, targets in parts]
        ).equal(targets_BT)
        assert (
            (inputs_BT.min() >= VOCAB and inputs_BT.max() < VOCAB + 20)
            if is_task_step
            else inputs_BT.max() < VOCAB
        )
        answers = targets_BT[targets_BT != IGNORED]
        assert answers.min() >= VOCAB if is_task_step else answers.max() < VOCAB
    assert (
        mix.at(19)[0].equal(forward[19][0])
        and mix.at(2)[0].equal(forward[2][0])
        and seen == {True: 6, False: 14}
    )


def mixed_corpus():
    return make_corpus(
        mix=Mix(Copy(8), "copy", 0.4, lambda split: TaskSplit(Copy(8), split, VOCAB - 8))
    )


def test_an_interrupted_training_on_a_mix_ends_in_the_same_bytes_and_logs_both_losses(tmp_path):
    train(tmp_path / "whole", config(), corpus=mixed_corpus())
    run_child(tmp_path / "cut", "SIGKILL", 8, corpus="test_mix.mixed_corpus")
    assert not (tmp_path / "cut/train.json").exists()
    train(tmp_path / "cut", config(), model=tiny(seed=9), corpus=mixed_corpus())
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (
        tmp_path / "whole/model.safetensors"
    ).read_bytes()
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    train(tmp_path / "each", config(log_every=1), corpus=mixed_corpus())
    lines = log_of(tmp_path / "each")
    kinds = [{"loss", "task_loss"} & set(line) for line in lines]
    mix = Trainer(
        tiny(), mixed_corpus(), config(), 0, torch.device("cpu"), lambda n, step: n
    ).batches
    assert kinds == [{"task_loss"} if mix.is_task_step(step) else {"loss"} for step in range(12)]
    pairs = [
        (
            line,
            [entry for entry in lines if line["step"] - 2 < entry["step"] <= line["step"]],
        )
        for line in log_of(tmp_path / "whole")
    ]
    for line, two in pairs:
        for kind in ("loss", "task_loss"):
            losses = [entry[kind] for entry in two if kind in entry]
            assert line.get(kind) == (pytest.approx(sum(losses) / len(losses)) if losses else None)


def test_a_mix_is_another_data_set_on_the_same_token_files(tmp_path):
    plain = prepare(data(), tmp_path)
    corpora = [
        prepare(data(mix=resolved_data(data(mix={**MQAR, **changed}))["mix"]), tmp_path)
        for changed in ({}, {"share": 0.5}, {"pairs": [4]})
    ]
    assert len({corpus.fingerprint for corpus in (plain, *corpora)}) == 4 and {
        corpus.folder for corpus in corpora
    } == {plain.folder}
    assert corpora[0].fingerprint == fingerprint(
        data(mix=MQAR)
    ) and plain.fingerprint == fingerprint(data(mix=None)) == fingerprint(data())
    with_bos = prepare(data(mix=MQAR, bos=True), tmp_path)
    assert (plain.vocab_size, corpora[0].vocab_size, with_bos.vocab_size, with_bos.bos) == (
        256,
        320,
        321,
        256,
    )
    assert [corpus.mix.split("train").offset for corpus in (corpora[0], with_bos)] == [256, 257]
    assert (plain.mix, corpora[0].name) == (None, "local+mqar")


def test_a_task_given_whole_is_taken_as_it_is():
    source = {"_target_": "posbench.data.copy.Copy"}
    mix = {"task": "mine", "share": 0.5, "vocab_size": 9, "source": source}
    assert resolved_data(data(mix=mix))["mix"] == mix


def test_a_length_that_the_task_of_a_mix_does_not_fit_is_refused_with_the_keys_of_the_mix(tmp_path):
    mix = {"task": "copy", "share": 0.5, "vocab_size": 20, "distinct": True}
    train_split = prepare(data(mix=mix), tmp_path).mix.split("train")
    needed = (36 - 2) // 2 + 4  # symbols, which stand twice beside BOS and SEP, and marks
    message = f"data.mix.task=copy .* has 16 .* give data.mix.vocab_size={needed} or more"
    with pytest.raises(ConfigError, match=message):
        batches(train_split, [36], 64, 0, None)
    evaluated = prepare(data(mix={**MQAR, "pairs": [4]}), tmp_path).mix.split("test")
    with pytest.raises(ConfigError, match="needs 16 tokens, not 15: see data.mix.pairs"):
        evaluated.parts(15)


def in_words(tmp_path, length: int, **mix) -> TaskBatches:
    """Batches of a question in words in the tokens of a prepared text."""
    settings = {"task": "niah_multiquery", "share": 0.5, **mix}
    corpus = prepare(data(mix=resolved_data(data(mix=settings))["mix"]), tmp_path)
    return batches(corpus.mix.split("train"), [length], 2 * length, 5, None)


@pytest.mark.parametrize(("task", "length"), [("niah_multiquery", 900), ("passkey", 400)])
def test_questions_in_words_are_batches_of_the_texts_own_tokens_with_answers_as_targets(
    task, length, tmp_path
):
    task_batches, again = (in_words(tmp_path, length, task=task) for _ in range(2))
    again.at(3)
    seen = set()
    for step in (1, 0, 2):
        inputs_BT, targets_BT = task_batches.at(step)
        assert all(
            map(torch.equal, task_batches.at(step), again.at(step))
        ) and inputs_BT.shape == targets_BT.shape == (2, length)
        assert task_batches.n_targets(step) == int((targets_BT != IGNORED).sum())
        seen |= {bytes(row.tolist()) for row in inputs_BT}
        for inputs, targets in zip(inputs_BT.tolist(), targets_BT.tolist(), strict=True):
            body = bytes(inputs).decode().rpartition("\nWhat")[0]
            answer = bytes(target for target in targets if target != IGNORED).decode()
            assert len(answer.split()) == (4 if task == "niah_multiquery" else 1) and all(
                value in body for value in answer.split()
            )
    assert len(seen) == 6


def test_a_question_that_never_fits_is_refused_and_one_that_may_is_drawn_again(tmp_path):
    with pytest.raises(
        ConfigError,
        match=(
            r"data.mix.task=niah_multiquery needs \d+ tokens .*, and train.length=300 has fewer:"
            r" raise it"
        ),
    ):
        in_words(tmp_path, 300)
    with pytest.raises(
        ConfigError,
        match=(
            "data.mix.task=niah_multiquery takes its haystack .* the train split .*: lower"
            " train.length"
        ),
    ):
        in_words(tmp_path, 300_000)
    random, questions = np.random.default_rng(0), in_words(tmp_path, 900).split
    # keys of several lengths
    needed = [questions._draw_tokenized_question(random, 900, None).needed for _ in range(50)]
    tight = in_words(tmp_path, sorted(needed)[25] + 60).split
    assert len(set(needed)) > 1 and tight.draw(sorted(needed)[25], 30, [0]).inputs_NT.shape == (
        30,
        sorted(needed)[25],
    )


def test_the_id_of_a_mix_in_words_depends_on_its_arguments_and_other_mixes_keep_theirs(tmp_path):
    mixes = [
        {"task": "niah_single_1", "share": 0.5, **more}
        for more in ({}, {"share": 0.25}, {"value": "uuids"}, {"haystack": "corpus"})
    ]
    assert len({fingerprint(data(mix=mix)) for mix in mixes}) == 4
    assert [task.fingerprint()[:8] for task in (Copy(20), Mqar(64, [2]))] == [
        "4465db22",
        "59a9b0e9",
    ]
    corpus = prepare(data(mix=mixes[0], bos=True), tmp_path)
    assert (corpus.vocab_size, corpus.bos, corpus.name) == (257, 256, "local+niah_single_1")
    assert (corpus.mix.split("train").draw(600, 2, [0]).inputs_NT[:, 0] == 256).all()


def test_one_command_trains_on_words_and_asks_them(cli, tmp_path):  # noqa: F811
    words = [
        "data.mix={task: niah_multikey_1, share: 0.5}",
        "train.length=640",
        "train.tokens_per_step=640",
        "train.validate_windows=1",
    ]
    words += [
        "evaluate.lengths=[640]",
        "evaluate.max_length=640",
        "evaluate.windows=5",
        "evaluate.floor=false",
        "train.log_every=2",
    ]
    output = cli(*words, "evaluate.rivals=2").stdout
    assert (
        "Loss (nats/token)" in output
        and "Accuracy: niah_multikey_1" in output
        and "data text+niah_multikey_1" in output
    )
    (run,) = cli.runs()
    lines = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    assert {"loss", "task_loss"} <= set(lines[-1])
    again = cli(
        f"run={run}",
        "evaluate.protocol=accuracy",
        "evaluate.tasks=[passkey]",
        "evaluate.lengths=[640]",
        common=False,
    ).stdout
    assert "Accuracy: passkey" in again
    short = cli(
        words[0],
        "train.length=64",
        "evaluate.floor=false",
        "evaluate.lengths=[640]",
        "evaluate.max_length=640",
        code=2,
    )
    assert "train.length=64 has fewer: raise it" in short.stdout + short.stderr


def test_one_command_trains_on_both_and_evaluates_both(cli, tmp_path):  # noqa: F811
    mix_word = "data.mix={task: mqar, share: 0.5, vocab_size: 64, pairs: [2]}"
    output = cli(mix_word, "evaluate.floor=false", "train.log_every=2").stdout
    assert (
        "Loss (nats/token)" in output
        and "Accuracy: mqar 2 pairs" in output
        and "data text+mqar" in output
    )
    (run,) = cli.runs()
    lines = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    assert [sorted(set(line) & {"loss", "task_loss"}) for line in lines] == [
        ["loss", "task_loss"]
    ] * 2
    tables = {path.parent.name: read_eval(path) for path in run.glob("evals/*/*.json")}
    assert {row["task"] for row in tables["accuracy"]} == {"mqar 2 pairs", "mqar 2 pairs choice"}
    assert {row["data"] for rows in tables.values() for row in rows} == {"text+mqar"} and len(
        tables
    ) == 2
    again = cli(
        f"run={run}", "evaluate.protocol=accuracy", "evaluate.lengths=[16,32,64]", common=False
    ).stdout
    assert "64" in again and not re.search("refused|failed", again)
    assert "leave data.mix out" in cli(mix_word, "data=copy", common=False, code=2).stderr


def test_every_token_of_a_task_moves_by_the_offset():
    plain, moved = (
        TaskSplit(Mqar(64, [4]), "test", offset).draw(64, 1, [0]) for offset in (0, 100)
    )
    assert np.array_equal(moved.inputs_NT, plain.inputs_NT + 100) and np.array_equal(
        moved.choices_NK, plain.choices_NK + 100
    )
    assert np.array_equal(
        moved.targets_NT, np.where(plain.targets_NT == IGNORED, IGNORED, plain.targets_NT + 100)
    )
