"""Extensions that change frequencies, and their temperatures: what holds exactly between them, and
their corner cases.
"""

import math

import numpy as np
import pytest
import torch
from conftest import choices, make_triple, node, small_shape
from measures import ROPE, SPAN, attend_in, attention_inputs, equal, freq

from posbench.common.errors import ConfigError
from posbench.encodings.p_rope import PRope
from posbench.encodings.rope import Rope
from posbench.extensions.abf import Abf
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.llama3 import Llama3
from posbench.extensions.longrope import Longrope
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.extensions.ntk_fixed import NtkFixed
from posbench.extensions.ntk_mixed import NtkMixed
from posbench.extensions.pi import Pi
from posbench.extensions.yarn import Yarn
from posbench.extensions.yarn_radix import YarnRadix
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.geometry import Span, Spectrum, Trait
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan
from posbench.tools.anatomy.query_view import content_score, layer_views

FACTORS = [Ntk, DynamicNtk, NtkFixed, NtkMixed, NtkByParts, Yarn, Llama3, Longrope]


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


@pytest.mark.parametrize(
    "name",
    [n for n in choices("extension") if make_triple("rope", n, "none")[1].needs & Trait.SPECTRUM],
)
@pytest.mark.parametrize("pairs", [0, 1, 2, 16])
@pytest.mark.parametrize("train_len", [1, 2, 6, 64])
def test_any_number_of_pairs_at_any_length_gives_finite_frequencies(name, pairs, train_len):
    extension = make_method(node("extension", name))
    spectrum = Spectrum(10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / 16), 10000.0, 32)
    ramps = name in ("yarn", "yarn_radix", "compose", "longrope")
    for length in (1, train_len, train_len + 1, 8 * train_len):
        if ramps and pairs and train_len < min(3, length):  # no pair makes a turn, nor nearly
            with pytest.raises(ConfigError, match="turns that no pair makes"):
                extension.spectrum(spectrum, Span(train_len, length, extension.target_len(length)))
            continue
        extended = extension.spectrum(
            spectrum, Span(train_len, length, extension.target_len(length))
        )
        assert extended.freq_F.shape == (pairs,) and extended.freq_F.isfinite().all()
        assert extended.rotary_dim == 32
        angle_TF = extended.angles(torch.arange(4))
        assert angle_TF.shape == (4, pairs) and angle_TF.isfinite().all()


def test_resting_pairs_stay_at_rest():
    spectrum = Spectrum(ROPE.freq_F * (ROPE.freq_F > 0.01), ROPE.base, ROPE.rotary_dim)
    for cls in FACTORS:
        found_F = freq(cls(), spectrum)
        assert found_F.isfinite().all() and torch.equal(found_F == 0, spectrum.freq_F == 0)


def test_a_base_says_what_the_frequencies_say():
    for extension in (Ntk(2), DynamicNtk(), Abf()):
        extended = extension.spectrum(ROPE, SPAN)
        equal(
            extended.freq_F,
            extended.base ** (-torch.arange(32, dtype=torch.float64) / 32),
            atol=1e-12,
        )


def test_longrope_with_equal_factors_and_mixed_with_kappa_zero_are_interpolation():
    (band,) = Pi().bands(SPAN)
    pos_T = torch.arange(256, dtype=torch.float64)
    wanted_TF = ROPE.angles(band.q(pos_T))
    for extension in (Longrope([4.0] * 32), NtkMixed(kappa=0)):
        equal(extension.spectrum(ROPE, SPAN).angles(pos_T), wanted_TF)
    assert torch.equal(freq(Longrope([1.0] * 32)), ROPE.freq_F)


def test_mixed_with_kappa_one_is_fixed():
    equal(freq(NtkMixed(kappa=1)), freq(NtkFixed()), atol=1e-15)


