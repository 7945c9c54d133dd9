"""The rotary family, gates, drawn positions and hybrids: identities that hold exactly, and other people's code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import TRAIN_LEN, node, small_model, small_shape

from posbench import kernels
from posbench.blocks import rows
from posbench.encodings.alibi import Alibi, slopes
from posbench.encodings.fope import Fope
from posbench.encodings.fox import Fox
from posbench.encodings.hybrid import Hybrid
from posbench.encodings.none import NoEncoding
from posbench.encodings.p_rope import PRope
from posbench.encodings.pope import Pope
from posbench.encodings.randomized import Randomized
from posbench.encodings.rope import Rope
from posbench.encodings.xpos import Xpos
from posbench.errors import ConfigError
from posbench.extensions.ntk import Ntk
from posbench.extensions.pi import Pi
from posbench.extensions.rerope import Rerope
from posbench.geometry import Shape, Span, Trait
from posbench.make import make
from posbench.plan import make_plan
from posbench.scale_attention.log_n import LogN

LONG = 4 * TRAIN_LEN
ROPE, NONE, LEARNED = ({"_target_": f"posbench.encodings.{name}"} for name in ("rope.Rope", "none.NoEncoding", "learned.Learned"))


def outputs(encoding, extension=None, scale=None, length: int = LONG, **overrides) -> torch.Tensor:
    model = small_model(encoding, **overrides)
    text_BT = torch.randint(0, 50, (2, length), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return model(text_BT, make_plan(encoding, extension, scale, length=length))


def same(a: torch.Tensor, b: torch.Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def wide(head_dim: int, train_len: int = 64, n_head: int = 2) -> Shape:
    return Shape(head_dim * n_head, 2, n_head, n_head, train_len)


def turned(encoding, x_BHTD: torch.Tensor) -> torch.Tensor:
    """q turned at 0, 1, 2, ..., not decayed."""
    pos_T = torch.arange(x_BHTD.shape[2], dtype=torch.float64)
    table = encoding.table(pos_T, encoding.spectrum())
    return encoding.rotate(x_BHTD, x_BHTD, table, table)[0]


# RoPE in part, and in resonance


def test_partial_rope_is_that_of_gpt_neox():
    neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    from transformers import GPTNeoXConfig

    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    config = GPTNeoXConfig(hidden_size=64, num_attention_heads=2, rope_parameters=parameters)
    q, k = torch.randn(2, 1, 2, 40, 32)
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(q, torch.arange(40)[None])
    assert cos.shape[-1] == 8
    same(turned(Rope(wide(32), fraction=0.25), q), neox.apply_rotary_pos_emb(q, k, cos, sin)[0], 1e-5)


def test_partial_interleaved_is_half_after_permuting_the_turned_channels():
    half, interleaved = (Rope(wide(16), layout=layout, fraction=0.5) for layout in ("half", "interleaved"))
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


# p-RoPE


@pytest.mark.parametrize("p", [1.0, 0.75, 0.5, 0.3, 0.25, 0.1, 0.0])
@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_p_rope_turns_as_transformers_proportional(p, head_dim):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": p}
    config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=parameters)
    expected = rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config, "cpu")[0].double().numpy()
    spectrum = PRope(wide(head_dim), p=p, base=1e6).spectrum()
    found = np.zeros(0) if spectrum is None else spectrum.freq_F.numpy()
    np.testing.assert_allclose(np.pad(found, (0, head_dim // 2 - len(found))), expected, rtol=1e-6)


def test_p_rope_between_rope_and_nope():
    same(outputs(PRope(small_shape(), p=1)), outputs(Rope(small_shape())))
    same(outputs(PRope(small_shape(), p=0)), outputs(NoEncoding(small_shape())))
    same(outputs(PRope(small_shape(), p=0), Ntk()), outputs(NoEncoding(small_shape())))
    assert (outputs(PRope(small_shape(), p=0.25)) - outputs(NoEncoding(small_shape()))).abs().max() > 0.1


@pytest.mark.parametrize(("train_len", "active"), [(6, 0), (7, 1), (128, 11), (256, 13), (512, 16), (4096, 23)])
def test_full_turns_keeps_the_pairs_with_one(train_len, active):
    assert PRope(wide(64, train_len), cut="full_turns").active == active


def test_ntk_takes_the_last_active_pair_to_its_full_factor():
    encoding = PRope(wide(64), p=0.5)
    plain = encoding.spectrum().freq_F
    changed = Ntk().spectrum(encoding.spectrum(), Span(64, 512, 512)).freq_F
    assert changed[0] == plain[0]
    assert (plain[-1] / changed[-1]).item() == pytest.approx(8)
    one = outputs(PRope(small_shape(), p=0.25), Ntk())
    same(one, outputs(PRope(small_shape(), p=0.25)))  # a single pair has no slower one to stretch to


# xPos


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_xpos_scores_are_those_of_x_transformers(layout):
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    reference = x_transformers.RotaryEmbedding(16, use_xpos=True, scale_base=64)
    freqs, power = reference(torch.arange(90))
    q, k = torch.randn(2, 1, 2, 90, 16)
    theirs_q = x_transformers.apply_rotary_pos_emb(q, freqs, power)
    theirs_k = x_transformers.apply_rotary_pos_emb(k, freqs, power**-1)
    encoding = Xpos(wide(16), B=64, layout=layout)
    order = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2))) if layout == "half" else torch.arange(16)
    ours_q, ours_k = (turned(encoding, t[..., order]) for t in (q, k))
    pos_T = torch.arange(90, dtype=torch.float64)
    ours_q, ours_k = kernels.damp(ours_q, ours_k, encoding.decay(), pos_T, pos_T, pos_T[20])
    same((ours_q @ ours_k.mT).tril(), (theirs_q @ theirs_k.mT).tril(), 1e-4)


def test_xpos_without_decay_is_rope_and_with_it_ignores_a_common_shift():
    same(outputs(Xpos(small_shape(), B=1e9)), outputs(Rope(small_shape())))
    encoding = Xpos(small_shape())
    q, k = torch.randn(1, 4, 30, 8), torch.randn(1, 4, 30, 8)

    def scores(shift: float) -> torch.Tensor:
        pos_T = torch.arange(30, dtype=torch.float64) + shift
        table = encoding.table(pos_T, encoding.spectrum())
        damped_q, damped_k = kernels.damp(*encoding.rotate(q, k, table, table), encoding.decay(), pos_T, pos_T, pos_T[10])
        return (damped_q @ damped_k.mT).tril()

    same(scores(0), scores(1000), 1e-4)


@torch.no_grad()
def test_xpos_is_exact_at_8192_tokens_with_a_short_decay():
    encoding = Xpos(wide(8, n_head=1), B=32)
    layer = make_plan(encoding, length=8192).layers[0]
    q, k, v = torch.randn(3, 1, 1, 8192, 8, generator=torch.Generator().manual_seed(0))
    assert not kernels.fusible(layer)
    y = rows(layer, q, k, v, first=8160)
    i, j = torch.arange(8160, 8192).double()[:, None], torch.arange(8192).double()
    scores = torch.zeros(32, 8192, dtype=torch.float64)
    for c in range(4):
        a, b = (torch.complex(t[0, 0, :, c].double(), t[0, 0, :, c + 4].double()) for t in (q, k))
        zeta = (c / 4 + 0.4) / 1.4
        turn = torch.polar(zeta ** ((i - j).clamp(min=0) / 32), (i - j) * 10000.0 ** (-c / 4))
        scores = scores + (a[8160:, None] * b.conj() * turn).real
    weights = torch.where(j <= i, scores / math.sqrt(8), -math.inf).softmax(dim=-1)
    same(y[0, 0].double(), weights @ v[0, 0].double(), 1e-5)


# FoPE


def test_fope_without_mixing_is_rope_and_what_rests_is_not_turned():
    same(outputs(Fope(small_shape(), gain=0, zero=False)), outputs(Rope(small_shape())))
    # Of the frequencies 1, 0.1, ... only the first turns within 16 tokens: p-RoPE's cut.
    same(outputs(Fope(small_shape(), gain=0)), outputs(PRope(small_shape(), cut="full_turns")))
    x = torch.randn(1, 2, 50, 64)
    encoding = Fope(wide(64, 128))
    assert encoding.kept == 11
    resting = torch.cat((torch.arange(11, 32), torch.arange(43, 64)))
    same(turned(encoding, x)[..., resting], x[..., resting], 0)


def test_fope_mixtures_are_seeded_kept_and_of_each_head():
    def seeded(**options) -> Fope:
        torch.manual_seed(5)
        return Fope(wide(64, 128), **options)

    encoding = seeded()
    cosine, sine = encoding.state_dict()["cos_GMF"], encoding.state_dict()["sin_GMF"]
    same(cosine, seeded(learnable=True).cos_GMF.detach(), 0)
    assert not list(encoding.parameters()) and len(list(seeded(learnable=True).parameters())) == 2
    assert not torch.equal(cosine, sine) and not torch.equal(cosine[0], cosine[1])
    noise = torch.stack((cosine, sine)) - torch.eye(11)
    assert noise.std().item() == pytest.approx(0.3 * math.sqrt(2 / 22), rel=0.15)
    assert seeded(pairs=4).cos_GMF.shape == (2, 11, 4)
    assert Fope(wide(64, 128), gain=0, pairs=4).cos_GMF[0].argmax(dim=0).tolist() == [0, 2, 5, 8]


# PoPE


def test_pope_scores_are_those_of_x_transformers():
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    reference = x_transformers.PolarEmbedding(16, 2)
    reference.learned_bias.data.uniform_(-7, 1, generator=torch.Generator().manual_seed(2))  # beyond both ends of -2 pi..0
    freqs, bias = reference(torch.arange(70))
    q, k = torch.randn(2, 1, 2, 70, 16)
    expected = x_transformers.apply_polar_pos_emb(q, freqs) @ x_transformers.apply_polar_pos_emb(k, freqs + bias).mT
    encoding = Pope(wide(16))
    assert not encoding.phase_H1D.any()
    with torch.no_grad():
        encoding.phase_H1D.copy_(reference.learned_bias)
        pos_T = torch.arange(70, dtype=torch.float64)
        table = encoding.table(pos_T, encoding.spectrum())
        ours_q, ours_k = encoding.rotate(q, k, table, table)
    same(ours_q @ ours_k.mT, expected.detach(), 1e-4)


# FoX


@torch.no_grad()
def gated(encoding: Fox, log_f_H: list[float], other) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model says where every gate of a head is the same, and the same model with another encoding."""
    models = small_model(encoding), small_model(other)
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    for linear in encoding.gate:
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor([-math.log(math.expm1(-log_f)) if log_f else 100.0 for log_f in log_f_H]))
    text_BT = torch.randint(0, 50, (2, LONG), generator=torch.Generator().manual_seed(3))
    return tuple(model(text_BT, make_plan(model.encoding, length=LONG)) for model in models)


