"""Scales of attention: what their factors are, and what they act on."""

import math

import pytest
import torch
from conftest import TRAIN_LEN, small_model, small_shape
from measures import equal, outputs, tokens

from posbench.common.errors import ConfigError
from posbench.config.identity import canonical, method_label
from posbench.encodings.nape import Nape
from posbench.encodings.rope import Rope
from posbench.position.geometry import Span
from posbench.position.legality import check_trained_scale
from posbench.position.plan import make_plan
from posbench.scale_attention.llama4 import Llama4
from posbench.scale_attention.log_n import LogN
from posbench.scale_attention.ministral import Ministral
from posbench.scale_attention.scale_invariant import ScaleInvariant
from posbench.scale_attention.ssmax import Ssmax


def test_log_n_is_one_up_to_the_training_length_and_grows_after():
    n_T = torch.arange(1, 65, dtype=torch.float64)
    factor_T = LogN(small_shape())(n_T, Span(TRAIN_LEN, 64, 64), 0)
    assert (factor_T[:TRAIN_LEN] == 1).all()
    assert factor_T[63].item() == pytest.approx(1.5)  # ln 64 / ln 16
    assert (factor_T[TRAIN_LEN - 1 :].diff() > 0).all()


def test_log_n_has_a_raw_form_to_train_with():
    n_T = torch.arange(1, 65, dtype=torch.float64)
    raw_T = LogN(small_shape(), clamp=False)(n_T, Span(TRAIN_LEN, 64, 64), 0)
    equal(raw_T, n_T.log() / math.log(TRAIN_LEN))
    assert raw_T[0] == 0 and raw_T[TRAIN_LEN - 1] == 1
    assert outputs(Rope(small_shape()), None, LogN(small_shape(), clamp=False)).isfinite().all()


def test_a_power_of_log_n():
    n_T = torch.arange(1, 257, dtype=torch.float64)
    span = Span(TRAIN_LEN, 256, 256)  # ln 256 is twice ln 16
    one_T = LogN(small_shape())(n_T, span, 0)
    assert torch.equal(LogN(small_shape(), p=1.0)(n_T, span, 0), one_T)
    for p in (0.5, 1.5, 2):
        factor_T = LogN(small_shape(), p=p)(n_T, span, 0)
        assert factor_T[-1].item() == pytest.approx(2**p) and (factor_T[:TRAIN_LEN] == 1).all()
        raw_T = LogN(small_shape(), clamp=False, p=p)(n_T, span, 0)
        equal(raw_T, torch.exp(p * (n_T.log() / math.log(TRAIN_LEN)).log()))


def test_a_power_of_one_has_the_id_of_before_and_others_have_names():
    before = {"_target_": "posbench.scale_attention.log_n.LogN", "clamp": True}
    configs = [{"scale_attention": {**before, **p}} for p in ({}, {"p": 1.0}, {"p": 2.0})]
    old, power_one, power_two = map(canonical, configs)
    assert old == power_one != power_two
    old, power_one, power_two = (canonical({"train": config}) for config in configs)
    assert old == power_one != power_two
    labels = [method_label({**before, "p": p}, "scale_attention") for p in (1.0, 0.5, 2.0)]
    assert labels == ["log_n", 'log_n {"p":0.5}', 'log_n {"p":2.0}']


def test_temperatures_in_steps():
    n_T = torch.arange(1, 33, dtype=torch.float64)
    span = Span(8, 32, 32)
    llama4, ministral = (cls(small_shape(8))(n_T, span, 0) for cls in (Llama4, Ministral))
    assert (llama4[:7] == 1).all() and (ministral[:8] == 1).all()
    equal(llama4[:-1], ministral[1:])  # the one counts keys, the other indices
    assert llama4[31].item() == pytest.approx(1 + 0.1 * math.log(5))
    published_T = Llama4(small_shape(8), floor_scale=8192)(
        torch.tensor([8191.0, 8192.0, 10 * 8192.0]), span, 0
    )
    torch.testing.assert_close(
        published_T,
        torch.tensor([1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(11)]),
        rtol=0,
        atol=1e-6,
    )


def test_ssmax_starts_at_one_on_average():
    for train_len, s in ((1024, 0.1685), (512, 0.1906)):
        scale = Ssmax(small_shape(train_len), bias=True)
        factor_HT = scale(
            torch.arange(1, train_len + 1).double(), Span(train_len, train_len, train_len), 1
        )
        assert factor_HT.shape == (4, train_len) and scale.scale_LH[0, 0].item() == pytest.approx(
            s, abs=5e-5
        )
        assert factor_HT.mean().item() == pytest.approx(1, abs=1e-5)
    assert Ssmax(small_shape(1)).scale_LH.isfinite().all() and Ssmax(small_shape()).bias_LH is None


def test_ssmax_learns_through_the_model():
    encoding, scale = Rope(small_shape()), Ssmax(small_shape(), bias=True)
    model = small_model(encoding)
    model(
        tokens(TRAIN_LEN), make_plan(encoding, length=TRAIN_LEN, trained_scale=scale)
    ).square().mean().backward()
    for parameter in scale.parameters():
        assert parameter.grad.isfinite().all() and (parameter.grad != 0).all()


def test_ssmax_scales_the_heads_of_nape_that_have_no_position():
    encoding, scale = Nape(small_shape()), Ssmax(small_shape())
    model, plan = small_model(encoding), make_plan(encoding, length=TRAIN_LEN, trained_scale=scale)
    model(tokens(TRAIN_LEN), plan).square().mean().backward()
    assert (scale.scale_LH.grad[:, :2] == 0).all() and (scale.scale_LH.grad[:, 2:] != 0).all()
    factor_HT = plan.layers[0].factor
    assert (factor_HT[:2] == 1).all()
    equal(
        factor_HT[2:].detach().double(),
        (scale.scale_LH[0, 2:, None] * torch.arange(1, TRAIN_LEN + 1).log()).detach().double(),
    )
    full_factor_HT = (
        make_plan(Nape(small_shape(), scaled_heads="all"), length=TRAIN_LEN, trained_scale=scale)
        .layers[0]
        .factor
    )
    equal(full_factor_HT, scale(plan.layers[0].n_T, plan.layers[0].span, 0).float())
    with pytest.raises(ConfigError, match="by distance"):
        check_trained_scale(encoding, ScaleInvariant(small_shape()))
    with pytest.raises(ConfigError, match="has no effect"):
        check_trained_scale(Nape(small_shape(n_head=1, n_kv_head=1)), scale)


def test_scale_invariant_weights_every_decade_alike():
    """E exp(a z + m) of z ~ N(0, 1), summed over a decade, tends to sqrt(e) tau ln 10 (2.22, 2.29,
    2.30 for decades 2 to 4).
    """
    scale = ScaleInvariant(small_shape())
    for decade, expected in ((2, 2.22), (3, 2.29), (4, 2.30)):
        a, m = scale.distance(torch.arange(10**decade, 10 ** (decade + 1), dtype=torch.float64))
        assert ((a**2 / 2 + m).exp().sum() / (10 * math.exp(0.5))).item() == pytest.approx(
            expected, abs=5e-3
        )
    a, m = scale.distance(torch.zeros(1).double())
    assert a.item() == 1 and m.item() == 0
