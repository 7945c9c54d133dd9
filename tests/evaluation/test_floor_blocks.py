"""Blocks of targets that share one text of recompute_window: exact at 1, else each target has the context that is stated."""

import numpy as np
import pytest
from conftest import TRAIN_LEN
from test_evaluate import evaluation, naive

from posbench.evaluation.protocol import not_scored, protocol
from posbench.extensions.recompute_window import RecomputeWindow

WINDOW, S, BLOCK = 32, 7, 3


def made(name: str = "fixed_targets", **options):
    return protocol(name)(evaluation(RecomputeWindow(WINDOW), **{"targets": S, "stride": 4, **options}))


@pytest.mark.parametrize("bos", [None, 49])
def test_a_block_gives_every_target_the_context_that_is_stated(bos):
    one = made(floor_block=BLOCK, bos=bos)
    nll_NS = one.score(64)[0]
    for s in range(S):
        end = min(s // BLOCK * BLOCK + BLOCK, S) - 1  # the block's last target, which has the whole window
        target = one.windows.targets_NS[1, s]
        assert nll_NS[1, s] == pytest.approx(naive(one.evaluation, target, WINDOW - (end - s)), abs=1e-4)
    exact_NS = made(bos=bos).score(64)[0]
    whole = np.array([BLOCK - 1, 2 * BLOCK - 1, S - 1])
    assert np.allclose(nll_NS[:, whole], exact_NS[:, whole], atol=1e-5)
    assert abs(np.delete(nll_NS - exact_NS, whole, axis=1)).min() > 0  # and the others are read with less


@pytest.mark.parametrize("length", [WINDOW + 1, 64])
@pytest.mark.parametrize("name", ["fixed_targets", "shuffled_prefix", "repeat", "sliding", "disjoint"])
def test_one_target_in_a_block_is_bit_for_bit_a_text_for_each(name, length):
    one = made(name, floor_block=1)
    context_NS = one.contexts(length)
    nll_M, correct_M = not_scored(context_NS.size)
    for context in np.unique(context_NS):
        at = np.flatnonzero(context_NS == context)
        nll, correct = one.evaluation.score(one.evaluation.plan(int(context)), at, 1, one.index)
        nll_M[at], correct_M[at] = nll[:, 0], correct[:, 0]
    found_NS, correct_NS = one.score(length)
    assert np.array_equal(found_NS.ravel(), nll_M) and np.array_equal(correct_NS.ravel(), correct_M)
    assert np.array_equal(made(name).score(length)[0], found_NS)  # as for a configuration that says nothing


@pytest.mark.parametrize("length", [WINDOW + 1, 50, 64])
@pytest.mark.parametrize("name", ["fixed_targets", "shuffled_prefix", "repeat", "sliding", "disjoint"])
def test_no_target_of_a_block_has_more_context_than_its_own_or_less_than_is_stated(name, length):
    one = made(name, floor_block=BLOCK)
    context_M = one.contexts(length).ravel()
    last_B, size_B = one.blocks(one.contexts(length))
    assert size_B.sum() == context_M.size and size_B.max() == BLOCK
    for last, size in zip(last_B, size_B, strict=True):
        at = np.arange(last - size + 1, last + 1)
        given = context_M[last] - (last - at)
        assert (given <= context_M[at]).all() and (given > context_M[at] - BLOCK).all() and given.min() >= 1
        assert len(set(at // one.windows.n_targets)) == 1  # within one window or stretch
    assert np.isfinite(one.score(length)[0]).all()


def test_a_block_is_at_most_an_eighth_of_the_window():
    config = made(floor_block=100).evaluation.config
    assert [protocol("sliding").block(config, fed) for fed in (1, 8, TRAIN_LEN, 64, 8192)] == [1, 1, 2, 8, 100]


def test_blocks_are_read_shared_and_progress_counts_them():
    told = []
    one = made(floor_block=BLOCK, batch_tokens=4096)
    one.evaluation.progress = lambda n, part=False: told.append(n)
    one.score(64)
    n_windows = len(one.windows.last_N)
    assert sum(told) == one.cost(64) == n_windows * 3 * WINDOW
    reading = one.reading(one.evaluation.config, TRAIN_LEN, 64, WINDOW)
    assert (reading.texts, reading.tokens, reading.rows) == (one.evaluation.config.windows * 3, WINDOW, BLOCK)
