"""lceg_script: for comparison only, what Leooyii/LCEG eval_perplexity/eval_yarn.py and its siblings
compute (commit 685eb8a).

Windows of L tokens start every evaluate.stride tokens (256 there) of one long text, and all L - 1
predictions of each count: a token is scored up to L / S times, most often with less context than
was there. Windows run across the ends of documents, the last one is dropped, and the result is the
mean over batches of 32 windows of the batch's mean, a smaller last batch weighing as much. Do not
use it for conclusions: it is close to `disjoint`, with text from other documents in the context.

As there, a BOS, if there is one, is at the start of each document and nowhere else, and is
predicted like any token. The text is the stretches of yarn_script one after the other (the script
takes the first ten documents). Deviation: accuracy is the share of scored tokens, where the script
divides the hits of a batch by L alone.

The script's perplexity is 2.71828 ** loss. nll is loss x ln 2.71828, so that the column ppl =
exp(nll) holds that number; it is 7e-7 below the loss, relatively. n_targets and n_bytes count a
token each time it is scored. Arrays are [windows, L - 1] for each length, of no document, since
windows run across them: differences are of means.

References: none."""

import math

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.protocols.yarn_script import YarnScript
from posbench.evaluation.windows import BOS_INDEX, Windows

E_OF_SCRIPT = 2.71828  # as the script writes e
WINDOWS_PER_BATCH = 32  # windows of a batch of the script


class LcegScript(YarnScript):
    """One row for each length."""

    same_targets = False
    unscored_start = 0

    @classmethod
    def place_windows(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        """Choose the stretches of the text. Raises ConfigError too if one window alone fits it."""
        windows = super().place_windows(file, config, train_len)
        # Tokens of the text: the targets of each stretch and the token before them.
        size = len(windows.last_N) * (windows.n_targets + 1)
        # _window_starts would place the window at 0 alone, and drop it as the last one.
        if size - max(config.lengths) <= config.stride:
            raise ConfigError(
                "evaluate.protocol=lceg_script drops its last window and has no other at length"
                f" {max(config.lengths)}, for its text has only {size} tokens: raise"
                f" evaluate.windows={config.windows}."
            )
        return windows

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Volume of reading `n_windows` stretches as one text. `fed` is `length`: an extension that
        crops is refused (`replacement`).
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        texts = len(_window_starts(n_windows * config.max_length, length, config.stride))
        # The last row of a window is computed, but predicts a token beyond it.
        return ReadVolume(
            texts, tokens_per_text=length, rows_per_text=length, total_losses=texts * (length - 1)
        )

    @property
    def token_index_M(self) -> np.ndarray:
        """Token indices of the one text, each document with the BOS first, if there is one."""
        size = self.windows.n_targets + 1  # tokens of a document
        index_NT = self.windows.last_N[:, None] - np.arange(size)[::-1]
        return self.evaluation.with_bos_first(index_NT).ravel()

    def window_starts(self, length: int) -> np.ndarray:
        """Index in the text where each window starts: [W]."""
        size = len(self.windows.last_N) * (self.windows.n_targets + 1)
        return _window_starts(size, length, self.evaluation.config.stride)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [W, L - 1]."""
        token_index_M = self.token_index_M

        def indices_from_starts(start_n: np.ndarray, length: int) -> np.ndarray:
            return token_index_M[start_n[:, None] + np.arange(length + 1)]

        plan = self.evaluation.plan(length)
        start_W = self.window_starts(length)
        nll_WL, correct_WL = self.evaluation.score_windows(
            plan, start_W, length, indices_from_starts
        )
        # score_windows takes a target for each token that is fed. LCEG's script does not score the
        # last one, which stands after the window.
        return nll_WL[:, :-1], correct_WL[:, :-1]

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        """The row of a length, from nll and correctness [W, L - 1]."""
        windows = self.windows
        start_W = self.window_starts(length)
        # The script takes the mean over batches, so a window of a smaller last one weighs more.
        batch_W = np.arange(len(start_W)) // WINDOWS_PER_BATCH
        weight_W = len(start_W) / (batch_W[-1] + 1) / np.bincount(batch_W)[batch_W]
        # exp(loss ln E_OF_SCRIPT) is E_OF_SCRIPT ** loss, the perplexity of the script.
        loss_W = nll_NS.mean(axis=1, dtype=np.float64) * math.log(E_OF_SCRIPT)
        token_index_M = self.token_index_M
        n_bytes_M = np.asarray(windows.file.n_bytes)[token_index_M]
        bytes_M = np.where(token_index_M == BOS_INDEX, 0, n_bytes_M)
        bytes_before_M = np.concatenate([[0], np.cumsum(bytes_M, dtype=np.int64)])
        # of all tokens of a window but the first, which nothing predicts
        bytes_W = bytes_before_M[start_W + length] - bytes_before_M[start_W + 1]
        # A window counts for the stretch of its first token; the stretches follow each other.
        tokens_of_stretch = windows.n_targets + 1
        document_W = windows.document_N[start_W // tokens_of_stretch]
        return [self.mean_columns((weight_W * loss_W)[:, None], correct_NS, document_W, bytes_W)]


def _window_starts(size: int, length: int, stride: int) -> np.ndarray:
    """First token of each window [W] in a text of `size` tokens. The last window is dropped."""
    return np.arange(0, size - length, stride)[:-1]
