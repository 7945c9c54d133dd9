"""Tasks against their definitions, and their batches: what a text holds, what is asked for, and
that seeds decide all of it.
"""

import subprocess
import sys

import numpy as np
import pytest
from conftest import CONFIGS, node

from posbench.data import fingerprint, prepare
from posbench.data.addition import PLUS, Addition
from posbench.data.batches import batches
from posbench.data.copy import BOS, EOS, FIRST_SYMBOL, PAD, SEP, Copy
from posbench.data.mqar import Mqar
from posbench.data.mqar_uniform import MqarUniform
from posbench.data.reverse import Reverse
from posbench.data.sort import Sort
from posbench.data.task import IGNORED, TaskSplit

TASKS = sorted(
    path.stem for path in (CONFIGS / "data").glob("*.yaml") if "tokenizer: task" in path.read_text()
)


def data(name: str) -> dict:
    base = {"bos": False}
    return base | {key: value for key, value in node("data", name).items() if key != "defaults"}


def draw(task, length=32, count=200, seed=0, **part):
    return task.draw(np.random.default_rng(seed), length, count, **part)


def answers_of(examples, row: int) -> list[int]:
    return [target for target in examples.targets_NT[row].tolist() if target != IGNORED]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_draws_what_its_vocabulary_holds_and_the_same_for_the_same_seed(name, tmp_path):
    corpus = prepare(data(name), tmp_path / "cache")
    assert (
        not (tmp_path / "cache").exists()
        and corpus.tokenizer == f"task-{corpus.vocab_size}"
        and corpus.fingerprint == fingerprint(data(name))
    )
    for part in ({}, *(part.arguments for part in corpus.test.parts(64))):
        drawn, again, other = (
            split.draw(64, 9, [3], **part) for split in (corpus.test, corpus.test, corpus.train)
        )
        assert all(
            np.array_equal(getattr(drawn, key), getattr(again, key))
            for key in ("inputs_NT", "targets_NT", "answer_NT")
        )
        assert not np.array_equal(drawn.inputs_NT, other.inputs_NT)  # another split, other examples
        is_answer = drawn.targets_NT != IGNORED
        assert drawn.inputs_NT.shape == drawn.targets_NT.shape == (9, 64) and is_answer.any(1).all()
        assert np.array_equal(is_answer, drawn.answer_NT >= 0)
        for ids in (drawn.inputs_NT, drawn.targets_NT[is_answer]):
            assert ids.min() >= 0 and ids.max() < corpus.vocab_size
        if part:  # of an evaluation: equally many answers everywhere
            assert {tuple(np.unique(row[row >= 0])) for row in drawn.answer_NT} == {
                tuple(range(drawn.answer_NT.max() + 1))
            }


def test_other_arguments_are_another_data_set():
    original = data("mqar")
    changed = [
        {**original, "vocab_size": 64},
        {**original, "source": {**original["source"], "pairs": [4]}},
        data("copy"),
    ]
    assert len({fingerprint(each) for each in (original, *changed)}) == 4


def test_examples_are_the_same_in_another_process():
    code = (
        "from posbench.data.task import TaskSplit; from posbench.data.mqar import Mqar;"
        " print(TaskSplit(Mqar(64, [2, 4]), 'test')"
    )
    code += ".draw(24, 2, [1, 5]).inputs_NT.tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=CONFIGS.parent,
        timeout=60,
        check=True,
    )
    assert (
        eval(done.stdout)
        == TaskSplit(Mqar(64, [2, 4]), "test").draw(24, 2, [1, 5]).inputs_NT.tolist()
    )


@pytest.mark.parametrize("length", [32, 33])
def test_mqar_asks_each_key_once_more_and_wants_its_value(length):
    examples = draw(Mqar(64, [2, 8]), length)
    seen = set()
    for row, inputs in enumerate(examples.inputs_NT.tolist()):
        n = len(answers_of(examples, row))
        seen.add(n)
        keys, values = inputs[0 : 2 * n : 2], inputs[1 : 2 * n : 2]
        assert (
            len(set(keys)) == len(set(values)) == n
            and 1 <= min(keys) <= max(keys) < 32 <= min(values) <= max(values) < 64
        )
        places = np.flatnonzero(examples.targets_NT[row] != IGNORED)
        assert min(places) >= 2 * n and all(place % 2 == 0 for place in places)
        for place in places.tolist():
            number = examples.answer_NT[row, place]
            assert (
                inputs[place] == keys[number] and examples.targets_NT[row, place] == values[number]
            )
            assert examples.choices_NK[row, number] == values[number]
    assert seen == {2, 8}


