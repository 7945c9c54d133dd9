"""Protocols on models whose probabilities are known: every number here can be worked out by
hand.
"""

import math

import numpy as np
import pytest
from conftest import TRAIN_LEN
from known_models import VOCAB, Bag, Copier, Counter, counting, evaluation, file

from posbench.evaluation.registry import protocol
from posbench.extensions.ntk import Ntk
from posbench.extensions.recompute_window import RecomputeWindow


def published(c):
    """Nats/token after c tokens: the curve under which users.md A4 compares what papers call
    perplexity.
    """
    return 2.6 + 1.8 * (c + 1.0) ** -0.45


def remembers(memory):
    """1 nat less for each doubling of the text seen, up to `memory` tokens."""
    return lambda c: 4.0 - 0.5 * np.log2(np.minimum(c, memory) + 1.0)


LENGTHS = (512, 2048, 8192)


@pytest.mark.parametrize(
    ("name", "size", "bos", "printed"),
    [
        ("disjoint", 20_000, True, ("16.34", "14.97", "14.31")),
        ("sliding", 20_000, True, ("15.29", "14.36", "14.04")),
        (
            "yarn_script",
            20_001,
            True,
            ("15.28", "14.31", "13.90"),
        ),  # a window is the BOS and L - 1 tokens
        (
            "yarn_script_truncate",
            20_001,
            True,
            ("16.34", "14.95", "14.25"),
        ),  # scores L - 1 tokens; of L the first would be 16.33
        ("lceg_script", 20_000, False, ("16.34", "14.95", "14.25")),
    ],
)
def test_one_curve_read_by_five_protocols_gives_the_published_perplexities(
    name, size, bos, printed
):
    """One document of 20,000 tokens and nats as above, stride 256, as in the table of that
    survey.
    """
    model = Counter(published if bos else lambda c: published(c - 1), step=0)
    text = file(np.zeros(size + 1), [size + 1])
    evaluator = protocol(name)(
        evaluation(
            model,
            text,
            bos=bos,
            lengths=list(LENGTHS),
            max_length=size,
            stride=256,
            batch_tokens=65536,
        )
    )
    for length, printed_ppl in zip(LENGTHS, printed, strict=True):
        (row,), _ = evaluator.run(length)
        assert f"{math.exp(row['nll']):.2f}" == printed_ppl


def test_the_last_256_targets_of_the_same_curve_are_fixed_targets():
    model = Counter(published, step=0)
    evaluator = protocol("fixed_targets")(
        evaluation(
            model, file(np.zeros(8193), [8193]), bos=True, max_length=8192, targets=256, windows=1
        )
    )
    perplexities = [math.exp(evaluator.run(length)[0][0]["nll"]) for length in LENGTHS]
    assert [f"{ppl:.2f}" for ppl in perplexities] == ["15.26", "14.30", "13.89"]


@pytest.mark.parametrize("memory", [10, 40, 1000])
def test_fixed_targets_of_a_model_with_longer_memory_never_rise(memory):
    lengths = [16, 20, 24, 32, 48, 64]
    evaluator = protocol("fixed_targets")(
        evaluation(Counter(remembers(memory)), counting([90, 20, 300]), lengths=lengths)
    )
    losses = [evaluator.run(length)[0][0]["nll"] for length in lengths]
    for length, loss, before in zip(lengths, losses, [math.inf, *losses], strict=False):
        assert loss <= before
        assert loss == pytest.approx(
            np.mean([remembers(memory)(length - 1), remembers(memory)(length)]), abs=1e-6
        )
    assert (losses[0] > losses[-1]) == (memory > 16)


