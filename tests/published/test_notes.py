"""Numerical claims of the source notes; each known error of theirs has a test that shows it wrong.
results/claims names these tests.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import choices, node, small_model, small_shape

from posbench.encodings.alibi import Alibi, alibi_slopes
from posbench.encodings.learned import Learned
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.extensions.ntk import Ntk
from posbench.extensions.pi import Pi
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan
from posbench.tools.anatomy.dissect import decay_bound

LENGTH, WIDTH = 48, 128


def sinusoid(length=LENGTH, width=WIDTH):
    """PE [T, C] of posbench, without its learned gain."""
    encoding = Sinusoidal(small_shape(d_model=width))
    return (
        (encoding.embed(torch.arange(length).double(), encoding.spectrum(), None) / encoding.gain)
        .detach()
        .double()
    )


def rank_correlation(a, b):
    """Spearman's, for values without ties."""
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


def bidirectional(model, length):
    """The model's plan with the causal mask switched off: every query sees every key."""
    plan = make_plan(model.encoding, length=length)
    last_T = torch.full((length,), length - 1)
    return replace(
        plan,
        layers=tuple(
            replace(layer, causal=False, bands=(replace(layer.bands[0], last_T=last_T),))
            for layer in plan.layers
        ),
    )


# Order without an encoding (H24; notes 000 and 004 leave the causal mask out)


