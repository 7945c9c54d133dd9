"""Beta of the extensions by parts (YaRN and NTK-by-parts) where it is null.

It is the number of turns in training from which a pair is kept. No torch.
"""

import math

PUBLISHED_BETA = 32.0  # Peng et al. 2023, for train_len >= 4096


def default_beta(alpha: float, train_len: int, fastest: float = 1.0) -> float:
    """A quarter of the turns of the fastest pair in `train_len` tokens, at most PUBLISHED_BETA and
    at least alpha + 1.

    `fastest`: its radians for each token; 1 in every unscaled RoPE, whatever its base.

    >>> round(default_beta(1.0, 64), 3)
    2.546
    """
    # In a short window no pair makes PUBLISHED_BETA turns, so posbench takes a quarter of the most,
    # and 1 above alpha at least, or the ramp would turn around.
    turns = train_len * fastest / (2 * math.pi)
    return max(alpha + 1, min(PUBLISHED_BETA, turns / 4))
