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
    """RoPE of one kind of layer."""

    head_dim: int
    base: float
    longest: float  # max_position_embeddings
    original: float  # training length before the scaling
    kind: str = "default"
    share: float = 1.0  # partial_rotary_factor
    factor: float = 1.0
    amplitude: float = 1.0  # factor on cos and sin, so that logits are multiplied by its square
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mix: float = 1.0
    low: float = 1.0  # low_freq_factor
    high: float = 4.0  # high_freq_factor
    long: tuple[float, ...] = ()
    short: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()
    unturned_beside: int = (
        0  # channels of a head of latent attention that are kept apart and do not turn
    )
    sharper: float = 1.0  # factor on all logits, which latent attention has of mscale_all_dim

    @property
    def turned(self) -> int:
        """Channels of a head that turn."""
        if self.kind == "proportional":
            return 2 * int(self.share * self.head_dim // 2)
        return int(self.head_dim * self.share)


def unscaled_frequencies(rope: Rope) -> np.ndarray:
    """theta of each turned pair without any scaling: [pairs]."""
    width = rope.head_dim if rope.kind == "proportional" else rope.turned
    return rope.base ** (-np.arange(0, rope.turned, 2, dtype=np.float64) / width)


def frequencies(rope: Rope, length: float | None = None) -> np.ndarray:
    """Radians per token of each turned pair: [pairs].

    Those of dynamic and longrope depend on the text, which has `length` tokens."""
    theta = unscaled_frequencies(rope)
    if rope.divisors:
        theta = theta / np.array(rope.divisors)
    match rope.kind:
        case "linear" | "proportional":
            return theta / rope.factor
        case "dynamic":
            tokens = max(length or 0, rope.longest)
            growth = rope.factor * tokens / rope.longest - (rope.factor - 1)  # of the base
            return theta * growth ** (-np.arange(len(theta)) * 2 / max(1, rope.turned - 2))
        case "yarn":
            kept_share = rope.mix * _share_kept_by_yarn(rope, len(theta))
            return theta * kept_share + theta / rope.factor * (1 - kept_share)
        case "longrope":
            return theta / np.array(rope.long if (length or 0) > rope.original else rope.short)
        case "llama3":
            turns = rope.original * theta / (2 * math.pi)
            # 1e-9: a step instead of a ramp, where both bounds are equal
            kept_share = np.clip((turns - rope.low) / ((rope.high - rope.low) or 1e-9), 0, 1)
            return theta * kept_share + theta / rope.factor * (1 - kept_share)
    return theta


def _share_kept_by_yarn(rope: Rope, pairs: int) -> np.ndarray:
    """Share of theta itself that YaRN leaves each pair: [pairs].

    It is 1 up to the pair of beta_fast turns, and 0 from that of beta_slow turns on."""

    def pair_of(turns: float) -> float:
        """Fractional index of the pair that makes so many turns in training."""
        in_tokens = rope.original / (turns * 2 * math.pi)
        return rope.turned * math.log(in_tokens) / (2 * math.log(rope.base))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.turned - 1)
    width = high - low if high != low else 0.001  # as transformers: a step instead of a ramp
    return 1 - np.clip((np.arange(pairs) - low) / width, 0, 1)


def yarn_amplitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cos and sin."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def longrope_amplitude(factor: float, original: float) -> float:
    """LongRoPE's factor on cos and sin."""
    if factor <= 1 or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original))


def usual_amplitude(rope: Rope) -> float:
    """Factor on cos and sin that the type has where none is given."""
    if rope.kind == "longrope":
        return longrope_amplitude(rope.factor, rope.original)
    return yarn_amplitude(rope.factor) if rope.kind == "yarn" else 1.0
