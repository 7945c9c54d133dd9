"""The audit of what training and held-out text share, against counting by hand."""

import numpy as np
import pytest

from posbench.data.tokenfile import TokenFile, overlap, sequences


def tokens(*documents):
    lengths = [len(document) for document in documents]
    joined = np.array([token for document in documents for token in document], np.uint16)
    return TokenFile(joined, np.ones(len(joined), np.uint8), np.cumsum([0, *lengths]), [str(n) for n in range(len(lengths))])


def test_shares_are_those_counted_by_hand():
    train = tokens([1, 2, 3, 4, 5], [7, 8])
    share, share_D = overlap(tokens([9, 2, 3, 4, 9], [5, 7, 8], [1]), sequences(train, 3), 3)
    assert share == 1 / 4 and share_D[:2].tolist() == [1 / 3, 0] and np.isnan(share_D[2])  # 5 7 8 stands across two documents only


def test_random_text_against_sets_of_tuples():
    random = np.random.default_rng(0)
    held, train = ([random.integers(0, 4, length).tolist() for length in (50, 3, 80)] for _ in range(2))

    def found_by_hand(document):
        return [tuple(document[at : at + 5]) for at in range(len(document) - 4)]

    known = {one for document in train for one in found_by_hand(document)}
    found = [one in known for document in held for one in found_by_hand(document)]
    assert overlap(tokens(*held), sequences(tokens(*train), 5), 5)[0] == pytest.approx(np.mean(found)) and 0 < np.mean(found) < 1
