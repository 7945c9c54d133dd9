"""Base class of protocols that score every token of long stretches of text.

Letters: N stretches, S targets per stretch, M all targets, W windows, K windows of one stretch,
R scored rows of a window.
"""

import math
from typing import NamedTuple

import numpy as np

from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.protocol import TEXT_KEYS, Protocol, ReadVolume, unscored_arrays
from posbench.evaluation.windows import Windows, choose_windows


class Spans(NamedTuple):
    """Windows [W]: tokens start .. start + L - 1 are fed, rows first_row .. end_row - 1
    scored.

    Row r predicts the token start + r + 1. Together the windows score each target once, in order.
    """

    start_W: np.ndarray
    first_row_W: np.ndarray
    end_row_W: np.ndarray  # behind the last scored row


class EveryTokenProtocol(Protocol):
    """Every token of long stretches is scored: `max_length` targets each, inside one document, the
    same ones at every length.

    There are evaluate.windows * train_len / max_length of them (at least one), spread evenly like
    the windows of fixed_targets. A fine-tuned run has those of its parent (evaluate.origin). A
    subclass defines in `window_spans` which windows are read, overlapping or adjacent. A window's
    tokens beyond the end of its stretch are fed but not scored, so that every window is read with
    the geometry of L tokens."""

    uses = (TEXT_KEYS - {"targets"}) | {"origin"}

    @classmethod
    def planned_windows(cls, config: EvaluateConfig, train_len: int) -> int:
        """Number of stretches to score: of as many tokens as `windows` training lengths."""
        return max(1, config.windows * (config.origin or train_len) // config.max_length)

    @classmethod
    def place_windows(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        return choose_windows(
            file,
            config.max_length,
            cls.planned_windows(config, train_len),
            n_targets=config.max_length,  # all tokens of a window
            seed=config.seed,
            documents=config.documents,
            unit=config.unit,
        )

    @classmethod
    def window_stride(cls, config: EvaluateConfig, length: int) -> int:
        """Tokens by which windows of `length` tokens advance."""
        if "stride" in cls.uses and config.stride:
            return config.stride
        return length

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Volume of reading. `fed` is less than `length` for an extension that crops the text.

        Then no window serves several targets: each piece of a window is read in blocks of targets,
        with a text of `fed` tokens for each block.
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        step = cls.window_stride(config, length)
        n_losses = n_windows * config.max_length
        if fed == length:
            n_texts = n_windows * math.ceil(config.max_length / step)
            return ReadVolume(
                n_texts, tokens_per_text=length, rows_per_text=step, total_losses=n_losses
            )
        block = cls.block_size(config, fed)
        n_whole_steps, last_step = divmod(config.max_length, step)
        n_blocks = n_whole_steps * math.ceil(step / block) + math.ceil(last_step / block)
        return ReadVolume(
            n_windows * n_blocks, tokens_per_text=fed, rows_per_text=block, total_losses=n_losses
        )

    def window_spans(self, length: int) -> Spans:
        """Windows that are read for one length."""
        raise NotImplementedError

    def spans_at_stride(self, length: int, stride: int) -> Spans:
        """Windows that advance by `stride`, of which each scores its last `stride` tokens; none
        begins before its document.
        """
        windows = self.windows
        spans = []
        for last, document in zip(windows.last_N, windows.document_N, strict=True):
            before_targets = last - windows.n_targets  # the token that predicts the first target
            document_start = int(windows.file.starts[document])
            spans += _stretch_spans(
                before_targets, document_start, windows.n_targets, length, stride
            )
        return Spans(
            *(np.concatenate(parts).astype(np.int64) for parts in zip(*spans, strict=True))
        )

    def context_lengths(self, length: int) -> np.ndarray:
        _, first_row_W, end_row_W = self.window_spans(length)
        rows = [np.arange(low, high) for low, high in zip(first_row_W, end_row_W, strict=True)]
        context_M = np.concatenate(rows) + 1
        shape = self.windows.targets_NS.shape
        return np.minimum(context_M, self.evaluation.fed_length(length)).reshape(shape)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Losses and right answers of all targets [N, S] in windows of `length`."""
        # Such as recompute_window: fewer tokens than the text has are fed for each target apart.
        has_text_for_each_target = self.evaluation.fed_length(length) < length
        if has_text_for_each_target:
            return self.score_separately(self.context_lengths(length))
        start_W, first_row_W, end_row_W = self.window_spans(length)
        count_W = end_row_W - first_row_W
        before_W = np.cumsum(count_W) - count_W  # targets that earlier windows score
        shape = self.windows.targets_NS.shape
        nll_M, correct_M = unscored_arrays(self.windows.targets_NS.size)
        plan = self.evaluation.plan(length)
        # Windows that score from the same row on are read in one batch: all but the first of a
        # document do.
        for low in np.unique(first_row_W):
            w = np.flatnonzero(first_row_W == low)
            n_rows = length - low
            nll_wR, correct_wR = self.evaluation.score_windows(
                plan, start_W[w], n_rows, self.indices_from_starts
            )
            row_R = np.arange(n_rows)
            scored_wR = row_R < count_W[w, None]  # the last window of a document may score fewer
            at = (before_W[w, None] + row_R)[scored_wR]
            nll_M[at] = nll_wR[scored_wR]
            correct_M[at] = correct_wR[scored_wR]
        return nll_M.reshape(shape), correct_M.reshape(shape)


def _stretch_spans(
    first: int, opening: int, n_targets: int, length: int, stride: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(start, first row, end row) of `Spans` for the windows [K] of the stretch whose first target
    follows the token `first`, in a document that begins with the token `opening`.
    """
    step_K = np.arange(stride, n_targets + stride, stride)
    start_K = first + step_K - length
    end_K = first + np.minimum(step_K, n_targets)
    early = int((start_K <= opening).sum())  # windows that would begin before the document
    spans = []
    if early:
        # One window from the document's first token scores the targets of all these.
        spans.append(([opening], [first - opening], [end_K[early - 1] - opening]))
    later_K = start_K[early:]
    spans.append((later_K, np.full(len(later_K), length - stride), end_K[early:] - later_K))
    return spans
