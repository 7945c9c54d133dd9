"""What makes a training step fast equals the plain form: the loss of the head, norms, the causal
triangle, and Muon.
"""

import pytest
import torch
import torch.nn.functional as F
from conftest import make_triple, small_model
from measures import tokens

from posbench.data.task import IGNORED
from posbench.model import head_loss as heads
from posbench.model.elementwise import normed
from posbench.model.head_loss import head_loss
from posbench.model.kernels import causal as triangle
from posbench.model.kernels.causal import causal_attention
from posbench.position.plan import make_plan
from posbench.training.optimizers import Muon


def rows(
    vocab: int, ignored: float, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x_BTC, weight_VC = (
        torch.randn(3, 70, 16, generator=random, dtype=dtype),
        torch.randn(vocab, 16, generator=random, dtype=dtype),
    )
    targets_BT = torch.randint(0, vocab, (3, 70), generator=random)
    targets_BT[torch.rand(3, 70, generator=random) < ignored] = IGNORED
    return x_BTC.requires_grad_(), weight_VC.requires_grad_(), targets_BT


def plain(x_BTC: torch.Tensor, weight_VC: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    scores_NV = F.linear(x_BTC, weight_VC).flatten(0, 1)
    return F.cross_entropy(
        scores_NV if scores_NV.dtype == torch.float64 else scores_NV.float(), targets_BT.flatten()
    )


@pytest.mark.parametrize("block", [64, 100, 2**20])
@pytest.mark.parametrize("ignored", [0.0, 0.9])
@pytest.mark.parametrize("vocab", [3, 1000])
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(vocab, ignored, block, monkeypatch):
    """In blocks of 64 rows and more, and with probabilities kept for some of them at a time; times
    a factor, as of a micro-batch.
    """
    monkeypatch.setattr(heads, "_rows_per_block", lambda *arguments: block)
    monkeypatch.setattr(heads, "MOST_KEPT_PROBABILITIES", 100 * vocab)
    x, weight, targets = rows(vocab, ignored)
    ours, theirs = (
        [loss, *torch.autograd.grad(0.3 * loss, (x, weight))]
        for loss in (of(x, weight, targets) for of in (head_loss, plain))
    )
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(
            head_loss(x, weight, targets), theirs[0].detach(), rtol=0, atol=1e-12
        )


def test_the_loss_in_bf16_is_that_of_cross_entropy_up_to_its_rounding():
    x, weight, targets = rows(1000, 0.5, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [of(x, weight, targets) for of in (head_loss, plain)]
    (loss, *our_gradients), (other, *their_gradients) = (
        [loss, *torch.autograd.grad(loss, (x, weight))] for loss in losses
    )
    torch.testing.assert_close(loss, other, rtol=1e-6, atol=0)
    for actual, expected in zip(our_gradients, their_gradients, strict=True):
        assert actual.dtype == torch.float32 and (actual - expected).norm() < 5e-3 * expected.norm()


def test_a_frozen_head_has_no_gradient_and_no_target_no_loss():
    x, weight, targets = rows(50, 0.0)
    head_loss(x, weight.detach(), targets).backward()
    assert x.grad.any() and weight.grad is None
    nothing = head_loss(x, weight, torch.full_like(targets, IGNORED))
    nothing.backward()
    assert nothing == 0 and not weight.grad.any()


@pytest.mark.parametrize("tied", [True, False])
def test_the_models_loss_is_that_of_its_logits(tied):
    encoding, *_ = make_triple("rope", "none", "none")
    model = small_model(encoding, tied=tied).double()
    plan, text = make_plan(encoding, length=20), tokens(20)
    torch.nn.init.normal_(model.lm_head.weight)
    ours, theirs = (
        [loss, *torch.autograd.grad(loss, list(model.parameters()))]
        for loss in (
            model.loss(text, text, plan),
            F.cross_entropy(model(text, plan).flatten(0, 1), text.flatten()),
        )
    )
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_a_norm_with_gradients_is_torchs():
    random = torch.Generator().manual_seed(0)
    norm, x, weigh = (
        torch.nn.RMSNorm(12, eps=1e-5),
        *(torch.randn(4, 7, 12, generator=random) for _ in range(2)),
    )
    torch.nn.init.normal_(norm.weight)
    norm, x, weigh = norm.double(), x.double().requires_grad_(), weigh.double()
    ours, theirs = (
        [y, *torch.autograd.grad((y * weigh).sum(), (x, norm.weight))]
        for y in (normed(norm, x), norm(x))
    )
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert normed(norm, x.float()).dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("length", [5, triangle.MOST_QUERIES, 2 * triangle.MOST_QUERIES + 7])
@pytest.mark.parametrize(
    ("most_bytes", "scores"),
    [
        (0, triangle.MOST_SCORES),
        (triangle.MOST_KEPT_BYTES, triangle.MOST_SCORES),
        (triangle.MOST_KEPT_BYTES, 1),
    ],
)
def test_the_causal_triangle_and_its_gradients(
    length, most_bytes, scores, dtype, bound, monkeypatch
):
    """By whole matrices in float64, with weights kept for the way back or computed again. Queries
    and keys may be wider than values.
    """
    monkeypatch.setattr(triangle, "MOST_KEPT_BYTES", most_bytes)
    monkeypatch.setattr(triangle, "MOST_SCORES", scores)
    random = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, length, width, generator=random).requires_grad_()
        for width in (20, 20, 16)
    )
    weigh = torch.randn(2, 3, length, 16, generator=random)
    y = causal_attention(q, k, v.to(dtype)).float()
    ours = [y, *torch.autograd.grad((y * weigh).sum(), (q, k, v))]
    wide = [leaf.detach().double().requires_grad_() for leaf in (q, k, v)]
    scores = (wide[0] @ wide[1].mT).masked_fill(
        torch.ones(length, length).triu(1).bool(), -torch.inf
    )
    y = scores.softmax(dim=-1) @ wide[2]
    for actual, expected in zip(
        ours, [y, *torch.autograd.grad((y * weigh.double()).sum(), wide)], strict=True
    ):
        assert (actual - expected).norm() <= bound * expected.norm() + 1e-6


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs_also_when_it_goes_on_from_a_state_of_torchs(nesterov):
    """Of matrices that are square, tall, wide, alone in their shape, and without a gradient, with
    weight decay.
    """
    shapes = [(8, 8), (12, 8), (8, 12), (8, 8), (12, 8), (5, 3), (8, 8)]
    random = torch.Generator().manual_seed(0)
    start, steps = [torch.randn(shape, generator=random) for shape in shapes], 6
    pushes = [[torch.randn(shape, generator=random) for shape in shapes] for _ in range(steps)]
    settings = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "nesterov": nesterov}

    def walked(*kinds: type) -> list[torch.Tensor]:
        weights, state = [matrix.clone().requires_grad_() for matrix in start], None
        for at, push in enumerate(pushes):
            if at % (steps // len(kinds)) == 0:
                muon = kinds[at * len(kinds) // steps](weights, **settings)
                if state is not None:
                    muon.load_state_dict(state)
            for number, (weight, gradient) in enumerate(zip(weights, push, strict=True)):
                weight.grad = None if number == 6 else gradient.clone()
            muon.step()
            state = muon.state_dict()
        return weights

    torchs_weights = walked(torch.optim.Muon)
    for our_weights in (
        walked(Muon),
        walked(torch.optim.Muon, Muon),
        walked(Muon, torch.optim.Muon),
    ):
        for actual, expected in zip(our_weights, torchs_weights, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0.1 * steps * 2**-7)
    assert torch.equal(torchs_weights[6], start[6])