def test_yarn_by_turns_is_by_parts_and_by_index_extrapolates_far_more_of_the_middle():
    """2.30 times faster at pair 36 of 64 (base 10000, train_len 4096, s = 8, the published 1 and 32
    turns).
    """
    spectrum, span = Rope(small_shape(4096, d_model=512)).spectrum(), Span(4096, 8 * 4096, 8 * 4096)
    turns, index = (
        freq(Yarn(1, 32, ramp="turns"), spectrum, span),
        freq(Yarn(1, 32), spectrum, span),
    )
    assert torch.equal(turns, freq(NtkByParts(1, 32), spectrum, span))
    assert (index / turns).argmax() == 36 and (index / turns)[36].item() == pytest.approx(
        2.30, abs=5e-3
    )


def test_in_short_training_many_betas_are_one():
    """The index at which a pair makes beta turns is rounded down: 0 for every beta above 64 / 2 pi
    x 10^4^(-2 / 64).
    """
    span, bound = Span(64, 256, 256), 64 / (2 * math.pi) * 10000 ** (-2 / 64)
    published = freq(Yarn(beta=32), span=span)
    assert (
        bound == pytest.approx(7.64, abs=5e-3)
        and (published < ROPE.freq_F).tolist() == [False] + [True] * 31
    )
    assert all(
        torch.equal(freq(Yarn(beta=beta), span=span), published) for beta in (1.001 * bound, 10, 31)
    )
    for other in (
        Yarn(beta=0.999 * bound),
        Yarn(beta=10, truncate=False),
        Yarn(beta=10, ramp="turns"),
    ):
        assert not torch.equal(freq(other, span=span), published)


def test_the_default_beta_fits_the_training_length():
    """A quarter of the turns of the fastest pair, not below alpha + 1 nor above 32."""
    for train_len, beta in ((6, 2), (64, 64 / 8 / math.pi), (512, 512 / 8 / math.pi), (4096, 32)):
        span = Span(train_len, 8 * train_len, 8 * train_len)
        equal(freq(NtkByParts(), span=span), freq(NtkByParts(1, beta), span=span), atol=1e-12)


def test_another_base_is_ntk_by_the_effective_factor():
    """base to base' is s = (base' / base)^((r - 2) / r), 44.2 for r = 64."""
    s = (500000 / 10000) ** (62 / 64)
    assert s == pytest.approx(44.2, abs=0.05)
    span = Span(1000, round(1000 * s), 1000 * s)
    equal(freq(Abf(), span=span), freq(Ntk(), span=span), atol=1e-12)
    assert torch.equal(freq(Abf(10000.0)), ROPE.freq_F)


def test_dynamic_ntk_with_factor_one_is_ntk():
    assert torch.equal(freq(DynamicNtk(1)), freq(Ntk()))
    equal(
        freq(DynamicNtk(4), span=Span(64, 512, 512)),
        freq(Ntk(29 / 8), span=Span(64, 512, 512)),
        atol=1e-15,
    )


def test_longrope_keeps_the_first_angles_and_takes_short_factors_within_the_training_length():
    extension = Longrope([4.0] * 32, [1.5] * 32, exact_first=3)
    long_TF = extension.spectrum(ROPE, SPAN).angles(torch.arange(6))
    exact_TF = ROPE.angles(torch.arange(6))
    equal(long_TF[:3], exact_TF[:3])
    equal(long_TF[3:], exact_TF[3:] / 4)
    equal(freq(extension, span=Span(64, 64, 64)), ROPE.freq_F / 1.5)
    equal(freq(extension, span=Span(64, 65, 65)), ROPE.freq_F / 4)


