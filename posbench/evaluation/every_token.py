"""Base class of protocols that score every token of long texts with overlapping or adjacent windows.

Letters: N stretches, S targets per stretch, M all targets, W windows read, L tokens fed.
"""

import numpy as np

from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.protocol import Protocol, ReadVolume, not_scored
from posbench.evaluation.windows import Windows, choose


class EveryTokenProtocol(Protocol):
    """Every token of long stretches is scored: `max_length` targets each, inside one document, the same ones at every length.

    There are evaluate.windows * train_len / max_length of them (at least one), spread evenly like the windows of fixed_targets. A
    subclass defines in `window_bounds` which windows are read. A window's tokens beyond the end of its stretch are fed but not scored,
    so that every window is read with the geometry of L tokens.
    """

    last = False

    @classmethod
    def place(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        count = cls.count(config, train_len)
        return choose(file, config.max_length, count, config.max_length, config.seed, config.documents, config.unit)

    @classmethod
    def count(cls, config: EvaluateConfig, train_len: int) -> int:
        """Number of stretches to score."""
        return max(1, config.windows * train_len // config.max_length)

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> ReadVolume:
        count, step = cls.count(config, train_len), (config.stride if cls.strided else None) or length
        losses = count * config.max_length
        if fed == length:
            return ReadVolume(count * -(-config.max_length // step), length, step, losses)
        block, (pieces, rest) = cls.block(config, fed), divmod(config.max_length, step)
        return ReadVolume(count * (pieces * -(-step // block) + -(-rest // block)), fed, block, losses)

    def window_bounds(self, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows as arrays start, low, high [W]: tokens start .. start + L - 1 are fed and rows low .. high - 1 scored.

        Row r predicts the token start + r + 1. Together the windows score each target once, in order.
        """
        raise NotImplementedError

    def cost(self, length: int) -> int:
        return length * len(self.window_bounds(length)[0]) if self.evaluation.fed(length) == length else super().cost(length)

    def contexts(self, length: int) -> np.ndarray:
        _, low_W, high_W = self.window_bounds(length)
        context_M = np.concatenate([np.arange(low, high) + 1 for low, high in zip(low_W, high_W, strict=True)])
        return np.minimum(context_M, self.evaluation.fed(length)).reshape(self.windows.targets_NS.shape)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        evaluation, shape = self.evaluation, self.windows.targets_NS.shape
        if evaluation.fed(length) < length:
            return self.each(self.contexts(length))
        start_W, low_W, high_W = self.window_bounds(length)
        nll_M, correct_M = not_scored(self.windows.targets_NS.size)
        before_W = np.cumsum(high_W - low_W) - (high_W - low_W)
        for low in np.unique(low_W):
            of = np.flatnonzero(low_W == low)
            nll, correct = evaluation.score(evaluation.plan(length), start_W[of], length - low, self.window)
            row_R = np.arange(length - low)
            scored = row_R < (high_W - low_W)[of, None]
            at = (before_W[of, None] + row_R)[scored]
            nll_M[at], correct_M[at] = nll[scored], correct[scored]
        return nll_M.reshape(shape), correct_M.reshape(shape)