def test_fox_is_nope_without_forgetting_and_alibi_with_a_constant_gate():
    same(*gated(Fox(small_shape()), [0.0] * 4, NoEncoding(small_shape())))
    same(*gated(Fox(small_shape()), [-slope for slope in slopes(4)], Alibi(small_shape())), 5e-5)
    same(*gated(Fox(small_shape(), rope=True), [0.0] * 4, Rope(small_shape())))


def test_fox_without_the_text_starts_at_its_decay_lengths():
    encoding = Fox(small_shape(), data_dependent=False, tau_max=128)
    log_f_BHT = encoding.gates(torch.randn(3, 5, 32), 1)
    assert log_f_BHT.shape == (3, 4, 5)
    np.testing.assert_allclose(-1 / log_f_BHT[0, :, 0].detach(), [2, 8, 32, 128], rtol=1e-5)
    log_f_BHT.sum().backward()
    assert encoding.bias_LH.grad[1].all() and not encoding.bias_LH.grad[0].any()


def test_fox_gates_are_float32_under_autocast_and_undecayed():
    encoding = Fox(small_shape())
    assert all(linear.weight.no_decay for linear in encoding.gate)
    model = small_model(encoding)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        seen = []
        encoding.gate[0].register_forward_hook(lambda module, args, y: seen.append(y.dtype))
        assert model(torch.zeros(1, 8, dtype=torch.long), make_plan(encoding, length=8)).isfinite().all()
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
    scores = q[0, :, -64:].double() @ k[0].double().mT / math.sqrt(8) + c_BHT[0, :, -64:, None] - c_BHT[0, :, None]
    seen = torch.arange(length) <= torch.arange(length - 64, length)[:, None]
    expected = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v[0].double()
    # float32 keeps 2^-24 of what is summed: a block's forgetting here, half the text's in one call.
    same(rows(layer, q, k, v, c_BHT, first=length - 64)[0].double(), expected, 1e-5 + abs(log_f) * 64 * 2**-24)
    assert kernels.fusible(layer)
    same(kernels.fused(layer, q, k, v, c_BHT)[0, :, -64:].double(), expected, 1e-5 + abs(log_f) * length * 2**-24)


