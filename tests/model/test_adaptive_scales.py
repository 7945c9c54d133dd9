"""The adaptive scale and ASEntmax: every kernel and its gradients beside the formulas, in which the
1.5-entmax is solved by sorting.
"""

import math

import dense
import pytest
import torch
from conftest import TRAIN_LEN, make_triple, node, small_model, small_shape
from measures import attend_in, attention_inputs, same, tokens
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig, TrainConfig
from posbench.encodings.hybrid import Hybrid
from posbench.encodings.rope import Rope
from posbench.extensions.none import NoExtension
from posbench.model.build import make_model
from posbench.model.kernels import blocks, chunked_sdpa, flex
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.effect import same_prefix
from posbench.position.geometry import Span
from posbench.position.interfaces import ScaleAttention
from posbench.position.legality import check_trained_scale, verdict_of
from posbench.position.plan import make_plan
from posbench.scale_attention.adaptive import Adaptive
from posbench.scale_attention.asentmax import Asentmax, entmax15
from posbench.scale_attention.off_by_one import OffByOne

LONG = 2 * TRAIN_LEN + 1
PAIRS = [
    *(
        ("rope", extension)
        for extension in ("none", "yarn", "rerope", "streaming", "random_keys", "gali")
    ),
    *((encoding, "none") for encoding in ("none", "nape", "xpos", "t5", "fox", "repo", "grape_ap")),
    ("alibi", "window"),
]


def by_sorting(scores: Tensor) -> Tensor:
    """1.5-entmax of each row in float64: of the k largest z / 2 tau is the lower root of
    sum (z_i / 2 - tau)^2 = 1, and the support is the largest k whose members are above tau.
    """
    half = scores / 2
    ordered = half.sort(dim=-1, descending=True).values
    size = torch.arange(1, scores.shape[-1] + 1, dtype=torch.float64)
    # Keys that are not seen come last, and are no members.
    finite = ordered.nan_to_num(neginf=0.0)
    mean = finite.cumsum(dim=-1) / size
    variance = finite.square().cumsum(dim=-1) / size - mean.square()
    under_root = 1 / size - variance
    tau = mean - under_root.clamp(min=0).sqrt()
    is_member = (ordered >= tau) & (under_root >= 0) & ordered.isfinite()
    last = is_member.sum(dim=-1, keepdim=True) - 1
    return (half - tau.gather(-1, last)).clamp(min=0).square()


def factor_of(map_JC: Tensor, x_TC: Tensor, n_T: Tensor) -> Tensor:
    """1 + ln(1 + e^(w x)) ln(1 + n)^(2 tanh(u x)), query after query: [H, T]."""
    heads = len(map_JC) // 2
    columns = []
    for x_C, n in zip(x_TC, n_T.tolist(), strict=True):
        said_J = map_JC @ x_C
        amount = torch.log(1 + said_J[:heads].exp())
        power = 2 * said_J[heads:].tanh()
        columns.append(1 + amount * torch.exp(power * math.log(math.log(1 + n))))
    return torch.stack(columns, dim=1)


