"""bf16 on a CPU without instructions for it: every product is widened, forward, backward and in
Muon, and is what the instructions give.
"""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posbench.config.schema import ModelConfig
from posbench.encodings.rope import Rope
from posbench.extensions.none import NoExtension
from posbench.extensions.rerope import Rerope
from posbench.extensions.window import Window
from posbench.model import precision as bf16
from posbench.model.gpt import GPT
from posbench.model.rounded import rounded
from posbench.position.geometry import Shape
from posbench.position.plan import make_plan
from posbench.scale_attention.none import NoScale

EPS = 2.0**-8  # of bf16: half a step between two neighbours, relative


class Slow(TorchDispatchMode):
    """Counts the products of bf16 matrices that reach torch's own kernels."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in bf16.MATRIX_PRODUCTS | bf16.COMPOSED_PRODUCTS:
            operands = args[1] if func is torch.ops.aten.einsum.default else args
            self.found += [func] * any(
                isinstance(operand, torch.Tensor) and operand.dtype == torch.bfloat16
                for operand in operands
            )
        return func(*args, **(kwargs or {}))


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setattr(bf16, "has_bf16_products", lambda: False)


def test_products_are_those_of_the_rounded_numbers_rounded_once():
    torch.manual_seed(0)
    a_MK, b_KN, c_MN = (
        torch.randn(33, 70).bfloat16(),
        torch.randn(70, 17).bfloat16(),
        torch.randn(33, 17).bfloat16(),
    )
    with bf16.Float32Products():
        product, added = a_MK @ b_KN, torch.addmm(c_MN, a_MK, b_KN, beta=-2.0, alpha=0.5)
        batched, based = (
            torch.bmm(a_MK[None], b_KN[None])[0],
            torch.baddbmm(c_MN[None], a_MK[None], b_KN[None], beta=3.0)[0],
        )
    exact = a_MK.double() @ b_KN.double()
    error = 1e-5 * (a_MK.double().abs() @ b_KN.double().abs())  # of adding up in float32
    for got, want in (
        (product, exact),
        (added, exact / 2 - 2 * c_MN),
        (batched, exact),
        (based, exact + 3 * c_MN.double()),
    ):
        assert got.dtype == torch.bfloat16 and bool(
            ((got - want).abs() <= EPS * want.abs() + error).all()
        )


def test_what_is_no_product_of_bf16_passes():
    x = torch.randn(5, 5)
    with bf16.Float32Products():
        assert torch.equal(x @ x, torch.mm(x, x)) and (x.bfloat16() + 1).dtype == torch.bfloat16
        y = x.double().requires_grad_()
        (y @ y).sum().backward()
    assert y.grad.dtype == torch.float64


@pytest.mark.parametrize(("dtype", "wide"), [("bf16", True), ("fp32", False)])
def test_no_product_of_a_training_step_is_left_to_the_slow_kernels(without, dtype, wide):
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 16, bias=False)
    muon = torch.optim.Muon([layer.weight], lr=0.1)
    with Slow() as slow:
        with bf16.autocast("cpu", dtype):
            y = layer(torch.randn(8, 24))
            loss = (y.float() ** 2).mean()
        assert (y.dtype == torch.bfloat16) is wide
        with bf16.bf16_products("cpu", dtype):
            loss.backward()
        with bf16.muon_precision("cpu", dtype):
            muon.step()
        assert slow.found == []
        torch.randn(2, 2).bfloat16() @ torch.randn(2, 2).bfloat16()
    assert slow.found == [torch.ops.aten.mm.default]


def test_where_the_cpu_multiplies_nothing_comes_between(monkeypatch):
    monkeypatch.setattr(bf16, "has_bf16_products", lambda: True)
    with (
        bf16.autocast("cpu", "bf16"),
        bf16.bf16_products("cpu", "bf16"),
        bf16.muon_precision("cpu", "fp32"),
        Slow() as slow,
    ):
        torch.randn(3, 3) @ torch.randn(3, 3)
    assert slow.found == [torch.ops.aten.mm.default]


def stepped(context, ratio: float) -> torch.Tensor:
    """Weights after a step of Muon from 0 along a fixed gradient, all of whose singular values are
    `ratio` of the first.
    """
    torch.manual_seed(0)
    u_NN, v_NN = (torch.linalg.qr(torch.randn(24, 24))[0] for _ in range(2))
    weight_NN = torch.nn.Parameter(torch.zeros(24, 24))
    weight_NN.grad = u_NN @ torch.diag(torch.tensor([1.0] + 23 * [ratio])) @ v_NN
    muon, gradient_NN = (
        torch.optim.Muon([weight_NN], lr=1.0, momentum=0.0, weight_decay=0.0, nesterov=False),
        weight_NN.grad.clone(),
    )
    with context:
        muon.step()
    assert torch.equal(weight_NN.grad, gradient_NN)
    return u_NN.mT @ weight_NN.detach() @ v_NN.mT


def test_muon_stays_in_float32_with_a_model_that_does_where_the_cpu_has_no_bf16(without):
    """Its polynomial acts on the singular values alone, so that the rest of the matrix is
    rounding.
    """
    for dtype, most, least in (("fp32", 1e-5, 0.0), ("bf16", 0.1, 1e-3)):
        weight_NN = stepped(bf16.muon_precision("cpu", dtype), 0.5)
        rounding = float((weight_NN - torch.diag(weight_NN.diag())).abs().max())
        assert least <= rounding < most and float(weight_NN.diag().abs().min()) > 0.3, (
            dtype,
            rounding,
        )


def test_muon_is_torchs_own_where_the_cpu_has_bf16(monkeypatch):
    monkeypatch.setattr(bf16, "has_bf16_products", lambda: True)
    assert torch.equal(
        stepped(bf16.muon_precision("cpu", "fp32"), 0.5), stepped(contextlib.nullcontext(), 0.5)
    )


def test_auto_is_no_number_format():
    with pytest.raises(ValueError, match="not resolved"), bf16.autocast("cpu", "auto"):
        pass


@pytest.mark.parametrize("extension", [NoExtension(), Rerope(), Window()])
def test_no_product_of_an_evaluation_is_left_to_the_slow_kernels(without, extension):
    shape = Shape(d_model=16, n_layer=2, n_head=2, n_kv_head=1, train_len=16)
    model = GPT(
        ModelConfig(d_model=16, n_layer=2, n_head=2, n_kv_head=1, d_ff=32), Rope(shape), 11
    ).eval()
    plan = make_plan(
        model.encoding,
        extension,
        scale=NoScale(shape),
        trained_scale=model.scale,
        length=48,
        device="cpu",
    )
    model = rounded(model)
    with Slow() as slow, torch.inference_mode(), bf16.autocast("cpu", "bf16"):
        hidden_BTC = model.hidden(torch.zeros(1, 48, dtype=torch.long), plan, 4)
        assert model.lm_head(hidden_BTC).dtype == torch.bfloat16
        torch.einsum("btc,vc->btv", hidden_BTC.bfloat16(), model.lm_head.weight.bfloat16())
    assert slow.found == []
