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
from posbench.tools.explanation.settings import LayerKind, Setting

ROUNDING = 1e-6  # share by which frequencies may differ and count as the same
FARTHEST = 2.0**40  # tokens; what reaches farther is not bounded by its pairs


class Reach(NamedTuple):
    """Tokens that a setting covers, or None and the reason why no length is named. `limit` says
    what bounds it.
    """

    tokens: float | None
    limit: str


def reach_of(setting: Setting, before: Setting) -> Reach:
    """Length that the setting covers on a checkpoint whose own setting is `before`."""
    if setting.unread:
        listed = " and ".join(setting.unread)
        return Reach(
            None,
            f"{listed} {'is' if len(setting.unread) == 1 else 'are'} not a part of what is read"
            " here",
        )
    kind, own = setting.turning[0], before.turning[0].rope
    trained = stated(before)
    if same_turns(kind.rope, own):
        return Reach(trained, "the length that the checkpoint states")
    if len(frequencies(kind.rope)) != len(frequencies(own)):
        return Reach(None, "other channels turn than in training")
    if (_slower(kind.rope, own, trained, 1) < 1 - ROUNDING).any():
        return Reach(None, "pairs turn faster than in training")
    tokens = _covered(kind.rope, own, trained)
    limit = (
        "no pair turns farther than in training"
        if math.isinf(tokens)
        else "beyond them a pair turns farther than in training"
    )
    return Reach(tokens, limit)


def stated(own: Setting) -> float:
    """Tokens that a checkpoint states for its own setting; where it states the length before YaRN,
    that times the factor.
    """
    rope = own.turning[0].rope
    scaled = rope.original * rope.factor if rope.kind == "yarn" else 0
    return max(scaled, own.longest)


def slows(rope: Rope, own: Rope, trained: float) -> bool:
    """True if a pair turns slower within the training length than by the checkpoint's own
    setting.
    """
    alike = len(frequencies(rope)) == len(frequencies(own))
    return alike and bool((_slower(rope, own, trained, trained) > 1 + ROUNDING).any())


def same_turns(rope: Rope, own: Rope) -> bool:
    """True if all pairs turn alike at any length."""
    if (
        (rope.kind == "dynamic") != (own.kind == "dynamic")
        or rope.factor != own.factor
        and rope.kind == "dynamic"
    ):
        return False
    alike = [
        _close(frequencies(rope, length), frequencies(own, length))
        for length in (1, max(rope.original, own.original) + 1)
    ]
    return all(alike)


def same_setting(setting: Setting, other: Setting) -> bool:
    """True if all kinds of layers turn alike and have the same factors on cos, sin and logits."""
    one, two = (_by_layer(each.turning) for each in (setting, other))
    return one.keys() == two.keys() and all(same_rope(one[layer], two[layer]) for layer in one)


def same_rope(rope: Rope, other: Rope) -> bool:
    """True if pairs turn alike and cos, sin and logits have the same factors."""
    factors = np.allclose(
        (rope.amplitude, rope.sharper), (other.amplitude, other.sharper), rtol=1e-6, atol=0
    )
    return bool(factors) and same_turns(rope, other)


def _by_layer(kinds: list[LayerKind]) -> dict[int, Rope]:
    return {kind.layers[0]: kind.rope for kind in kinds}


def _close(one: np.ndarray, two: np.ndarray) -> bool:
    return len(one) == len(two) and bool(np.allclose(one, two, rtol=ROUNDING, atol=0))


def _slower(rope: Rope, own: Rope, trained: float, length: float) -> np.ndarray:
    """Times by which each pair turns slower, in a text of `length` tokens, than the checkpoint's
    own at the end of training: [pairs].
    """
    return frequencies(own, trained) / frequencies(rope, length)


def _covered(rope: Rope, own: Rope, trained: float) -> float:
    """Longest text in which no slow pair turns farther than in training."""
    turns = trained * frequencies(own, trained) / (2 * math.pi)
    slow = turns < 1
    if not slow.any():
        slow = turns == turns.min()

    def allowed(length: float) -> float:
        return trained * float(_slower(rope, own, trained, length)[slow].min())

    if rope.kind == "longrope":
        within = min(rope.original, allowed(1))
        return _whole(max(within, allowed(rope.original + 1)))
    if rope.kind != "dynamic":
        return _whole(allowed(1))
    low = high = trained
    while high < FARTHEST and allowed(high) >= high * (1 - ROUNDING):
        low, high = high, 2 * high
    if high >= FARTHEST:
        return math.inf
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) >= middle * (1 - ROUNDING) else (low, middle)
    return math.floor(low)


def _whole(tokens: float) -> float:
    """Whole tokens, where a length within rounding of one is that: 32,768 of 32,767.9999."""
    nearest = round(tokens)
    return nearest if abs(tokens - nearest) < ROUNDING * tokens else math.floor(tokens)
