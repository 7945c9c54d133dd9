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
