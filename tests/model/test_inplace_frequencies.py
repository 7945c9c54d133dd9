"""What extensions make of measured frequencies is what transformers computes from the formulas of
the papers.
"""

import math

import pytest
import torch
from families import TRAIN_LEN, difference, text, tiny

import posbench

SAME = 1e-4  # standard deviations of the logits
S = 8  # target length by training length
HALF_TURNS = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
PAIRS, TURNING = 8, 4  # of a head
LONGROPE = {
    "rope_type": "longrope",
    "factor": 2.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1 + 0.02 * c for c in range(PAIRS)],
    "long_factor": [1 + 0.4 * c for c in range(PAIRS)],
}


@pytest.mark.parametrize(
    ("extension", "exponent"),
    [
        ("ntk", lambda c: c / (TURNING - 1)),
        ("ntk_fixed", lambda c: (c + 1) / TURNING),
        ("ntk_mixed", lambda c: ((c + 1) / TURNING) ** 0.75),
        # of factor 2: 2 s - 1
        ("dynamic_ntk", lambda c: c / (TURNING - 1) * math.log(2 * S - 1, S)),
        ("abf", lambda c: c / PAIRS * math.log(500000 / 1e4, S)),
    ],
)
def test_the_last_pair_of_an_extension_is_the_last_that_turns(extension, exponent):
    """The frequency of pair c is divided by s^exponent(c)."""
    model, ids = tiny("llama", rope_parameters=HALF_TURNS), text(1, 100)
    unchanged = model(ids).logits
    posbench.extend(model)
    assert difference(model(ids).logits, unchanged) < SAME
    target = {} if extension == "abf" else {"target_len": S * TRAIN_LEN}
    logits = posbench.extend(model, extension, **target)(ids).logits
    slowed = [1e4 ** (-c / PAIRS) / S ** exponent(c) for c in range(TURNING)]
    rotary = posbench.restore(model).model.rotary_emb
    rotary.inv_freq = torch.tensor(slowed + [0.0] * (PAIRS - TURNING))
    assert difference(logits, unchanged) > 1e-2
    assert difference(logits, model(ids).logits) < SAME


def of_one_kind(parameters: dict) -> dict:
    return parameters


def of_full_layers(parameters: dict) -> dict:
    """Parameters of Gemma 3's layers without a window, beside those of the others."""
    windowed = {"rope_type": "default", "rope_theta": 1e4}
    return {"full_attention": parameters, "sliding_attention": windowed}


@pytest.mark.parametrize(
    ("kind", "of_layers"), [("llama", of_one_kind), ("gemma3_text", of_full_layers)]
)
def test_another_base_replaces_the_one_that_was_scaled(kind, of_layers):
    """The factors of longrope differ between the two fastest pairs, whose ratio is no base."""
    model = tiny(kind, rope_parameters=of_layers({**LONGROPE, "rope_theta": 1e4}))
    expected = tiny(kind, rope_parameters=of_layers({**LONGROPE, "rope_theta": 5e5}))
    posbench.extend(model, "abf")  # to a base of 500,000
    for length in (20, 100):  # with the short factors, and with the long ones
        ids = text(1, length)
        assert difference(model(ids).logits, expected(ids).logits) < SAME, length


def test_the_ramp_of_yarn_is_laid_by_the_base_that_was_scaled():
    """YaRN on longrope. Its code lays the pair of so many turns at F ln(L / 2 pi turns) / ln base,
    here counted on from the last pair that turns more often in L tokens.
    """
    longrope = {**LONGROPE, "rope_theta": 1e4}
    theta = [1e4 ** (-c / PAIRS) / LONGROPE["long_factor"][c] for c in range(PAIRS)]
    turns = [TRAIN_LEN * speed / (2 * math.pi) for speed in theta]

    def index(bound: float) -> float:
        last_faster = sum(count > bound for count in turns) - 1
        return last_faster + PAIRS * math.log(turns[last_faster] / bound) / math.log(1e4)

    low, high = index(4.0), index(1.0)
    kept = [1 - min(max((c - low) / (high - low), 0), 1) for c in range(PAIRS)]
    assert any(0 < share < 1 for share in kept)
    # A pair that is slowed has a longer factor in longrope.
    slowed = [
        factor / (share + (1 - share) / S)
        for factor, share in zip(LONGROPE["long_factor"], kept, strict=True)
    ]
    expected = tiny("llama", rope_parameters={**longrope, "long_factor": slowed})
    model, ids = tiny("llama", rope_parameters=longrope), text(1, 100)
    yarn = {"name": "yarn", "beta": 4.0, "truncate": False, "temperature": False}
    posbench.extend(model, yarn, target_len=S * TRAIN_LEN)
    assert difference(model(ids).logits, expected(ids).logits) < SAME
