"""Positions, biases and factors that the text makes: what extensions do to them; their cases."""

import math

import pytest
import torch
from conftest import TRAIN_LEN, make_triple, node, small_model, small_shape
from measures import LONG, attend_in, attention_inputs, same, tokens
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig
from posbench.encodings.alibi import Alibi
from posbench.encodings.bipe import BipeRope, positions_and_segments
from posbench.encodings.bipe_alibi import BipeAlibi
from posbench.encodings.fox import Fox
from posbench.encodings.grape_ap import GrapeAp, path_sums
from posbench.encodings.none import NoEncoding
from posbench.encodings.repo import Repo
from posbench.encodings.rope import Rope
from posbench.encodings.selective_rope import SelectiveRope
from posbench.extensions.longrope import Longrope
from posbench.model.build import make_encoding
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.model.kernels.dispatch import attend
from posbench.position.geometry import PairBias, Span, Trait
from posbench.position.hook_shapes import check_hooks
from posbench.position.interfaces import Encoding, ScaleAttention
from posbench.position.plan import make_plan

SHAPE = small_shape()
BY_CONTENT = ["repo", "selective_rope", "grape_ap", "bipe", "bipe_alibi"]


class ByIndex(Rope):
    """The index itself, as if it came from the text."""

    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        index_T = torch.arange(x_BTC.shape[1], dtype=torch.float64)
        return index_T.expand(len(x_BTC), 1, -1)


