"""shuffled_prefix: fixed_targets with a shuffled context; the rise of the loss is the model's gain
from order.

Windows, targets, lengths and tokens are those of fixed_targets, but the fed tokens are shuffled by
a seeded permutation of their own window. The first token (the BOS, if there is one) and the last S
keep their places, so the n-th target still follows the n tokens before it, and with
evaluate.targets=1 only the current token keeps its place. The protocol answers if a model without
position encoding, which has only the causal mask, uses the order of its context.

The permutation depends on evaluate.seed, the window and L alone, so every method sees the same
text. recompute_window shuffles each target's own w tokens, with the same n tokens in place.

References: fixed_targets of the same method, the same tokens in order (losses pair by document and
offset), and its floor and G."""

import numpy as np

from posbench.evaluation.protocols.fixed_targets import FixedTargets


class ShuffledPrefix(FixedTargets):
    """One row for each length."""

    also_scores = ("fixed_targets",)

    def index(self, at_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices as in `Protocol.index`, those before the targets in a random order. The
        first one stays, which may be the BOS.
        """
        index_nL = super().index(at_n, length)
        n_targets = self.windows.n_targets
        seed = self.evaluation.config.seed
        for row_L, at in zip(index_nL, at_n, strict=True):
            # A whole window ends with its last target and keeps S tokens. A target's own text keeps
            # the tokens that it would keep there.
            moved = slice(1, max(1, length - int(at % n_targets) - 1))
            window = int(self.windows.last_N[at // n_targets])
            random = np.random.default_rng([seed, window, length])
            row_L[moved] = random.permutation(row_L[moved])
        return index_nL
