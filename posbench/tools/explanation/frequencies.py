"""Frequencies of RoPE as transformers computes them: radians that each pair turns per token, in
float64 and without torch.

theta_i = base^(-2i / d) of d turned channels, first divided by `divisors` (rope_freqs.weight of a
GGUF file, otherwise none). Types as in modeling_rope_utils.py of transformers 5.23; `default` is
theta itself. `mix` is llama.cpp's yarn_ext_factor and SGLang's extrapolation_factor: how much of
theta itself YaRN keeps."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rope:
    """RoPE of one kind of layer. `amplitude` multiplies cos and sin, so logits by its square."""

    head_dim: int
    base: float
    longest: float  # max_position_embeddings
    original: float  # training length before the scaling
    kind: str = "default"
    share: float = 1.0  # partial_rotary_factor
    factor: float = 1.0
    amplitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mix: float = 1.0
    low: float = 1.0  # low_freq_factor
    high: float = 4.0  # high_freq_factor
    long: tuple[float, ...] = ()
    short: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()
    beside: int = 0  # channels of a head of latent attention that are kept apart and do not turn
    sharper: float = 1.0  # factor on all logits, which latent attention has of mscale_all_dim

    @property
    def turned(self) -> int:
        """Channels of a head that turn."""
        if self.kind == "proportional":
            return 2 * int(self.share * self.head_dim // 2)
        return int(self.head_dim * self.share)


def plain(rope: Rope) -> np.ndarray:
    """theta of each turned pair without any scaling: [pairs]."""
    width = rope.head_dim if rope.kind == "proportional" else rope.turned
    return rope.base ** (-np.arange(0, rope.turned, 2, dtype=np.float64) / width)


def frequencies(rope: Rope, length: float | None = None) -> np.ndarray:
    """Radians per token of each turned pair, for a text of `length` tokens (dynamic and longrope
    alone depend on it): [pairs].
    """
    theta = plain(rope)
    if rope.divisors:
        theta = theta / np.array(rope.divisors)
    match rope.kind:
        case "linear" | "proportional":
            return theta / rope.factor
        case "dynamic":
            grown = rope.factor * max(length or 0, rope.longest) / rope.longest - (rope.factor - 1)
            return theta * grown ** (-np.arange(len(theta)) * 2 / max(1, rope.turned - 2))
        case "yarn":
            low, high = (
                rope.turned
                * math.log(rope.original / (turns * 2 * math.pi))
                / (2 * math.log(rope.base))
                for turns in (rope.beta_fast, rope.beta_slow)
            )
            low, high = (math.floor(low), math.ceil(high)) if rope.truncate else (low, high)
            low, high = max(low, 0), min(high, rope.turned - 1)
            # Theta itself is kept up to the pair of beta_fast turns, and nothing of it from that of
            # beta_slow turns on.
            kept = rope.mix * (
                1
                - np.clip(
                    (np.arange(len(theta)) - low) / (high - low if high != low else 0.001), 0, 1
                )
            )
            return theta * kept + theta / rope.factor * (1 - kept)
        case "longrope":
            return theta / np.array(rope.long if (length or 0) > rope.original else rope.short)
        case "llama3":
            turns = rope.original * theta / (2 * math.pi)
            kept = np.clip((turns - rope.low) / ((rope.high - rope.low) or 1e-9), 0, 1)
            return theta * kept + theta / rope.factor * (1 - kept)
    return theta


def yarn_amplitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cos and sin."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def longrope_amplitude(factor: float, original: float) -> float:
    """LongRoPE's factor on cos and sin."""
    return (
        math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    )


def usual_amplitude(rope: Rope) -> float:
    """Factor on cos and sin that the type has where none is given."""
    if rope.kind == "longrope":
        return longrope_amplitude(rope.factor, rope.original)
    return yarn_amplitude(rope.factor) if rope.kind == "yarn" else 1.0
