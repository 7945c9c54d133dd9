"""The smallest base of RoPE at which similar tokens keep a score above that of random ones up to a
length (claim S01).

Su 2024 (kexue.fm/archives/10122) and Men et al. 2024 (arXiv 2405.14591): for d = 128 the smallest b
with sum_i cos(m b^(-2i/d)) >= 0 for all m < L. The property is not monotone in b, so what is found
depends on the grid: bases are tried upwards from 100 in steps of 0.05 %. A thousand tokens are
1,024."""

import functools

import numpy as np
import pytest
from conftest import small_shape

from posbench.encodings.rope import Rope

SU = {1: 4.3e3, 2: 1.2e4, 4: 2.7e4, 8: 8.4e4, 16: 2.3e5, 32: 6.3e5}
MEN = {1: 4.3e3, 2: 1.6e4, 4: 2.7e4, 8: 8.4e4, 16: 3.1e5, 32: 6.4e5}
CHUNK = 128


def frequencies(base):
    """Those that a RoPE head of 128 channels turns by."""
    return Rope(small_shape(d_model=256, n_head=2), base=base).spectrum().freq_F.numpy()


@functools.cache
def smallest_base(length, step=1.0005):
    """The first that holds of the bases from 100 in equal steps.

    Those below the one for half of the length fail for the whole too. Each base is first tried
    where the one before it failed."""
    base, failed = smallest_base(length // 2) if length > 1024 else 100.0, 0
    exponent_F = np.arange(64) / 64
    while True:
        freq_F = base**-exponent_F
        for first in (failed, *range(0, length, CHUNK)):
            if (
                np.cos(np.outer(np.arange(first, min(length, first + CHUNK)), freq_F)).sum(1).min()
                < 0
            ):
                failed = first
                break
        else:
            return base
        base *= step


def two_digits(number):
    return float(f"{number:.1e}")


@pytest.mark.parametrize(
    "thousands", [1, 2, 4, *(pytest.param(k, marks=pytest.mark.slow) for k in (8, 16, 32))]
)
def test_the_smallest_bases_are_sus(thousands):
    assert two_digits(smallest_base(1024 * thousands)) == SU[thousands]


def test_the_sum_is_that_of_posbenchs_frequencies_and_not_monotone_in_the_base():
    base, length = smallest_base(1024), np.arange(1024)
    assert np.cos(np.outer(length, frequencies(base))).sum(1).min() >= 0
    assert np.cos(np.outer(length, frequencies(base / 1.0005))).sum(1).min() < 0
    assert (
        np.cos(np.outer(length, frequencies(base * 1.06))).sum(1).min() < 0
    )  # a coarse search may end above the smallest


def test_the_papers_column_is_looser_where_the_two_differ():
    assert [k for k in SU if MEN[k] != SU[k]] == [2, 16, 32] and all(MEN[k] >= SU[k] for k in SU)
    assert two_digits(smallest_base(2048)) < MEN[2]
