"""Biases and whole rows, computed in blocks: equal to the dense oracle, to one block, and finite
with their gradients.
"""

import dense
import pytest
import torch
from bias_models import LONG, SHAPE, VARIANTS, inputs, randomised
from conftest import TRAIN_LEN, choices, make_triple

from posbench.model.kernels import blocks
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.geometry import Bias
from posbench.position.plan import make_plan
from posbench.scale_attention.log_n import LogN

DEFINED = [
    (variant, extension)
    for variant in VARIANTS
    for extension in ("none", "pi", "rerope", "window")
    if not make_triple("none", extension, "none")[1].needs & ~VARIANTS[variant]().traits
]


@pytest.mark.parametrize(("variant", "extension"), DEFINED, ids=str)
def test_blocks_equal_the_oracle_and_so_do_the_gradients_of_the_parameters(
    variant, extension, monkeypatch
):
    monkeypatch.setitem(blocks.BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setattr(blocks, "LONGEST_SINGLE_BLOCK", 5)
    # The oracle reads learned numbers without a gradient; here it has one.
    monkeypatch.setattr(
        dense.Case, "parameter", lambda case, name: case.module.get_parameter(name).double()
    )
    encoding, name = randomised(VARIANTS[variant]()), variant.split("-")[0]
    moved = make_triple("none", extension, "none")[1]
    scale, scale_name = (LogN(SHAPE), "log_n") if encoding.scalable else (None, "none")
    qkv = [t.requires_grad_() for t in inputs(LONG)]
    wide = [t[0].double().repeat_interleave(4 // t.shape[1], dim=0) for t in qkv]
    expected = dense.attention(
        name, extension, scale_name, encoding, *wide, torch.zeros(LONG, 32), TRAIN_LEN, layer=1
    )
    actual_HTD = attend_by_blocks(make_plan(encoding, moved, scale, length=LONG).layers[1], *qkv)[0]
    torch.testing.assert_close(actual_HTD.double(), expected, rtol=0, atol=3e-5)
    weigh = torch.randn(
        expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    leaves = [*qkv, *encoding.parameters()]
    expected_gradients = torch.autograd.grad((expected * weigh).sum(), leaves, allow_unused=True)
    for a, b in zip(
        torch.autograd.grad((actual_HTD * weigh.float()).sum(), leaves, allow_unused=True),
        expected_gradients,
        strict=True,
    ):
        if a is not None or b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=5e-4)


DECLARED = {
    **dict.fromkeys(("kerple", "sandwich", "t5"), Bias.PROFILE),
    **dict.fromkeys(("fox", "fox_rope", "bipe_alibi"), Bias.GATES),
    "grape_ap": Bias.CONTENT,
    **dict.fromkeys(("cope", "stick_breaking"), Bias.ROWS),
    "dape": Bias.ROWS | Bias.PROFILE,
    "fire": Bias.PAIRWISE,
    **dict.fromkeys(("alibi", "nape"), Bias.COLUMNS),
}


@pytest.mark.parametrize("name", choices("encoding"))
def test_an_encoding_declares_its_bias_by_the_hooks_that_it_defines(name):
    encoding = make_triple(name, "none", "none")[0]
    assert {layer.encoding.biases for layer in encoding.layers()} == {DECLARED.get(name, Bias(0))}
    assert type("Heir", (type(encoding),), {}).biases == type(encoding).biases
    assert (
        Bias.PAIRWISE
        in type(
            "Wider", (type(encoding),), {"bias": lambda self, q_pos_S, k_pos_K, layer: None}
        ).biases
    )


@pytest.mark.parametrize(
    ("triple", "evaluated", "trained"),
    [
        (("alibi", "window", "none"), "MaskedBlock", "WeightedBlock"),
        (("t5", "none", "none"), "MaskedBlock", "WeightedBlock"),
        (("fox", "none", "none"), "MaskedBlock", "WeightedBlock"),
        (("rope", "rerope", "none"), "WeightedBlock", "WeightedBlock"),
        (("rope", "none", "scale_invariant"), "WeightedBlock", "WeightedBlock"),
        (("dape", "window", "none"), "WeightedBlock", "WeightedBlock"),
        (("cope", "none", "none"), "WeightedBlock", "WeightedBlock"),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, tuple) else part,
)
def test_the_plan_and_the_gradient_choose_the_kind_of_blocks(
    triple, evaluated, trained, monkeypatch
):
    encoding, extension, scale = make_triple(*triple)
    layer, ran = make_plan(encoding, extension, scale, length=LONG).layers[0], []
    for kind in (blocks.MaskedBlock, blocks.WeightedBlock):
        monkeypatch.setattr(
            kind,
            "__call__",
            lambda self, *at, call=kind.__call__: (
                ran.append(type(self).__name__) or call(self, *at)
            ),
        )
    qkv = inputs(LONG)
    with torch.no_grad():
        attend_by_blocks(layer, *qkv)
    attend_by_blocks(layer, *(t.requires_grad_() for t in qkv))
    assert ran == [evaluated, trained]


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_finite_from_the_first_token_on_and_for_large_scores(variant):
    for length, spread in ((1, 1.0), (40, 30.0)):
        encoding = VARIANTS[variant]()
        qkv = [t.requires_grad_() for t in inputs(length, spread=spread)]
        y_BHTD = attend_by_blocks(make_plan(encoding, length=length).layers[0], *qkv)
        assert y_BHTD.isfinite().all()
        leaves = [*qkv, *encoding.parameters()]
        grads = torch.autograd.grad(y_BHTD.square().sum(), leaves, allow_unused=True)
        assert all(grad.isfinite().all() for grad in grads if grad is not None)