# Drawn positions


def test_randomized_positions_are_drawn_without_replacement_in_order():
    encoding = Randomized(small_shape(), ROPE, max_len=40)

    def drawn(seed: int) -> torch.Tensor:
        return encoding.positions(16, torch.Generator().manual_seed(seed))

    for seed in range(20):
        pos_T = drawn(seed)
        assert pos_T.dtype == torch.float64 and (pos_T.diff() > 0).all() and pos_T[0] >= 0 and pos_T[-1] < 40
    assert not torch.equal(drawn(1), drawn(2)) and torch.equal(drawn(1), drawn(1))
    assert encoding.random and encoding.limit == 40
    assert encoding.traits == Trait.COORDINATE | Trait.SPECTRUM == encoding.layers()[0].encoding.traits
    assert sorted(drawn(1).tolist()) == sorted(
        set(make_plan(encoding, length=16, generator=torch.Generator().manual_seed(1)).layers[0].bands[0].q_pos_T.tolist())
    )


def test_randomized_evaluates_as_told():
    spread, arange, random = (Randomized(small_shape(), ROPE, max_len=64, eval=how) for how in ("spread", "arange", "random"))
    assert spread.positions(16, None).tolist() == list(range(0, 64, 4))
    assert spread.positions(48, None).tolist() == [math.floor(t * 4 / 3) for t in range(48)]
    assert arange.positions(5, None).tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(random.positions(16, None), random.positions(16, None))
    same(outputs(arange), outputs(Rope(small_shape())))
    same(outputs(spread, length=LONG), outputs(Rope(small_shape()), length=LONG))  # 64 of 64
    with pytest.raises(ConfigError, match="max_len=64 holds no 65"):
        spread.positions(65, None)