@pytest.mark.parametrize("length, share", [(64, 0.044), (1024, 0.309)])
def test_a_key_of_mqar_stands_elsewhere_only_with_any_filler(length, share):
    """By counting in each text; the shares are 1 - (1 - 1/V)^(tokens before the question),
    averaged, within what so few texts allow.
    """
    for filler, expected in (("no_key", 0.0), ("any", share)):
        again, questions = 0, 0
        for pairs in (4, 8):
            examples = Mqar(256, [4, 8], filler=filler).draw(
                np.random.default_rng(0), length, 500, pairs=pairs
            )
            for inputs, targets in zip(
                examples.inputs_NT.tolist(), examples.targets_NT, strict=True
            ):
                for at in np.flatnonzero(targets != IGNORED).tolist():
                    again += inputs[at] in inputs[2 * pairs : at]
                    questions += 1
            assert examples.inputs_NT.min() >= 0 and examples.inputs_NT.max() == 255
        assert again / questions == pytest.approx(expected, abs=0.02)


def test_mqar_draws_places_one_after_the_other_by_the_power_law():
    """Against the law itself: the first place drawn has p ~ g^(a - 1), the second the same among
    those left.
    """
    length, n, power = 20, 2, 0.5
    examples = draw(Mqar(64, [n], power), length, 20_000)
    places = (length - 2 * n) // 2
    gaps = np.stack(
        [
            [(np.flatnonzero(row == number)[0] - 2 * n) // 2 for number in range(n)]
            for row in examples.answer_NT
        ]
    )
    p = np.arange(1, places + 1) ** (power - 1.0)
    p /= p.sum()
    np.testing.assert_allclose(np.bincount(gaps[:, 0], minlength=places) / len(gaps), p, atol=0.012)
    second = [
        sum(p[first] * p[g] / (1 - p[first]) for first in range(places) if first != g)
        for g in range(places)
    ]
    np.testing.assert_allclose(
        np.bincount(gaps[:, 1], minlength=places) / len(gaps), second, atol=0.012
    )


def in_sight(examples, pairs: int, lead: int, window: int, sinks: int = 4) -> float:
    """Share of the questions whose pair a method sees that reads the first `sinks` and the last
    `window` tokens.
    """
    seen = []
    for targets, answers in zip(examples.targets_NT, examples.answer_NT, strict=True):
        for at in np.flatnonzero(targets != IGNORED).tolist():
            key = lead + 2 * answers[at]
            seen.append(key + 2 <= sinks or at - key < window)
    assert len(seen) == pairs * len(examples.targets_NT)
    return float(np.mean(seen))


@pytest.mark.parametrize("pairs, share", [(4, 0.769), (8, 0.628)])
def test_sinks_and_a_window_see_most_pairs_of_mqar_and_few_of_the_uniform_one(pairs, share):
    """The accuracies of StreamingLLM that were reported, 0.760 and 0.621, are these shares: the
    generator had decided them.
    """
    examples = draw(Mqar(256, [4, 8]), 1024, 3000, pairs=pairs)
    assert in_sight(examples, pairs, 0, 60) == pytest.approx(share, abs=0.01)
    uniform = draw(MqarUniform(256, [4, 8]), 1024, 3000, pairs=pairs)
    places = (1024 - 4 - 2 * pairs) // 2
    expected = np.mean(
        [
            len([g for g in range(places) if 2 * pairs + 2 * g - 2 * i < 60]) / places
            for i in range(pairs)
        ]
    )
    assert in_sight(uniform, pairs, 4, 60) == pytest.approx(expected, abs=0.01) and expected < 0.06


@pytest.mark.parametrize("length", [64, 65, 200])
def test_uniform_mqar_asks_at_all_distances_alike_behind_filler(length):
    task = MqarUniform(64, [2, 8], lead=3, window=64)
    for n in (2, 8):
        examples, places = draw(task, length, 4000, pairs=n), (length - 3 - 2 * n) // 2
        counts = np.zeros(places)
        for inputs, targets, answers in zip(
            examples.inputs_NT.tolist(), examples.targets_NT, examples.answer_NT, strict=True
        ):
            keys, values = inputs[3 : 3 + 2 * n : 2], inputs[4 : 3 + 2 * n : 2]
            assert max(keys) < 32 <= min(values) and len({*keys}) == len({*values}) == n
            for at in np.flatnonzero(targets != IGNORED).tolist():
                assert inputs[at] == keys[answers[at]] and targets[at] == values[answers[at]]
                assert (
                    inputs.count(inputs[at]) == 2
                )  # in its pair and where it is asked for, never in the filler
                counts[(at - 3 - 2 * n) // 2] += 1
        np.testing.assert_allclose(
            counts / counts.sum(), 1 / places, atol=6 * (1 / places / (n * 4000)) ** 0.5
        )


def test_questions_inside_and_outside_of_the_window_are_asked_apart():
    task = MqarUniform(64, [2, 4], lead=4, window=16)
    assert [part.task for part in task.parts(16)] == [
        "mqar_uniform 2 pairs",
        "mqar_uniform 2 pairs inside 16",
    ]  # 4 pairs need 20 tokens
    named = {part.task: part.arguments for part in task.parts(64)}
    assert [*named] == ["mqar_uniform 2 pairs", "mqar_uniform 4 pairs"] + [
        f"mqar_uniform {n} pairs {where} 16" for n in (2, 4) for where in ("inside", "outside")
    ]
    for n in (2, 4):
        spans = {}
        for where in ("inside", "outside"):
            examples = draw(task, 64, 500, **named[f"mqar_uniform {n} pairs {where} 16"])
            at = np.stack([np.flatnonzero(row != IGNORED) for row in examples.targets_NT])
            spans[where] = (
                at.min() - 4 - 2 * n + 2,
                at.max() - 4 + 1,
            )  # from the last value to the first question; from the first pair to the last
        assert spans["inside"] == (2, 15) and spans["outside"][0] == 18 and spans["outside"][1] > 50


@pytest.mark.parametrize(
    "task, answer",
    [(Copy(20), list), (Reverse(20), lambda string: string[::-1]), (Sort(20), sorted)],
)
def test_copy_reverse_and_sort_ask_for_the_string_and_its_end(task, answer):
    for full in (False, True):
        examples, sizes = draw(task, full=full), set()
        for row, inputs in enumerate(examples.inputs_NT.tolist()):
            n = inputs.index(SEP) - 1
            sizes.add(n)
            string = inputs[1 : n + 1]
            assert (
                inputs[0] == BOS
                and min(string) >= FIRST_SYMBOL
                and answers_of(examples, row) == [*answer(string), EOS]
            )
            assert (
                inputs[n + 2 :] == [*answer(string), EOS, *[PAD] * 32][: 32 - n - 2]
            )  # what is asked for is fed behind it
            assert np.flatnonzero(examples.targets_NT[row] != IGNORED).tolist() == list(
                range(n + 1, 2 * n + 2)
            )
        assert sizes == ({15} if full else set(range(1, 16)))


@pytest.mark.parametrize("task", [Copy, Reverse, Sort])
def test_distinct_symbols_stand_once_in_a_string(task):
    seen = np.zeros(20, dtype=int)
    for full in (False, True):
        for inputs in draw(task(20, distinct=True), full=full).inputs_NT.tolist():
            string = inputs[1 : inputs.index(SEP)]
            assert len(set(string)) == len(string)
            seen[string] += 1
    assert (seen[:FIRST_SYMBOL] == 0).all() and seen[FIRST_SYMBOL:].min() > 0.8 * seen.max()
    assert any(
        len(set(row[1:16])) < 15 for row in draw(task(20), full=True).inputs_NT.tolist()
    )  # otherwise they repeat


def test_data_without_distinct_symbols_keeps_its_fingerprint():
    assert Copy(20).fingerprint() == Copy(20, False).fingerprint() != Copy(20, True).fingerprint()


@pytest.mark.parametrize("reverse", [False, True])
def test_addition_asks_for_the_sum(reverse):
    for full in (False, True):
        examples, sizes = draw(Addition(15, reverse), 32, full=full), []
        for row, inputs in enumerate(examples.inputs_NT.tolist()):
            text = inputs[1 : inputs.index(SEP)]
            parts = text[: text.index(PLUS)], text[text.index(PLUS) + 1 :]
            a, b = ("".join(str(digit - FIRST_SYMBOL) for digit in part) for part in parts)
            total = str(int(a) + int(b))
            digits = [FIRST_SYMBOL + int(digit) for digit in (total[::-1] if reverse else total)]
            assert answers_of(examples, row) == [*digits, EOS] and all(
                len(part) == 1 or part[0] != "0" for part in (a, b)
            )
            sizes.append(sorted((len(a), len(b))))
        assert {high for _, high in sizes} == ({9} if full else set(range(1, 10)))
        assert {low for low, _ in sizes} == set(range(1, 10))


def test_numbers_may_have_more_digits_than_python_reads():
    total = Addition(15).question_and_answer(np.full(5000, 9), np.array([1]))[1]
    assert (total - FIRST_SYMBOL).tolist() == [1, *[0] * 5000]
    assert len(answers_of(draw(Addition(15), 15_004, 1, full=True), 0)) in (
        5001,
        5002,
    )  # EOS behind the sum


@pytest.mark.parametrize(
    "task",
    [Mqar(64, [1, 2, 4]), MqarUniform(64, [1, 2]), Copy(20), Addition(15)],
    ids=lambda task: task.name,
)
def test_batches_are_a_function_of_seed_and_step(task):
    def batches_of(seed=0, split="train"):
        return batches(TaskSplit(task, split), [16, 32], 128, seed, None)

    here, forward = batches_of(), [batches_of().at(step) for step in range(12)]
    for step in (11, 0, 5, 5):
        inputs_BT, targets_BT = here.at(step)
        assert inputs_BT.equal(forward[step][0]) and targets_BT.equal(forward[step][1])
        assert inputs_BT.numel() == 128 and here.n_targets(step) == int(
            (targets_BT != IGNORED).sum()
        )
        parts = [
            here.at(step, lambda n, i=i: slice(i * n // 2, (i + 1) * n // 2))[1] for i in (0, 1)
        ]
        assert [row for part in parts for row in part.tolist()] == targets_BT.tolist()
    assert {batch[0].shape[1] for batch in forward} == {16, 32}
    assert not any(
        batches_of(seed, split).at(1)[0].equal(forward[1][0])
        for seed, split in ((1, "train"), (0, "validation"))
    )
