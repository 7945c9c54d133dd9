"""What holds exactly for the encodings that bias scores or weigh whole rows, against papers and other people's code."""

from __future__ import annotations

import math

import dense
import pytest
import torch
from conftest import TRAIN_LEN, make_triple, node, small_model, small_shape

from posbench import blocks, optim
from posbench.blocks import rows
from posbench.config import TrainConfig
from posbench.encodings.alibi import Alibi, slopes
from posbench.encodings.cope import Cope
from posbench.encodings.dape import Dape
from posbench.encodings.fire import Fire
from posbench.encodings.kerple import Kerple
from posbench.encodings.none import NoEncoding
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.stick_breaking import StickBreaking
from posbench.encodings.t5 import T5, bucket_starts
from posbench.errors import ConfigError
from posbench.extensions.pi import Pi
from posbench.extensions.rerope import Rerope
from posbench.extensions.window import Window
from posbench.make import make
from posbench.plan import make_plan
from posbench.scale_attention.log_n import LogN

LONG = 3 * TRAIN_LEN + 1
SHAPE = small_shape()
VARIANTS = {
    "t5": lambda: T5(SHAPE, share_layers=False),
    "kerple": lambda: Kerple(SHAPE),
    "kerple-power": lambda: Kerple(SHAPE, form="power"),
    "sandwich": lambda: Sandwich(SHAPE),
    "fire": lambda: Fire(SHAPE),
    "cope": lambda: Cope(SHAPE, positions=6),
    "cope-divided": lambda: Cope(SHAPE, positions=None, divide=True),
    "dape": lambda: Dape(SHAPE),
    "stick_breaking": lambda: StickBreaking(SHAPE),
    "stick_breaking-whole": lambda: StickBreaking(SHAPE, attend_self=True, remainder="self"),
    "stick_breaking-rest": lambda: StickBreaking(SHAPE, remainder="self"),
}


