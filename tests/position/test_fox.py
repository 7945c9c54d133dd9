"""FoX: its limits, its gates, and how exact it stays where it forgets strongly."""

import math

import numpy as np
import pytest
import torch
from conftest import small_model, small_shape
from measures import LONG, same

from posbench.encodings.alibi import Alibi, alibi_slopes
from posbench.encodings.fox import Fox
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.geometry import Shape
from posbench.position.plan import make_plan


@torch.no_grad()
def gated(encoding: Fox, log_f_H: list[float], other) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model says where every gate of a head is the same, and the same model with another
    encoding.
    """
    models = small_model(encoding), small_model(other)
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    for linear in encoding.gate:
        linear.weight.zero_()
        linear.bias.copy_(
            torch.tensor([-math.log(math.expm1(-log_f)) if log_f else 100.0 for log_f in log_f_H])
        )
    text_BT = torch.randint(0, 50, (2, LONG), generator=torch.Generator().manual_seed(3))
    return tuple(model(text_BT, make_plan(model.encoding, length=LONG)) for model in models)


def test_fox_is_nope_without_forgetting_and_alibi_with_a_constant_gate():
    same(*gated(Fox(small_shape()), [0.0] * 4, NoEncoding(small_shape())))
    same(
        *gated(Fox(small_shape()), [-slope for slope in alibi_slopes(4)], Alibi(small_shape())),
        5e-5,
    )
    same(*gated(Fox(small_shape(), rope=True), [0.0] * 4, Rope(small_shape())))


def test_fox_without_the_text_starts_at_its_decay_lengths():
    encoding = Fox(small_shape(), data_dependent=False, tau_max=128)
    log_f_BHT = encoding.gates(torch.randn(3, 5, 32), 1)
    assert log_f_BHT.shape == (3, 4, 5)
    np.testing.assert_allclose(-1 / log_f_BHT[0, :, 0].detach(), [2, 8, 32, 128], rtol=1e-5)
    log_f_BHT.sum().backward()
    assert encoding.bias_LH.grad[1].all() and not encoding.bias_LH.grad[0].any()


def test_fox_gates_are_float32_under_autocast():
    encoding = Fox(small_shape())
    model = small_model(encoding)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        seen = []
        encoding.gate[0].register_forward_hook(lambda module, args, y: seen.append(y.dtype))
        assert (
            model(torch.zeros(1, 8, dtype=torch.long), make_plan(encoding, length=8))
            .isfinite()
            .all()
        )
    assert seen == [torch.float32]


@pytest.mark.parametrize("log_f", [-0.7, -5.0, -50.0])
@torch.no_grad()
def test_fox_is_exact_after_4096_tokens_of_strong_forgetting(log_f):
    length, random = 4096, torch.Generator().manual_seed(0)
    shape = Shape(16, 1, 2, 1, 64)
    layer = make_plan(Fox(shape), length=length).layers[0]
    q = torch.randn(1, 2, length, 8, generator=random)
    k, v = torch.randn(2, 1, 1, length, 8, generator=random)
    c_BHT = (log_f * 2 * torch.rand(1, 2, length, generator=random)).double().cumsum(dim=-1)
    scores = (
        q[0, :, -64:].double() @ k[0].double().mT / math.sqrt(8)
        + c_BHT[0, :, -64:, None]
        - c_BHT[0, :, None]
    )
    seen = torch.arange(length) <= torch.arange(length - 64, length)[:, None]
    expected = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v[0].double()
    # float32 keeps 2^-24 of what is summed: a block's forgetting here, half the text's in one call.
    same(
        attend_by_blocks(layer, q, k, v, c_BHT, first_query=length - 64)[0].double(),
        expected,
        1e-5 + abs(log_f) * 64 * 2**-24,
    )
    assert kernels.can_fuse(layer)
    same(
        kernels.attend_fused(layer, q, k, v, c_BHT)[0, :, -64:].double(),
        expected,
        1e-5 + abs(log_f) * length * 2**-24,
    )
