"""What protocols share: the targets' rows and arrays, and the reading of targets in windows of their own or in long stretches.

What a protocol says of itself is read by plans and reports too, so neither this module nor posbench/evaluators imports torch.

Letters: N windows, S targets per window, M all targets, W windows read, L tokens fed.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.evaluation.windows import Windows, choose
from posbench.statistics.clustered import clustered_mean

if TYPE_CHECKING:
    from posbench.config.schema import EvaluateConfig
    from posbench.data.tokenfile import TokenFile
    from posbench.evaluation.scorer import Evaluation
    from posbench.position.interfaces import Extension


EVALUATORS = "posbench.evaluators"  # found by name: a protocol needs no list


@dataclass(frozen=True)
class Reading:
    """What the model reads for one length: so many texts of so many tokens, the last `rows` of each with an output; losses are kept."""

    texts: int
    tokens: int
    rows: int
    losses: int


class Protocol:
    """Chooses windows and targets and how they are read; a row is the mean over all targets. Each is a file of posbench/evaluators."""

    same_targets: ClassVar[bool] = True  # at every length
    paired: ClassVar[bool] = True  # and they weigh alike: differences of lengths and methods may be taken target by target
    strided: ClassVar[bool] = False  # windows advance by evaluate.stride
    beside: ClassVar[tuple[str, ...]] = ()  # protocols that the same method is evaluated by too, to compare with
    floor: ClassVar[str | None] = None  # protocol of the floor, and of the half window behind G

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation
        self.windows = self.place(evaluation.file, evaluation.config, evaluation.train_len)
        self.seen: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def lengths(cls, asked: list[int], train_len: int) -> list[int]:
        """Those to evaluate where some are asked for."""
        return asked

    @classmethod
    def check(cls, extension: Extension, config: EvaluateConfig, train_len: int) -> None:
        """Raises ConfigError for what can be told without text or model."""

    @classmethod
    def place(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        """The windows and their targets. Raises ConfigError, before any training, where the documents are too short."""
        return choose(file, config.max_length, config.windows, config.targets, config.seed, config.documents)

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> Reading:
        """What one length takes at most, told without text; `fed` is below `length` where each target has a text of its own."""
        losses = config.windows * config.targets
        return Reading(config.windows, length, config.targets, losses) if fed == length else Reading(losses, fed, 1, losses)

    @property
    def whole_N(self) -> np.ndarray:
        """The number of each window's last target among all M."""
        return np.arange(1, len(self.windows.last_N) + 1) * self.windows.n_targets - 1

    def cost(self, length: int) -> int:
        """Tokens the model reads for one length, at most."""
        fed = self.evaluation.fed(length)
        return fed * (len(self.windows.last_N) if fed == length else self.windows.targets_NS.size)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, S] of the targets."""
        raise NotImplementedError

    def weights(self, length: int) -> np.ndarray | float:
        """What the targets of a window weigh in the mean [S], 1 on average."""
        return 1.0

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Values of the rows of one length; arrays nll and correct [N * S], or [N, S] where they do not pair."""
        arrays: dict[str, np.ndarray] = {}
        evaluation = self.evaluation

        def call() -> dict:
            nll_NS, correct_NS = self.score(length)
            arrays.update(nll=nll_NS.astype(np.float32), correct=correct_NS)
            if self.paired:
                arrays.update({name: array.ravel() for name, array in arrays.items()})
            return self.values(nll_NS.astype(np.float64) * self.weights(length), correct_NS)

        values = evaluation.measured(call)
        return [{**values, "max_distance": evaluation.max_distance(evaluation.plan(evaluation.fed(length)))}], arrays

    def values(self, nll_NS: np.ndarray, correct_NS: np.ndarray) -> dict:
        """The columns of a row that speak of targets."""
        target_NS = self.windows.targets_NS
        nll, sem, n_units = clustered_mean(nll_NS.ravel(), np.repeat(self.windows.document_N, target_NS.shape[1]))
        n_bytes = int(np.asarray(self.windows.file.n_bytes)[target_NS].sum())
        found = {"nll": nll, "nll_sem": sem, "n_units": n_units, "sem_unit": "document", "accuracy": float(correct_NS.mean())}
        return {**found, "n_targets": target_NS.size, "n_bytes": n_bytes}

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [N * S] that all lengths share."""
        windows = self.windows
        return {
            "bytes": np.asarray(windows.file.n_bytes)[windows.targets_NS].ravel(),
            "document": np.repeat(windows.document_N, windows.n_targets),
            "offset": windows.offset_NS().ravel(),
        }

    def index(self, at_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] of the texts that end with some targets, by their numbers among all M."""
        return self.evaluation.opened(self.windows.targets_NS.ravel()[at_n][:, None] + np.arange(-length, 1))

    def each(self, context_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, S], each target read from a text of its own with so many tokens before it."""
        key = context_NS.tobytes()
        if key not in self.seen:  # beyond a crop every length feeds the same tokens: read once
            nll_M, correct_M = not_scored(context_NS.size)
            for context in np.unique(context_NS):
                at = np.flatnonzero(context_NS == context)
                nll, correct = self.evaluation.score(self.evaluation.plan(int(context)), at, 1, self.index)
                nll_M[at], correct_M[at] = nll[:, 0], correct[:, 0]
            self.seen[key] = nll_M.reshape(context_NS.shape), correct_M.reshape(context_NS.shape)
        return self.seen[key]


class Stretches(Protocol):
    """Every token of long stretches is scored: `max_length` targets each, inside one document, the same ones at every length.

    There are as many as hold `evaluate.windows` windows of the training length (at least one), spread evenly like the windows of
    fixed_targets. A subclass says in `spans` which windows are read. What hangs over the end of a stretch is fed and not scored, so that
    every window is read with the geometry of L tokens.
    """

    @classmethod
    def place(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        return choose(file, config.max_length, cls.count(config, train_len), config.max_length, config.seed, config.documents)

    @classmethod
    def count(cls, config: EvaluateConfig, train_len: int) -> int:
        """How many stretches are asked for."""
        return max(1, config.windows * train_len // config.max_length)

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> Reading:
        count, step = cls.count(config, train_len), (config.stride if cls.strided else None) or length
        losses = count * config.max_length
        whole = Reading(count * -(-config.max_length // step), length, step, losses)
        return whole if fed == length else Reading(losses, fed, 1, losses)

    def spans(self, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """start, low, high [W]: tokens start .. start + L - 1 are fed and rows low .. high - 1 scored, row r the token start + r + 1.

        Together they score each target once, in order.
        """
        raise NotImplementedError

    def cost(self, length: int) -> int:
        fed = self.evaluation.fed(length)
        return fed * (len(self.spans(length)[0]) if fed == length else self.windows.targets_NS.size)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        evaluation, shape = self.evaluation, self.windows.targets_NS.shape
        start_W, low_W, high_W = self.spans(length)
        fed = evaluation.fed(length)
        if fed < length:
            context_M = np.concatenate([np.arange(low, high) + 1 for low, high in zip(low_W, high_W, strict=True)])
            return self.each(np.minimum(context_M, fed).reshape(shape))
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

    def window(self, start_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] of the windows that start there; behind the last token of the file it stands again, unscored."""
        return self.evaluation.opened(np.minimum(start_n[:, None] + np.arange(length + 1), len(self.windows.file.tokens) - 1))


