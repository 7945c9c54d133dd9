"""Base class of protocols: rows and arrays of targets, read in the protocol's windows. Each is a
module of posbench/evaluation/protocols.

Dry runs and reports read a protocol's class attributes too, so neither this module nor
posbench/evaluation/protocols imports torch.

Letters: N windows (or texts), S targets per window, M all targets, L tokens fed, B blocks.
"""

import functools
import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.windows import Windows, choose
from posbench.statistics.clustered import clustered_mean

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension

EVALUATORS = "posbench.evaluation.protocols"


@dataclass(frozen=True)
class ReadVolume:
    """Amount of reading for one length: `texts` of `tokens` each, an output for the last `rows` of
    each, and `losses` that are kept.
    """

    texts: int
    tokens: int
    rows: int
    losses: int


class Protocol:
    """Base class of protocols: the choice of windows and targets, and how they are read. A row is
    the mean over all targets.
    """

    version: ClassVar[int] = (
        1  # raised when other tokens are scored than before, so that earlier evaluations stay apart
    )
    same_targets: ClassVar[bool] = True  # every length has the same targets
    paired: ClassVar[bool] = (
        # losses are kept target by target, all weighing alike, so that differences may be taken
        True
    )
    plain: ClassVar[bool] = True  # nll is the plain mean of the losses that are kept
    strided: ClassVar[bool] = False  # windows advance by evaluate.stride
    skips: ClassVar[int] = 0  # tokens at the start of a window that are never scored
    shortest: ClassVar[int] = 1  # tokens of the shortest window that can be scored
    instead: ClassVar[str | None] = (
        # for extensions that give each target its own text, which only other protocols can use
        None
    )
    beside: ClassVar[
        tuple[str, ...]
    ] = ()  # protocols that also evaluate the same method, for comparison
    nested: ClassVar[bool] = (
        False  # a length's text is the beginning of a longer one's, and may be read as part of it
    )
    keys: ClassVar[bool] = False  # scores the targets that evaluate.key_... choose
    last: ClassVar[bool] = True  # scores the last evaluate.targets tokens of each window
    asks: ClassVar[bool] = False  # reads the questions of a task, not text
    floor: ClassVar[str | None] = (
        None  # protocol of the floor, and of the half window for G; None: no floor
    )

    def __init__(self, evaluation: "Scorer"):
        self.evaluation = evaluation
        self.windows = self.place(evaluation.file, evaluation.config, evaluation.train_len)
        self.seen: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def lengths(cls, asked: EvaluateConfig, train_len: int) -> list[int]:
        """Lengths to evaluate for those that the configuration asks for."""
        return asked.lengths

    @classmethod
    def settings(cls, asked: EvaluateConfig, train_len: int) -> dict:
        """Settings of `evaluate` that other protocols do not use, with their defaults."""
        return {}

    @classmethod
    def version_of(cls, evaluate: EvaluateConfig) -> int:
        """Version of what is read and scored under the resolved settings of an evaluation."""
        return cls.version

    @classmethod
    def check(cls, extension: "Extension", config: EvaluateConfig, train_len: int) -> None:
        """Check the settings before text or model is loaded. Raises ConfigError for those that
        cannot work.
        """
        from posbench.position.legality import fed_length, name_of

        least = min(config.lengths)
        if least < cls.shortest:
            raise ConfigError(
                f"evaluate.lengths={config.lengths} holds {least}, and the scripts' windows of one"
                f" token predict nothing: leave out lengths below {cls.shortest}."
            )
        if cls.last:
            config.check_room()
        if cls.instead and any(
            fed_length(extension, train_len, length) < length for length in config.lengths
        ):
            raise ConfigError(
                f"evaluate.protocol={name_of(cls)} reads one text at once, which"
                f" extension={name_of(extension)} never does: use"
                f" 'evaluate.protocol=[{cls.instead}]'."
            )
        if cls.strided and config.stride > (most := least - cls.skips):
            raise ConfigError(
                f"evaluate.stride={config.stride} leaves tokens unscored between windows at the"
                f" shortest of evaluate.lengths={config.lengths}: set evaluate.stride to {most} or"
                " less, or leave out the shorter lengths."
            )

    @classmethod
    def place(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        """Choose the windows and their targets. Raises ConfigError, before any training, if the
        documents are too short.
        """
        return choose(
            file,
            config.max_length,
            config.windows,
            config.targets,
            config.seed,
            config.documents,
            config.unit,
        )

    @classmethod
    def check_text(cls, corpus: "Corpus", config: EvaluateConfig, train_len: int) -> None:
        """Check, before any training, that a text has room for what is read. Raises ConfigError."""
        cls.place(getattr(corpus, config.split), config, train_len)

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> ReadVolume:
        """Upper bound of the reading for one length, known without text. `fed` is below `length` if
        each target has its own text.
        """
        losses = config.windows * config.targets
        if fed == length:
            return ReadVolume(config.windows, length, config.targets, losses)
        block = cls.block(config, fed)
        return ReadVolume(config.windows * -(-config.targets // block), fed, block, losses)

    @classmethod
    def reading_first(cls, config: EvaluateConfig, train_len: int) -> list[ReadVolume]:
        """Upper bound of what is read once, before the first length and for all of them, known
        without text.
        """
        return []

    @staticmethod
    def block(config: EvaluateConfig, fed: int) -> int:
        """Largest number of targets that share a text of `fed` tokens: floor_block, but at most an
        eighth of the text.
        """
        return max(1, min(config.floor_block or 1, fed // 8))

    def texts(self, lengths: list[int]) -> dict[int, list[int]]:
        """{length of a text that is read: the lengths that are evaluated by it, the longest first},
        for `lengths` together.
        """
        if not self.nested:
            return {length: [length] for length in lengths}
        from posbench.position.effect import shared_texts

        return shared_texts(self.evaluation.plan, lengths)

    def cost(self, length: int) -> int:
        """Upper bound of the tokens that the model reads for one length."""
        fed = self.evaluation.fed(length)
        return fed * (
            len(self.windows.last_N)
            if fed == length
            else len(self.blocks(self.contexts(length))[0])
        )

    def cost_first(self) -> int:
        """Tokens that the model has yet to read before the first length."""
        return 0

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, S] of the targets."""
        raise NotImplementedError

    def weights(self, length: int) -> np.ndarray | float:
        """Weights of a window's targets in the mean: [S], 1 on average."""
        return 1.0

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Evaluate one length. Returns the values of its rows, and arrays nll and correct: [N * S]
        if `paired`, else [N, S].
        """
        evaluation = self.evaluation
        with evaluation.measured() as spent:
            nll_NS, correct_NS = self.score(length)
            rows = self.rows(length, nll_NS, correct_NS)
        spent["max_distance"] = evaluation.max_distance(evaluation.plan(evaluation.fed(length)))
        arrays = {"nll": nll_NS.astype(np.float32), "correct": correct_NS}
        if self.paired:
            arrays = {name: array.ravel() for name, array in arrays.items()}
        return [{**row, **spent} for row in rows], arrays

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        """Columns of the rows of one length that are computed from its targets."""
        bytes_NS = np.asarray(self.windows.file.n_bytes)[self.windows.targets_NS]
        return [
            self.mean(
                nll_NS.astype(np.float64) * self.weights(length),
                correct_NS,
                self.windows.document_N,
                bytes_NS,
            )
        ]

    def mean(
        self, nll_NS: np.ndarray, correct: np.ndarray, document_N: np.ndarray, n_bytes: np.ndarray
    ) -> dict:
        """Columns of `mean_row` for texts of the documents document_N, in the units of intervals
        that the configuration names.
        """
        return mean_row(
            nll_NS, correct, self.windows.unit_D[document_N], n_bytes, self.evaluation.config.unit
        )

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [N * S] that all lengths share."""
        windows = self.windows
        return {
            "bytes": np.asarray(windows.file.n_bytes)[windows.targets_NS].ravel(),
            "document": np.repeat(windows.document_N, windows.n_targets),
            "offset": windows.offset_NS().ravel(),
        }

    def known(self) -> dict[str, dict]:
        """Facts about the texts of the length that `run` read last, which the evaluation's json
        keeps by length.
        """
        return {}

    def stated(self) -> dict:
        """Facts about the targets that the evaluation's json states beside its settings."""
        return {}

    def index(self, at_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] of texts that each end with a target; at_n are the targets'
        indices among all M.
        """
        return self.evaluation.opened(
            self.windows.targets_NS.ravel()[at_n][:, None] + np.arange(-length, 1)
        )

    def window(self, start_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] of the windows that start at start_n. Past the end of the
        file its last token is repeated.
        """
        return self.evaluation.opened(
            np.minimum(start_n[:, None] + np.arange(length + 1), len(self.windows.file.tokens) - 1)
        )

    def contexts(self, length: int) -> np.ndarray:
        """Tokens [N, S] before each target, if the extension gives each a text of its own."""
        raise NotImplementedError

    def blocks(self, context_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Blocks of consecutive targets that share a text: index of the last among all M targets,
        and number of targets, both [B].

        context_NS holds the tokens before each target. A block is as large as allowed. It lies in
        one window, and ends where the context shrinks, so that no target gets more than its own.
        """
        size = self.block(self.evaluation.config, int(context_NS.max()))
        at_M = np.arange(context_NS.size)
        opens_NS = np.diff(context_NS, axis=1, prepend=context_NS[:, :1]) < 0
        opens_NS[:, 0] = True
        within_M = at_M - np.maximum.accumulate(np.where(opens_NS.ravel(), at_M, 0))
        first_B = np.flatnonzero(within_M % size == 0)
        size_B = np.diff(first_B, append=context_NS.size)
        return first_B + size_B - 1, size_B

    def each(self, context_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, S], each target read from a text of its own with context_NS
        tokens before it.

        In blocks of several targets the last has these tokens before it, and every other one fewer
        for each target that follows it."""
        key = context_NS.tobytes()
        if (
            key not in self.seen
        ):  # above the crop every length feeds the same tokens, so they are read once
            nll_M, correct_M = not_scored(context_NS.size)
            last_B, size_B = self.blocks(context_NS)
            kind_B2 = np.stack([context_NS.ravel()[last_B], size_B], axis=1)
            for context, size in np.unique(kind_B2, axis=0).tolist():
                last_b = last_B[(kind_B2 == (context, size)).all(axis=1)]
                at = last_b[:, None] + np.arange(1 - size, 1)
                nll_M[at], correct_M[at] = self.evaluation.score(
                    self.evaluation.plan(context), last_b, size, self.index
                )
            self.seen[key] = nll_M.reshape(context_NS.shape), correct_M.reshape(context_NS.shape)
        return self.seen[key]


def not_scored(n_targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Initial nll and correctness [M]: False, and nan, so that a target that is never scored makes
    its row nan.
    """
    return np.full(n_targets, np.nan, np.float32), np.zeros(n_targets, bool)


def mean_row(
    nll_NS: np.ndarray,
    correct: np.ndarray,
    unit_N: np.ndarray,
    n_bytes: np.ndarray,
    unit: str = "document",
) -> dict:
    """Columns of a row from weighted losses of texts that belong to the units unit_N, and from all
    that was predicted.
    """
    mean, sem, n_units = clustered_mean(
        nll_NS.ravel().astype(np.float64), np.repeat(unit_N, nll_NS.shape[1])
    )
    found = {
        "nll": mean,
        "nll_sem": sem,
        "n_units": n_units,
        "sem_unit": unit,
        "accuracy": float(correct.mean()),
    }
    return {**found, "n_targets": correct.size, "n_bytes": int(n_bytes.sum())}


class EveryTokenProtocol(Protocol):
    """Every token of long stretches is scored: `max_length` targets each, inside one document, the
    same ones at every length.

    There are evaluate.windows * train_len / max_length of them (at least one), spread evenly like
    the windows of fixed_targets. A subclass defines in `window_bounds` which windows are read,
    overlapping or adjacent. A window's tokens beyond the end of its stretch are fed but not scored,
    so that every window is read with the geometry of L tokens. Letters: N stretches, W windows."""

    last = False

    @classmethod
    def place(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        count = cls.count(config, train_len)
        return choose(
            file,
            config.max_length,
            count,
            config.max_length,
            config.seed,
            config.documents,
            config.unit,
        )

    @classmethod
    def count(cls, config: EvaluateConfig, train_len: int) -> int:
        """Number of stretches to score."""
        return max(1, config.windows * train_len // config.max_length)

    @classmethod
    def advance(cls, config: EvaluateConfig, length: int) -> int:
        """Tokens by which windows of `length` tokens advance."""
        return (config.stride if cls.strided else None) or length

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> ReadVolume:
        count, step = cls.count(config, train_len), cls.advance(config, length)
        losses = count * config.max_length
        if fed == length:
            return ReadVolume(count * -(-config.max_length // step), length, step, losses)
        block, (pieces, rest) = cls.block(config, fed), divmod(config.max_length, step)
        return ReadVolume(
            count * (pieces * -(-step // block) + -(-rest // block)), fed, block, losses
        )

    def window_bounds(self, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows as arrays start, low, high [W]: tokens start .. start + L - 1 are fed and rows
        low .. high - 1 scored.

        Row r predicts the token start + r + 1. Together the windows score each target once, in
        order."""
        raise NotImplementedError

    def advancing(self, length: int, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows that advance by `stride`, of which each scores its last `stride` tokens; none
        begins before its document.
        """
        total = self.windows.n_targets
        step_K = np.arange(stride, total + stride, stride)
        spans = []
        for first, document in zip(
            self.windows.last_N - total, self.windows.document_N, strict=True
        ):
            opening = int(self.windows.file.starts[document])
            start_K, end_K = first + step_K - length, first + np.minimum(step_K, total)
            early = int((start_K <= opening).sum())
            if early:  # one window from the document's first token scores the targets of all these
                spans.append([[opening], [first - opening], [end_K[early - 1] - opening]])
            later_K = start_K[early:]
            spans.append([later_K, np.full(len(later_K), length - stride), end_K[early:] - later_K])
        start_W, low_W, high_W = (
            np.concatenate(parts).astype(np.int64) for parts in zip(*spans, strict=True)
        )
        return start_W, low_W, high_W

    def cost(self, length: int) -> int:
        return (
            length * len(self.window_bounds(length)[0])
            if self.evaluation.fed(length) == length
            else super().cost(length)
        )

    def contexts(self, length: int) -> np.ndarray:
        _, low_W, high_W = self.window_bounds(length)
        context_M = np.concatenate(
            [np.arange(low, high) + 1 for low, high in zip(low_W, high_W, strict=True)]
        )
        return np.minimum(context_M, self.evaluation.fed(length)).reshape(
            self.windows.targets_NS.shape
        )

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        evaluation, shape = self.evaluation, self.windows.targets_NS.shape
        if evaluation.fed(length) < length:
            return self.each(self.contexts(length))
        start_W, low_W, high_W = self.window_bounds(length)
        nll_M, correct_M = not_scored(self.windows.targets_NS.size)
        before_W = np.cumsum(high_W - low_W) - (high_W - low_W)
        for low in np.unique(low_W):
            of = np.flatnonzero(low_W == low)
            nll, correct = evaluation.score(
                evaluation.plan(length), start_W[of], length - low, self.window
            )
            row_R = np.arange(length - low)
            scored = row_R < (high_W - low_W)[of, None]
            at = (before_W[of, None] + row_R)[scored]
            nll_M[at], correct_M[at] = nll[scored], correct[scored]
        return nll_M.reshape(shape), correct_M.reshape(shape)


def protocol(name: str) -> type[Protocol]:
    """Class of a protocol, such as FixedTargets of fixed_targets. Raises ConfigError for an unknown
    name.
    """
    found = known(name)
    if found is None:
        raise ConfigError(
            f"evaluate.protocol={name} is unknown: choose from {', '.join(protocol_names())}."
        )
    return found


@functools.cache
def known(name: str) -> type[Protocol] | None:
    """Class of a protocol, None for an unknown name: a row may come from other software."""
    if name not in protocol_names():
        return None
    module = importlib.import_module(f"{EVALUATORS}.{name}")
    return getattr(module, "".join(part.title() for part in name.split("_")))


def protocol_names() -> list[str]:
    """Names of all protocols."""
    return [
        module.name for module in pkgutil.iter_modules(importlib.import_module(EVALUATORS).__path__)
    ]
