"""The decay bound of anatomy: its formula, its published value, and that it bounds."""

import cmath
import itertools

import pytest
import torch
from dissected import anatomy

from posbench.position.geometry import Shape
from posbench.tools.anatomy.dissect import decay_bound


@pytest.mark.parametrize("base", [1e3, 1e4, 5e5])
def test_the_decay_bound_is_its_formula(base):
    def bound(distance: int) -> float:
        turned = itertools.accumulate(
            cmath.exp(1j * distance * base ** (-2 * c / 128)) for c in range(64)
        )
        return 2 / 128 * sum(map(abs, turned))

    distances = [0, 1, 4, 16, 256, 1024, 4096]
    freq_F = base ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert decay_bound(freq_F, torch.tensor(distances)).tolist() == pytest.approx(
        [bound(distance) for distance in distances], rel=1e-9
    )
    assert bound(0) == 32.5


def test_the_decay_bound_of_a_llama_head():
    numbers = anatomy(shape=Shape(256, 4, 2, 2, 64), length=4097).numbers["decay_bound"]
    bound_by_distance = dict(zip(numbers["at"], numbers["after"], strict=True))
    assert [bound_by_distance[distance] for distance in (0, 4, 16, 4096)] == pytest.approx(
        [32.5, 22.6, 15.8, 4.9], abs=0.05
    )


def test_the_decay_bound_bounds():
    """Abel's summation with products of random q and k."""
    torch.manual_seed(0)
    freq_F, distance_K = 1e4 ** (-torch.arange(16, dtype=torch.float64) / 16), torch.arange(512)
    for _ in range(5):
        h_F = torch.randn(16, dtype=torch.complex128)
        score_K = (
            (
                h_F
                * torch.polar(
                    torch.ones(512, 16).double(), torch.outer(distance_K.double(), freq_F)
                )
            )
            .sum(-1)
            .abs()
        )
        steps_F = (torch.cat((h_F[1:], torch.zeros(1))) - h_F).abs()
        assert (score_K <= steps_F.max() * 16 * decay_bound(freq_F, distance_K) + 1e-9).all()
