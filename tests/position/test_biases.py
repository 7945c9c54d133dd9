"""Biases and whole rows against their papers, other people's code and each other; the dense oracle
is in tests/model.
"""

import math

import pytest
import torch
from bias_models import LONG, SHAPE, attend, inputs, profile_of, randomised
from conftest import TRAIN_LEN, small_model, small_shape

from posbench.config import identity
from posbench.config.schema import TrainConfig
from posbench.encodings.alibi import Alibi, alibi_slopes
from posbench.encodings.cope import Cope
from posbench.encodings.fire import Fire
from posbench.encodings.kerple import Kerple
from posbench.encodings.nape import Nape
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.stick_breaking import StickBreaking
from posbench.encodings.t5 import T5, bucket_starts
from posbench.extensions.pi import Pi
from posbench.model.kernels.folding import with_bias_columns
from posbench.position.plan import make_plan
from posbench.training import optimizers as optim


def test_alibi_slopes_are_the_papers():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(16)[:2] == pytest.approx([0.70710678, 0.5])
    assert alibi_slopes(12)[8:] == pytest.approx([0.70710678, 0.35355339, 0.17677670, 0.08838835])


def test_scaled_slopes_give_a_short_window_the_bias_of_a_long_one():
    shapes = small_shape(64, n_head=8, d_model=64), small_shape(1024, n_head=8, d_model=64)
    short, long = (
        profile_ends(Alibi(shapes[0], slope_scale=16), 64),
        profile_ends(Alibi(shapes[1]), 1024),
    )
    assert short == long == [-1024 * slope for slope in alibi_slopes(8)] and short[-1] == -4


def profile_ends(encoding, distance):
    """The bias of each head at one distance."""
    query_T, key_T = encoding.columns(
        torch.tensor([float(distance)]), torch.tensor([0.0]), row_constant=True
    )
    return (query_T[:, 0] * key_T[0]).sum(-1).tolist()


def test_published_slopes_leave_the_ids_of_older_trainings():
    cfg = {
        "encoding": {"_target_": "posbench.encodings.alibi.Alibi"},
        "model": {},
        "train": {"length": 64},
        "seed": 0,
    }
    scaled = [
        identity.run_id({**cfg, "encoding": {**cfg["encoding"], "slope_scale": scale}}, "")
        for scale in (1.0, 16.0)
    ]
    assert scaled[0] == identity.run_id(cfg, "") != scaled[1]


def test_a_bias_folded_in_bf16_is_as_exact_as_in_float32():
    encoding = Alibi(small_shape(n_head=4, d_model=32))
    encoding.slope_H = torch.tensor(
        alibi_slopes(12)[8:]
    )  # irrational slopes: nothing is representable by luck
    position_T = torch.arange(16384, dtype=torch.float64) / 3  # PI's fractions
    columns = encoding.columns(position_T, position_T, row_constant=False)
    q, k = torch.zeros(1, 4, 16384, 8).bfloat16(), torch.zeros(1, 2, 16384, 8).bfloat16()
    wide_q, wide_k = with_bias_columns(q, k, *columns)
    assert wide_q.dtype == torch.bfloat16
    exact = encoding.slope_H.double()[:, None] * (position_T - position_T[8192])
    folded = (wide_q[0, :, :1].double() * wide_k[0, :1].double()).sum(-1)
    assert (
        (folded - exact).abs().max() < 2e-3
    )  # positions reach 2731: float32 itself is off by 1e-4, one bf16 column by 8
    assert ((folded - exact).abs() / (exact.abs() + 1)).max() < 1e-6


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_starts_as_drawn_and_falls_with_distance(form):
    torch.manual_seed(0)
    bias_HU = profile_of(Kerple(small_shape(n_head=32, d_model=256, n_kv_head=32), form=form))
    assert (bias_HU[:, 0] == 0).all() and (bias_HU.diff() < 0).all()
    torch.manual_seed(0)
    first, second = (
        torch.rand(2, 2, 32)[:, 0].clamp(min=0.01).double().unsqueeze(-1)
    )  # the layers' draws, U(0, 1)
    if form == "log":
        expected = -(2 * first) * torch.log(1 + second * 7)
    else:
        expected = -first * 7 ** (2 * second)
    torch.testing.assert_close(bias_HU[:, 7:8], expected, rtol=0.02, atol=0)


def test_kerple_is_never_decayed():
    model = small_model(Kerple(SHAPE))
    learned = {id(parameter) for parameter in model.encoding.parameters()}
    groups = [
        group
        for optimizer in optim.make_optimizers(model, TrainConfig())
        for group in optimizer.param_groups
    ]
    assert [
        group["weight_decay"] for group in groups for p in group["params"] if id(p) in learned
    ] == [0.0, 0.0]


def test_sandwich_is_the_sum_of_cosines_and_never_positive():
    bias_HU = profile_of(Sandwich(SHAPE, dim=16), 200)
    for h in range(4):
        for d in (0, 1, 5, 199):
            wave = sum(math.cos(d * 10000 ** (-2 * c / 16)) for c in range(8)) - 8
            assert bias_HU[h, d].item() == pytest.approx(wave / (8 * (h + 1) / 4), abs=1e-6)
    assert (bias_HU[:, 0] == 0).all() and (bias_HU[:, 1:] < 0).all()


