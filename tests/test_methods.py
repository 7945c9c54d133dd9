"""Every legal combination, and the identities that hold exactly between methods."""

from __future__ import annotations

from dataclasses import replace

import dense
import numpy as np
import pytest
import torch
from conftest import TRAIN_LEN, choices, legal_pairs, make_triple, scaled_sample, small_model, small_shape

from posbench import blocks, flex, kernels
from posbench.blocks import rows
from posbench.compat import fed_length
from posbench.encodings.alibi import Alibi, slopes
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.extensions.leaky_rerope import LeakyRerope
from posbench.extensions.ntk import Ntk
from posbench.extensions.pi import Pi
from posbench.extensions.rerope import Rerope
from posbench.extensions.window import Window
from posbench.geometry import Span, Trait
from posbench.interfaces import Layer
from posbench.plan import Plan, make_plan
from posbench.scale_attention.log_n import LogN

LONG = 4 * TRAIN_LEN
TRIPLES = legal_pairs(LONG) + scaled_sample(LONG)  # every pair, and a sample of the triples: the default suite ends in minutes


def tokens(length: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("triple", TRIPLES, ids="-".join)
@torch.no_grad()
def test_legal_triples_are_causal_and_finite_at_4x(triple):
    encoding, extension, scale = make_triple(*triple)
    model = small_model(encoding)
    length = fed_length(extension, TRAIN_LEN, LONG)
    plan = make_plan(encoding, extension, scale, length=length)
    text_BT = tokens(length)
    logits = model(text_BT, plan)
    assert logits.isfinite().all()
    for changed in (1, length // 2, length - 1):
        other_BT = text_BT.clone()
        other_BT[:, changed] = (other_BT[:, changed] + 1) % 50
        other = model(other_BT, plan)
        # Gates are summed from the middle of the text, so a later token moves their float32 rounding.
        torch.testing.assert_close(other[:, :changed], logits[:, :changed], rtol=0, atol=5e-5 if "fox" in triple[0] else 1e-5)
        assert (other[:, changed] - logits[:, changed]).abs().max() > 1e-3


def attention_inputs(encoding, length: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k, v and x of one layer, float32."""
    random = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, heads, length, 8, generator=random) for heads in (4, 2, 2))
    return [q, k, v], torch.randn(1, length, encoding.shape.d_model, generator=random)


def attend_in(kernel, layer, q, k, v, x):
    gates = layer.encoding.gates(x, layer.index)
    return kernel(layer, q, k, v, None if gates is None else gates.double().cumsum(dim=-1))


ORACLE = [t for t in TRIPLES if fed_length(make_triple(*t)[1], TRAIN_LEN, LONG) == LONG]


@pytest.mark.parametrize("triple", ORACLE, ids="-".join)
def test_kernels_and_their_gradients_equal_the_dense_oracle(triple, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK, "cpu", 7)
    monkeypatch.setitem(blocks.MASKED, "cpu", 7)
    monkeypatch.setattr(blocks, "WHOLE", 5)
    encoding, extension, scale = make_triple(*triple)
    for length in (1, 2, TRAIN_LEN // 2 + 1, 3 * TRAIN_LEN + 1):
        layer = make_plan(encoding, extension, scale, length=length).layers[0]
        leaves, x = attention_inputs(encoding, length)
        wide = [t[0].double().requires_grad_() for t in leaves]
        repeated = [t.repeat_interleave(4 // t.shape[0], dim=0) for t in wide]
        expected = dense.attention(*triple, layer.encoding, *repeated, x[0].double(), TRAIN_LEN)
        weigh = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        wanted = torch.autograd.grad((expected * weigh).sum(), wide)
        with torch.no_grad():
            for kernel in [rows, flex.flex] if flex.possible(layer) and length == 9 else [rows]:
                torch.testing.assert_close(attend_in(kernel, layer, *leaves, x)[0].double(), expected.detach(), rtol=0, atol=3e-5)
        for kernel in [rows, kernels.fused] if kernels.fusible(layer) else [rows]:
            found = [t.clone().requires_grad_() for t in leaves]
            y = attend_in(kernel, layer, *found, x)
            torch.testing.assert_close(y[0].double(), expected, rtol=0, atol=3e-5)
            for a, b in zip(torch.autograd.grad((y[0] * weigh.float()).sum(), found), wanted, strict=True):
                torch.testing.assert_close(a[0].double(), b, rtol=1e-4, atol=2e-4)


def prefix(plan: Plan, length: int) -> Plan:
    """The first tokens of a plan, under the factor and spectrum of the whole."""

    def cut(band):
        kept = {name: getattr(band, name)[:length] for name in ("first_T", "last_T", "q_pos_T", "k_pos_T")}
        tables = {name: getattr(band, name) for name in ("q_table", "k_table")}
        return replace(band, **kept, **{name: t if t is None else t[:, :length] for name, t in tables.items()})

    def shorten(layer):
        scales = tuple((scale, None if known is None else known[..., :length]) for scale, known in layer.scales)
        return replace(layer, bands=tuple(map(cut, layer.bands)), n_T=layer.n_T[:length], scales=scales)

    added_TC = plan.embed()
    return Plan(length, lambda: None if added_TC is None else added_TC[:length], tuple(map(shorten, plan.layers)))


@pytest.mark.parametrize("triple", TRIPLES, ids="-".join)
@torch.no_grad()
def test_prefixes_under_the_whole_plan_are_the_whole(triple):
    """What decoding token by token would give: no query's output depends on what comes later, nor on how blocks are cut."""
    encoding, extension, scale = make_triple(*triple)
    model, length = small_model(encoding), fed_length(extension, TRAIN_LEN, 3 * TRAIN_LEN + 1)
    plan, text_BT = make_plan(encoding, extension, scale, length=length), tokens(length, batch=1)
    whole = model(text_BT, plan)
    for end in (1, 2, length // 2, length - 1):
        torch.testing.assert_close(model(text_BT[:, :end], prefix(plan, end)), whole[:, :end], rtol=1e-4, atol=1e-4)


def outputs(encoding, extension=None, scale=None, length: int = LONG) -> torch.Tensor:
    with torch.no_grad():
        return small_model(encoding)(tokens(length), make_plan(encoding, extension, scale, length=length))


@pytest.mark.parametrize("name", choices("extension"))
@pytest.mark.parametrize("encoding", ["rope", "alibi", "sinusoidal"])
def test_factor_one_changes_nothing(name, encoding):
    encoding, extension, scale = make_triple(encoding, name, "log_n")
    within = ("rerope", "abf", "dca", "string", "compose")  # without a factor: these change texts of any length
    if extension.needs & ~encoding.traits or name in within:
        return
    torch.testing.assert_close(outputs(encoding, extension, scale, TRAIN_LEN), outputs(encoding, length=TRAIN_LEN), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "extension",
    [Rerope(LONG), LeakyRerope(4, k=1), Window(LONG), Pi("fixed", TRAIN_LEN), Ntk(2, "fixed", TRAIN_LEN), LeakyRerope(LONG, k=3)],
    ids=lambda e: type(e).__name__,
)
def test_limits_that_equal_no_extension(extension):
    encoding = Rope(small_shape())
    torch.testing.assert_close(outputs(encoding, extension), outputs(encoding), rtol=0, atol=2e-5)


def test_leaky_with_a_large_k_is_rerope():
    encoding = Rope(small_shape())
    torch.testing.assert_close(outputs(encoding, LeakyRerope(k=1e9)), outputs(encoding, Rerope()), rtol=0, atol=1e-5)


def test_log_n_is_one_up_to_the_training_length_and_grows_after():
    n_T = torch.arange(1, 65, dtype=torch.float64)
    factor_T = LogN(small_shape())(n_T, Span(TRAIN_LEN, 64, 64), 0)
    assert (factor_T[:TRAIN_LEN] == 1).all()
    assert factor_T[63].item() == pytest.approx(1.5)  # ln 64 / ln 16
    assert (factor_T[TRAIN_LEN - 1 :].diff() > 0).all()


def test_interleaved_is_half_after_permuting_the_output_channels():
    half, interleaved = small_model(Rope(small_shape())), small_model(Rope(small_shape(), layout="interleaved"))
    order = torch.cat((torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    with torch.no_grad():
        for a, b in zip(half.layers, interleaved.layers, strict=True):
            for name in ("q_proj", "k_proj"):
                weight = getattr(b.self_attn, name).weight.unflatten(0, (-1, 8))
                getattr(a.self_attn, name).weight.copy_(weight[:, order].flatten(0, 1))
    text_BT = tokens(LONG)
    plans = [make_plan(model.encoding, length=LONG) for model in (half, interleaved)]
    torch.testing.assert_close(half(text_BT, plans[0]), interleaved(text_BT, plans[1]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("encoding", [e for e in choices("encoding") if Trait.RELATIVE in make_triple(e, "none", "none")[0].traits])
def test_relative_encodings_ignore_a_common_shift(encoding):
    encoding = make_triple(encoding, "none", "none")[0]
    q, k = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)

    def weights(shift: float) -> torch.Tensor:
        pos_T = torch.arange(9, dtype=torch.float64) + shift
        table = encoding.table(pos_T, encoding.spectrum())
        turned_q, turned_k = (q, k) if table is None else encoding.rotate(q, k, table, table)
        columns = encoding.columns(pos_T, pos_T, row_constant=True)
        if columns is not None:
            turned_q, turned_k = kernels.fold(turned_q, turned_k, *columns)
        return turned_q @ turned_k.repeat_interleave(2, dim=1).mT

    torch.testing.assert_close(weights(0), weights(1000), rtol=0, atol=2e-3)


def test_bands_never_overlap_and_stay_causal():
    for name in choices("extension"):
        extension = make_triple("rope", name, "none")[1]
        for length in (1, 2, TRAIN_LEN, 3 * TRAIN_LEN + 1):
            seen = np.zeros((length, length), int)
            for band in make_plan(Rope(small_shape()), extension, length=length).layers[0].bands:
                for i in range(length):
                    seen[i, band.first_T[i] : max(0, band.last_T[i] + 1)] += 1
            assert seen.max() == 1 and (seen.sum(axis=1) > 0).all() and not np.triu(seen, 1).any(), name


def test_alibi_slopes_are_the_papers():
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(16)[:2] == pytest.approx([0.70710678, 0.5])
    assert slopes(12)[8:] == pytest.approx([0.70710678, 0.35355339, 0.17677670, 0.08838835])


@pytest.mark.parametrize("n_head", [1, 2, 3, 4, 6, 8, 12, 20, 64])
def test_alibi_slopes_equal_x_transformers(n_head):
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    assert slopes(n_head) == pytest.approx(x_transformers.AlibiPositionalBias._get_slopes(n_head))


def test_a_bias_folded_in_bf16_is_as_exact_as_in_float32():
    encoding = Alibi(small_shape(n_head=4, d_model=32))
    encoding.slope_H = torch.tensor(slopes(12)[8:])  # irrational slopes: nothing is representable by luck
    position_T = torch.arange(16384, dtype=torch.float64) / 3  # PI's fractions
    columns = encoding.columns(position_T, position_T, row_constant=False)
    q, k = torch.zeros(1, 4, 16384, 8).bfloat16(), torch.zeros(1, 2, 16384, 8).bfloat16()
    wide_q, wide_k = kernels.fold(q, k, *columns)
    assert wide_q.dtype == torch.bfloat16
    exact = encoding.slope_H.double()[:, None] * (position_T - position_T[8192])
    folded = (wide_q[0, :, :1].double() * wide_k[0, :1].double()).sum(-1)
    assert (folded - exact).abs().max() < 2e-3  # positions reach 2731: float32 itself is off by 1e-4, one bf16 column by 8
    assert ((folded - exact).abs() / (exact.abs() + 1)).max() < 1e-6


def test_pi_and_ntk_frequencies_equal_transformers():
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    def reference(kind: str, length: int) -> np.ndarray:
        config = LlamaConfig(
            hidden_size=128,
            num_attention_heads=4,
            max_position_embeddings=64,
            rope_parameters={"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0 if kind == "linear" else 1.0},
        )
        return rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)[0].double().numpy()

    encoding, span = Rope(small_shape(64, d_model=128)), Span(64, 256, 256)
    np.testing.assert_allclose(Ntk().spectrum(encoding.spectrum(), span).freq_F.numpy(), reference("dynamic", 256), rtol=1e-6)
    band = make_plan(encoding, Pi(), length=256).layers[0].bands[0]
    angle_TF = torch.outer(band.q_pos_T, encoding.spectrum().freq_F).numpy()
    np.testing.assert_allclose(angle_TF, np.outer(np.arange(256), reference("linear", 256)), rtol=1e-6)


def test_sinusoidal_is_the_papers_formula():
    encoding = Sinusoidal(small_shape())
    added_TC = encoding.embed(torch.arange(6, dtype=torch.float64), encoding.spectrum(), None) / encoding.gain
    for t in range(6):
        for c in range(16):
            angle = t / 10000 ** (2 * c / 32)
            assert added_TC[t, 2 * c].item() == pytest.approx(np.sin(angle), abs=1e-6)
            assert added_TC[t, 2 * c + 1].item() == pytest.approx(np.cos(angle), abs=1e-6)


def test_a_hybrid_has_a_plan_for_each_kind_of_layer():
    class Hybrid(Rope):
        def __init__(self, shape):
            super().__init__(shape)
            self.global_ = NoEncoding(shape)

        def layers(self):
            return [Layer(self, window=4, extended=False, scaled=False), Layer(self.global_)]

    encoding = Hybrid(small_shape())
    plan = make_plan(encoding, Rerope(), LogN(small_shape()), length=LONG)
    local, far = plan.layers
    assert len(local.bands) == 1 and int(local.bands[0].seen_T.max()) == 4 and local.factor is None
    assert len(far.bands) == 2 and far.bands[0].q_table is None and far.factor is not None
    assert small_model(encoding)(tokens(LONG), plan).isfinite().all()
