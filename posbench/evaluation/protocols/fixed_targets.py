"""fixed_targets: the same tokens are scored at every length; only the amount of preceding text
changes.

For length L the L tokens before the last target are fed and the last S positions scored (S <=
train_len / 8), so the target that is s-th from the end has L - s tokens of context. Differences
between lengths and methods are paired, and the curve of an ideal method never rises. With an
extension that crops (recompute_window) each target has its own text: exactly its last w tokens. A
BOS, if there is one, replaces the first of the L tokens (or of the w), as in training.

With evaluate.floor_block=N above 1 (the default for long windows) N consecutive targets of a window
share one text of w tokens: the last has w tokens of context, the first w - N + 1. N is never more
than an eighth of w. What this changes is the difference in nll of `python scripts/run.py -m run=DIR
extension=recompute_window evaluate.floor_block=1,N`. Evaluations of different N are not compared.
In the mean a target loses (N - 1) / 2 tokens of context, so that `extension.window=w,w-N/2` with N
alone says about the same in a hundredth of the time. SmolLM2-135M-Instruct (4-bit weights, bf16) on
test books, the same targets with 256 of 8,192 tokens fewer (N = 512, the default; 8 windows of
1,024 targets): -0.0007 +- 0.0017 nats/token, 95 % over windows; declared as trained to 2,048, with
64 fewer (N = 128, the default; 24 windows of 256 targets): +0.0024 +- 0.0031. Single losses move by
0.04 in the median, both ways.

References: the floor, recompute_window with train_len tokens, and with half of them, for G.
"""

import numpy as np

from posbench.evaluation.protocol import Protocol


class FixedTargets(Protocol):
    """One row for each length, and the arrays behind it."""

    floor = "fixed_targets"

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness of every target: [N, S] each."""
        evaluation = self.evaluation
        # An extension that feeds fewer tokens than the length cuts a text of its own for each
        # target.
        if evaluation.fed_length(length) < length:
            return self.score_separately(self.context_lengths(length))
        n_targets = self.windows.n_targets
        last_N = np.arange(1, len(self.windows.last_N) + 1) * n_targets - 1  # among all targets
        plan = evaluation.plan(length)
        return evaluation.score_windows(plan, last_N, n_targets, self.indices_up_to_targets)

    def context_lengths(self, length: int) -> np.ndarray:
        """Tokens [N, S] before each target, at most as many as are fed."""
        full_S = length - np.arange(self.windows.n_targets - 1, -1, -1)
        context_S = np.minimum(full_S, self.evaluation.fed_length(length))
        return np.broadcast_to(context_S, self.windows.targets_NS.shape)
