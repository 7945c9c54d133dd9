"""disjoint: text cut into pieces of L tokens, every token of a piece scored, each token weighing alike.

What most papers call perplexity at length L (Press 2021's non-overlapping evaluation, lm-eval's loglikelihood_rolling). A piece's first
token is predicted from one token, its last from L, so longer pieces have fewer tokens with little context: the curve falls with L even
where a model uses no more than it did at train_len ("the early-token curse"). Compare lengths by fixed_targets; this one is for
comparison with the literature.

Text: stretches of max_length targets inside documents (evaluation/protocol.py), the same at every length. Pieces never cross a document.
The piece that scores tokens t+1 .. t+L is fed t .. t+L-1; with a BOS it stands in place of token t, so that a piece's first token follows
the BOS alone, else token t itself is fed, as lm-eval does. A document's first token is never a target. The tail of a stretch, where L does
not divide max_length, is a shorter piece read with the geometry of L, so every length scores the same tokens. recompute_window gives each
token its last w tokens within its piece.

References: none; the floor gives every token what a piece denies its first ones. `sliding` has the floor of the same tokens.
"""

from __future__ import annotations

import numpy as np

from posbench.evaluation.protocol import Stretches


class Disjoint(Stretches):
    """Rows, one for each length."""

    def spans(self, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        total = self.windows.n_targets
        offset_K = np.arange(0, total, length)
        start_NK = (self.windows.last_N - total)[:, None] + offset_K
        high_NK = np.broadcast_to(np.minimum(length, total - offset_K), start_NK.shape)
        return start_NK.ravel(), np.zeros(start_NK.size, dtype=np.int64), high_NK.ravel()