@pytest.mark.parametrize("stride", [1, 3, 4, 16])
def test_sliding_scores_every_token_once_with_all_but_a_stride_of_its_window(stride):
    scorer = evaluation(
        Counter(remembers(1000)), counting([400, 20, 65]), stride=stride, windows=64, lengths=[16]
    )
    evaluator = protocol("sliding")(scorer)
    (row,), arrays = evaluator.run(16)
    windows = evaluator.windows
    place = np.arange(windows.n_targets)
    assert len(windows.last_N) > 3
    for nll, first, document in zip(
        arrays["nll"].reshape(-1, 64), windows.last_N - 64, windows.document_N, strict=True
    ):
        start = np.maximum(
            first + (place // stride + 1) * stride - 16, windows.file.starts[document]
        )  # no further than the document goes
        context = first + place + 1 - start
        assert (context[16:] > 16 - stride).all() and context.max() <= 16
        np.testing.assert_allclose(nll, remembers(1000)(context), atol=1e-5)
    assert row["nll"] == pytest.approx(arrays["nll"].mean(), abs=1e-6)  # every token weighs alike
    shared = evaluator.shared_arrays()
    tokens = {*zip(shared["document"], shared["offset"], strict=True)}
    assert len(tokens) == row["n_targets"]


def test_sliding_token_by_token_is_the_floor_on_the_same_targets():
    text = counting([90, 20, 300, 65])
    by_token = protocol("sliding")(
        evaluation(Counter(remembers(1000)), text, lengths=[TRAIN_LEN], stride=1)
    ).run(TRAIN_LEN)
    floor = protocol("sliding")(
        evaluation(Counter(remembers(1000)), text, RecomputeWindow(), lengths=[64], stride=8)
    ).run(64)
    assert np.array_equal(by_token[1]["nll"], floor[1]["nll"])
    assert by_token[0][0]["nll"] < remembers(1000)(TRAIN_LEN) + 0.2


def test_tiled_targets_read_every_token_of_the_stretches_as_fixed_targets_do():
    """The tokens of disjoint and sliding, each with at least L - S + 1 tokens before it, in models
    of any training length.
    """
    text = counting([400, 20, 300])
    settings = {"targets": 4, "stride": 8, "windows": 64, "max_length": 64, "lengths": [16, 32, 64]}
    tiled, sliding, disjoint = (
        protocol(name)(evaluation(Counter(remembers(1000)), text, **settings))
        for name in ("tiled_targets", "sliding", "disjoint")
    )
    for name in ("document", "offset", "bytes"):
        assert np.array_equal(tiled.shared_arrays()[name], disjoint.shared_arrays()[name])
        assert np.array_equal(tiled.shared_arrays()[name], sliding.shared_arrays()[name])
    for length in (16, 32, 64):
        loss = tiled.run(length)[1]["nll"]
        place = tiled.shared_arrays()["offset"]  # tokens of the document before each target
        context = np.where(place >= length, length - 3 + np.arange(len(place)) % 4, 0)
        full = context > 0
        np.testing.assert_allclose(loss[full], remembers(1000)(context[full]), atol=1e-5)
        assert (
            full.mean() > 0.7 and (loss[full] <= sliding.run(length)[1]["nll"][full] + 1e-6).all()
        )
    assert tiled.run(64)[0][0]["nll"] < tiled.run(16)[0][0]["nll"]
    by_stride = protocol("sliding")(
        evaluation(Counter(remembers(1000)), text, **{**settings, "stride": 4})
    )
    assert np.array_equal(by_stride.run(32)[1]["nll"], tiled.run(32)[1]["nll"])


def test_a_copier_finds_every_copy_and_its_control():
    text = file(
        np.tile(np.random.default_rng(0).permutation(VOCAB), 2), [100]
    )  # 50 tokens in a row are all different
    evaluator = protocol("repeat")(
        evaluation(Copier(), text, lengths=[16, 32, 48], max_length=48, windows=50)
    )
    (baseline, control), arrays = evaluator.run(TRAIN_LEN)
    assert (baseline["task"], control["task"]) == ("copies", "control")
    assert baseline["accuracy"] < 0.1 and baseline["nll"] > 3  # one copy: nothing to copy from
    ((copies,), _), ((many,), _) = evaluator.run(32), evaluator.run(48)
    for row in (control, copies, many):
        assert row["accuracy"] == 1.0 and row["nll"] == pytest.approx(-math.log(0.9), abs=1e-6)
    assert (
        arrays["nll"].shape
        == evaluator.shared_arrays()["document"].shape
        == evaluator.shared_arrays()["control_nll"].shape
    )
    assert np.array_equal(
        protocol("fixed_targets")(evaluator.evaluation).shared_arrays()["offset"],
        evaluator.shared_arrays()["offset"],
    )


def test_of_repeated_text_too_a_cropped_window_sees_its_own_tokens_alone():
    text = file(np.tile(np.random.default_rng(0).permutation(VOCAB), 2), [100])
    evaluator = protocol("repeat")(
        evaluation(Copier(), text, RecomputeWindow(), lengths=[16, 48], max_length=48)
    )
    assert evaluator.run(48)[0][0]["accuracy"] < 0.1  # one copy
    wider = protocol("repeat")(
        evaluation(Copier(), text, RecomputeWindow(17), lengths=[16, 48], max_length=48)
    )
    assert wider.run(48)[0][0]["accuracy"] == 1.0


def test_what_repeat_feeds_is_the_text_of_train_len_tokens_again_and_again():
    model = Counter(remembers(1000))
    evaluator = protocol("repeat")(evaluation(model, counting([90]), lengths=[16, 40], windows=3))
    evaluator.run(40)
    last = evaluator.windows.last_N[0]
    copy = evaluator.windows.file.tokens[last - TRAIN_LEN + 1 : last + 1]
    assert np.array_equal(model.fed[0][0], np.tile(copy, 3)[-41:-1])
    model.fed.clear()
    assert evaluator.control[0][0]["task"] == "control"
    assert np.array_equal(model.fed[0][0], np.tile(copy[TRAIN_LEN // 2 :], 3)[-TRAIN_LEN - 1 : -1])


def test_a_model_without_order_loses_nothing_to_shuffling_and_one_with_order_does():
    text = counting([90, 20, 300, 65])
    for length in (16, 64):
        ordered, shuffled = (
            protocol(name)(evaluation(Bag(), text)).run(length)
            for name in ("fixed_targets", "shuffled_prefix")
        )
        assert np.array_equal(ordered[1]["nll"], shuffled[1]["nll"])
    model = Counter(remembers(1000))
    ordered, shuffled = (
        protocol(name)(evaluation(model, text)) for name in ("fixed_targets", "shuffled_prefix")
    )
    assert ordered.run(64)[0][0]["nll"] < 1.1
    model.fed.clear()
    nll_NS = shuffled.run(64)[1]["nll"].reshape(-1, 2)
    np.testing.assert_allclose(
        np.median(nll_NS, axis=0), remembers(1000)(np.array([1.0, 2.0])), atol=1e-5
    )
    (fed_NL,) = model.fed[-1:]
    plain_NL = text.tokens[shuffled.windows.last_N[-len(fed_NL) :, None] + np.arange(-64, 0)]
    assert np.array_equal(fed_NL[:, -2:], plain_NL[:, -2:]) and np.array_equal(
        fed_NL[:, 0], plain_NL[:, 0]
    )
    assert np.array_equal(np.sort(fed_NL), np.sort(plain_NL)) and (fed_NL != plain_NL).mean() > 0.8
    assert np.array_equal(shuffled.shared_arrays()["offset"], ordered.shared_arrays()["offset"])


def test_the_texts_of_single_targets_are_shuffled_too():
    text, model = counting([90, 20, 300, 65]), Counter(remembers(1000))
    evaluator = protocol("shuffled_prefix")(evaluation(model, text, RecomputeWindow(), targets=2))
    nll_NS = evaluator.run(64)[1]["nll"].reshape(-1, 2)
    np.testing.assert_allclose(
        np.median(nll_NS, axis=0), remembers(1000)(np.array([1.0, 2.0])), atol=1e-5
    )
    assert {fed.shape[1] for fed in model.fed} == {TRAIN_LEN}


@pytest.mark.parametrize(
    "name",
    [
        "fixed_targets",
        "by_position",
        "disjoint",
        "sliding",
        "yarn_script",
        "lceg_script",
        "shuffled_prefix",
    ],
)
def test_every_window_of_a_length_is_read_with_one_factor(name):
    model = Counter(remembers(1000))
    evaluator = protocol(name)(
        evaluation(model, counting([300, 300]), Ntk(mode="dynamic"), lengths=[40], windows=20)
    )
    evaluator.run(40)
    assert {fed.shape[1] for fed in model.fed} == {
        40
    }  # the plan's length, which its factor comes from


@pytest.mark.parametrize(
    "name",
    [
        "fixed_targets",
        "by_position",
        "disjoint",
        "sliding",
        "repeat",
        "shuffled_prefix",
        "yarn_script",
    ],
)
def test_every_window_begins_with_the_bos(name):
    model = Counter(remembers(1000))
    protocol(name)(evaluation(model, counting([90, 300]), bos=True)).run(32)
    for fed_NL in model.fed:
        assert (fed_NL[:, 0] == VOCAB).all() and (fed_NL[:, 1:] != VOCAB).all()
