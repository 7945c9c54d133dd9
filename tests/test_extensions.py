"""Extensions and scales: the identities that hold exactly between them, their corner cases, and what compose may join."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from conftest import TRAIN_LEN, choices, make_triple, node, small_model, small_shape
from hydra.utils import get_class
from test_methods import attend_in, attention_inputs, outputs, tokens

from posbench.blocks import rows
from posbench.encodings.alibi import Alibi
from posbench.encodings.learned import Learned
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.errors import ConfigError
from posbench.extensions.abf import Abf
from posbench.extensions.compose import Compose
from posbench.extensions.dca import Dca
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.leaky_rerope import LeakyRerope
from posbench.extensions.llama3 import Llama3
from posbench.extensions.lm_infinite import LmInfinite
from posbench.extensions.longrope import Longrope
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.extensions.ntk_fixed import NtkFixed
from posbench.extensions.ntk_mixed import NtkMixed
from posbench.extensions.pi import Pi
from posbench.extensions.self_extend import SelfExtend
from posbench.extensions.streaming import Streaming
from posbench.extensions.string import String
from posbench.extensions.table_hierarchical import TableHierarchical
from posbench.extensions.table_linear import TableLinear
from posbench.extensions.window import Window
from posbench.extensions.yarn import Yarn
from posbench.geometry import Span, Spectrum, Trait
from posbench.interfaces import Extension
from posbench.make import make
from posbench.plan import make_plan
from posbench.scale_attention.llama4 import Llama4
from posbench.scale_attention.log_n import LogN
from posbench.scale_attention.log_n_global import LogNGlobal
from posbench.scale_attention.ministral import Ministral
from posbench.scale_attention.scale_invariant import ScaleInvariant
from posbench.scale_attention.ssmax import Ssmax
from posbench.scale_attention.yarn_temperature import YarnTemperature

LONG = 4 * TRAIN_LEN
ROPE = Rope(small_shape(64, d_model=256)).spectrum()
SPAN = Span(64, 256, 256)
FACTORS = [Ntk, DynamicNtk, NtkFixed, NtkMixed, NtkByParts, Yarn, Llama3, Longrope]


def freq(extension: Extension, spectrum: Spectrum = ROPE, span: Span = SPAN) -> torch.Tensor:
    return extension.spectrum(spectrum, span).freq_F


def distances(extension: Extension, length: int, train_len: int = TRAIN_LEN) -> torch.Tensor:
    """Coordinate distance of each pair [L, L], NaN where it is not visible."""
    found = torch.full((length, length), torch.nan, dtype=torch.float64)
    for band in make_plan(Rope(small_shape(train_len)), extension, length=length).layers[0].bands:
        for i in range(length):
            keys = slice(int(band.first_T[i]), max(0, int(band.last_T[i]) + 1))
            found[i, keys] = band.q_pos_T[i] - band.k_pos_T[keys]
    return found


def plain(length: int) -> torch.Tensor:
    index = torch.arange(length, dtype=torch.float64)
    return torch.where(index <= index[:, None], index[:, None] - index, torch.nan)


def same(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol, equal_nan=True)


@pytest.mark.parametrize("cls", FACTORS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("target", [1, 7, 64])
def test_a_factor_of_one_or_less_is_exactly_no_extension(cls, target):
    extension = cls(mode="fixed", target_len=target)
    assert torch.equal(freq(extension, span=Span(64, 256, target)), ROPE.freq_F)
    assert extension.temperature(Span(64, 256, target)) == 1


@pytest.mark.parametrize("cls", FACTORS, ids=lambda c: c.__name__)
def test_factors_slow_every_pair_by_at_most_the_factor_and_the_last_by_all_of_it(cls):
    for length in (65, 100, 256, 4096):  # s need not be a whole number
        span = Span(64, length, length)
        s = 2 * span.factor - 1 if cls is DynamicNtk else span.factor
        slower_F = ROPE.freq_F / freq(cls(), span=span)
        assert (slower_F >= 1 - 1e-12).all() and (slower_F <= s + 1e-9).all()
        assert slower_F[-1].item() == pytest.approx(s, rel=1e-12)
        assert (slower_F.diff() > -1e-9).all()


@pytest.mark.parametrize("name", [n for n in choices("extension") if make_triple("rope", n, "none")[1].needs & Trait.SPECTRUM])
@pytest.mark.parametrize("pairs", [0, 1, 2, 16])
@pytest.mark.parametrize("train_len", [1, 2, 6, 64])
def test_any_number_of_pairs_at_any_length_gives_finite_frequencies(name, pairs, train_len):
    extension = make(node("extension", name))
    base = 10000.0 ** (2 * pairs / 32)
    spectrum = Spectrum(10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / 16), base, 2 * pairs)
    for length in (1, train_len, train_len + 1, 8 * train_len):
        found = extension.spectrum(spectrum, Span(train_len, length, extension.target_len(length)))
        assert found.freq_F.shape == (pairs,) and found.freq_F.isfinite().all()
        assert found.rotary_dim == 2 * pairs
        angle_TF = found.angles(torch.arange(4))
        assert angle_TF.shape == (4, pairs) and angle_TF.isfinite().all()


def test_resting_pairs_stay_at_rest():
    spectrum = Spectrum(ROPE.freq_F * (ROPE.freq_F > 0.01), ROPE.base, ROPE.rotary_dim)
    for cls in FACTORS:
        found_F = freq(cls(), spectrum)
        assert found_F.isfinite().all() and torch.equal(found_F == 0, spectrum.freq_F == 0)


def test_a_base_says_what_the_frequencies_say():
    for extension in (Ntk(2), DynamicNtk(), Abf()):
        found = extension.spectrum(ROPE, SPAN)
        same(found.freq_F, found.base ** (-torch.arange(32, dtype=torch.float64) / 32), atol=1e-12)


def test_longrope_with_equal_factors_and_mixed_with_kappa_zero_are_interpolation():
    (band,) = Pi().bands(SPAN)
    pos_T = torch.arange(256, dtype=torch.float64)
    wanted_TF = ROPE.angles(band.q(pos_T))
    for extension in (Longrope([4.0] * 32), NtkMixed(kappa=0)):
        same(extension.spectrum(ROPE, SPAN).angles(pos_T), wanted_TF)
    assert torch.equal(freq(Longrope([1.0] * 32)), ROPE.freq_F)


def test_mixed_with_kappa_one_is_fixed():
    same(freq(NtkMixed(kappa=1)), freq(NtkFixed()), atol=1e-15)


def test_by_parts_from_one_to_four_turns_is_llama3():
    assert torch.equal(freq(NtkByParts(1, 4)), freq(Llama3()))


def test_yarn_by_turns_is_by_parts_and_by_index_extrapolates_far_more_of_the_middle():
    """2.30 times faster at pair 36 of 64 (base 10000, train_len 4096, s = 8, the published 1 and 32 turns)."""
    spectrum, span = Rope(small_shape(4096, d_model=512)).spectrum(), Span(4096, 8 * 4096, 8 * 4096)
    turns, index = freq(Yarn(1, 32, ramp="turns"), spectrum, span), freq(Yarn(1, 32), spectrum, span)
    assert torch.equal(turns, freq(NtkByParts(1, 32), spectrum, span))
    assert (index / turns).argmax() == 36 and (index / turns)[36].item() == pytest.approx(2.30, abs=5e-3)


def test_the_default_beta_fits_the_training_length():
    """A quarter of the turns of the fastest pair, not below alpha + 1 nor above 32."""
    for train_len, beta in ((6, 2), (64, 64 / 8 / math.pi), (512, 512 / 8 / math.pi), (4096, 32)):
        span = Span(train_len, 8 * train_len, 8 * train_len)
        same(freq(NtkByParts(), span=span), freq(NtkByParts(1, beta), span=span), atol=1e-12)


def test_another_base_is_ntk_by_the_effective_factor():
    """base to base' is s = (base' / base)^((r - 2) / r), 44.2 for r = 64."""
    s = (500000 / 10000) ** (62 / 64)
    assert s == pytest.approx(44.2, abs=0.05)
    span = Span(1000, round(1000 * s), 1000 * s)
    same(freq(Abf(), span=span), freq(Ntk(), span=span), atol=1e-12)
    assert torch.equal(freq(Abf(10000.0)), ROPE.freq_F)


def test_dynamic_ntk_with_factor_one_is_ntk():
    assert torch.equal(freq(DynamicNtk(1)), freq(Ntk()))
    same(freq(DynamicNtk(4), span=Span(64, 512, 512)), freq(Ntk(29 / 8), span=Span(64, 512, 512)), atol=1e-15)


def test_longropes_temperature_is_global_log_n():
    for length in (1, 64, 65, 256, 4096):
        span = Span(64, length, length)
        wanted_T = LogNGlobal(small_shape(64))(torch.arange(1, length + 1).double(), span, 0)
        same(torch.full_like(wanted_T, Longrope().temperature(span)), wanted_T, atol=1e-12)
    assert Longrope(temperature=False).temperature(SPAN) == 1


def test_yarns_temperature_is_the_scale_of_that_name():
    span = Span(64, 512, 512)
    assert Yarn().temperature(span) == pytest.approx(1.459, abs=5e-4)
    scale_T = YarnTemperature(small_shape(64))(torch.ones(3).double(), span, 0)
    same(scale_T, torch.full_like(scale_T, Yarn().temperature(span)))
    assert Yarn(temperature=False).temperature(span) == 1


def test_longrope_keeps_the_first_angles_and_takes_short_factors_within_the_training_length():
    extension = Longrope([4.0] * 32, [1.5] * 32, exact_first=3)
    long_TF = extension.spectrum(ROPE, SPAN).angles(torch.arange(6))
    exact_TF = ROPE.angles(torch.arange(6))
    same(long_TF[:3], exact_TF[:3])
    same(long_TF[3:], exact_TF[3:] / 4)
    same(freq(extension, span=Span(64, 64, 64)), ROPE.freq_F / 1.5)
    same(freq(extension, span=Span(64, 65, 65)), ROPE.freq_F / 4)
    with pytest.raises(ConfigError, match="factors holds 3 numbers, but the encoding turns 32 pairs"):
        Longrope([1.0, 2.0, 3.0]).spectrum(ROPE, SPAN)


@pytest.mark.parametrize(
    "extension",
    [
        SelfExtend(window=LONG),
        SelfExtend(window=4, group=1),
        Dca(chunk=LONG),
        Dca(chunk=LONG, local=3),
        String(shift=LONG),
        String(shift=5, window=5),
        Streaming(sinks=4, window=LONG - 5),
        LmInfinite(window=LONG),
        Window(LONG),
    ],
    ids=lambda e: type(e).__name__,
)
def test_limits_that_equal_no_extension(extension):
    same(distances(extension, LONG), plain(LONG))
    for encoding in (Rope(small_shape()), Alibi(small_shape())):
        torch.testing.assert_close(outputs(encoding, extension), outputs(encoding), rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", ["self_extend", "streaming", "lm_infinite", "leaky_rerope"])
def test_nothing_changes_within_the_training_length(name):
    for length in (1, 2, TRAIN_LEN):
        same(distances(make(node("extension", name)), length), plain(length))


@pytest.mark.parametrize("name", ["self_extend", "streaming", "dca", "leaky_rerope", "rerope"])
@pytest.mark.parametrize("train_len", [4, 8, 20, 64])
def test_distances_of_the_defaults_were_seen_in_training(name, train_len):
    for factor in (1, 2, 3, 8):
        found = distances(make(node("extension", name)), factor * train_len, train_len)
        limit = max(train_len - 1, 6 if name == "streaming" else 0)  # 4 sinks, a neighbour and the query itself need 6 tokens
        assert 0 <= found.nan_to_num().min() and found.nan_to_num().max() <= limit + 1e-9
        assert (found.diagonal() == 0).all()


def test_self_extend_without_floors_is_leaky_rerope():
    """Where both indices are multiples of the group the floors do nothing."""
    group, window = 4, 8
    found = distances(SelfExtend(window, group), LONG)[::group, ::group]
    same(found, distances(LeakyRerope(window, group), LONG)[::group, ::group])


def test_self_extends_default_group_divides_its_window_and_covers_the_length():
    shift = torch.tensor([16.0, 63.0, 64.0, 255.0, 256.0, 511.0]).double()
    for length, group in ((64, 1), (128, 4), (256, 8), (512, 16)):
        _, far = SelfExtend().bands(Span(64, length, length))
        same(far.k(shift), (shift / group).floor())
    _, far = SelfExtend(window=16).bands(Span(64, 512, 512))  # a window of one's own: the smallest group
    same(far.k(shift), (shift / 11).floor())
    with pytest.raises(ConfigError, match="window=64 leaves no trained distance below train_len=64"):
        SelfExtend(window=64).bands(Span(64, 65, 65))


def test_dca_is_exact_within_local_tokens_and_capped():
    found = distances(Dca(chunk=10, local=3), 50)
    near = (plain(50) <= 3).nonzero(as_tuple=True)
    same(found[near], plain(50)[near])
    assert found.nan_to_num().max() == 13
    assert found[49, 0] == 13 and found[29, 12] == 11 and found[25, 11] == 12  # two chunks back, min(19, 13) - 2, min(15, 13) - 1


def test_string_moves_far_keys_nearer_and_counts_each_once():
    found = distances(String(shift=6, window=2), 20)
    assert [found[19, 19 - d].item() for d in range(10)] == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5]


@torch.no_grad()
def test_streaming_is_a_rolling_cache():
    """Keys are cached unturned; each query turns them by their places in the cache."""
    encoding, sinks, recent, length = Rope(small_shape()), 2, 5, 30
    (q, k, v), x = attention_inputs(encoding, length)
    layer = make_plan(encoding, Streaming(sinks, recent), length=length).layers[0]
    found = attend_in(rows, layer, q, k, v, x)
    cache: list[int] = []
    for i in range(length):
        cache = [*cache[:sinks], *cache[sinks:][-recent:], i]
        table = encoding.table(torch.arange(len(cache)).double(), encoding.spectrum())
        turned_q, turned_k = encoding.rotate(q[:, :, [i]], k[:, :, cache], table[:, -1:], table)
        scores = turned_q @ turned_k.repeat_interleave(2, dim=1).mT / math.sqrt(8)
        wanted = scores.softmax(dim=-1) @ v[:, :, cache].repeat_interleave(2, dim=1)
        torch.testing.assert_close(found[:, :, [i]], wanted, rtol=0, atol=1e-5)


def test_lm_infinite_sees_a_window_and_the_start_at_one_distance():
    found = distances(LmInfinite(n_global=3, window=8), 40)
    assert found[39].isnan().sum() == 40 - 8 - 3
    assert (found[39, :3] == 8).all() and found[39, 32] == 7


def test_masks_act_without_positions_too():
    encoding = NoEncoding(small_shape())
    for extension in (Streaming(), LmInfinite(n_global=2)):
        assert (outputs(encoding, extension) - outputs(encoding)).abs().max() > 1e-2


def test_a_stretched_table_ends_on_its_last_row():
    encoding = Learned(small_shape())
    for length in (TRAIN_LEN + 1, 40, LONG):
        added_TC = make_plan(encoding, TableLinear(), length=length).embed()
        torch.testing.assert_close(added_TC[[0, -1]], encoding.weight[[0, -1]])
        middle = (length - 1) * 0.5 * (TRAIN_LEN - 1) / (length - 1)
        if length % 2:
            wanted_C = encoding.weight[int(middle) : int(middle) + 2].mean(0)
            torch.testing.assert_close(added_TC[length // 2], wanted_C)
    torch.testing.assert_close(outputs(encoding, TableLinear(), length=TRAIN_LEN), outputs(encoding, length=TRAIN_LEN))


def test_a_hierarchical_table_keeps_its_first_rows_and_counts_in_two_digits():
    encoding, extension, alpha = Learned(small_shape(8)), TableHierarchical(0.3), 0.3
    rows_NC = encoding.weight
    for length in (1, 8, 9, 64):
        longer_NC = extension.rows(rows_NC, Span(8, length, length))
        assert torch.equal(longer_NC[:8], rows_NC)
    parts = [(rows_NC[a] - alpha * rows_NC[0]) / (1 - alpha) for a in range(8)]
    for index in range(64):
        wanted_C = alpha * parts[index // 8] + (1 - alpha) * parts[index % 8]
        torch.testing.assert_close(longer_NC[index], wanted_C, rtol=0, atol=1e-7)
    (gradient_NC,) = torch.autograd.grad(longer_NC[63].sum(), encoding.weight)
    assert (gradient_NC[7] != 0).all()
    with pytest.raises(ConfigError, match="makes 64 rows of 8 and length=65"):
        extension.rows(rows_NC, Span(8, 65, 65))
    assert outputs(Learned(small_shape()), TableHierarchical()).isfinite().all()


def part(name: str, **arguments) -> dict:
    return {**node("extension", name), **arguments}


def test_composed_frequencies_follow_each_other_and_temperatures_multiply():
    both = Compose([part("ntk"), part("llama3")])
    same(freq(both), Llama3().spectrum(Ntk().spectrum(ROPE, SPAN), SPAN).freq_F, atol=1e-15)
    warm = Compose({"a": part("yarn"), "b": part("longrope")})
    assert warm.temperature(SPAN) == pytest.approx(Yarn().temperature(SPAN) * Longrope().temperature(SPAN))


def test_composed_distances_are_mapped_before_they_are_interpolated():
    for parts in ([part("rerope", window=6), part("pi")], [part("pi"), part("rerope", window=6)]):
        extension = Compose(parts)
        same(distances(extension, LONG), plain(LONG).clamp(max=6) / 4)
        assert extension.needs == Trait.COORDINATE | Trait.RELATIVE


def test_composed_parts_keep_their_own_target():
    extension = Compose([part("pi", mode="fixed", target_len=128), part("ntk", mode="fixed", target_len=640)])
    assert extension.target_len(256) == 640
    span = Span(64, 256, extension.target_len(256))
    same(freq(extension, span=span), freq(Ntk(), span=Span(64, 640, 640)))
    (band,) = extension.bands(span)
    assert band.q(torch.tensor([10.0])).item() == 5


def test_one_part_composed_is_that_part():
    encoding = Rope(small_shape())
    for name in ("yarn", "pi", "streaming", "dca", "none", "ntk"):
        composed, alone = Compose([part(name)]), make(part(name))
        torch.testing.assert_close(outputs(encoding, composed), outputs(encoding, alone), rtol=0, atol=1e-5)
        assert composed.needs == alone.needs and composed.tested_with == alone.tested_with
    nested = Compose([part("compose"), part("pi")])
    assert len(nested.bands(SPAN)) == 3
    table = Compose([part("table_hierarchical"), part("pi")])
    assert len(table.rows(torch.zeros(8, 2), Span(8, 20, 20))) == 20 and table.needs & Trait.TABLE
    assert Compose([part("recompute_window"), part("ntk")]).crop(SPAN) == 64


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([part("rerope"), part("dca")], "Rerope and Dca, and each of them says which keys a query sees"),
        ([part("window"), part("compose")], "Window and Compose"),
        ([part("recompute_window"), part("recompute_window")], "crops the text"),
        ({}, "parts is empty"),
    ],
)
def test_parts_that_cannot_act_together_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        Compose(parts)


@pytest.mark.parametrize(
    ("group", "name", "arguments"),
    [
        ("extension", "dynamic_ntk", {"factor": 0.5}),
        ("extension", "ntk_mixed", {"kappa": -1}),
        ("extension", "ntk_by_parts", {"alpha": 0}),
        ("extension", "yarn", {"beta": 0.5}),
        ("extension", "yarn", {"ramp": "pairs"}),
        ("extension", "llama3", {"beta": 1}),
        ("extension", "abf", {"base": 1}),
        ("extension", "longrope", {"factors": [1, 0]}),
        ("extension", "longrope", {"short_factors": []}),
        ("extension", "longrope", {"exact_first": -1}),
        ("extension", "self_extend", {"group": 0}),
        ("extension", "dca", {"chunk": 0}),
        ("extension", "dca", {"local": -1}),
        ("extension", "dca", {"chunk": 4, "local": 5}),
        ("extension", "string", {"shift": 0}),
        ("extension", "streaming", {"sinks": 0}),
        ("extension", "lm_infinite", {"n_global": 0}),
        ("extension", "table_hierarchical", {"alpha": 0.5}),
        ("extension", "table_hierarchical", {"alpha": 1}),
        ("extension", "table_linear", {"mode": "fixed"}),
        ("scale_attention", "llama4", {"floor_scale": 0}),
        ("scale_attention", "scale_invariant", {"tau": 0}),
    ],
)
def test_impossible_arguments_are_refused_by_name(group, name, arguments):
    shape = [small_shape()] if group == "scale_attention" else []
    key, value = list(arguments.items())[-1]
    with pytest.raises(ConfigError) as refusal:
        make({**node(group, name), **arguments}, *shape)
    assert f"{group}.{key}={value}" in str(refusal.value)


@pytest.mark.parametrize(("group", "name"), [(g, n) for g in ("extension", "scale_attention") for n in choices(g) if n != "compose"])
def test_a_yaml_and_its_class_have_the_same_defaults(group, name):
    written = node(group, name)
    signature = inspect.signature(get_class(written.pop("_target_")))
    assert written == {key: p.default for key, p in signature.parameters.items() if key != "shape" and p.default is not p.empty}


def test_log_n_has_a_raw_form_to_train_with():
    n_T = torch.arange(1, 65, dtype=torch.float64)
    raw_T = LogN(small_shape(), clamp=False)(n_T, Span(TRAIN_LEN, 64, 64), 0)
    same(raw_T, n_T.log() / math.log(TRAIN_LEN))
    assert raw_T[0] == 0 and raw_T[TRAIN_LEN - 1] == 1
    assert outputs(Rope(small_shape()), None, LogN(small_shape(), clamp=False)).isfinite().all()


def test_global_log_n_counts_visible_keys():
    encoding, scale = Rope(small_shape()), LogNGlobal(small_shape())
    whole, narrow = (make_plan(encoding, extension, scale, length=LONG).layers[0].factor for extension in (None, Window(TRAIN_LEN)))
    assert narrow is None
    torch.testing.assert_close(whole, torch.full((LONG,), 1.5))  # ln 64 / ln 16


def test_temperatures_in_steps():
    n_T = torch.arange(1, 33, dtype=torch.float64)
    span = Span(8, 32, 32)
    llama4, ministral = (cls(small_shape(8))(n_T, span, 0) for cls in (Llama4, Ministral))
    assert (llama4[:7] == 1).all() and (ministral[:8] == 1).all()
    same(llama4[:-1], ministral[1:])  # the one counts keys, the other indices
    assert llama4[31].item() == pytest.approx(1 + 0.1 * math.log(5))
    published_T = Llama4(small_shape(8), floor_scale=8192)(torch.tensor([8191.0, 8192.0, 10 * 8192.0]), span, 0)
    torch.testing.assert_close(published_T, torch.tensor([1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(11)]), rtol=0, atol=1e-6)


def test_ssmax_starts_at_one_on_average_and_is_trained_without_decay():
    for train_len, s in ((1024, 0.1685), (512, 0.1906)):
        scale = Ssmax(small_shape(train_len), bias=True)
        factor_HT = scale(torch.arange(1, train_len + 1).double(), Span(train_len, train_len, train_len), 1)
        assert factor_HT.shape == (4, train_len) and scale.scale_LH[0, 0].item() == pytest.approx(s, abs=5e-5)
        assert factor_HT.mean().item() == pytest.approx(1, abs=1e-5)
        assert all(p.no_decay for p in scale.parameters())
    assert Ssmax(small_shape(1)).scale_LH.isfinite().all() and Ssmax(small_shape()).bias_LH is None


def test_ssmax_learns_through_the_model():
    encoding, scale = Rope(small_shape()), Ssmax(small_shape(), bias=True)
    model = small_model(encoding)
    model(tokens(TRAIN_LEN), make_plan(encoding, length=TRAIN_LEN, trained_scale=scale)).square().mean().backward()
    for parameter in scale.parameters():
        assert parameter.grad.isfinite().all() and (parameter.grad != 0).all()


def test_scale_invariant_weights_every_decade_alike():
    """E exp(a z + m) of z ~ N(0, 1), summed over a decade, tends to sqrt(e) tau ln 10 (2.22, 2.29, 2.30 for decades 2 to 4)."""
    scale = ScaleInvariant(small_shape())
    for decade, wanted in ((2, 2.22), (3, 2.29), (4, 2.30)):
        a, m = scale.distance(torch.arange(10**decade, 10 ** (decade + 1), dtype=torch.float64))
        assert ((a**2 / 2 + m).exp().sum() / (10 * math.exp(0.5))).item() == pytest.approx(wanted, abs=5e-3)
    a, m = scale.distance(torch.zeros(1).double())
    assert a.item() == 1 and m.item() == 0


@pytest.mark.parametrize("extension", [None, LeakyRerope(4), Streaming(2, 5)], ids=["none", "leaky", "streaming"])
def test_scale_invariant_acts_on_content_by_token_distance(extension):
    encoding = Alibi(small_shape())
    (q, k, v), x = attention_inputs(encoding, LONG)
    layer = make_plan(encoding, extension, ScaleInvariant(small_shape()), length=LONG).layers[0]
    found = attend_in(rows, layer, q, k, v, x)[0].double()
    wide = [t[0].double().repeat_interleave(4 // t.shape[1], dim=0) for t in (q, k, v)]
    grown = 2 * torch.log1p(plain(LONG).nan_to_num() / 10)
    distance = distances(extension or Extension(), LONG)
    content = wide[0] @ wide[1].mT / math.sqrt(8) * (1 + grown).sqrt() - grown
    scores = content - encoding.slope_H.double()[:, None, None] * distance.nan_to_num()
    wanted = scores.masked_fill(distance.isnan(), -math.inf).softmax(dim=-1) @ wide[2]
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-5)
