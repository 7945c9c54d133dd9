"""Training batches: windows inside documents, every one once per epoch, a pure function of (seed,
step); and what texts share.
"""

import numpy as np
import pytest

from posbench.data.batches import Batches, WindowSequence
from posbench.data.tokenfile import TokenFile, overlap, sequence_hashes


def numbered(*lengths):
    """Documents whose token t is its own index in the file, so that a window says where it lies."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(starts[-1], dtype=np.uint32)
    return TokenFile(
        tokens, np.ones(len(tokens), dtype=np.uint8), starts, [str(n) for n in range(len(lengths))]
    )


def test_windows_lie_inside_one_document_and_targets_follow_inputs():
    tokens = numbered(50, 3, 31, 200, 16)
    batches = Batches(tokens, [15], 60, seed=0, bos=None)
    for step in range(50):
        inputs, targets = batches.at(step)
        assert inputs.shape == targets.shape == (4, 15) and str(inputs.dtype) == "torch.int64"
        assert (targets == inputs + 1).all()
        document = np.searchsorted(tokens.starts, inputs[:, 0], side="right")
        assert (document == np.searchsorted(tokens.starts, targets[:, -1], side="right")).all()
        assert 2 not in document  # three tokens are no window


def test_an_epoch_holds_every_window_once_and_the_next_has_others():
    windows = WindowSequence(numbered(100, 57, 10), 10, [0, 9])
    windows.first_tokens(0, 40)
    first, second = (
        windows.first_tokens(a, b - a)
        for a, b in zip(windows._windows_before[:2], windows._windows_before[1:3], strict=True)
    )
    for epoch in (first, second):
        for start, length in ((0, 100), (100, 57), (157, 10)):
            inside = np.sort(epoch[(epoch >= start) & (epoch < start + length)]) - start
            assert (np.diff(inside) == 10).all()  # back to back, so each once
            assert (
                inside[0] < 10 and 0 <= length - (inside[-1] + 10) < 10
            )  # and as many as fit behind the offset
        assert not (np.sort(epoch) == epoch).all()
    assert set(first) != set(second)


def test_a_batch_may_straddle_epochs_and_loses_no_window():
    tokens = numbered(64)
    batches = Batches(tokens, [7], 21, seed=3, bos=None)
    drawn = np.concatenate([batches.at(step)[0][:, 0].numpy() for step in range(8)])
    windows = batches.windows[7]
    assert len(set(drawn[: windows._windows_before[1]])) == windows._windows_before[1]
    assert (
        len(set(drawn[windows._windows_before[1] : windows._windows_before[2]]))
        == windows._windows_before[2] - windows._windows_before[1]
    )


@pytest.mark.parametrize("lengths", [[15], [7, 15, 31]])
def test_at_is_a_pure_function_of_seed_and_step(lengths):
    tokens = numbered(300, 80, 40)
    here = Batches(tokens, lengths, 62, seed=5, bos=None)
    forward = [here.at(step)[0] for step in range(40)]
    for step in (33, 2, 39, 0):
        assert here.at(step)[0].equal(forward[step])
        assert Batches(tokens, lengths, 62, seed=5, bos=None).at(step)[0].equal(forward[step])
    other = Batches(tokens, lengths, 62, seed=6, bos=None)
    assert any(not other.at(step)[0].equal(forward[step]) for step in range(3))


def test_several_lengths_are_drawn_evenly_and_fill_the_step():
    batches = Batches(numbered(3000), [10, 50], 100, seed=0, bos=None)
    shapes = [tuple(batches.at(step)[0].shape) for step in range(400)]
    assert set(shapes) == {(10, 10), (2, 50)} and 150 < shapes.count((2, 50)) < 250
    long = np.concatenate(
        [batches.at(step)[0][:, 0].numpy() for step in range(400) if shapes[step] == (2, 50)]
    )
    first_epoch = batches.windows[50]._windows_before[
        1
    ]  # each length goes through its own windows, none skipped at the other's steps
    assert long[:first_epoch].tolist() == batches.windows[50].first_tokens(0, first_epoch).tolist()


def test_another_seed_draws_other_lengths():
    tokens = numbered(3000)
    drawn = {
        tuple(
            Batches(tokens, [10, 50], 100, seed, bos=None).at(step)[0].shape[1]
            for step in range(40)
        )
        for seed in range(3)
    }
    assert len(drawn) == 3


def test_bos_is_put_in_front_of_every_window():
    inputs, targets = Batches(numbered(40, 40), [10], 40, seed=0, bos=999).at(3)
    assert (inputs[:, 0] == 999).all() and inputs[:, 1:].equal(targets[:, :-1])
    assert (targets[:, 1:] == targets[:, :-1] + 1).all()
    assert Batches(numbered(10), [10], 10, seed=0, bos=999).at(0)[1].tolist() == [list(range(10))]


def tokens(*documents):
    lengths = [len(document) for document in documents]
    joined = np.array([token for document in documents for token in document], np.uint16)
    return TokenFile(
        joined,
        np.ones(len(joined), np.uint8),
        np.cumsum([0, *lengths]),
        [str(n) for n in range(len(lengths))],
    )


def test_overlaps_are_those_counted_by_hand():
    train = tokens([1, 2, 3, 4, 5], [7, 8])
    share, share_D = overlap(tokens([9, 2, 3, 4, 9], [5, 7, 8], [1]), sequence_hashes(train, 3), 3)
    assert (
        share == 1 / 4 and share_D[:2].tolist() == [1 / 3, 0] and np.isnan(share_D[2])
    )  # 5 7 8 stands across two documents only


def test_overlaps_of_random_text_are_those_of_sets_of_tuples():
    random = np.random.default_rng(0)
    held, train = (
        [random.integers(0, 4, length).tolist() for length in (50, 3, 80)] for _ in range(2)
    )

    def found_by_hand(document):
        return [tuple(document[at : at + 5]) for at in range(len(document) - 4)]

    train_ngrams = {ngram for document in train for ngram in found_by_hand(document)}
    repeated = [ngram in train_ngrams for document in held for ngram in found_by_hand(document)]
    assert (
        overlap(tokens(*held), sequence_hashes(tokens(*train), 5), 5)[0]
        == pytest.approx(np.mean(repeated))
        and 0 < np.mean(repeated) < 1
    )