def test_randomized_learned_has_a_row_for_each_position():
    encoding = Randomized(small_shape(), LEARNED, max_len=64)
    assert encoding.rows().shape == (64, 32) and encoding.shape.train_len == TRAIN_LEN
    added_TC = make_plan(encoding, length=16).embed()
    same(added_TC, encoding.base.weight[::4], 0)


# Hybrids


def test_hybrid_layers_alternate_and_count_their_own():
    fox = {"_target_": "posbench.encodings.fox.Fox"}
    encoding = Hybrid(small_shape(n_layer=10), fox, ROPE, window=5)
    layers = encoding.layers()
    assert [layer.encoding is encoding.full for layer in layers] == [(i + 1) % 4 == 0 for i in range(10)]
    assert [layer.index for layer in layers] == [0, 1, 2, 0, 3, 4, 5, 1, 6, 7]
    assert [layer.window for layer in layers[2:4]] == [5, None]
    assert len(encoding.local.gate) == 8 and encoding.full.shape.n_layer == 2
    assert Hybrid(small_shape(), ROPE, NONE).window == TRAIN_LEN // 2


def test_hybrid_limits_are_its_parts():
    same(outputs(Hybrid(small_shape(), ROPE, NONE, period=1)), outputs(NoEncoding(small_shape())))
    same(outputs(Hybrid(small_shape(), ROPE, ROPE, window=LONG)), outputs(Rope(small_shape())))
    same(outputs(Hybrid(small_shape(), ROPE, ROPE, window=LONG, extend_local=True), Pi()), outputs(Rope(small_shape()), Pi()))


