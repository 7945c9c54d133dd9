"""Every legal combination: causal, finite, and equal to the dense oracle however it is cut into
blocks.
"""

import dense
import pytest
import torch
from conftest import (
    TRAIN_LEN,
    choices,
    legal_pairs,
    make_triple,
    node,
    scaled_sample,
    small_model,
    with_attention,
)
from measures import LONG, attend_in, attention_inputs, outputs, tokens

from posbench.model.kernels import blocks, flex
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.instantiate import make_method
from posbench.position.legality import fed_length
from posbench.position.plan import make_plan

TRIPLES = legal_pairs(LONG) + scaled_sample(
    LONG
)  # every pair, and a sample of the triples: the default suite ends in minutes


@pytest.mark.parametrize("triple", TRIPLES, ids="-".join)
@torch.no_grad()
def test_legal_triples_are_causal_and_finite_at_4x(triple):
    """Two texts, and each again with another token at its second place, in its middle and at its
    end: read side by side.
    """
    encoding, extension, scale = make_triple(*triple)
    length = fed_length(extension, TRAIN_LEN, LONG)
    places, text_BT = (1, length // 2, length - 1), tokens(length)
    texts = [text_BT, *(text_BT.clone() for _ in places)]
    for place, other_BT in zip(places, texts[1:], strict=True):
        other_BT[:, place] = (other_BT[:, place] + 1) % 50
    logits, *others = small_model(encoding)(
        torch.cat(texts), make_plan(encoding, extension, scale, length=length)
    ).chunk(4)
    assert logits.isfinite().all()
    for place, other in zip(places, others, strict=True):
        # Gates are summed from the middle of the text, so a later token moves their float32
        # rounding.
        torch.testing.assert_close(
            other[:, :place], logits[:, :place], rtol=0, atol=5e-5 if "fox" in triple[0] else 1e-5
        )
        assert (other[:, place] - logits[:, place]).abs().max() > 1e-3


WHOLE = [
    name
    for name in choices("extension")
    if fed_length(make_method(node("extension", name)), TRAIN_LEN, LONG) == LONG
]
ORACLE = with_attention([triple for triple in TRIPLES if triple[1] in WHOLE])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("triple", ORACLE, ids="-".join)
def test_kernels_and_their_gradients_equal_the_dense_oracle(triple, monkeypatch):
    from torch.nn.attention import flex_attention  # a second that collecting need not spend

    monkeypatch.setitem(blocks.BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setitem(blocks.MASKED_BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setattr(blocks, "LONGEST_SINGLE_BLOCK", 5)
    if triple[1] != "none" and triple[2] == "none":
        # Tracing takes most of a second, and an extension adds no rule to trace: those of its
        # encoding are traced without it.
        monkeypatch.setattr(
            flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False
        )
    encoding, extension, scale = make_triple(*triple)
    w = TRAIN_LEN // 2
    around = (
        (1, 2, w - 1, w, 3 * w + 1) if triple[2] == "none" else ()
    )  # a scale moves no band: its pair is here, at every length
    for length in (*around, w + 1, 3 * TRAIN_LEN + 1):
        layers = make_plan(encoding, extension, scale, length=length).layers
        layer = next(layer for layer in layers if not layer.encoding.mixes)
        leaves, x = attention_inputs(encoding, length)
        differentiated = length not in around  # at the lengths around, bands end elsewhere
        wide = [t[0].double().requires_grad_(differentiated) for t in leaves]
        repeated = [t.repeat_interleave(4 // t.shape[0], dim=0) for t in wide]
        expected = dense.attention(*triple, layer.encoding, *repeated, x[0].double(), TRAIN_LEN)
        with torch.no_grad():
            for kernel in (
                [attend_by_blocks, flex.attend_by_flex]
                if flex.can_flex(layer) and length == w + 1
                else [attend_by_blocks]
            ):
                torch.testing.assert_close(
                    attend_in(kernel, layer, *leaves, x)[0].double(),
                    expected.detach(),
                    rtol=0,
                    atol=3e-5,
                )
        if not differentiated:
            continue
        weigh = torch.randn(
            expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        expected_gradients = torch.autograd.grad((expected * weigh).sum(), wide)
        for kernel in (
            [attend_by_blocks, kernels.attend_fused]
            if kernels.can_fuse(layer)
            else [attend_by_blocks]
        ):
            inputs = [t.clone().requires_grad_() for t in leaves]
            y = attend_in(kernel, layer, *inputs, x)
            torch.testing.assert_close(y[0].double(), expected, rtol=0, atol=3e-5)
            for a, b in zip(
                torch.autograd.grad((y[0] * weigh.float()).sum(), inputs),
                expected_gradients,
                strict=True,
            ):
                torch.testing.assert_close(a[0].double(), b, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", choices("extension"))
@pytest.mark.parametrize("encoding", ["rope", "alibi", "sinusoidal"])
def test_factor_one_changes_nothing(name, encoding):
    encoding, extension, scale = make_triple(encoding, name, "log_n")
    within = (
        "rerope",
        "abf",
        "dca",
        "string",
        "compose",
    )  # without a factor: these change texts of any length
    if extension.needs & ~encoding.traits or name in within:
        return
    torch.testing.assert_close(
        outputs(encoding, extension, scale, TRAIN_LEN),
        outputs(encoding, length=TRAIN_LEN),
        rtol=0,
        atol=1e-5,
    )
