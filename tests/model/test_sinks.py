"""Sinks: every kernel and its gradients beside the formula, gpt-oss's own attention, and the layers
that a sink acts in.
"""

import dense
import pytest
import torch
from conftest import TRAIN_LEN, make_triple, small_shape
from measures import LONG, attend_in, attention_inputs

from posbench.config.schema import ModelConfig
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.extensions.none import NoExtension
from posbench.model import precision
from posbench.model.attention import Attention
from posbench.model.kernels import blocks, chunked_sdpa, flex
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.legality import check_trained_scale, verdict_of
from posbench.position.plan import make_plan
from posbench.scale_attention.learned_sink import LearnedSink
from posbench.scale_attention.log_n import LogN
from posbench.scale_attention.none import NoScale
from posbench.scale_attention.off_by_one import OffByOne

PAIRS = [
    *(("rope", extension) for extension in ("none", "rerope", "streaming", "window", "yarn")),
    *(("alibi", extension) for extension in ("none", "window", "pi")),
    *(
        (encoding, "none")
        for encoding in ("xpos", "t5", "sandwich", "fire", "fox", "fox_rope", "hybrid")
    ),
    *((encoding, "window") for encoding in ("t5", "fox")),
]


def learned(layers: int = 2) -> LearnedSink:
    """A sink whose logits are far apart, some above all scores."""
    scale = LearnedSink(small_shape(n_layer=layers))
    with torch.no_grad():
        scale.logit_LH.copy_(
            torch.tensor([-2.0, 0.5, 1.7, 6.0]) + torch.arange(float(layers))[:, None]
        )
    return scale


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_kernels_and_their_gradients_equal_the_formula(pair, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setitem(blocks.MASKED_BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setattr(blocks, "LONGEST_SINGLE_BLOCK", 5)
    monkeypatch.setattr(chunked_sdpa, "MOST_PIECE_QUERIES", 7)
    monkeypatch.setattr(chunked_sdpa, "TRIANGLE_STEP", 2)
    monkeypatch.setattr(chunked_sdpa, "WIDEST_MASKED_INTERVAL", 3)
    monkeypatch.setattr(chunked_sdpa, "MASKED_PIECE_QUERIES", 2)
    encoding, extension, _ = make_triple(*pair, "none")
    scale, length = learned(), 2 * TRAIN_LEN + 1
    layer = make_plan(encoding, extension, length=length, trained_scale=scale).layers[0]
    leaves, x = attention_inputs(encoding, length)
    wide = [t[0].double().requires_grad_() for t in leaves]
    sink_H = scale.logit_LH[0].detach().double().requires_grad_()
    repeated = [t.repeat_interleave(4 // t.shape[0], dim=0) for t in wide]
    expected = dense.attention(
        *pair, "none", layer.encoding, *repeated, x[0].double(), TRAIN_LEN, sink_H=sink_H
    )
    weigh = torch.randn(
        expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    expected_gradients = torch.autograd.grad((expected * weigh).sum(), [*wide, sink_H])
    with torch.no_grad():
        cut = [chunked_sdpa.chunked_sdpa] if chunked_sdpa.can_chunk(layer, 0) else []
        for kernel in [
            attend_by_blocks,
            *cut,
            *([flex.attend_by_flex] if flex.can_flex(layer) else []),
        ]:
            y_BHTD = (
                kernel(layer, *leaves) if kernel in cut else attend_in(kernel, layer, *leaves, x)
            )
            torch.testing.assert_close(y_BHTD[0].double(), expected.detach(), rtol=0, atol=3e-5)
    for kernel in (
        [attend_by_blocks, kernels.attend_fused] if kernels.can_fuse(layer) else [attend_by_blocks]
    ):
        inputs = [t.clone().requires_grad_() for t in leaves]
        y = attend_in(kernel, layer, *inputs, x)
        torch.testing.assert_close(y[0].double(), expected, rtol=0, atol=3e-5)
        *gradients, of_sinks = torch.autograd.grad(
            (y[0] * weigh.float()).sum(), [*inputs, scale.logit_LH]
        )
        for a, b in zip(
            [*(gradient[0] for gradient in gradients), of_sinks[0]], expected_gradients, strict=True
        ):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=3e-4)
        assert not of_sinks[1].any()  # another layer's


@pytest.mark.parametrize("window", [None, 5])
def test_a_layer_equals_that_of_gpt_oss(window):
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    kind = "sliding_attention" if window else "full_attention"
    theirs = gpt_oss.GptOssAttention(
        gpt_oss.GptOssConfig(
            hidden_size=32,
            head_dim=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=1,
            attention_bias=False,
            layer_types=[kind],
            sliding_window=window or 128,
            attn_implementation="eager",
        ),
        0,
    )
    ours, scale, length = (
        Attention(ModelConfig(d_model=32, n_layer=1, n_head=4, n_kv_head=2)),
        learned(1),
        21,
    )
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(ours, name).weight.normal_(std=0.3)
            getattr(theirs, name).weight.copy_(getattr(ours, name).weight)
        theirs.sinks.copy_(scale.logit_LH[0])
        encoding = Rope(small_shape(n_layer=1), window=window)
        x_BTC, index_T = torch.randn(2, length, 32), torch.arange(length)
        angle_TF = encoding.spectrum().angles(index_T)
        behind = index_T[:, None] - index_T
        hidden = (behind < 0) | (behind >= (window or length))
        mask = torch.zeros(1, 1, length, length).masked_fill(hidden, torch.finfo(torch.float32).min)
        expected_BTC, _ = theirs(
            x_BTC, (angle_TF.cos().float()[None], angle_TF.sin().float()[None]), mask
        )
        actual_BTC = ours(x_BTC, make_plan(encoding, length=length, trained_scale=scale).layers[0])
    torch.testing.assert_close(actual_BTC, expected_BTC, rtol=1e-5, atol=1e-5)


def test_a_sink_acts_in_local_layers_and_a_scale_does_not():
    hybrid = make_triple("hybrid", "none", "none")[0]
    plans = [
        make_plan(hybrid, None, scale, length=LONG).layers
        for scale in (OffByOne(small_shape()), LogN(small_shape(), clamp=False))
    ]
    assert [[layer.has_sink for layer in layers] for layers in plans] == [
        [True, True],
        [False, False],
    ]
    assert [layer.factor is not None for layer in plans[1]] == [False, True]


@torch.no_grad()
def test_bf16_keeps_the_logit_of_the_sink(monkeypatch):
    """One bf16 number is off by up to 0.4 %: 0.04 for a logit of 10."""
    monkeypatch.setattr(precision, "has_amx", lambda: True)
    scale, length = LearnedSink(small_shape(), init=10.01), 1100
    layer = make_plan(Rope(small_shape()), length=length, trained_scale=scale).layers[0]
    (q, k, v), x = attention_inputs(layer.encoding, length)
    expected_BHTD, actual_BHTD = (
        kernels.attend_fused(layer, q, k, values) for values in (v.bfloat16().float(), v.bfloat16())
    )
    share = actual_BHTD.float().norm(dim=-1) / expected_BHTD.norm(dim=-1)
    assert actual_BHTD.dtype == torch.bfloat16 and (share.mean() - 1).abs() < 0.005


@pytest.mark.parametrize(
    "pair",
    [("rope", "none"), ("alibi", "none"), ("rope", "rerope"), ("alibi", "window")],
    ids="-".join,
)
@torch.no_grad()
def test_long_texts_of_an_evaluation_equal_rows(pair, monkeypatch):
    """`attend_fused` by two heads a call, and pieces: beyond 1,024 tokens."""
    monkeypatch.setattr(kernels, "PAIRS_PER_CALL", 0)
    encoding, extension, _ = make_triple(*pair, "none", train_len=400)
    layer = make_plan(
        encoding, extension, length=precision.LONGEST_UNCHUNKED + 76, trained_scale=learned()
    ).layers[0]
    leaves, x = attention_inputs(encoding, precision.LONGEST_UNCHUNKED + 76)
    expected_BHTD = attend_by_blocks(layer, *leaves)
    for last in (None, 9):
        actual_BHTD = kernels.attend(layer, x, *leaves, n_last=last)
        torch.testing.assert_close(
            actual_BHTD, expected_BHTD[:, :, -(last or 0) :], rtol=0, atol=2e-5
        )


def test_where_a_sink_may_stand():
    shape, plain = small_shape(), NoScale(small_shape())
    check_trained_scale(Rope(shape), OffByOne(shape))
    assert (
        verdict_of(
            NoEncoding(shape), NoExtension(), OffByOne(shape), [8, 16], allow_untested=True
        ).noop
        is None
    )
    assert verdict_of(NoEncoding(shape), NoExtension(), plain, [8, 16]).noop is None