@pytest.mark.parametrize("kernel", [attend_by_blocks, kernels.attend_fused])
@pytest.mark.parametrize("encoding", [Rope, PRope])
@torch.no_grad()
def test_longropes_first_positions_carry_no_magnitude(encoding, kernel):
    """As in the authors' table: cos and sin times m, the first rows of it those of training; here
    what does not turn has m as well.
    """
    method, length, n = encoding(small_shape()), 40, 3
    (q, k, v), x = attention_inputs(method, length)
    extension = Longrope([4.0] * len(method.spectrum().freq_F), exact_first=n)
    actual_BHTD = attend_in(
        kernel, make_plan(method, extension, length=length).layers[0], q, k, v, x
    )
    m = math.sqrt(1 + math.log(length / 16) / math.log(16))
    slower = method.table(torch.arange(length).double() / 4, method.spectrum())
    table = torch.cat(
        (method.table(torch.arange(n).double(), method.spectrum()), slower[:, n:]), dim=1
    )
    magnitude_T1 = torch.cat((torch.ones(n), torch.full((length - n,), m)))[:, None]
    q, k = (turned * magnitude_T1 for turned in method.rotate(q, k, table, table))
    scores = q.double() @ k.repeat_interleave(2, dim=1).double().mT / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    expected_BHTD = scores.softmax(dim=-1) @ v.repeat_interleave(2, dim=1).double()
    torch.testing.assert_close(actual_BHTD.double(), expected_BHTD, rtol=0, atol=1e-5)


def test_an_anatomy_sees_the_first_positions_without_magnitude():
    """Content scores are those before the temperature m^2, which is said apart: 1/m of them are
    left towards the first tokens.
    """
    encoding, length = Rope(small_shape()), 40
    (q, k, _), _ = attention_inputs(encoding, length)
    scores = []
    for sharper in (True, False):
        extension = Longrope([4.0] * 4, exact_first=3, temperature=sharper)
        (kind,) = layer_views(encoding, extension, length)
        scores.append(
            content_score(
                kind, length - 1, torch.arange(length), q[:, :, [-1]].expand(-1, -1, length, -1), k
            )
        )
    share_K = (scores[0] / scores[1])[0, 0]
    m = math.sqrt(math.log(length) / math.log(16))
    equal(share_K, torch.tensor([1 / m] * 3 + [1.0] * (length - 3)).double(), atol=1e-5)


def test_a_base_on_the_fast_pairs_alone_is_that_of_the_whole_grid():
    """Replacing the base of p-RoPE by another is p-RoPE of that other base; by its own, nothing."""
    shape = small_shape(64, d_model=256)
    trained = PRope(shape, p=0.75).spectrum()
    for base in (10000.0, 500000.0):
        np.testing.assert_allclose(
            freq(Abf(base), trained).numpy(),
            PRope(shape, p=0.75, base=base).spectrum().freq_F.numpy(),
            rtol=1e-12,
        )


def test_yarn_radix_stretches_each_digit_more_than_the_one_before():
    """Llama 2's 64 pairs from 4,096 to 32,768 tokens: pairs 20 to 46, e of pair 33 by hand: 13 x 14
    / (26 x 27).
    """
    spectrum, span = Rope(small_shape(4096, d_model=512)).spectrum(), Span(4096, 8 * 4096, 8 * 4096)
    extension = YarnRadix(1, 32)
    assert extension.ramp_bounds(spectrum, 4096) == (20, 46)
    slower_F = spectrum.freq_F / freq(extension, spectrum, span)
    assert slower_F[33].item() == pytest.approx(8 ** (182 / 702)) and (slower_F[:21] == 1).all()
    equal(slower_F[46:], torch.full((18,), 8.0).double(), atol=1e-12)
    digits_F = slower_F[1:] / slower_F[:-1]
    assert (digits_F[20:46].diff() > 0).all()
    uniform_F = spectrum.freq_F / freq(YarnRadix(1, 32, "uniform"), spectrum, span)
    equal(
        (uniform_F[1:] / uniform_F[:-1])[20:46],
        torch.full((26,), 8 ** (1 / 26), dtype=torch.float64),
        atol=1e-12,
    )
    assert torch.equal(freq(extension, spectrum, Span(4096, 4096, 4096)), spectrum.freq_F)
    assert extension.temperature(span) == Yarn().temperature(span)
