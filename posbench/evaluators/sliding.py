"""sliding: windows of L tokens advance by evaluate.stride = S; each scores its last S tokens, with equal weight.

Every token is scored once, with L - S + 1 to L tokens before it (the first replaced by the BOS, if there is one). Near the start of a
document there are fewer, down to one, because no window crosses a document. S = 1 gives every token exactly L tokens, which at
L = train_len is the floor; S = L gives disjoint. A length costs L / S times the tokens that are scored. The default, S = train_len / 4,
gives every token at least three quarters of train_len.

The stretches of text are those of disjoint (EveryTokenProtocol) at every length. A window may begin before its stretch, but not
before its document. recompute_window gives each token its last w tokens: the floor, at every L >= w + S - 1.

References: the floor and the half window, of the same tokens.
"""

import numpy as np

from posbench.evaluation.protocol import EveryTokenProtocol


class Sliding(EveryTokenProtocol):
    """One row for each length."""

    strided = True
    floor = "sliding"

    def window_bounds(self, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        total, stride = self.windows.n_targets, self.evaluation.config.stride
        step_K = np.arange(stride, total + stride, stride)
        spans = []
        for first, document in zip(self.windows.last_N - total, self.windows.document_N, strict=True):
            opening = int(self.windows.file.starts[document])
            start_K, end_K = first + step_K - length, first + np.minimum(step_K, total)
            early = int((start_K <= opening).sum())
            if early:  # one window from the document's first token scores the targets of all these
                spans.append([[opening], [first - opening], [end_K[early - 1] - opening]])
            later_K = start_K[early:]
            spans.append([later_K, np.full(len(later_K), length - stride), end_K[early:] - later_K])
        start_W, low_W, high_W = (np.concatenate(parts).astype(np.int64) for parts in zip(*spans, strict=True))
        return start_W, low_W, high_W
