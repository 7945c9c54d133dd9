"""Mean over seeds: of sums where all seeds have the same documents, else of the seeds' values."""

import math

import numpy as np
import pytest

from posbench.statistics.crossed import Sums
from posbench.statistics.over_seeds import FROM_SEEDS, FROM_SUMS, SeedValue, over_seeds

T_2 = 4.302652729911275  # 97.5 % quantile of Student's t with two degrees of freedom


def seed_of(totals, documents=(0, 1, 2), weight=1.0):
    """Value of a seed whose documents have two targets each."""
    counts = np.full(len(documents), 2)
    sums = Sums(np.array(documents), counts, np.array([totals], dtype=float))
    return SeedValue(weight * float(sums.means[0]), [(weight, sums)])


def test_one_seed_has_an_interval_over_its_documents():
    result = over_seeds([seed_of([2.0, 4.0, 9.0])])
    means = np.array([1.0, 2.0, 4.5])
    half = T_2 * means.std(ddof=1) / math.sqrt(3)
    assert result.source == FROM_SUMS and result.half_width == pytest.approx(half)
    assert result.interval() == pytest.approx((2.5 - half, 2.5 + half))


def test_one_seed_of_other_documents_or_without_sums_leaves_the_values():
    same = [seed_of([2.0, 4.0, 9.0]), seed_of([3.0, 5.0, 7.0])]
    assert over_seeds([*same, seed_of([1.0, 2.0, 9.0])]).source == FROM_SUMS
    for odd in (seed_of([1.0, 2.0, 9.0], documents=(0, 1, 3)), SeedValue(2.0, None)):
        result = over_seeds([*same, odd])
        half = T_2 * np.std([2.5, 2.5, 2.0], ddof=1) / math.sqrt(3)
        assert result.source == FROM_SEEDS and result.estimate.df == 2
        assert result.estimate.value == pytest.approx(7 / 3)
        assert result.half_width == pytest.approx(half)
        assert result.estimate.interval() == pytest.approx(result.interval())


def test_a_value_alone_has_no_interval():
    result = over_seeds([SeedValue(2.0, None)])
    assert result.half_width is None and all(map(math.isnan, result.interval()))
    assert result.estimate.p_above(0.0) == 1.0


def test_terms_add_up_with_their_weights():
    values, other = [2.0, 4.0, 9.0], [1.0, 1.0, 1.0]
    terms = [*seed_of(values).terms, *seed_of(other, weight=-1.0).terms]
    result = over_seeds([SeedValue(2.0, terms)])
    assert result.estimate.value == pytest.approx(2.0)
    paired = over_seeds([seed_of([1.0, 3.0, 8.0])])
    assert result.half_width == pytest.approx(paired.half_width)