def test_fire_survives_a_threshold_of_nothing():
    encoding = Fire(SHAPE)
    with torch.no_grad():
        encoding.log_threshold.fill_(-200.0)
        encoding.log_c.fill_(-30.0)
    pos_T = torch.arange(3, dtype=torch.float64)
    bias_HTT = encoding.bias(pos_T, pos_T, 0)
    bias_HTT.sum().backward()
    assert bias_HTT.isfinite().all() and all(
        p.grad.isfinite().all() for p in encoding.parameters() if p.grad is not None
    )


def test_nape_is_alibi_in_half_of_its_heads():
    linear, geometric = (
        Nape(small_shape()),
        Nape(small_shape(n_head=9, n_kv_head=3, d_model=72), slopes="geometric"),
    )
    assert linear.slope_H.tolist() == [1, 0.5, 0, 0]
    assert geometric.slope_H.tolist() == [1, 1 / 2, 1 / 4, 1 / 8, 0, 0, 0, 0, 0]
    assert Nape(small_shape(n_head=1, n_kv_head=1)).slope_H.tolist() == [1]


@pytest.mark.parametrize(
    ("n_buckets", "max_distance"),
    [(32, 128), (32, 1024), (32, 100), (16, 500), (33, 777), (64, 4096), (17, 27), (2, 9), (8, 5)],
)
def test_t5_buckets_equal_transformers(n_buckets, max_distance):
    reference = pytest.importorskip(
        "transformers.models.t5.modeling_t5"
    ).T5Attention._relative_position_bucket
    delta = torch.arange(5001)
    theirs = reference(
        -delta, bidirectional=False, num_buckets=n_buckets, max_distance=max_distance
    )
    ours = torch.bucketize(delta, torch.tensor(bucket_starts(n_buckets, max_distance)), right=True)
    exact, wide = n_buckets // 2, n_buckets - n_buckets // 2
    for d in delta[
        ours != theirs
    ].tolist():  # their float32 logarithm falls short of a whole number that d is exactly at
        assert (
            d**wide
            == max_distance ** (int(ours[d]) - exact) * exact ** (wide - int(ours[d]) + exact)
            and theirs[d] == ours[d] - 1
        )


def test_t5_under_pi_meets_no_rounding_at_whole_distances():
    encoding = T5(SHAPE, n_buckets=32, init_std=1.0)
    band = make_plan(encoding, Pi(), length=49 * TRAIN_LEN).layers[0].bands[0]
    slope, offset = band.line
    delta = torch.arange(49 * TRAIN_LEN, dtype=torch.float64) * slope + offset
    bucket = torch.bucketize(delta.float(), encoding.start_N, right=True)
    assert bucket.tolist() == [
        d // 49 for d in range(49 * TRAIN_LEN)
    ]  # the exact half of the buckets


def test_t5_starts_as_said_and_one_table_serves_all_layers():
    torch.manual_seed(0)
    assert T5(SHAPE).weight.shape == (1, 32, 4) and T5(SHAPE, share_layers=False).weight.shape == (
        2,
        32,
        4,
    )
    assert T5(small_shape(4096)).start_N[-1] < 4096 <= T5(small_shape(4096)).start_N[-1] * 2
    assert T5(SHAPE, init_std=0).weight.abs().max() == 0
    assert T5(
        small_shape(64, n_head=16, n_kv_head=16), n_buckets=512
    ).weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("positions", [3, 64])
def test_cope_equals_x_transformers(positions):
    theirs = pytest.importorskip("x_transformers.x_transformers").CoPE(
        dim=8, heads=4, max_pos=positions
    )
    encoding = randomised(Cope(SHAPE, positions=positions))
    theirs.load_state_dict({"pos_emb": encoding.weight[0].detach()})
    q, k, v = inputs(LONG)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    seen = torch.ones(LONG, LONG).tril().bool()
    scores = (q @ k.mT * 8**-0.5).masked_fill(~seen, -torch.finfo(torch.float32).max)
    with torch.no_grad():
        expected = (scores + theirs(q, scores)).softmax(dim=-1) @ v
    torch.testing.assert_close(attend(encoding, q, k, v), expected, rtol=0, atol=1e-5)


def test_stick_breaking_is_exact_over_thousands_of_keys():
    scores = torch.randn(1, 1, 1, 8192) - 6  # about one key in 300 takes its share
    actual = (
        StickBreaking(SHAPE)
        .weights(None, scores, None, torch.ones(1, 8192).bool(), 1.0, 0)[0, 0, 0]
        .double()
    )
    share = torch.sigmoid(scores[0, 0, 0, :-1].double()).flip(0)
    expected = (share * torch.cat((torch.ones(1), (1 - share).cumprod(0)[:-1]))).flip(0)
    torch.testing.assert_close(actual[:-1], expected, rtol=1e-4, atol=1e-9)