def test_extensions_and_scales_leave_the_local_layers_alone():
    encoding = Hybrid(small_shape(), ROPE, ROPE)
    plain, plan = (make_plan(encoding, *methods, length=LONG).layers for methods in ((), (Rerope(), LogN(small_shape()))))
    assert torch.equal(plan[0].bands[0].q_table, plain[0].bands[0].q_table)
    assert len(plan[0].bands) == 1 and plan[0].factor is None
    assert len(plan[1].bands) == 2 and plan[1].factor is not None
    extended = make_plan(Hybrid(small_shape(), ROPE, ROPE, extend_local=True), Pi(), length=LONG).layers[0].bands[0]
    assert extended.q_pos_T[-1] == (LONG - 1) / 4 and extended.seen_T.max() == TRAIN_LEN // 2


def test_hybrid_offers_what_its_extended_layers_offer():
    whole = Rope(small_shape()).traits
    assert Hybrid(small_shape(), ROPE, NONE).traits == Trait(0)
    assert Hybrid(small_shape(), ROPE, NONE, extend_local=True).traits == whole
    alibi = {"_target_": "posbench.encodings.alibi.Alibi"}
    assert Hybrid(small_shape(), alibi, ROPE).traits == whole
    assert Hybrid(small_shape(), alibi, ROPE, extend_local=True).traits == whole & ~Trait.SPECTRUM


def test_gemma3_has_a_base_for_each_kind_of_layer():
    local, full = (layer.encoding.spectrum().base for layer in make(node("encoding", "gemma3"), small_shape()).layers())
    assert (local, full) == (1e4, 1e6)


RANDOM_LEARNED = {"_target_": "posbench.encodings.randomized.Randomized", "base": ROPE}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("rope", {"fraction": 0.4}, "fraction=0.4 of the head width 8 is 3.2 channels"),
        ("rope", {"fraction": 0.25}, "fraction=0.25"),
        ("rope", {"fraction": 1.5}, "fraction=1.5"),
        ("p_rope", {"p": 1.1}, "p=1.1"),
        ("p_rope", {"cut": "half"}, "cut=half"),
        ("xpos", {"gamma": 0}, "gamma=0"),
        ("xpos", {"B": 2}, "choose encoding.B of at least 7.83"),
        ("fope", {"gain": -1}, "gain=-1"),
        ("fope", {"pairs": 2}, "pairs=2 must be between 0 and 1"),
        ("pope", {"base": 1}, "base=1"),
        ("fox", {"data_dependent": False, "tau_max": 1}, "tau_max=1"),
        ("randomized", {"max_len": 15}, "max_len=15"),
        ("randomized", {"eval": "mean"}, "eval=mean"),
        ("hybrid", {"period": 0}, "period=0"),
        ("hybrid", {"window": 0}, "window=0"),
        ("hybrid", {"full": LEARNED}, "encoding.full=posbench.encodings.learned.Learned is for a whole model"),
        ("hybrid", {"local": RANDOM_LEARNED}, "encoding.local=posbench.encodings.randomized.Randomized is for a whole model"),
    ],
)
def test_impossible_arguments_are_refused(name, arguments, said):
    with pytest.raises(ConfigError, match=said):
        make({**node("encoding", name), **arguments}, small_shape())
