"""Length that a setting covers, from its pairs of channels.

A model trained on L tokens has seen every angle of a pair that made a full turn in them, and of a
slower pair only the angles up to L f. A changed setting covers the lengths at which no such slow
pair turns farther than in training: N f' <= L f for every pair with L f < 2 pi (or for the slowest
pair, where all made a turn). That is factor times L for linear, YaRN and Llama 3, and what a raised
base gives otherwise. Where a pair turns faster than in training, or a key about positions is not
understood, no length is named."""

import math
from typing import NamedTuple

import numpy as np

from posbench.tools.explanation.frequencies import Rope, frequencies
from posbench.tools.explanation.settings import Setting

ROUNDING = 1e-6  # share by which frequencies may differ and count as the same
LONGEST_BOUNDED = 2.0**40  # tokens; what reaches farther is not bounded by its pairs


class Reach(NamedTuple):
    """Length that a setting covers."""

    tokens: float | None  # None: no length is named
    limit: str  # bounds the length, or is the reason why none is named


def reach_of(setting: Setting, before: Setting) -> Reach:
    """Length that the setting covers on a checkpoint whose own setting is `before`."""
    if setting.unread:
        verb = "is" if len(setting.unread) == 1 else "are"
        keys = " and ".join(setting.unread)
        return Reach(None, f"{keys} {verb} not a part of what is read here")
    # Of several kinds of layers the first, with the widest view, decides.
    rope, rope_before = setting.turning[0].rope, before.turning[0].rope
    trained = stated_length(before)
    if turn_alike(rope, rope_before):
        return Reach(trained, "the length that the checkpoint states")
    if len(frequencies(rope)) != len(frequencies(rope_before)):
        return Reach(None, "other channels turn than in training")
    # Types that depend on the length do not act yet in a text of 1 token: a pair that is faster
    # there has angles that training never had.
    if (_slowdown(rope, rope_before, trained, 1) < 1 - ROUNDING).any():
        return Reach(None, "pairs turn faster than in training")
    tokens = _covered_length(rope, rope_before, trained)
    if math.isinf(tokens):
        return Reach(tokens, "no pair turns farther than in training")
    return Reach(tokens, "beyond them a pair turns farther than in training")


def stated_length(before: Setting) -> float:
    """Tokens that a checkpoint states for its own setting; where it states the length before YaRN,
    that times the factor.
    """
    rope = before.turning[0].rope
    scaled = rope.original * rope.factor if rope.kind == "yarn" else 0
    return max(scaled, before.longest)


def is_slowed(rope: Rope, before: Rope, trained: float) -> bool:
    """True if a pair turns slower within the training length than by the checkpoint's own
    setting.
    """
    if len(frequencies(rope)) != len(frequencies(before)):
        return False
    return bool((_slowdown(rope, before, trained, trained) > 1 + ROUNDING).any())


def turn_alike(rope: Rope, before: Rope) -> bool:
    """True if all pairs turn alike at any length."""
    # Frequencies of dynamic change with every length, so no few lengths prove them equal.
    if "dynamic" in (rope.kind, before.kind):
        if (rope.kind, rope.factor) != (before.kind, before.factor):
            return False
    # Other types have one set of frequencies; longrope has another one beyond `original`.
    lengths = {1, rope.original + 1, before.original + 1}
    return all(
        _are_close(frequencies(rope, length), frequencies(before, length)) for length in lengths
    )


def same_setting(setting: Setting, other: Setting) -> bool:
    """True if all kinds of layers turn alike and have the same factors on cos, sin and logits."""
    ropes, other_ropes = _rope_by_first_layer(setting), _rope_by_first_layer(other)
    if ropes.keys() != other_ropes.keys():
        return False
    return all(same_rope(rope, other_ropes[layer]) for layer, rope in ropes.items())


def same_rope(rope: Rope, other: Rope) -> bool:
    """True if pairs turn alike and cos, sin and logits have the same factors."""
    factors, other_factors = (rope.amplitude, rope.sharper), (other.amplitude, other.sharper)
    return np.allclose(factors, other_factors, rtol=1e-6, atol=0) and turn_alike(rope, other)


def _rope_by_first_layer(setting: Setting) -> dict[int, Rope]:
    """{first layer of each kind that turns: its RoPE}."""
    return {kind.layers[0]: kind.rope for kind in setting.turning}


def _are_close(theta: np.ndarray, other: np.ndarray) -> bool:
    """True for frequencies of equally many pairs that are the same but for rounding."""
    return len(theta) == len(other) and np.allclose(theta, other, rtol=ROUNDING, atol=0)


def _slowdown(rope: Rope, before: Rope, trained: float, length: float) -> np.ndarray:
    """Times by which each pair turns slower, in a text of `length` tokens, than the checkpoint's
    own at the end of training: [pairs].
    """
    return frequencies(before, trained) / frequencies(rope, length)


def _covered_length(rope: Rope, before: Rope, trained: float) -> float:
    """Longest text in which no slow pair turns farther than in training."""
    turns = trained * frequencies(before, trained) / (2 * math.pi)
    slow = turns < 1  # pairs for which farther is an angle that training had not
    if not slow.any():  # all pairs saw every angle; the slowest one is taken as the limit
        slow = turns == turns.min()

    def allowed(length: float) -> float:
        """Tokens in which no slow pair turns farther, by the frequencies in a text of `length`."""
        return trained * float(_slowdown(rope, before, trained, length)[slow].min())

    if rope.kind == "longrope":
        with_short = min(rope.original, allowed(1))
        # One token more than the training length: there the long divisors begin.
        return _whole_tokens(max(with_short, allowed(rope.original + 1)))
    if rope.kind != "dynamic":
        return _whole_tokens(allowed(1))  # frequencies are the same at every length
    low = high = trained  # `low` is covered; the frequencies fall with the length
    while high < LONGEST_BOUNDED and allowed(high) >= high * (1 - ROUNDING):
        low, high = high, 2 * high
    if high >= LONGEST_BOUNDED:
        return math.inf
    while high - low > 1:
        middle = (low + high) / 2
        if allowed(middle) >= middle * (1 - ROUNDING):
            low = middle
        else:
            high = middle
    return math.floor(low)


def _whole_tokens(tokens: float) -> float:
    """Whole tokens, where a length within rounding of one is that.

    >>> _whole_tokens(32767.9999)
    32768
    """
    nearest = round(tokens)
    return nearest if abs(tokens - nearest) < ROUNDING * tokens else math.floor(tokens)
