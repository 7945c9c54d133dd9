"""RoPE in both layouts, in part and in resonance, and p-RoPE: identities that hold exactly, and
other people's code.
"""

import math

import numpy as np
import pytest
import torch
from conftest import TRAIN_LEN, node, small_model, small_shape
from measures import LONG, outputs, same, tokens, turned, wide

from posbench.common.errors import ConfigError
from posbench.encodings.none import NoEncoding
from posbench.encodings.p_rope import PRope
from posbench.encodings.rope import Rope
from posbench.extensions.ntk import Ntk
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan


def scaling(name: str, **arguments) -> dict:
    """Node of an extension with a factor for all lengths."""
    return {**node("extension", name), "mode": "fixed", **arguments}


def test_interleaved_is_half_after_permuting_the_output_channels():
    half, interleaved = (
        small_model(Rope(small_shape())),
        small_model(Rope(small_shape(), layout="interleaved")),
    )
    order = torch.cat((torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    with torch.no_grad():
        for a, b in zip(half.layers, interleaved.layers, strict=True):
            for name in ("q_proj", "k_proj"):
                weight = getattr(b.self_attn, name).weight.unflatten(0, (-1, 8))
                getattr(a.self_attn, name).weight.copy_(weight[:, order].flatten(0, 1))
    text_BT = tokens(LONG)
    plans = [make_plan(model.encoding, length=LONG) for model in (half, interleaved)]
    torch.testing.assert_close(
        half(text_BT, plans[0]), interleaved(text_BT, plans[1]), rtol=0, atol=1e-4
    )


def test_partial_rope_is_that_of_gpt_neox():
    neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    from transformers import GPTNeoXConfig

    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    config = GPTNeoXConfig(hidden_size=64, num_attention_heads=2, rope_parameters=parameters)
    q, k = torch.randn(2, 1, 2, 40, 32)
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(q, torch.arange(40)[None])
    assert cos.shape[-1] == 8
    same(
        turned(Rope(wide(32), fraction=0.25), q), neox.apply_rotary_pos_emb(q, k, cos, sin)[0], 1e-5
    )


def test_partial_interleaved_is_half_after_permuting_the_turned_channels():
    half, interleaved = (
        Rope(wide(16), layout=layout, fraction=0.5) for layout in ("half", "interleaved")
    )
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    x = torch.randn(1, 2, 20, 16)
    same(turned(half, x[..., order]), turned(interleaved, x)[..., order], 1e-6)


def test_resonance_rounds_wavelengths_after_the_extension():
    encoding, span = Rope(wide(16), resonance=True), Span(64, 256, 256)
    pos_T = torch.arange(300, dtype=torch.float64)
    cos_TF = encoding.table(pos_T, Ntk().spectrum(encoding.spectrum(), span))[0].double()
    for c in range(8):
        wavelength = round(2 * math.pi * (10000 * 4 ** (16 / 14)) ** (2 * c / 16))
        same(cos_TF[:, c], (2 * math.pi * (pos_T % wavelength) / wavelength).cos(), 1e-6)


def test_resonance_rounds_before_pi_divides_positions_and_after_pi_as_a_scaling():
    """2 pi 10^(c / 4) = 6.28, 11.17, 19.87, 35.33 tokens, by 96 / 64: as the authors' code does,
    which divides the positions, and as a change of frequencies.
    """
    pi = scaling("pi", target_len=96)
    shape = small_shape(64)
    rounded = Rope(shape, base=10.0, resonance=True)
    for encoding, extension, wavelengths in (
        (rounded, make_method(pi), [1.5 * 6, 1.5 * 11, 1.5 * 20, 1.5 * 35]),
        (Rope(shape, 10.0, resonance=True, scaling=pi, scaling_len=64), None, [9, 17, 30, 53]),
    ):
        plan = make_plan(encoding, extension, length=96)
        wavelength_F = torch.tensor(wavelengths, dtype=torch.float64)
        angle_TF = 2 * math.pi * torch.arange(96)[:, None] / wavelength_F
        same(plan.layers[0].bands[0].q_table[0], angle_TF.cos().float())


@pytest.mark.parametrize("p", [1.0, 0.75, 0.5, 0.3, 0.25, 0.1, 0.0])
@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_p_rope_turns_as_transformers_proportional(p, head_dim):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": p}
    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=parameters
    )
    expected = rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config, "cpu")[0].double().numpy()
    spectrum = PRope(wide(head_dim), p=p, base=1e6).spectrum()
    freq_F = np.zeros(0) if spectrum is None else spectrum.freq_F.numpy()
    np.testing.assert_allclose(
        np.pad(freq_F, (0, head_dim // 2 - len(freq_F))), expected, rtol=1e-6
    )


def test_p_rope_between_rope_and_nope():
    same(outputs(PRope(small_shape(), p=1)), outputs(Rope(small_shape())))
    same(outputs(PRope(small_shape(), p=0)), outputs(NoEncoding(small_shape())))
    same(outputs(PRope(small_shape(), p=0), Ntk()), outputs(NoEncoding(small_shape())))
    assert (
        outputs(PRope(small_shape(), p=0.25)) - outputs(NoEncoding(small_shape()))
    ).abs().max() > 0.1


@pytest.mark.parametrize(
    ("train_len", "active"), [(6, 0), (7, 1), (128, 11), (256, 13), (512, 16), (4096, 23)]
)
def test_full_turns_keeps_the_pairs_with_one(train_len, active):
    assert PRope(wide(64, train_len), cut="full_turns").n_active == active


def test_a_scaling_acts_on_the_pairs_that_turn_as_the_extension_does():
    """theta_c 8^(-c / (m - 1)) by NTK to 8 times 64 tokens, m = 16 of 32 pairs; of LongRoPE's
    factors each turning pair has one, the short ones up to 64 tokens; full_turns are those of 64.
    """
    ntk = scaling("ntk", target_len=512)
    pair_F = torch.arange(16, dtype=torch.float64)
    plain_F = 10000 ** (-2 * pair_F / 64)
    trained = PRope(wide(64, 512), p=0.5, scaling=ntk, scaling_len=64)
    for length in (64, 512, 1024):
        expected_F = plain_F * 8 ** (-pair_F / 15)
        torch.testing.assert_close(trained.spectrum_at(length).freq_F, expected_F)
    factors = {"factors": [4.0] * 16, "short_factors": [2.0] * 16}
    divided = scaling("longrope", target_len=256, **factors)
    trained = PRope(wide(64, 128), p=0.5, scaling=divided, scaling_len=64)
    for length, divisor in ((32, 2), (64, 2), (65, 4), (256, 4)):
        torch.testing.assert_close(trained.spectrum_at(length).freq_F, plain_F / divisor)
    with pytest.raises(ConfigError, match="factors has 32 numbers: give 16"):
        whole = {**divided, "factors": [4.0] * 32}
        PRope(wide(64, 128), p=0.5, scaling=whole, scaling_len=64)
    scaled = PRope(wide(64, 512), cut="full_turns", scaling=ntk, scaling_len=128)
    assert scaled.n_active == PRope(wide(64, 128), cut="full_turns").n_active == 11
    assert PRope(wide(64), p=0, scaling=ntk, scaling_len=64).spectrum_at(512) is None


@pytest.mark.parametrize(
    "node_of_scaling",
    [
        {**node("extension", "dynamic_ntk"), "factor": 2.0},
        node("extension", "ntk"),
        scaling("longrope", target_len=256, factors=[4.0] * 4, short_factors=[2.0] * 4),
        scaling("yarn", target_len=256),
    ],
    ids=["dynamic_ntk", "ntk", "longrope", "yarn"],
)
def test_p_rope_of_all_pairs_has_a_scaling_as_rope_has(node_of_scaling):
    arguments = {"scaling": node_of_scaling, "scaling_len": 64}
    whole = PRope(small_shape(128), p=1, **arguments)
    rope = Rope(small_shape(128), **arguments)
    assert (whole.traits, whole.amplitude) == (rope.traits, rope.amplitude)
    for length in (32, 64, 128, 512):
        assert torch.equal(whole.spectrum_at(length).freq_F, rope.spectrum_at(length).freq_F)
    same(outputs(whole, length=200), outputs(rope, length=200))


@pytest.mark.parametrize("name", ["pi", "ntk", "yarn"])
def test_a_scaling_of_p_rope_is_the_extension_before_it_was_trained_in(name):
    """YaRN's temperature is one of all logits, so of the pairs at rest too."""
    fixed = scaling(name, target_len=LONG)
    trained = PRope(small_shape(LONG), p=0.5, scaling=fixed, scaling_len=TRAIN_LEN)
    before = outputs(PRope(small_shape(), p=0.5), make_method(fixed))
    same(outputs(trained), before)


def test_ntk_takes_the_last_active_pair_to_its_full_factor():
    encoding = PRope(wide(64), p=0.5)
    plain = encoding.spectrum().freq_F
    changed = Ntk().spectrum(encoding.spectrum(), Span(64, 512, 512)).freq_F
    assert changed[0] == plain[0]
    assert (plain[-1] / changed[-1]).item() == pytest.approx(8)
    extended = outputs(PRope(small_shape(), p=0.25), Ntk())
    same(
        extended, outputs(PRope(small_shape(), p=0.25))
    )  # a single pair has no slower one to stretch to
