"""xPos, FoPE and PoPE: identities that hold exactly, and other people's code."""

import math

import pytest
import torch
from conftest import small_shape
from measures import outputs, same, turned, wide

from posbench.encodings.clipped_rope import ClippedRope
from posbench.encodings.fope import Fope
from posbench.encodings.p_rope import PRope
from posbench.encodings.pope import Pope
from posbench.encodings.rope import Rope
from posbench.encodings.xpos import Xpos
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.model.kernels.folding import with_decay
from posbench.position.plan import make_plan


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_xpos_scores_are_those_of_x_transformers(layout):
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    reference = x_transformers.RotaryEmbedding(16, use_xpos=True, scale_base=64)
    freqs, power = reference(torch.arange(90))
    q, k = torch.randn(2, 1, 2, 90, 16)
    theirs_q = x_transformers.apply_rotary_pos_emb(q, freqs, power)
    theirs_k = x_transformers.apply_rotary_pos_emb(k, freqs, power**-1)
    encoding = Xpos(wide(16), B=64, layout=layout)
    order = (
        torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
        if layout == "half"
        else torch.arange(16)
    )
    ours_q, ours_k = (turned(encoding, t[..., order]) for t in (q, k))
    pos_T = torch.arange(90, dtype=torch.float64)
    ours_q, ours_k = with_decay(ours_q, ours_k, encoding.decay(), pos_T, pos_T, pos_T[20])
    same((ours_q @ ours_k.mT).tril(), (theirs_q @ theirs_k.mT).tril(), 1e-4)


@torch.no_grad()
def test_xpos_is_exact_at_8192_tokens_with_a_short_decay():
    encoding = Xpos(wide(8, n_head=1), B=32)
    layer = make_plan(encoding, length=8192).layers[0]
    q, k, v = torch.randn(3, 1, 1, 8192, 8, generator=torch.Generator().manual_seed(0))
    assert not kernels.can_fuse(layer)
    y = attend_by_blocks(layer, q, k, v, first_query=8160)
    i, j = torch.arange(8160, 8192).double()[:, None], torch.arange(8192).double()
    scores = torch.zeros(32, 8192, dtype=torch.float64)
    for c in range(4):
        a, b = (torch.complex(t[0, 0, :, c].double(), t[0, 0, :, c + 4].double()) for t in (q, k))
        zeta = (c / 4 + 0.4) / 1.4
        turn = torch.polar(zeta ** ((i - j).clamp(min=0) / 32), (i - j) * 10000.0 ** (-c / 4))
        scores = scores + (a[8160:, None] * b.conj() * turn).real
    weights = torch.where(j <= i, scores / math.sqrt(8), -math.inf).softmax(dim=-1)
    same(y[0, 0].double(), weights @ v[0, 0].double(), 1e-5)


def test_fope_without_mixing_is_rope_and_what_rests_is_not_turned():
    same(outputs(Fope(small_shape(), gain=0, zero=False)), outputs(Rope(small_shape())))
    # Of the frequencies 1, 0.1, ... only the first turns within 16 tokens: p-RoPE's cut.
    same(outputs(Fope(small_shape(), gain=0)), outputs(PRope(small_shape(), cut="full_turns")))
    x = torch.randn(1, 2, 50, 64)
    encoding = Fope(wide(64, 128))
    assert encoding.n_kept == 11
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
    assert Fope(wide(64, 128), gain=0, pairs=8).cos_GMF[0].argmax(dim=0).tolist() == [
        0,
        1,
        2,
        4,
        5,
        6,
        8,
        9,
    ]


def test_pope_scores_are_those_of_x_transformers():
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    reference = x_transformers.PolarEmbedding(16, 2)
    reference.learned_bias.data.uniform_(
        -7, 1, generator=torch.Generator().manual_seed(2)
    )  # beyond both ends of -2 pi..0
    freqs, bias = reference(torch.arange(70))
    q, k = torch.randn(2, 1, 2, 70, 16)
    expected = (
        x_transformers.apply_polar_pos_emb(q, freqs)
        @ x_transformers.apply_polar_pos_emb(k, freqs + bias).mT
    )
    encoding = Pope(wide(16))
    assert not encoding.phase_H1D.any()
    with torch.no_grad():
        encoding.phase_H1D.copy_(reference.learned_bias)
        pos_T = torch.arange(70, dtype=torch.float64)
        table = encoding.table(pos_T, encoding.spectrum())
        ours_q, ours_k = encoding.rotate(q, k, table, table)
    same(ours_q @ ours_k.mT, expected.detach(), 1e-4)


def test_clipping_fades_the_slowest_20_of_64_pairs():
    shape = wide(128, train_len=4096)
    soft, hard, rope = ClippedRope(shape), ClippedRope(shape, clip="hard"), Rope(shape)
    soft_F, hard_F, rope_F = (
        encoding.table(torch.ones(1).double(), encoding.spectrum())[1, 0].double().asin()
        for encoding in (soft, hard, rope)
    )
    assert (
        torch.equal(soft_F[:45], rope_F[:45]) and soft_F[-1].abs() < 1e-9
    )  # pair 44 is the first that is clipped
    assert (soft_F / rope_F)[54].item() == pytest.approx(math.cos(5 * math.pi / 19) ** 2, rel=1e-6)
    assert ((soft_F / rope_F)[44:].diff() < 0).all()
    assert torch.equal(hard_F[:44], rope_F[:44]) and not hard_F[44:].any()


def test_hard_clipping_is_p_rope_and_none_is_rope():
    shape = small_shape()
    same(outputs(ClippedRope(shape, share=0.25, clip="hard")), outputs(PRope(shape, p=0.75)))
    same(outputs(ClippedRope(shape, share=0)), outputs(Rope(shape)))