def not_scored(n_targets: int) -> tuple[np.ndarray, np.ndarray]:
    """nll and correctness [M] before any target is scored: nan, which no row is made of, and False."""
    return np.full(n_targets, np.nan, np.float32), np.zeros(n_targets, bool)


def check_stride(config: EvaluateConfig) -> None:
    """Raises ConfigError where windows that advance by evaluate.stride would leave tokens out."""
    if config.stride > min(config.lengths):
        raise ConfigError(
            f"evaluate.stride={config.stride} is more than the shortest of evaluate.lengths={config.lengths}, so tokens between windows "
            f"would not be scored: set evaluate.stride to {min(config.lengths)} or less, or leave out the shorter lengths."
        )


def check_whole(cls: type[Protocol], extension: Extension, config: EvaluateConfig, train_len: int, instead: str) -> None:
    """Raises ConfigError where the extension gives each target a text of its own, which the protocol never does."""
    from posbench.position.legality import fed_length, name_of

    if any(fed_length(extension, train_len, length) < length for length in config.lengths):
        raise ConfigError(
            f"evaluate.protocol={name_of(cls)} reads one text at once, which extension={name_of(extension)} never does: "
            f"use 'evaluate.protocol=[{instead}]'."
        )


def protocol(name: str) -> type[Protocol]:
    """The evaluator of a protocol: class FixedTargets of posbench.evaluators.fixed_targets. Raises ConfigError for an unknown one."""
    found = known(name)
    if found is None:
        raise ConfigError(f"evaluate.protocol={name} is unknown: choose from {', '.join(_names())}.")
    return found


@functools.cache
def known(name: str) -> type[Protocol] | None:
    """The same, None for an unknown one: a row may come from elsewhere."""
    if name not in _names():
        return None
    module = importlib.import_module(f"{EVALUATORS}.{name}")
    return getattr(module, "".join(part.title() for part in name.split("_")))


def _names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(importlib.import_module(EVALUATORS).__path__)]