class EachPair(ByIndex):
    """The same for each pair of each head."""

    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        index_B1T = super().content_positions(x_BTC, layer)
        return index_B1T[..., None].expand(-1, self.shape.n_head, -1, self.rotary_dim // 2)


class Sharper(ScaleAttention):
    """A factor from the query's input, 1 at the start."""

    trained = True

    def __init__(self, shape):
        super().__init__(shape)
        self.weight = nn.Parameter(torch.zeros(shape.d_model, shape.n_head))

    def content_factor(self, x_BTC: Tensor, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return (x_BTC @ self.weight).exp().mT * n_T.float().log1p()


def with_same_weights(encoding: Encoding, other: Encoding, extension=None, zeros=()):
    """Logits of one model with either encoding, whose parameters `zeros` are 0."""
    models = small_model(encoding), small_model(other)
    for parameter in zeros:
        parameter.data.zero_()
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    with torch.no_grad():
        return [
            model(tokens(LONG), make_plan(model.encoding, extension, length=LONG))
            for model in models
        ]


@pytest.mark.parametrize("kind", [ByIndex, EachPair])
@pytest.mark.parametrize("name", ["none", "pi", "ntk", "yarn", "dynamic_ntk", "window"])
def test_the_index_as_content_is_rope_with_every_extension(kind, name):
    extension = make_triple("rope", name, "none")[1]
    same(*with_same_weights(kind(SHAPE), Rope(SHAPE), extension))


def test_longrope_has_its_first_tokens_by_index():
    extension = Longrope(factors=[4.0, 3.0, 2.0, 1.5], exact_first=5)
    same(*with_same_weights(ByIndex(SHAPE), Rope(SHAPE), extension))


def test_a_subclass_by_content_is_not_relative():
    assert Trait.RELATIVE in Rope.traits and Trait.RELATIVE not in ByIndex.traits
    assert ByIndex.placed_by_content and not Rope.placed_by_content


@pytest.mark.parametrize("name", BY_CONTENT)
def test_gradients_reach_the_input_of_the_layer(name):
    """Of the attention in one block against the same by automatic differentiation in float64."""
    encoding = make_triple(name, "none", "none")[0]
    layer = make_plan(encoding, length=TRAIN_LEN).layers[0]
    leaves, x = attention_inputs(encoding, TRAIN_LEN)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    x = x.requires_grad_()
    y = attend_in(attend_by_blocks, layer, *leaves, x)
    if name == "bipe" or name == "bipe_alibi":  # placed by the text alone
        assert not y.requires_grad
        return
    weigh = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    leaves_of_layer = [x, *encoding.parameters()]
    gradients = torch.autograd.grad((y * weigh).sum(), leaves_of_layer, allow_unused=True)
    step = 1e-3
    with torch.no_grad():
        ahead, behind = (
            (attend_in(attend_by_blocks, layer, *leaves, x + sign * step * direction) * weigh)
            .double()
            .sum()
            for sign in (1, -1)
        )
    slope = float((ahead - behind) / (2 * step))
    assert float((gradients[0] * direction).sum()) == pytest.approx(slope, rel=2e-2, abs=2e-3)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients[1:])


@torch.no_grad()
def test_repo_is_nope_where_all_positions_are_equal_and_rope_below_its_start():
    flat = Repo(SHAPE, start=0)
    same(*with_same_weights(flat, NoEncoding(SHAPE), zeros=[flat.position_LPH]))
    layers = Repo(small_shape(n_layer=7)).layers()
    assert [type(layer.encoding) for layer in layers] == [Rope] * 2 + [Repo] * 5
    assert [layer.index for layer in layers] == list(range(7))


@torch.no_grad()
def test_selective_rope_is_rope_where_every_token_says_one():
    """exp(0) = 1 beside angles of 0: the index is what has been said."""
    encoding = SelectiveRope(SHAPE, bias=True, base=10000.0)
    for angles in encoding.angles:
        angles.up.weight.zero_()
    x_BTC = torch.randn(1, 5, SHAPE.d_model)
    pos_BHTF = encoding.content_positions(x_BTC, 0)
    assert (pos_BHTF == torch.arange(1.0, 6.0)[:, None]).all()
    silent = [angles.up.weight for angles in encoding.angles]
    same(*with_same_weights(encoding, Rope(SHAPE), zeros=[*silent, encoding.bias_LHF]))
    gated = SelectiveRope(SHAPE, bias=True, gate=True)
    for angles, gate in zip(gated.angles, gated.gate, strict=True):
        angles.up.weight.zero_()
        gate.weight.zero_()
        gate.bias.fill_(-math.log(3))  # a quarter
    assert torch.allclose(gated.content_positions(x_BTC, 1), pos_BHTF / 4)


def test_far_mass_of_accumulated_rotations_grows_with_the_text():
    """Far keys lose their scores, as random phases do, but no weight is ever 0: of a query's weight
    they get ever more in longer texts, while ALiBi's share of them stays (arXiv 2606.24975).
    """
    random = torch.Generator().manual_seed(0)
    shares = {}
    for length in (128, 512, 2048):
        angle_TF = torch.randn(length, 32, generator=random).cumsum(dim=0)
        # q and k alike: a score of 6 at distance 0, the mean of 32 cosines at others
        score_T = 6 * (angle_TF[-1] - angle_TF).cos().mean(dim=-1)
        far = slice(0, length - 64)
        linear_T = 6 - 0.25 * torch.arange(length - 1, -1, -1.0)
        shares[length] = [float(scores.softmax(dim=0)[far].sum()) for scores in (score_T, linear_T)]
        assert float(score_T[far].abs().mean()) < 1.0
    turned, linear = zip(*shares.values(), strict=True)
    assert turned[0] + 0.2 < turned[1] < turned[2] > 0.7
    assert max(linear) < 1e-6


class AsFox(GrapeAp):
    """GRAPE-AP whose potentials are FoX's gates, which do not depend on the query."""

    def __init__(self, fox: Fox):
        super().__init__(SHAPE)
        self.fox = fox

    def content_bias(self, x_BTC: Tensor, layer: int) -> PairBias:
        gate_BHT = self.fox.gates(x_BTC, layer)

        def potential(queries: slice, path: slice) -> Tensor:
            rows_of_queries = queries.stop - queries.start
            return gate_BHT[:, :, None, path].expand(-1, -1, rows_of_queries, -1)

        return path_sums(potential)


@torch.no_grad()
def test_fox_and_alibi_are_cases_of_grape_ap():
    fox = Fox(SHAPE, init_std=0.5)
    case = AsFox(fox)
    same(*with_same_weights(fox, case), 5e-5)
    flat = GrapeAp(SHAPE)
    linear = Alibi(SHAPE, slope_scale=math.log(2))
    same(*with_same_weights(flat, linear, zeros=[flat.weight_LCN]), 5e-5)


def test_segments_end_with_a_separator():
    text_BT = torch.tensor([[5, 10, 6, 7, 46, 10, 8], [10, 1, 2, 3, 4, 5, 6]])
    within_BT, number_BT = positions_and_segments(text_BT, [10, 46])
    assert within_BT.tolist() == [[0, 1, 0, 1, 2, 0, 0], [0, 0, 1, 2, 3, 4, 5]]
    assert number_BT.tolist() == [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]


@torch.no_grad()
def test_bipe_without_segments_knows_a_position_up_to_its_last_row():
    """One segment: no rotation, and the rows are a learned table, clamped."""
    for kind in (BipeRope, BipeAlibi):
        encoding = kind(SHAPE, separators=[99])
        added_BTC = encoding.embed_text(tokens(LONG))
        assert torch.equal(added_BTC[0, :TRAIN_LEN], encoding.rows_TC)
        assert (added_BTC[:, TRAIN_LEN:] == encoding.rows_TC[-1]).all()
        same(*with_same_weights(encoding, NoEncoding(SHAPE), zeros=[encoding.rows_TC]))


@pytest.mark.parametrize("name", ["bipe", "bipe_alibi"])
def test_separators_of_bytes_are_refused_with_other_tokens(name):
    """Numbers 10 and 46 of a BPE are other tokens, which would end segments in silence."""
    encoding = node("encoding", name)
    data = {"tokenizer": "bpe", "vocab_size": 1024}
    with pytest.raises(ConfigError, match=r"are bytes, and data.tokenizer=bpe has other tokens"):
        make_encoding(JobConfig(encoding=encoding, data=data))
    make_encoding(JobConfig(encoding={**encoding, "separators": [198]}, data=data))
    make_encoding(JobConfig(encoding=encoding, data={"tokenizer": "bytes"}))


@torch.no_grad()
def test_every_token_a_segment_is_rope_and_alibi():
    every = list(range(50))
    rotary, linear = BipeRope(SHAPE, every), BipeAlibi(SHAPE, every, slope_scale=1.0)
    same(*with_same_weights(rotary, Rope(SHAPE), zeros=[rotary.rows_TC]))
    same(*with_same_weights(linear, Alibi(SHAPE), zeros=[linear.rows_TC]), 5e-5)


@torch.no_grad()
def test_a_scale_may_see_the_hidden_state_of_a_query():
    scale, encoding = Sharper(SHAPE), Rope(SHAPE)
    scale.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(2))
    layer = make_plan(encoding, length=LONG, trained_scale=scale).layers[0]
    (q, k, v), x = attention_inputs(encoding, LONG)
    factor_BHT = (x @ scale.weight).exp().mT * torch.arange(1, LONG + 1).log1p()
    plain = make_plan(encoding, length=LONG).layers[0]
    same(
        attend(layer, x, q, k, v),
        attend(plain, x, q * factor_BHT[..., None], k, v),
        1e-4,
    )
    assert layer.reads_content and not plain.reads_content
    assert plain.for_text(x) is plain


@pytest.mark.parametrize("name", BY_CONTENT)
def test_hooks_of_content_have_the_shapes_that_are_checked(name):
    check_hooks(make_triple(name, "none", "none")[0])