@torch.no_grad()
def test_without_encoding_and_without_mask_tokens_have_no_order_and_with_the_mask_they_have():
    model, order_T = (
        small_model(NoEncoding(small_shape())),
        torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0)),
    )
    text_BT = torch.randint(50, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    for plan, equivariant in (
        (bidirectional(model, LENGTH), True),
        (make_plan(model.encoding, length=LENGTH), False),
    ):
        logits_BTV, permuted_BTV = model(text_BT, plan), model(text_BT[:, order_T], plan)
        assert torch.allclose(logits_BTV[:, order_T], permuted_BTV, atol=1e-4) == equivariant
    rope = small_model(Rope(small_shape()))
    assert not torch.allclose(
        rope(text_BT, bidirectional(rope, LENGTH))[:, order_T],
        rope(text_BT[:, order_T], bidirectional(rope, LENGTH)),
        atol=1e-2,
    )


def test_bidirectional_alibi_by_the_size_of_the_distance_knows_how_far_and_not_which_side():
    """softmax(q k / sqrt(d) - m |i - j|) v: a reversed text gives the reversed output, a shuffled
    one does not; with m (i - j) neither.
    """
    q_TD, k_TD, v_TD = torch.randn(
        3, LENGTH, 16, generator=torch.Generator().manual_seed(0)
    ).double()
    index_T = torch.arange(LENGTH)

    def attend(order_T, distance):
        delta_TT = distance(index_T[:, None] - index_T)
        scores_HTT = (
            q_TD[order_T] @ k_TD[order_T].T / 4
            - torch.tensor(alibi_slopes(4)).view(-1, 1, 1) * delta_TT
        )
        return scores_HTT.softmax(-1) @ v_TD[order_T]

    shuffled_T = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    for order_T, distance, same in (
        (index_T.flip(0), torch.abs, True),
        (shuffled_T, torch.abs, False),
        (index_T.flip(0), torch.neg, False),
    ):
        assert (
            torch.allclose(
                attend(index_T, distance)[:, order_T], attend(order_T, distance), atol=1e-9
            )
            == same
        )


# Sinusoids (H21-H23), and what they become in a score (H04, H05)


def test_a_shift_of_sinusoids_is_one_linear_map():
    """PE(p + k) = R_k PE(p), R_k turning each pair (sin, cos) by k w_c, whatever p; also by least
    squares.
    """
    pe_TC, freq_F = sinusoid(), Sinusoidal(small_shape(d_model=WIDTH)).spectrum().freq_F
    for k in (1, 7, 20):
        sine_F, cosine_F = (k * freq_F).sin(), (k * freq_F).cos()
        turn_CC = torch.block_diag(
            *torch.stack((cosine_F, sine_F, -sine_F, cosine_F), -1).view(-1, 2, 2)
        )
        assert (pe_TC[:-k] @ turn_CC.T - pe_TC[k:]).abs().max() < 1e-6
    fitted_CC = torch.linalg.lstsq(pe_TC[:-7], pe_TC[7:], driver="gelsd").solution
    assert (pe_TC[:-7] @ fitted_CC - pe_TC[7:]).abs().max() < 1e-5


def test_the_difference_of_two_sinusoids_is_not_proportional_to_their_distance():
    """It is bounded by sqrt(2 d), grows threefold where the distance grows elevenfold, and is out
    of order over 128 tokens and more.
    """
    pe_TC = sinusoid(4096)
    far_T = (pe_TC - pe_TC[0]).norm(dim=1)
    assert far_T.max() <= math.sqrt(2 * WIDTH)
    assert 3 < far_T[11] / far_T[1] < 4 and far_T[4095] / far_T[1] < 7
    correlations = [
        rank_correlation(far_T[1:length].numpy(), np.arange(length - 1))
        for length in (128, 512, 4096)
    ]
    assert max(correlations) < 0.95 and correlations == sorted(correlations, reverse=True)


def test_the_listing_of_the_positional_encoder_is_not_the_printed_formula():
    """`for i in range(0, d, 2)` steps by 2 already: 2 i / d doubles the exponent, and the cosine
    takes 2 (i + 1) / d.
    """
    printed_TC, listed_TC = torch.empty(2, LENGTH, WIDTH).double()
    for p in range(LENGTH):
        for i in range(0, WIDTH, 2):
            listed_TC[p, i] = math.sin(p / 10000 ** (2 * i / WIDTH))
            listed_TC[p, i + 1] = math.cos(p / 10000 ** (2 * (i + 1) / WIDTH))
        for c in range(WIDTH // 2):
            printed_TC[p, 2 * c] = math.sin(p / 10000 ** (2 * c / WIDTH))
            printed_TC[p, 2 * c + 1] = math.cos(p / 10000 ** (2 * c / WIDTH))
    assert (sinusoid() - printed_TC).abs().max() < 1e-5
    assert (listed_TC - printed_TC).abs().max() > 0.5
    # What it breaks: sine and cosine of a pair no longer share a frequency, so sin^2 + cos^2 is not
    # 1 and a shift is no rotation.
    assert (listed_TC.view(LENGTH, -1, 2).norm(dim=-1) - 1).abs().max() > 0.05
    assert (printed_TC.view(LENGTH, -1, 2).norm(dim=-1) - 1).abs().max() < 1e-9
    assert (
        listed_TC[:, WIDTH // 2 + 1 :: 2].min() > 0.99
    )  # the slower half of the cosines never leaves 1: half the table says nothing


def by_distance(scores_TT):
    """Share of the variance of scores of keys before their query that the distance alone
    explains.
    """
    i_N, j_N = torch.tril_indices(*scores_TT.shape, offset=-1)
    score_N, distance_N = scores_TT[i_N, j_N], i_N - j_N
    mean_D = torch.zeros(len(scores_TT)).double().index_add(
        0, distance_N, score_N
    ) / torch.bincount(distance_N, minlength=len(scores_TT)).clamp(min=1)
    return 1 - float((score_N - mean_D[distance_N]).var(correction=0) / score_N.var(correction=0))


def test_distance_explains_little_of_a_sinusoidal_score_and_all_of_a_rotary_one():
    """p_i W_q W_k p_j with projections drawn at random, against one q and k turned by RoPE; W = 1
    is where sinusoids keep all of it.
    """
    pe_TC, draw = sinusoid(128), torch.Generator().manual_seed(0)
    assert by_distance(pe_TC @ pe_TC.T) > 1 - 1e-9
    explained = []
    for _ in range(10):
        w_CC = torch.randn(2, WIDTH, WIDTH, generator=draw).double() / math.sqrt(WIDTH)
        explained.append(by_distance(pe_TC @ w_CC[0] @ w_CC[1].T @ pe_TC.T))
    encoding = Rope(small_shape())
    table = encoding.table(torch.arange(128).double(), encoding.spectrum())
    q_D, k_D = torch.randn(2, 8, generator=draw)
    q_T, k_T = encoding.rotate(*(x_D.expand(1, 1, 128, 8) for x_D in (q_D, k_D)), table, table)
    rotary = by_distance((q_T @ k_T.mT)[0, 0].double())
    assert rotary > 1 - 1e-4 and rotary - max(explained) > 0.2


def test_only_the_position_position_term_can_depend_on_a_pair_of_positions():
    """(x_i + p_i) W (x_j + p_j): the other terms, as functions of the positions, are sums of a
    function of i and a function of j.
    """
    pe_TC, draw = sinusoid(), torch.Generator().manual_seed(0)
    x_C, y_C, w_CC = (
        torch.randn(WIDTH, generator=draw).double(),
        torch.randn(WIDTH, generator=draw).double(),
        torch.randn(WIDTH, WIDTH, generator=draw).double(),
    )
    ones_T = torch.ones(LENGTH).double()
    content, query, key = (
        (x_C @ w_CC @ y_C) * torch.outer(ones_T, ones_T),
        torch.outer(pe_TC @ w_CC @ y_C, ones_T),
        torch.outer(ones_T, pe_TC @ w_CC.T @ x_C),
    )
    both = pe_TC @ w_CC @ pe_TC.T
    torch.testing.assert_close((x_C + pe_TC) @ w_CC @ (y_C + pe_TC).T, content + query + key + both)

    def interaction(score_TT):
        return (
            score_TT - score_TT.mean(0) - score_TT.mean(1, keepdim=True) + score_TT.mean()
        ).abs().max() / score_TT.abs().max()

    assert (
        max(interaction(term) for term in (content, query, key)) < 1e-12 and interaction(both) > 0.1
    )


# RoPE (H06, H17, H20, H25, H26)


@pytest.mark.parametrize("width, trend", [(32, -0.3), (64, -0.5), (128, -0.7)])
def test_the_decay_bound_falls_with_the_distance(width, trend):
    """Not with theta, as note 002 writes: in theta, at one distance, there is nothing to fall.
    Weakly so in heads of 32 channels.
    """
    freq_F = Rope(small_shape(d_model=4 * width)).spectrum().freq_F
    assert len(freq_F) == width // 2
    bound_K = decay_bound(freq_F, torch.arange(512)).numpy()
    assert rank_correlation(bound_K, np.arange(512)) < trend and bound_K[0] == bound_K.max()


def test_a_falling_bound_is_no_falling_attention():
    """A head that puts its content into the slowest pair scores farther keys higher, under the same
    bound.
    """
    freq_F = Rope(small_shape(d_model=256)).spectrum().freq_F
    slowest_K = (torch.arange(512).double() * freq_F[-1] - 1.5).cos()
    assert (slowest_K.diff() > 0).all()


def test_ntk_meets_pi_at_the_slowest_pair_and_the_numerators_are_all_n():
    """base k^(d / (d - 2)): the fastest pair stays, the slowest is PI's n / k. The digits of n are
    n / beta^c: n in every numerator.
    """
    spectrum, k, n = Rope(small_shape(d_model=256)).spectrum(), 8, 1000
    span = Span(64, 64 * k, 64 * k)
    ntk_F, shrunk = (
        Ntk().spectrum(spectrum, span).freq_F,
        Pi().bands(span)[0].q(torch.tensor([float(n)]).double()),
    )
    assert ntk_F[0] == 1 and float(n * ntk_F[-1]) == pytest.approx(
        float(shrunk[0] * spectrum.freq_F[-1]), rel=1e-6
    )
    beta, dim = 10000 ** (2 / 64), 64
    changed = [(10000 * k ** (dim / (dim - 2))) ** (-2 * c / dim) for c in range(32)]
    assert ntk_F.tolist() == pytest.approx(changed, rel=1e-12)
    assert changed == pytest.approx(
        [(beta * k ** (2 / (dim - 2))) ** -c for c in range(32)], rel=1e-9
    )  # lambda = k^(2 / (d - 2)) on each digit
    angles_F = spectrum.angles(torch.tensor([float(n)]))[0]
    assert angles_F.tolist() == pytest.approx([n / beta**c for c in range(32)], rel=1e-5)
    as_displayed = [numerator / beta**c for c, numerator in enumerate([0, *[1] * 31])]
    assert not np.allclose(angles_F.numpy(), as_displayed, rtol=0.1)


def test_higher_pairs_turn_less_and_the_second_vector_must_start_at_x0():
    """Formula (4) of note 003: x cos + x' sin in the permuted layout; x' = (-x1, -x3, .., x0, x2,
    ..), and not (.., x2, x4, ..).
    """
    assert (Rope(small_shape()).spectrum().freq_F.diff() < 0).all()
    dim, order = 8, [0, 2, 4, 6, 1, 3, 5, 7]
    angle_F = 5 * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    x_D = torch.randn(dim, generator=torch.Generator().manual_seed(0)).double()
    pairs = torch.view_as_complex(x_D.view(-1, 2)) * torch.polar(torch.ones(4).double(), angle_F)
    wanted_D = torch.view_as_real(pairs).flatten()[order]
    cosine_D, sine_D = angle_F.cos().repeat(2), angle_F.sin().repeat(2)
    right_D = x_D[order] * cosine_D + torch.cat((-x_D[1::2], x_D[0::2])) * sine_D
    literal_D = x_D[order] * cosine_D + torch.cat((-x_D[1::2], x_D[2::2], x_D[:1])) * sine_D
    torch.testing.assert_close(right_D, wanted_D)
    assert (literal_D - wanted_D).abs().max() > 0.1
    encoding = Rope(small_shape())  # heads of 8 channels, layout half
    table = encoding.table(torch.tensor([5.0]).double(), encoding.spectrum())
    turned, _ = encoding.rotate(
        *(x_D[order].float().expand(1, 1, 1, dim) for _ in range(2)), table, table
    )
    torch.testing.assert_close(turned.flatten().double(), wanted_D, rtol=0, atol=1e-5)


def test_the_base_is_ten_thousand_and_pairs_count_from_one():
    """theta_i = 10000^(-2 (i - 1) / d), i = 1 .. d / 2; note 000 prints 1000 and i from 0, which
    turns the first pair faster than 1.
    """
    for name in ("rope", "p_rope", "sinusoidal", "fox"):
        assert node("encoding", name)["base"] == 10000
    freq_F, dim = Rope(small_shape()).spectrum().freq_F, 8
    assert freq_F.tolist() == pytest.approx(
        [10000 ** (-2 * (i - 1) / dim) for i in range(1, dim // 2 + 1)], rel=1e-12
    )
    as_printed = [1000 ** (-2 * (i - 1) / dim) for i in range(dim // 2 + 1)]
    assert (
        as_printed[0] > 1
        and len(as_printed) == dim // 2 + 1
        and not np.allclose(as_printed[:-1], freq_F.numpy(), rtol=0.1)
    )


@pytest.mark.parametrize("dtype, difference", [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_an_exponential_of_a_logarithm_is_no_safer_than_a_power(dtype, difference):
    for width in (64, 128, 4096):
        exponent_F = torch.arange(0, width, 2, dtype=dtype) / width
        power_F, exponential_F = (
            torch.tensor(10000.0, dtype=dtype) ** -exponent_F,
            torch.exp(-math.log(10000) * exponent_F),
        )
        assert ((power_F - exponential_F).abs() / power_F).max() < difference
        assert power_F.isfinite().all() and power_F.min() > 1e-4


# Parameters (H10)


def parameters(name):
    torch.manual_seed(0)
    return sum(
        parameter.numel()
        for parameter in small_model(
            make_method(node("encoding", name), small_shape())
        ).parameters()
    )


def test_alibi_saves_a_table_of_positions_and_nothing_against_any_other_encoding():
    shape = small_shape()
    assert (
        parameters("learned") - parameters("alibi")
        == shape.train_len * shape.d_model
        == Learned(shape).weight.numel()
    )
    assert parameters("alibi") == parameters("rope") == parameters("none") and not list(
        Alibi(shape).parameters()
    )
    assert parameters("sinusoidal") == parameters("alibi") + 1  # posbench's gain
    assert min(map(parameters, choices("encoding"))) == parameters("alibi")
