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

    def indices_up_to_targets(self, at_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] as in `Protocol.indices_up_to_targets`, those before the
        targets of the window in a random order. The first stays, which may be the BOS.
        """
        index_nL = super().indices_up_to_targets(at_n, length)
        n_targets = self.windows.n_targets
        seed = self.evaluation.config.seed
        for row_L, at in zip(index_nL, at_n, strict=True):
            # A row of length + 1 tokens ends with a target, and the targets before it in its window
            # keep their places as it does, and so does the token that predicts the first of them.
            n_earlier_targets = int(at % n_targets)
            end_of_shuffled = max(1, length - n_earlier_targets - 1)
            shuffled = slice(1, end_of_shuffled)
            last_of_window = int(self.windows.last_N[at // n_targets])
            # Of the window and the length alone, so that every method reads the same order.
            random = np.random.default_rng([seed, last_of_window, length])
            row_L[shuffled] = random.permutation(row_L[shuffled])
        return index_nL
