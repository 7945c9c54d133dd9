"""Evaluation against the plainest loop that means the same: one target, one feed, one forward
pass.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TRAIN_LEN, small_model, small_shape

from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.encodings.hybrid import Hybrid
from posbench.encodings.rope import Rope
from posbench.evaluation import scorer as scorer_module
from posbench.evaluation.protocol import mean_row, unscored_arrays
from posbench.evaluation.protocols.by_position import bin_edges
from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.evaluation.registry import protocol
from posbench.evaluation.scorer import Scorer
from posbench.evaluation.windows import choose_windows
from posbench.extensions.none import NoExtension
from posbench.extensions.recompute_window import RecomputeWindow
from posbench.extensions.rerope import Rerope
from posbench.model.kernels import dispatch as kernels
from posbench.position.plan import make_plan
from posbench.scale_attention.log_n import LogN

S = TRAIN_LEN // 8


def text(lengths: list[int]) -> TokenFile:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 50, sum(lengths)).astype(np.uint16)
    n_bytes = generator.integers(1, 6, sum(lengths)).astype(np.uint8)
    return TokenFile(
        tokens, n_bytes, np.cumsum([0, *lengths]), [str(i) for i in range(len(lengths))]
    )


def evaluation(extension=None, scale=None, bos=None, **options) -> Scorer:
    config = EvaluateConfig(
        **{
            "dtype": "fp32",
            "lengths": [16, 32, 64],
            "max_length": 64,
            "windows": 9,
            "targets": S,
            "batch_tokens": 400,
            **options,
        },
    )
    corpus = SimpleNamespace(test=text([90, 20, 300, 65]), bos=bos)
    return Scorer(
        small_model(Rope(small_shape())),
        corpus,
        extension or NoExtension(),
        scale or LogN(small_shape()),
        config,
        "cpu",
    )


def naive(scorer: Scorer, target: int, context: int) -> float:
    """nll of the token at index `target` after `context` tokens."""
    feed = torch.from_numpy(scorer.corpus.test.tokens[target - context : target].astype(np.int64))[
        None
    ].clone()
    if scorer.corpus.bos is not None:
        feed[0, 0] = scorer.corpus.bos
    with torch.no_grad():
        logits = scorer.model(
            feed, make_plan(scorer.model.encoding, scorer.extension, scorer.scale, length=context)
        )
    return -torch.log_softmax(logits[0, -1].double(), -1)[
        int(scorer.corpus.test.tokens[target])
    ].item()


@pytest.mark.parametrize(
    "extension", [NoExtension(), Rerope()], ids=lambda method: type(method).__name__
)
def test_progress_is_told_while_a_long_text_is_read(extension):
    scorer, reports = (
        evaluation(extension, lengths=[256], max_length=256, windows=2, batch_tokens=256),
        [],
    )
    scorer.progress = lambda n, part=False: reports.append((n, part))
    FixedTargets(scorer).score(256)
    ends = [i for i, (_, part) in enumerate(reports) if not part]
    assert len(ends) == 2 and sum(n for n, _ in reports) == 512  # a batch for each window
    # A step for each layer; where a kernel works in blocks of 32 queries, for each of these.
    assert (
        ends[0] >= (2 if isinstance(extension, NoExtension) else 8)
        and max(n for n, _ in reports) <= 128
    )


def test_a_long_text_is_read_two_heads_after_the_other_to_the_same_losses(monkeypatch):
    scorer, reports = evaluation(lengths=[256], max_length=256, windows=1), []
    expected_NS = FixedTargets(scorer).score(256)[0]
    for name in ("LONGEST_UNCHUNKED", "PAIRS_PER_CALL"):
        monkeypatch.setattr(kernels, name, 128)
    scorer.progress = lambda n, part=False: reports.append(n)
    # Equal bits on a Xeon with AMX; on an EPYC without it the last digit of a float32 differs.
    assert np.allclose(FixedTargets(scorer).score(256)[0], expected_NS, rtol=1e-6, atol=0)
    assert (
        len(reports) == 3 + 3 + 1
    )  # pairs of heads and the rest of a layer, few rows of the last, the end of the batch


def test_losses_in_bf16_are_those_of_weights_rounded_in_every_pass(monkeypatch):
    scorer = evaluation(lengths=[256], max_length=256, windows=3, dtype="bf16")
    exact_scorer = evaluation(lengths=[256], max_length=256, windows=3)
    once, rounded_models = FixedTargets(scorer).score(256), []
    monkeypatch.setattr(
        scorer_module, "rounded", lambda model: rounded_models.append(model) or model
    )
    every = FixedTargets(scorer).score(256)
    exact = FixedTargets(exact_scorer).score(256)
    assert rounded_models == [scorer.model] and all(
        np.array_equal(a, b) for a, b in zip(once, every, strict=True)
    )
    assert not np.array_equal(once[0], exact[0]) and np.abs(once[0] - exact[0]).max() < 0.2


def test_logits_of_a_large_vocabulary_are_made_a_few_rows_at_once(monkeypatch):
    scorer = evaluation(lengths=[64], windows=9)
    at_once = FixedTargets(scorer).score(64)
    monkeypatch.setattr(scorer_module, "LOSS_LOGITS", 150)
    assert all(
        np.array_equal(a, b) for a, b in zip(FixedTargets(scorer).score(64), at_once, strict=True)
    )
    monkeypatch.setattr(scorer_module, "HEAD_LOGITS", 1)
    few = FixedTargets(scorer).score(64)
    assert np.allclose(few[0], at_once[0], atol=1e-5) and np.array_equal(few[1], at_once[1])


def test_windows_stay_inside_documents_and_depend_on_max_length_alone():
    file = text([90, 20, 300, 65])
    windows = choose_windows(file, 64, 40, S, seed=0)
    assert (np.diff(windows.last_N) >= S).all()  # no target twice
    for last, document in zip(windows.last_N, windows.document_N, strict=True):
        assert file.starts[document] <= last - 64 and last < file.starts[document + 1]
    assert {0, 2} <= set(windows.document_N) <= {0, 2, 3}  # document 1 is too short
    assert (windows.offset_NS()[:, -1] == windows.last_N - file.starts[windows.document_N]).all()


def test_places_are_sampled_evenly_over_all_that_is_long_enough():
    file = text([1064, 3064])
    document_N = choose_windows(file, 64, 400, 1, seed=0).document_N
    assert np.bincount(document_N).tolist() == [100, 300]


def test_a_glob_of_names_leaves_windows_in_these_documents_alone():
    file = replace(
        text([300, 300, 300, 300]),
        names=["test/a/one", "test/b/two", "test/a/three", "test/b/four"],
    )
    assert set(choose_windows(file, 64, 40, S, seed=0, documents="test/b/*").document_N) == {1, 3}


def test_projects_get_as_many_windows_each_and_are_the_units_of_intervals():
    names = ["a/one", "b/x/two", "a/three", "b/four", "c/five"]
    file = replace(text([300, 900, 500, 2000, 40]), names=names)  # c/five is too short
    windows = choose_windows(file, 64, 40, S, seed=0, unit="project")
    assert np.bincount(windows.unit_D[windows.document_N]).tolist() == [20, 20]
    assert windows.unit_D.tolist() == [0, 1, 0, 1, 2]
    for last, document in zip(windows.last_N, windows.document_N, strict=True):
        assert file.starts[document] <= last - 64 and last < file.starts[document + 1]
    within = np.bincount(windows.document_N, minlength=4)
    assert (
        within[0] < within[2] and within[1] < within[3]
    )  # each place of a project is equally likely
    assert choose_windows(file, 64, 40, S, seed=0).unit_D.tolist() == [0, 1, 2, 3, 4]


def test_an_interval_over_projects_is_that_of_their_sums():
    # The variance of a mean over clusters, by its textbook formula.
    names, rng = ["a/1", "b/1", "a/2", "b/2", "c/1"], np.random.default_rng(0)
    file = replace(text([300] * 5), names=names)
    windows = choose_windows(file, 64, 30, S, seed=0, unit="project")
    nll_NS = rng.normal(3, 1, (len(windows.last_N), S))
    row = mean_row(nll_NS, nll_NS > 3, windows.unit_D[windows.document_N], np.ones(1), "project")
    project = np.array([names[document][0] for document in windows.document_N])
    sums = np.array([(nll_NS[project == name] - nll_NS.mean()).sum() for name in "abc"])
    assert (row["n_units"], row["sem_unit"], row["nll"]) == (
        3,
        "project",
        pytest.approx(nll_NS.mean()),
    )
    assert row["nll_sem"] == pytest.approx(np.sqrt(3 / 2 * (sums**2).sum()) / nll_NS.size)


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize("extension", [NoExtension(), Rerope()], ids=["none", "rerope"])
def test_fixed_targets_feeds_the_tokens_before_the_last_target(extension, length, bos):
    scorer = evaluation(extension, bos=bos)
    (row,), arrays = FixedTargets(scorer).run(length)
    nll_NS = arrays["nll"].reshape(-1, S)
    for n, last in enumerate(FixedTargets(scorer).windows.last_N[:3]):
        for behind in range(S):
            assert nll_NS[n, S - 1 - behind] == pytest.approx(
                naive(scorer, last - behind, length - behind), abs=1e-4
            )
    assert row["nll"] == pytest.approx(arrays["nll"].mean(), rel=1e-5)
    assert (
        row["n_bytes"] == scorer.corpus.test.n_bytes[FixedTargets(scorer).windows.targets_NS].sum()
    )


def test_recompute_window_feeds_exactly_its_window_to_every_target():
    scorer = evaluation(RecomputeWindow())
    evaluator = FixedTargets(scorer)
    nll_NS = evaluator.run(64)[1]["nll"].reshape(-1, S)
    for s in range(S):
        target = evaluator.windows.last_N[1] - S + 1 + s
        assert nll_NS[1, s] == pytest.approx(naive(scorer, target, TRAIN_LEN), abs=1e-4)
    assert np.array_equal(
        evaluator.run(32)[1]["nll"], nll_NS.ravel()
    )  # every longer length is the same floor
    direct = FixedTargets(evaluation()).run(TRAIN_LEN)[1]["nll"]
    assert np.array_equal(evaluator.run(TRAIN_LEN)[1]["nll"], direct)  # nothing to throw away yet


def test_bins_are_single_positions_then_four_per_doubling():
    assert bin_edges(64) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 23, 27, 32, 38, 45, 54, 64]


def test_the_largest_distance_is_the_extensions():
    assert FixedTargets(evaluation()).run(64)[0][0]["max_distance"] == 63
    assert FixedTargets(evaluation(Rerope(5))).run(64)[0][0]["max_distance"] == 5
    assert (
        FixedTargets(evaluation(RecomputeWindow())).run(64)[0][0]["max_distance"] == TRAIN_LEN - 1
    )


@pytest.mark.parametrize("period", [1, 2, 4])
def test_a_distance_is_known_where_any_layer_has_positions(period):
    rope = {"_target_": "posbench.encodings.rope.Rope"}
    none = {"_target_": "posbench.encodings.none.NoEncoding"}
    known = Hybrid(small_shape(n_layer=4), none, rope, period=period)
    unknown = Hybrid(small_shape(n_layer=4), none, none, period=period)
    scorer = evaluation()
    plans = [
        make_plan(encoding, NoExtension(), LogN(small_shape()), length=64)
        for encoding in (known, unknown)
    ]
    assert [scorer.max_distance(plan) for plan in plans] == [63, None]


WINDOW, TARGETS, BLOCK = 32, 7, 3  # of blocks of targets that share one text of recompute_window


def evaluator_of(name: str = "fixed_targets", **options):
    return protocol(name)(
        evaluation(RecomputeWindow(WINDOW), **{"targets": TARGETS, "stride": 4, **options})
    )


@pytest.mark.parametrize("bos", [None, 49])
def test_a_block_gives_every_target_the_context_that_is_stated(bos):
    evaluator = evaluator_of(floor_block=BLOCK, bos=bos)
    nll_NS = evaluator.score(64)[0]
    for s in range(TARGETS):
        end = (
            min(s // BLOCK * BLOCK + BLOCK, TARGETS) - 1
        )  # the block's last target, which has the whole window
        target = evaluator.windows.targets_NS[1, s]
        assert nll_NS[1, s] == pytest.approx(
            naive(evaluator.evaluation, target, WINDOW - (end - s)), abs=1e-4
        )
    exact_NS = evaluator_of(bos=bos).score(64)[0]
    block_ends = np.array([BLOCK - 1, 2 * BLOCK - 1, TARGETS - 1])
    assert np.allclose(nll_NS[:, block_ends], exact_NS[:, block_ends], atol=1e-5)
    assert (
        abs(np.delete(nll_NS - exact_NS, block_ends, axis=1)).min() > 0
    )  # and the others are read with less


@pytest.mark.parametrize("length", [WINDOW + 1, 64])
@pytest.mark.parametrize(
    "name", ["fixed_targets", "shuffled_prefix", "repeat", "sliding", "disjoint"]
)
def test_one_target_in_a_block_is_bit_for_bit_a_text_for_each(name, length):
    evaluator = evaluator_of(name, floor_block=1)
    context_NS = evaluator.context_lengths(length)
    nll_M, correct_M = unscored_arrays(context_NS.size)
    for context in np.unique(context_NS):
        at = np.flatnonzero(context_NS == context)
        plan = evaluator.evaluation.plan(int(context))
        nll, correct = evaluator.evaluation.score_windows(
            plan, at, 1, evaluator.indices_up_to_targets
        )
        nll_M[at], correct_M[at] = nll[:, 0], correct[:, 0]
    found_NS, correct_NS = evaluator.score(length)
    assert np.array_equal(found_NS.ravel(), nll_M) and np.array_equal(correct_NS.ravel(), correct_M)
    assert np.array_equal(
        evaluator_of(name).score(length)[0], found_NS
    )  # as for a configuration that says nothing


@pytest.mark.parametrize("length", [WINDOW + 1, 50, 64])
@pytest.mark.parametrize(
    "name", ["fixed_targets", "shuffled_prefix", "repeat", "sliding", "disjoint"]
)
def test_no_target_of_a_block_has_more_context_than_its_own_or_less_than_is_stated(name, length):
    evaluator = evaluator_of(name, floor_block=BLOCK)
    context_M = evaluator.context_lengths(length).ravel()
    last_B, size_B = evaluator.target_blocks(evaluator.context_lengths(length))
    assert size_B.sum() == context_M.size and size_B.max() == BLOCK
    for last, size in zip(last_B, size_B, strict=True):
        at = np.arange(last - size + 1, last + 1)
        context = context_M[last] - (last - at)
        assert (
            (context <= context_M[at]).all()
            and (context > context_M[at] - BLOCK).all()
            and context.min() >= 1
        )
        assert len(set(at // evaluator.windows.n_targets)) == 1  # within one window or stretch
    assert np.isfinite(evaluator.score(length)[0]).all()


def test_a_block_is_at_most_an_eighth_of_the_window():
    config = evaluator_of(floor_block=100).evaluation.config
    assert [protocol("sliding").block_size(config, fed) for fed in (1, 8, TRAIN_LEN, 64, 8192)] == [
        1,
        1,
        2,
        8,
        100,
    ]


def test_blocks_are_read_shared_and_progress_counts_them():
    reports = []
    evaluator = evaluator_of(floor_block=BLOCK, batch_tokens=4096)
    evaluator.evaluation.progress = lambda n, part=False: reports.append(n)
    evaluator.score(64)
    n_windows = len(evaluator.windows.last_N)
    assert sum(reports) == evaluator.tokens_to_read(64) == n_windows * 3 * WINDOW
    reading = evaluator.read_volume(evaluator.evaluation.config, TRAIN_LEN, 64, WINDOW)
    assert (reading.texts, reading.tokens_per_text, reading.rows_per_text) == (
        evaluator.evaluation.config.windows * 3,
        WINDOW,
        BLOCK,
    )
