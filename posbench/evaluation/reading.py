"""Amount of text that is read, and targets that share a text. This module does not import torch.

Letters: N windows, S targets per window, M all targets, B blocks.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reading:
    """Amount of reading for one length: `texts` of `tokens` each, an output for the last `rows` of each, and `losses` that are kept."""

    texts: int
    tokens: int
    rows: int
    losses: int


def shared_texts(context_NS: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of at most `size` consecutive targets: index of the last among all M targets, and number of targets, both [B].

    context_NS holds the tokens before each target. A block lies in one window, and ends where the context shrinks, so that no target gets
    more than its own.
    """
    at_M = np.arange(context_NS.size)
    opens_NS = np.diff(context_NS, axis=1, prepend=context_NS[:, :1]) < 0
    opens_NS[:, 0] = True
    within_M = at_M - np.maximum.accumulate(np.where(opens_NS.ravel(), at_M, 0))
    first_B = np.flatnonzero(within_M % size == 0)
    size_B = np.diff(first_B, append=context_NS.size)
    return first_B + size_B - 1, size_B