def randomised(encoding):
    """Every parameter moved, so that nothing hides behind a start at zero."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=random)
    return encoding


def inputs(length: int, batch: int = 1, spread: float = 1.0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(length)
    return [spread * torch.randn(batch, heads, length, 8, generator=random) for heads in (4, 2, 2)]


def attend(encoding, *qkv: torch.Tensor, extension=None, scale=None, layer: int = 0) -> torch.Tensor:
    with torch.no_grad():
        return rows(make_plan(encoding, extension, scale, length=qkv[0].shape[2]).layers[layer], *qkv)


def profile_of(encoding, length: int = LONG, layer: int = 0) -> torch.Tensor:
    with torch.no_grad():
        return encoding.profile(torch.arange(length, dtype=torch.float32), layer).double()


DEFINED = [
    (variant, extension)
    for variant in VARIANTS
    for extension in ("none", "pi", "rerope", "window")
    if not make_triple("none", extension, "none")[1].needs & ~VARIANTS[variant]().traits
]


@pytest.mark.parametrize(("variant", "extension"), DEFINED, ids=str)
def test_blocks_equal_the_oracle_and_so_do_the_gradients_of_the_parameters(variant, extension, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK, "cpu", 7)
    monkeypatch.setattr(blocks, "WHOLE", 5)
    # The oracle reads learned numbers without a gradient; here it has one.
    monkeypatch.setattr(dense.Case, "parameter", lambda case, name: case.module.get_parameter(name).double())
    encoding, name = randomised(VARIANTS[variant]()), variant.split("-")[0]
    moved = make_triple("none", extension, "none")[1]
    scale, scale_name = (LogN(SHAPE), "log_n") if encoding.scalable else (None, "none")
    qkv = [t.requires_grad_() for t in inputs(LONG)]
    wide = [t[0].double().repeat_interleave(4 // t.shape[1], dim=0) for t in qkv]
    expected = dense.attention(name, extension, scale_name, encoding, *wide, torch.zeros(LONG, 32), TRAIN_LEN, layer=1)
    found = rows(make_plan(encoding, moved, scale, length=LONG).layers[1], *qkv)[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-5)
    weigh = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaves = [*qkv, *encoding.parameters()]
    wanted = torch.autograd.grad((expected * weigh).sum(), leaves, allow_unused=True)
    for a, b in zip(torch.autograd.grad((found * weigh.float()).sum(), leaves, allow_unused=True), wanted, strict=True):
        if a is not None or b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_equal_one_block(variant, monkeypatch):
    encoding, qkv = randomised(VARIANTS[variant]()), inputs(LONG, batch=2)
    whole = attend(encoding, *qkv)
    monkeypatch.setitem(blocks.BLOCK, "cpu", 5)
    monkeypatch.setattr(blocks, "WHOLE", 4)
    torch.testing.assert_close(attend(encoding, *qkv), whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_finite_from_the_first_token_on_and_for_large_scores(variant):
    for length, spread in ((1, 1.0), (40, 30.0)):
        encoding = VARIANTS[variant]()
        qkv = [t.requires_grad_() for t in inputs(length, spread=spread)]
        found = rows(make_plan(encoding, length=length).layers[0], *qkv)
        assert found.isfinite().all()
        leaves = [*qkv, *encoding.parameters()]
        grads = torch.autograd.grad(found.square().sum(), leaves, allow_unused=True)
        assert all(grad.isfinite().all() for grad in grads if grad is not None)


@pytest.mark.parametrize(
    ("n_buckets", "max_distance"), [(32, 128), (32, 1024), (32, 100), (16, 500), (33, 777), (64, 4096), (17, 27), (2, 9), (8, 5)]
)
def test_t5_buckets_equal_transformers(n_buckets, max_distance):
    reference = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention._relative_position_bucket
    delta = torch.arange(5001)
    theirs = reference(-delta, bidirectional=False, num_buckets=n_buckets, max_distance=max_distance)
    ours = torch.bucketize(delta, torch.tensor(bucket_starts(n_buckets, max_distance)), right=True)
    exact, wide = n_buckets // 2, n_buckets - n_buckets // 2
    for d in delta[ours != theirs].tolist():  # their float32 logarithm falls short of a whole number that d is exactly at
        assert d**wide == max_distance ** (int(ours[d]) - exact) * exact ** (wide - int(ours[d]) + exact) and theirs[d] == ours[d] - 1


def test_t5_reads_its_table_by_bucket_and_whole_tokens():
    encoding = T5(SHAPE, n_buckets=4, max_distance=16, init_std=1.0)
    table = encoding.weight[0].detach()
    # buckets 0, 1, then [2, 16) in two equal parts of ln d: 2..5 and from sqrt(32) = 5.66 on
    delta = torch.tensor([[0.0, 0.99, 1.0], [5.5, 6.0, 99.0]])
    expected = table[torch.tensor([[0, 0, 1], [2, 3, 3]])].permute(2, 0, 1)
    torch.testing.assert_close(encoding.profile(delta, 1), expected, rtol=0, atol=0)


def test_t5_under_pi_meets_no_rounding_at_whole_distances():
    encoding = T5(SHAPE, n_buckets=32, init_std=1.0)
    band = make_plan(encoding, Pi(), length=49 * TRAIN_LEN).layers[0].bands[0]
    slope, offset = band.line
    delta = torch.arange(49 * TRAIN_LEN, dtype=torch.float64) * slope + offset
    bucket = torch.bucketize(delta.float(), encoding.start_N, right=True)
    assert bucket.tolist() == [d // 49 for d in range(49 * TRAIN_LEN)]  # the exact half of the buckets


def test_t5_starts_as_said_and_one_table_serves_all_layers():
    torch.manual_seed(0)
    assert T5(SHAPE).weight.shape == (1, 32, 4) and T5(SHAPE, share_layers=False).weight.shape == (2, 32, 4)
    assert T5(small_shape(4096)).start_N[-1] < 4096 <= T5(small_shape(4096)).start_N[-1] * 2
    assert T5(SHAPE, init_std=0).weight.abs().max() == 0
    assert T5(small_shape(64, n_head=16, n_kv_head=16), n_buckets=512).weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_kerple_power_one_is_alibi():
    encoding = Kerple(SHAPE, form="power")
    with torch.no_grad():
        encoding.raw_b.zero_()
        encoding.raw_a.copy_(torch.tensor(slopes(4)).expm1().log())
    qkv = inputs(LONG)
    for extension in (None, Pi(), Rerope()):
        torch.testing.assert_close(
            attend(encoding, *qkv, extension=extension), attend(Alibi(SHAPE), *qkv, extension=extension), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_starts_as_drawn_and_falls_with_distance(form):
    torch.manual_seed(0)
    bias_HU = profile_of(Kerple(small_shape(n_head=32, d_model=256, n_kv_head=32), form=form))
    assert (bias_HU[:, 0] == 0).all() and (bias_HU.diff() < 0).all()
    torch.manual_seed(0)
    first, second = torch.rand(2, 2, 32)[:, 0].clamp(min=0.01).double().unsqueeze(-1)  # the layers' draws, U(0, 1)
    if form == "log":
        expected = -(2 * first) * torch.log(1 + second * 7)
    else:
        expected = -first * 7 ** (2 * second)
    torch.testing.assert_close(bias_HU[:, 7:8], expected, rtol=0.02, atol=0)


def test_kerple_is_never_decayed():
    model = small_model(Kerple(SHAPE))
    learned = {id(parameter) for parameter in model.encoding.parameters()}
    groups = [group for optimizer in optim.build(model, TrainConfig()) for group in optimizer.param_groups]
    assert [group["weight_decay"] for group in groups for p in group["params"] if id(p) in learned] == [0.0, 0.0]


def test_sandwich_is_the_sum_of_cosines_and_never_positive():
    bias_HU = profile_of(Sandwich(SHAPE, dim=16), 200)
    for h in range(4):
        for d in (0, 1, 5, 199):
            wave = sum(math.cos(d * 10000 ** (-2 * c / 16)) for c in range(8)) - 8
            assert bias_HU[h, d].item() == pytest.approx(wave / (8 * (h + 1) / 4), abs=1e-6)
    assert (bias_HU[:, 0] == 0).all() and (bias_HU[:, 1:] < 0).all()


@pytest.mark.parametrize("variant", ["t5", "kerple", "kerple-power", "sandwich"])
def test_profiles_ignore_a_common_shift(variant):
    encoding = randomised(VARIANTS[variant]())
    pos_T = torch.arange(40, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(encoding.bias(pos_T, pos_T, 0), encoding.bias(pos_T + 10**6, pos_T + 10**6, 0), rtol=0, atol=0)


def test_fire_reads_one_at_the_farthest_key_beyond_the_threshold_and_depends_on_the_query():
    encoding = Fire(SHAPE, threshold=6.0)
    pos_T = torch.arange(40, dtype=torch.float64)
    with torch.no_grad():
        share_TT = encoding.share(pos_T, pos_T, 0).tril()
    assert (share_TT[7:, 0] == 1).all() and (share_TT[:6, 0] < 1).all() and share_TT.max() == 1
    assert (share_TT.diagonal() == 0).all()
    assert share_TT[3, 1].item() == pytest.approx(math.log(1.2) / math.log(1.6), rel=1e-5)
    assert share_TT[30, 10].item() == pytest.approx(math.log(3) / math.log(4), rel=1e-5)
    assert share_TT[30, 10] != share_TT[20, 0]


def test_fire_equals_the_copies_formula():
    torch.manual_seed(0)
    encoding = Fire(SHAPE, c=0.1, threshold=5.0)
    mlp = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    mlp[0].load_state_dict(encoding.inner[1].state_dict())
    mlp[2].load_state_dict(encoding.outer[1].state_dict())
    position = torch.arange(LONG).float()
    distance = torch.log((0.1 * (position[:, None] - position).clamp(min=0)) + 1)
    normal = torch.log(0.1 * torch.max(position, torch.tensor(5.0)) + 1)[:, None] + 1e-6
    expected = mlp((distance / normal)[..., None]).permute(2, 0, 1)
    torch.testing.assert_close(encoding.bias(position.double(), position.double(), 1), expected, rtol=0, atol=1e-5)


def test_fire_survives_a_threshold_of_nothing():
    encoding = Fire(SHAPE)
    with torch.no_grad():
        encoding.log_threshold.fill_(-200.0)
        encoding.log_c.fill_(-30.0)
    pos_T = torch.arange(3, dtype=torch.float64)
    bias_HTT = encoding.bias(pos_T, pos_T, 0)
    bias_HTT.sum().backward()
    assert bias_HTT.isfinite().all() and all(p.grad.isfinite().all() for p in encoding.parameters() if p.grad is not None)


def test_cope_with_a_table_of_zeros_is_no_encoding():
    qkv = inputs(LONG)
    torch.testing.assert_close(attend(Cope(SHAPE), *qkv), attend(NoEncoding(SHAPE), *qkv), rtol=0, atol=1e-6)


@pytest.mark.parametrize("positions", [3, 64])
def test_cope_equals_x_transformers(positions):
    theirs = pytest.importorskip("x_transformers.x_transformers").CoPE(dim=8, heads=4, max_pos=positions)
    encoding = randomised(Cope(SHAPE, positions=positions))
    theirs.load_state_dict({"pos_emb": encoding.weight[0].detach()})
    q, k, v = inputs(LONG)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    seen = torch.ones(LONG, LONG).tril().bool()
    scores = (q @ k.mT * 8**-0.5).masked_fill(~seen, -torch.finfo(torch.float32).max)
    with torch.no_grad():
        expected = (scores + theirs(q, scores)).softmax(dim=-1) @ v
    torch.testing.assert_close(attend(encoding, q, k, v), expected, rtol=0, atol=1e-5)


def test_cope_and_dape_form_gates_and_corrections_before_the_factor():
    scores, seen = inputs(LONG)[0] @ inputs(LONG)[0].mT, torch.ones(LONG, LONG).tril().bool()
    q, bias = inputs(LONG)[0], torch.randn(4, LONG, LONG)
    for encoding in (randomised(Cope(SHAPE)), randomised(Dape(SHAPE))):
        with torch.no_grad():
            plain, doubled = (encoding.weights(q, scores, bias, seen, f, 0) for f in (1.0, torch.full((LONG, 1), 2.0)))
            expected = (plain.clamp(min=1e-37).log() + scores).masked_fill(~seen, -torch.inf).softmax(dim=-1)
        torch.testing.assert_close(doubled, expected, rtol=0, atol=1e-5)


def test_dape_with_a_zero_last_layer_is_kerple():
    encoding, qkv = Dape(SHAPE), inputs(LONG)
    with torch.no_grad():
        for outer in encoding.outer:
            outer.weight.zero_()
            outer.bias.zero_()
    torch.testing.assert_close(attend(encoding, *qkv, layer=1), attend(encoding.base, *qkv, layer=1), rtol=0, atol=1e-6)


def test_dape_equals_one_mlp_over_both_kinds_of_scores():
    encoding = randomised(Dape(SHAPE))
    mlp = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, 4))
    mlp[0].load_state_dict(encoding.inner[0].state_dict())
    mlp[2].load_state_dict(encoding.outer[0].state_dict())
    scores, bias, seen = torch.randn(2, 4, 5, 9), torch.randn(4, 5, 9), torch.ones(5, 9).tril(4).bool()
    both = torch.cat((scores, bias.expand(2, -1, -1, -1)), dim=1).permute(0, 2, 3, 1)
    expected = (scores + bias + mlp(both).permute(0, 3, 1, 2)).masked_fill(~seen, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(encoding.weights(None, scores, bias, seen, 1.0, 0), expected, rtol=0, atol=1e-5)


def broken(encoding: StickBreaking, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return encoding.weights(None, scores, None, seen, 1.0, 0).double()


def test_stick_breaking_rows_and_remainders_sum_to_one():
    scores, seen = 2 * torch.randn(1, 4, LONG, LONG), torch.ones(LONG, LONG).tril().bool()
    weights = broken(StickBreaking(SHAPE), scores, seen)
    rest = torch.sigmoid(-scores.double()).where(seen.tril(-1), 1).prod(dim=-1)
    torch.testing.assert_close(weights.sum(dim=-1) + rest, torch.ones_like(rest), rtol=0, atol=1e-5)
    assert (weights[:, :, 0] == 0).all() and (weights.diagonal(dim1=-2, dim2=-1) == 0).all()
    for attend_self in (False, True):
        whole = broken(StickBreaking(SHAPE, attend_self, "self"), scores, seen)
        torch.testing.assert_close(whole.sum(dim=-1), torch.ones_like(rest), rtol=0, atol=1e-5)
        assert (whole[:, :, 0, 0] - 1).abs().max() < 1e-6
    nothing = attend(StickBreaking(SHAPE), *inputs(LONG))
    assert (nothing[:, :, 0] == 0).all() and (nothing[:, :, 1] != 0).all()


def test_stick_breaking_equals_a_naive_loop_in_a_window():
    scores = torch.randn(1, 1, 6, 9)  # queries 3..8, keys 0..8
    seen = torch.ones(6, 9).tril(3).triu(1).bool()
    for attend_self in (False, True):
        found = broken(StickBreaking(SHAPE, attend_self), scores, seen)
        for s in range(6):
            for j in range(9):
                between = [t for t in range(j + 1, s + 3 + attend_self) if seen[s, t]]
                taken = seen[s, j] and (j < s + 3 or attend_self and j == s + 3)
                share = torch.sigmoid(scores[0, 0, s].double())
                expected = share[j] * math.prod(1 - share[t].item() for t in between) if taken else 0.0
                assert found[0, 0, s, j].item() == pytest.approx(float(expected), abs=1e-6)


def test_stick_breaking_is_exact_over_thousands_of_keys():
    scores = torch.randn(1, 1, 1, 8192) - 6  # about one key in 300 takes its share
    found = broken(StickBreaking(SHAPE), scores, torch.ones(1, 8192).bool())[0, 0, 0]
    share = torch.sigmoid(scores[0, 0, 0, :-1].double()).flip(0)
    expected = (share * torch.cat((torch.ones(1), (1 - share).cumprod(0)[:-1]))).flip(0)
    torch.testing.assert_close(found[:-1], expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("variant", ["cope", "stick_breaking", "dape"])
def test_unseen_keys_change_nothing(variant):
    encoding, (q, k, v) = randomised(VARIANTS[variant]()), inputs(40)
    before = attend(encoding, q, k, v, extension=Window(10))
    k[:, :, :20], v[:, :, :20] = 50.0, 50.0
    after = attend(encoding, q, k, v, extension=Window(10))
    torch.testing.assert_close(after[:, :, 30:], before[:, :, 30:], rtol=0, atol=1e-6)
    assert (after[:, :, 28] - before[:, :, 28]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("t5", {"n_buckets": 1}, "n_buckets=1"),
        ("t5", {"max_distance": 16}, "max_distance=16"),
        ("kerple", {"form": "cubic"}, "form=cubic"),
        ("sandwich", {"dim": 7}, "dim=7"),
        ("fire", {"c": 0}, "c=0"),
        ("fire", {"threshold": -1}, "threshold=-1"),
        ("cope", {"positions": 1}, "positions=1"),
        ("dape", {"width": 0}, "width=0"),
        ("stick_breaking", {"remainder": "burn"}, "remainder=burn"),
    ],
)
def test_impossible_arguments_are_refused(name, arguments, value):
    with pytest.raises(ConfigError, match=value):
        make({**node("encoding", name), **arguments}, SHAPE)
