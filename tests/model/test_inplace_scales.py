"""Scales in a loaded transformers model: a power of log-n, weights in place of the softmax, and the
reasons for which others cannot be there.
"""

import math

import torch
from families import TRAIN_LEN, difference, text, tiny
from torch import Tensor

import posbench
from posbench.position.interfaces import ScaleAttention

SAME = 1e-4
LENGTH = 3 * TRAIN_LEN


def test_a_power_of_log_n_multiplies_the_queries():
    model, ids = tiny("llama"), text(2, LENGTH)
    extended = posbench.extend(tiny("llama"), scale_attention={"name": "log_n", "p": 2.0})
    ratio_T = torch.arange(1, LENGTH + 1).log() / math.log(TRAIN_LEN)
    factor_T1 = ratio_T.clamp(min=1).square()[:, None]
    plain = model(ids).logits
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda module, inputs, q: q * factor_T1)
    assert difference(extended(ids).logits, model(ids).logits) < SAME
    assert difference(plain, model(ids).logits) > 10 * SAME
    cache = extended(ids[:, :-3], use_cache=True).past_key_values
    after = extended(ids[:, -3:], past_key_values=cache).logits
    assert difference(after, model(ids).logits[:, -3:]) < SAME


class Squares(ScaleAttention):
    """Weights in proportion to (z - the smallest score seen)^2."""

    def weights(self, scores_BHSK: Tensor) -> Tensor:
        is_seen = scores_BHSK.isfinite()
        least = scores_BHSK.masked_fill(~is_seen, torch.inf).amin(dim=-1, keepdim=True)
        square = (scores_BHSK - least + 0.1).square().masked_fill(~is_seen, 0)
        return square / square.sum(dim=-1, keepdim=True)


def test_weights_in_place_of_the_softmax_of_whole_texts_and_after_a_cache(monkeypatch):
    model, ids = tiny("llama"), text(2, LENGTH)
    extended = posbench.extend(tiny("llama"), scale_attention=Squares(None))
    full_logits = extended(ids).logits
    model.set_attn_implementation("eager")

    def squares(scores: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        hidden = scores < torch.finfo(scores.dtype).min / 2
        square = (scores - scores.masked_fill(hidden, 1e9).amin(dim, True) + 0.1) ** 2
        return square.masked_fill(hidden, 0) / square.masked_fill(hidden, 0).sum(dim, True)

    plain = model(ids).logits
    monkeypatch.setattr(torch.nn.functional, "softmax", squares)
    expected_logits = model(ids).logits
    monkeypatch.undo()
    assert difference(full_logits, expected_logits) < SAME < difference(plain, expected_logits) / 10
    cache = extended(ids[:, :-3], use_cache=True).past_key_values
    assert (
        difference(extended(ids[:, -3:], past_key_values=cache).logits, expected_logits[:, -3:])
        < SAME
    )
