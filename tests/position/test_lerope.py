"""LeRoPE and the preset of Mistral Large 4, beside transformers' model of that name."""

import math

import pytest
import torch
from conftest import TRAIN_LEN, make_triple, node, small_model, small_shape
from measures import LONG, attend_in, attention_inputs, outputs, same, tokens

from posbench.encodings.lerope import LeRope
from posbench.encodings.rope import Rope
from posbench.extensions.yarn import Yarn
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.geometry import Shape, Span
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan
from posbench.scale_attention.ssmax import Ssmax

YARN = {
    "_target_": "posbench.extensions.yarn.Yarn",
    "beta": 32.0,
    "temperature": False,
    "mode": "fixed",
    "target_len": 512 * 2048,
}


def moved(encoding: LeRope) -> LeRope:
    with torch.no_grad():
        encoding.log_scale_F.copy_(torch.linspace(-0.4, 0.5, len(encoding.log_scale_F)))
    return encoding


def test_angles_are_those_of_mistral_large_4():
    """YaRN from 512 tokens to a million, without a magnitude, and a learned factor; their angles
    are float32.
    """
    theirs = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    rotary = theirs.MistralLarge4TextRotaryEmbedding(theirs.MistralLarge4TextConfig())
    shape = Shape(d_model=64, n_layer=1, n_head=1, n_kv_head=1, train_len=512 * 2048)
    ours = moved(LeRope(shape, layout="interleaved", scaling=YARN, scaling_len=512, amplitude=1.0))
    rotary.alpha.copy_(ours.log_scale_F.detach())
    pos_T = torch.arange(600)
    cos_BTD, sin_BTD = rotary(torch.zeros(1), pos_T[None])
    waves = ours._cos_and_sin_of_angles(ours.table(pos_T.double(), ours.spectrum())).detach()
    for actual_TD, expected_BTD in zip(waves, (cos_BTD, sin_BTD), strict=True):
        torch.testing.assert_close(actual_TD, expected_BTD[0, :, :32], rtol=0, atol=1e-4)


def test_its_scale_is_ssmax_with_a_bias():
    theirs = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    scaling, ours = theirs.MistralLarge4TextSoftmaxScaling(4), Ssmax(small_shape(), bias=True)
    with torch.no_grad():
        for their_H, our_H in ((scaling.scale, ours.scale_LH[1]), (scaling.bias, ours.bias_LH[1])):
            their_H.normal_()
            our_H.copy_(their_H)
        expected_BHT1 = scaling(
            torch.ones(1, 4, LONG, 1), torch.arange(LONG)[None], head_dim_first=True
        )
        found_HT = ours(torch.arange(1, LONG + 1).double(), Span(TRAIN_LEN, LONG, LONG), 1)
    same(found_HT, expected_BHT1[0, :, :, 0], 1e-5)


def test_layers_of_the_preset_are_those_of_mistral_large_4():
    theirs = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    preset = make_method(node("encoding", "mistral_large4"), small_shape(n_layer=12))
    turned = [int(layer.encoding is preset) for layer in preset.layers()]
    assert turned == theirs.MistralLarge4TextConfig(num_hidden_layers=12).no_rope_layers


def test_it_starts_as_rope_and_an_extension_changes_its_grid():
    same(outputs(LeRope(small_shape())), outputs(Rope(small_shape())))
    plain, encoding = Rope(small_shape()), moved(LeRope(small_shape()))
    for extension in (None, Yarn()):
        pos_T = torch.arange(9).double()
        spectrum = (
            plain.spectrum()
            if extension is None
            else extension.spectrum(plain.spectrum(), Span(TRAIN_LEN, LONG, LONG))
        )
        angle_TF = pos_T[:, None] * spectrum.freq_F * encoding.log_scale_F.detach().double().exp()
        layer = make_plan(encoding, extension, length=LONG).layers[0]
        waves = encoding._cos_and_sin_of_angles(layer.bands[0].q_table[:, :9]).detach()
        same(waves, torch.stack((angle_TF.cos(), angle_TF.sin())).float(), 1e-6)


@pytest.mark.parametrize("kernel", [attend_by_blocks, kernels.attend_fused])
def test_the_learned_factor_has_the_gradient_of_the_formula(kernel):
    encoding, length = moved(LeRope(small_shape())), TRAIN_LEN + 3
    leaves, x = attention_inputs(encoding, length)
    y = attend_in(
        kernel,
        make_plan(encoding, length=length).layers[0],
        *(t.requires_grad_() for t in leaves),
        x,
    )
    weigh = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (found_F,) = torch.autograd.grad((y * weigh).sum(), encoding.log_scale_F)

    log_F = encoding.log_scale_F.detach().double().requires_grad_()
    q, k, v = (t[0].detach().double().repeat_interleave(4 // t.shape[1], dim=0) for t in leaves)
    behind = (torch.arange(length)[:, None] - torch.arange(length)).double()
    scores = torch.zeros(4, length, length, dtype=torch.float64)
    for c in range(4):
        turn = torch.polar(torch.ones_like(behind), behind * 10000.0 ** (-c / 4) * log_F[c].exp())
        pair_q, pair_k = (torch.complex(t[..., c], t[..., c + 4]) for t in (q, k))
        scores = scores + (pair_q[:, :, None] * pair_k[:, None].conj() * turn).real / math.sqrt(8)
    expected = scores.masked_fill(behind < 0, -math.inf).softmax(dim=-1) @ v
    (wanted_F,) = torch.autograd.grad((expected * weigh[0].double()).sum(), log_F)
    torch.testing.assert_close(found_F.double(), wanted_F, rtol=1e-4, atol=2e-4)


def test_the_whole_recipe_reads_a_long_text():
    encoding, extension, _ = make_triple("mistral_large4", "yarn", "none")
    model = small_model(encoding)
    with torch.no_grad():
        plan = make_plan(
            encoding, extension, length=LONG, trained_scale=Ssmax(small_shape(), bias=True)
        )
        assert model(tokens(LONG), plan).isfinite().all()
    assert [layer.bands[0].q_table is None for layer in plan.layers] == [False, True]
