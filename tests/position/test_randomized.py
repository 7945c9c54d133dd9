"""Drawn positions: how they are drawn, and which ones evaluation gives."""

import math

import pytest
import torch
from conftest import TRAIN_LEN, small_shape
from measures import LONG, outputs, same

from posbench.common.errors import ConfigError
from posbench.encodings.randomized import Randomized
from posbench.encodings.rope import Rope
from posbench.position.geometry import Trait
from posbench.position.plan import make_plan

ROPE, LEARNED = (
    {"_target_": f"posbench.encodings.{name}"} for name in ("rope.Rope", "learned.Learned")
)


def test_randomized_positions_are_drawn_without_replacement_in_order():
    encoding = Randomized(small_shape(), ROPE, max_len=40)

    def drawn(seed: int) -> torch.Tensor:
        return encoding.positions(16, torch.Generator().manual_seed(seed))

    for seed in range(20):
        pos_T = drawn(seed)
        assert (
            pos_T.dtype == torch.float64
            and (pos_T.diff() > 0).all()
            and pos_T[0] >= 0
            and pos_T[-1] < 40
        )
    assert not torch.equal(drawn(1), drawn(2)) and torch.equal(drawn(1), drawn(1))
    assert encoding.random and encoding.limit == 40
    assert (
        encoding.traits == Trait.COORDINATE | Trait.SPECTRUM == encoding.layers()[0].encoding.traits
    )
    assert sorted(drawn(1).tolist()) == sorted(
        set(
            make_plan(encoding, length=16, generator=torch.Generator().manual_seed(1))
            .layers[0]
            .bands[0]
            .q_pos_T.tolist()
        )
    )


def test_randomized_evaluates_as_told():
    spread, arange, random = (
        Randomized(small_shape(), ROPE, max_len=64, eval=how)
        for how in ("spread", "arange", "random")
    )
    assert spread.positions(16, None).tolist() == list(range(0, 64, 4))
    assert spread.positions(48, None).tolist() == [math.floor(t * 4 / 3) for t in range(48)]
    assert arange.positions(5, None).tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(random.positions(16, None), random.positions(16, None))
    same(outputs(arange), outputs(Rope(small_shape())))
    same(outputs(spread, length=LONG), outputs(Rope(small_shape()), length=LONG))  # 64 of 64
    with pytest.raises(ConfigError, match="max_len=64 holds no 65"):
        spread.positions(65, None)


def test_randomized_learned_has_a_row_for_each_position():
    encoding = Randomized(small_shape(), LEARNED, max_len=64)
    assert encoding.rows().shape == (64, 32) and encoding.shape.train_len == TRAIN_LEN
    added_TC = make_plan(encoding, length=16).embed()
    same(added_TC, encoding.base.weight[::4], 0)


def test_real_positions_are_drawn_evenly_from_the_whole_range():
    encoding = Randomized(small_shape(), ROPE, max_len=40, eval="random", real=True)
    drawn = torch.stack(
        [encoding.positions(16, torch.Generator().manual_seed(seed)) for seed in range(400)]
    )
    assert (
        drawn.dtype == torch.float64
        and (drawn.diff() > 0).all()
        and drawn.min() >= 0
        and drawn.max() < 40
    )
    assert drawn.mean().item() == pytest.approx(
        20, abs=0.5
    ) and drawn.std().item() == pytest.approx(40 / math.sqrt(12), abs=0.5)
    assert (drawn % 1 > 0).all() and torch.equal(
        encoding.positions(16, None), encoding.positions(16, None)
    )
    spread = Randomized(small_shape(), ROPE, max_len=40, real=True).positions(16, None)
    assert spread.tolist() == [2.5 * t for t in range(16)]