def scale_of(kind: type[Adaptive], **shape) -> Adaptive:
    torch.manual_seed(4)
    scale = kind(small_shape(**shape))
    with torch.no_grad():
        for linear in scale.maps:
            linear.weight.mul_(3)
    return scale


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("kind", [Adaptive, Asentmax])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_kernels_and_their_gradients_equal_the_formula(kind, pair, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setitem(blocks.MASKED_BLOCK_QUERIES, "cpu", 7)
    monkeypatch.setattr(blocks, "LONGEST_SINGLE_BLOCK", 5)
    encoding, extension, _ = make_triple(*pair, "none")
    scale = scale_of(kind)
    layer = make_plan(encoding, extension, length=LONG, trained_scale=scale).layers[1]
    leaves, x = attention_inputs(encoding, LONG)
    wide = [leaf[0].double().requires_grad_() for leaf in leaves]
    map_JC = scale.maps[1].weight.detach().double().requires_grad_()
    repeated = [leaf.repeat_interleave(4 // leaf.shape[0], dim=0) for leaf in wide]
    factor_HT = factor_of(map_JC, x[0].double(), layer.n_T)
    if pair[0] == "nape":
        factor_HT = torch.cat((torch.ones(2, LONG).double(), factor_HT[2:]))
    expected = dense.attention(
        *pair,
        "none",
        layer.encoding,
        *repeated,
        x[0].double(),
        TRAIN_LEN,
        layer=1,
        factor_HT=factor_HT,
        row_weights=by_sorting if kind is Asentmax else None,
    )
    random = torch.Generator().manual_seed(1)
    weigh = torch.randn(expected.shape, generator=random, dtype=torch.float64)
    expected_gradients = torch.autograd.grad((expected * weigh).sum(), [*wide, map_JC])
    can_fuse = kernels.can_fuse(layer)
    assert kind is Adaptive or not (can_fuse or flex.can_flex(layer))
    assert kind is Adaptive or not chunked_sdpa.can_chunk(layer, 0)
    for kernel in [attend_by_blocks, kernels.attend_fused] if can_fuse else [attend_by_blocks]:
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        y = attend_in(kernel, layer, *inputs, x)
        torch.testing.assert_close(y[0].double(), expected, rtol=0, atol=5e-5)
        learned = [*inputs, scale.maps[1].weight]
        gradients = torch.autograd.grad((y[0] * weigh.float()).sum(), learned)
        firsts = [gradient[0] for gradient in gradients[:-1]]
        for gradient, exact in zip([*firsts, gradients[-1]], expected_gradients, strict=True):
            torch.testing.assert_close(gradient.double(), exact, rtol=1e-3, atol=5e-4)
        with torch.no_grad():
            same(attend_in(kernel, layer, *leaves, x), y)


def test_entmax_of_rows_of_every_kind():
    random = torch.Generator().manual_seed(0)
    for keys in (1, 2, 65, 4096):
        normal = torch.randn(3, keys, generator=random)
        falling = -torch.logspace(-6, 1, keys)
        top = torch.zeros(keys).index_fill(0, torch.tensor([0]), 1.0)
        hidden = normal[0].masked_fill(torch.arange(keys) % 3 == 1, -torch.inf)
        rows_NK = torch.stack(
            [*(normal * torch.tensor([[0.01], [1.0], [40.0]])), falling, top, hidden, 0 * top]
        )
        weights_NK = entmax15(rows_NK)
        exact_NK = by_sorting(rows_NK.double())
        torch.testing.assert_close(weights_NK.double(), exact_NK, rtol=0, atol=2e-6)
        torch.testing.assert_close(weights_NK.sum(dim=-1), torch.ones(7), rtol=0, atol=3e-5)
        # Far below the largest score nothing is left, and a constant changes nothing.
        assert (weights_NK[rows_NK < rows_NK.amax(dim=-1, keepdim=True) - 2] == 0).all()
        shifted_NK = entmax15(rows_NK.double() + 5)
        torch.testing.assert_close(shifted_NK, exact_NK, rtol=0, atol=1e-9)


def test_a_sink_is_one_more_score_of_the_row():
    scale, encoding = scale_of(Asentmax), Rope(small_shape())
    layer = make_plan(
        encoding, None, OffByOne(small_shape()), length=LONG, trained_scale=scale
    ).layers[0]
    leaves, x = attention_inputs(encoding, LONG)
    wide = [leaf[0].double() for leaf in leaves]
    repeated = [leaf.repeat_interleave(4 // leaf.shape[0], dim=0) for leaf in wide]
    factor_HT = factor_of(scale.maps[0].weight.detach().double(), x[0].double(), layer.n_T)
    expected = dense.attention(
        "rope",
        "none",
        "off_by_one",
        encoding,
        *repeated,
        x[0].double(),
        TRAIN_LEN,
        factor_HT=factor_HT,
        row_weights=by_sorting,
    )
    with torch.no_grad():
        y = kernels.attend(layer, x, *leaves)
    torch.testing.assert_close(y[0].double(), expected, rtol=0, atol=3e-5)


@torch.no_grad()
def test_weights_of_a_layer_can_be_read_and_many_are_zero():
    encoding, scale = Rope(small_shape()), scale_of(Asentmax)
    layer = make_plan(encoding, length=LONG, trained_scale=scale).layers[0]
    (q, k, _), x = attention_inputs(encoding, LONG)
    ((_, [(keys, weights_BHSK)]),) = kernels.attention_weights(layer, x, q, k, LONG)
    same(weights_BHSK.sum(dim=-1), torch.ones(1, 4, LONG))
    seen_SK = torch.ones(LONG, LONG).tril().bool()
    assert keys == slice(0, LONG) and (weights_BHSK[..., ~seen_SK] == 0).all()
    assert (weights_BHSK[..., seen_SK] == 0).float().mean() > 0.3


def test_where_it_may_stand():
    shape = small_shape()
    for name in ("cope", "dape"):
        check_trained_scale(make_triple(name, "none", "none")[0], Adaptive(shape))
    with pytest.raises(ConfigError, match="both take the place of the softmax"):
        make_plan(Rope(shape), None, Sparse(shape), length=9, trained_scale=Asentmax(shape))
    assert verdict_of(Rope(shape), NoExtension(), Sparse(shape), [16]).noop is None
    check_trained_scale(Rope(shape), Sparse(shape))


class Sparse(ScaleAttention):
    """1.5-entmax alone."""

    def weights(self, scores_BHSK: Tensor) -> Tensor:
        return entmax15(scores_BHSK)


def test_local_layers_keep_their_softmax():
    hybrid = make_triple("hybrid", "none", "none")[0]
    assert isinstance(hybrid, Hybrid)
    scale = scale_of(Asentmax)
    layers = make_plan(hybrid, length=LONG, trained_scale=scale).layers
    assert [layer.row_weighing_scale for layer in layers] == [None, scale]


class ByLength(ScaleAttention):
    """A factor of the text's length, from a hook of content."""

    def content_factor(self, x_BTC: Tensor, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return torch.full((len(x_BTC), 1, x_BTC.shape[1]), float(span.length))


def test_beginnings_are_alike_unless_the_factor_depends_on_the_length():
    encoding = Rope(small_shape())
    for scale, alike in ((Adaptive(small_shape()), True), (ByLength(small_shape()), False)):
        longer, shorter = (
            make_plan(encoding, length=length, trained_scale=scale) for length in (LONG, 9)
        )
        assert same_prefix(longer, shorter) == alike


def test_the_seed_draws_the_maps_and_no_other_weight():
    def states(name: str, seed: int) -> dict[str, Tensor]:
        train = TrainConfig(scale_attention=node("scale_attention", name))
        cfg = JobConfig(seed=seed, train=train)
        torch.rand(1)  # what was drawn before has no effect
        return make_model(cfg, 100).state_dict()

    first, again, other = states("asentmax", 0), states("asentmax", 0), states("asentmax", 1)
    maps = [name for name in first if name.startswith("scale.maps.")]
    assert len(maps) == JobConfig().model.n_layer
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in maps)
    for name, weight in states("none", 0).items():
        assert torch.equal(first[name], weight), name


def test_a_model_learns_through_it():
    encoding, scale = make_triple("nape", "none", "none")[0], scale_of(Asentmax)
    model = small_model(encoding)
    plan = make_plan(encoding, length=TRAIN_LEN, trained_scale=scale)
    model(tokens(TRAIN_LEN), plan).square().mean().backward()
    for linear in scale.maps:
        amount_HC, power_HC = linear.weight.grad.chunk(2)
        for gradient_HC in (amount_HC, power_HC):
            assert (gradient_HC[:2] == 0).all(), "heads of ALiBi"
            assert gradient_HC[2:].isfinite().all() and (gradient_HC[2:] != 0).any()
