"""yarn_script: for comparison only, what jquesnelle/yarn eval/perplexity.py computes (commit
b1d7076), the "sliding window" of its paper.

Windows of L tokens advance by evaluate.stride (256 there) and score the tokens that no window
before them scored, but the result is the mean over windows of each window's mean: the first window,
L - 1 tokens most of which have short contexts, weighs as much as a window of S tokens. Do not use
it for conclusions: tokens weigh unequally, by an amount that changes with L. `sliding` weighs them
alike. S is below every L, for a window predicts all its tokens but the first.

As there, a window is L tokens, the first replaced by the BOS if there is one. The last of them
predicts nothing, so a target has at most L - 1 tokens before it. The last window ends with the
text. Documents are stretches of max_length tokens (EveryTokenProtocol), as in disjoint and sliding.
Set evaluate.max_length well above the longest length, because at L = max_length there is only one
window. Deviation: the last window, which is shorter, is read with the geometry of L; a dynamic
method would see its own length there.

nll is that mean of means and ppl = exp(nll) the script's perplexity; bpb divides that nll by the
bytes of a token; accuracy weighs tokens alike. Arrays are [N, max_length - 1] for each length.
References: none."""

from dataclasses import replace

import numpy as np

from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.every_token import EveryTokenProtocol, Spans
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.windows import Windows


class YarnScript(EveryTokenProtocol):
    """One row for each length."""

    uses = (EveryTokenProtocol.uses | {"stride"}) - {"floor_block"}
    paired = False
    plain_mean = False
    unscored_start = 1
    shortest = 2
    replacement = "sliding"

    @classmethod
    def place_windows(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        stretches = super().place_windows(file, config, train_len)
        # A document of max_length tokens, its first (or the BOS) included: so many fit one window
        # of L = max_length.
        return replace(stretches, last_N=stretches.last_N - 1, n_targets=stretches.n_targets - 1)

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Volume of reading. `fed` is `length`: an extension that crops is refused
        (`replacement`).
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        step = config.stride or length  # without a stride, windows that do not overlap
        texts = n_windows * len(_window_starts(config.max_length, length, step))
        # Of each stretch of max_length tokens the first is never predicted.
        n_losses = n_windows * (config.max_length - 1)
        return ReadVolume(texts, tokens_per_text=length, rows_per_text=step, total_losses=n_losses)

    def window_spans(self, length: int) -> Spans:
        """Windows that the script reads, each with the rows that no window before it has scored."""
        first_N = self.windows.last_N - self.windows.n_targets
        start_K, end_K = self._window_bounds(length)
        scored_K = np.concatenate([[0], end_K[:-1]])  # tokens that the windows before have scored
        # Row r predicts token r + 1 of a window: the first token of the first one has no row.
        low_K = np.maximum(0, scored_K - start_K - 1)
        high_K = end_K - start_K - 1
        start_NK = start_K + first_N[:, None]
        spans = (np.broadcast_to(part, start_NK.shape) for part in (start_NK, low_K, high_K))
        return Spans(*(part.ravel() for part in spans))

    def target_weights(self, length: int) -> np.ndarray:
        _, end_K = self._window_bounds(length)
        new_K = np.diff(end_K, prepend=1)  # targets that each window scores
        return np.repeat(self.windows.n_targets / len(new_K) / new_K, new_K)

    def _window_bounds(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """First token and end of each window of one document. The last window ends with the
        document.
        """
        size = self.windows.n_targets + 1
        start_K = _window_starts(size, length, self.evaluation.config.stride or length)
        return start_K, np.minimum(start_K + length, size)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Arrays [N]: the documents, and the position of the first target in each."""
        return {"document": self.windows.document_N, "offset": self.windows.offset_NS()[:, 0]}


def _window_starts(size: int, length: int, stride: int) -> np.ndarray:
    """First token of each window [K] of a document of `size` tokens."""
    return stride * np.arange(1 + -(-(size - length) // stride))
