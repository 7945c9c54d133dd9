"""CoPE, DAPE and stick-breaking, which weigh whole rows: against papers and other people's code."""

import math

import pytest
import torch
from bias_models import LONG, SHAPE, VARIANTS, attend, inputs, randomised

from posbench.encodings.cope import Cope
from posbench.encodings.dape import Dape
from posbench.encodings.none import NoEncoding
from posbench.encodings.stick_breaking import StickBreaking
from posbench.extensions.window import Window


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
    torch.testing.assert_close(attend(encoding, *qkv, layer=1), attend(encoding.base, *qkv, layer=1), rtol=0, atol=2e-6)


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
