"""Base class of protocols: rows and arrays of targets, read in the protocol's windows.

Each protocol is a module of posbench/evaluation/protocols, or of a folder of the user's: see
posbench/evaluation/registry.py. Dry runs and reports read a protocol's class attributes too, so
neither this module nor posbench/evaluation/protocols imports torch.

Letters: N windows (or texts), S targets per window, M all targets, L tokens fed, B blocks.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.config.typed_args import typed_arguments
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.windows import Windows, choose_windows
from posbench.statistics.clustered import clustered_mean

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension

TEXT_KEYS = frozenset({"targets", "documents", "unit", "floor_block"})
QUESTION_KEYS = frozenset({"tasks", "chat", "rivals"})
KEY_TOKEN_KEYS = frozenset({"key_gain", "key_loss", "key_context", "key_run"})
# {key of evaluate: its value in the settings of a protocol that does not use it}. `targets` is not
# among them: it has always been a part of the ids of all protocols that read text.
UNUSED: dict[str, Any] = {
    "stride": None,
    "origin": None,
    "floor_block": 1,
    "documents": None,
    "unit": "document",
    "tasks": None,
    "chat": False,
    "rivals": 0,
    **dict.fromkeys(sorted(KEY_TOKEN_KEYS)),
}


@dataclass(frozen=True)
class ReadVolume:
    """Amount of reading for one length: texts, an output for the last `rows_per_text` of each, and
    the number of losses that are kept of all texts together.
    """

    texts: int
    tokens_per_text: int
    rows_per_text: int
    total_losses: int

    @property
    def total_tokens(self) -> int:
        """Tokens of all texts."""
        return self.texts * self.tokens_per_text


class Protocol:
    """Base class of protocols: the choice of windows and targets, and how they are read.

    A row is the mean over all targets.
    """

    # Raised when other tokens are scored than before, so that earlier evaluations stay apart.
    version: ClassVar[int] = 1
    # Keys of `evaluate` that the protocol uses, of those that not all protocols use.
    uses: ClassVar[frozenset[str]] = TEXT_KEYS
    # A dataclass of further settings, which a user gives as evaluate.settings={KEY: VALUE}.
    Settings: ClassVar[type | None] = None
    # Reads the questions of a task, not text.
    needs_questions: ClassVar[bool] = False
    # Every length has the same targets.
    same_targets: ClassVar[bool] = True
    # Losses are kept target by target, all weighing alike, so that differences may be taken.
    paired: ClassVar[bool] = True
    # nll is the plain mean of the losses that are kept.
    plain_mean: ClassVar[bool] = True
    # Tokens at the start of a window that are never scored.
    unscored_start: ClassVar[int] = 0
    # Tokens of the shortest window that can be scored.
    shortest: ClassVar[int] = 1
    # Protocol to use instead with an extension that gives each target its own text; None: this one.
    replacement: ClassVar[str | None] = None
    # Protocols that also evaluate the same method, for comparison.
    also_scores: ClassVar[tuple[str, ...]] = ()
    # A length's text is the beginning of a longer one's, and may be read as part of it.
    nested: ClassVar[bool] = False
    # Protocol of the floor, and of the half window for G; None: no floor.
    floor: ClassVar[str | None] = None

    def __init__(self, evaluation: "Scorer"):
        self.evaluation = evaluation
        self.windows = self.place_windows(evaluation.file, evaluation.config, evaluation.train_len)
        # {context_NS as bytes: nll and correctness [N, S]}, see `score_separately`
        self.separate_scores: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def lengths(cls, evaluate: EvaluateConfig, train_len: int) -> list[int]:
        """Lengths to evaluate for those that the configuration asks for."""
        return evaluate.lengths

    @classmethod
    def defaults(cls, evaluate: EvaluateConfig, train_len: int) -> dict[str, Any]:
        """{key of `evaluate`: value} of the keys that only this protocol fills in."""
        return {}

    @classmethod
    def resolve(cls, evaluate: EvaluateConfig, train_len: int) -> EvaluateConfig:
        """Settings of an evaluation by this protocol: its own lengths, and no keys it has no use
        for, so that these change no id.
        """
        values = {key: value for key, value in UNUSED.items() if key not in cls.uses}
        if cls.needs_questions:
            values |= {"targets": None, "max_length": None}
        if "stride" in cls.uses:
            # Then a scored token has three quarters of the training length before it, or more.
            values["stride"] = evaluate.stride or max(1, (evaluate.origin or train_len) // 4)
        values["lengths"] = cls.lengths(evaluate, train_len)
        values["settings"] = cls.typed_settings(evaluate)
        return replace(evaluate, **values | cls.defaults(evaluate, train_len))

    @classmethod
    def typed_settings(cls, evaluate: EvaluateConfig) -> dict[str, Any] | None:
        """{field of `Settings`: value}, defaults included; None for a protocol without any.

        Raises ConfigError for a value of the wrong type.
        """
        if cls.Settings is None:
            return None
        names = cls.setting_names()
        # Other keys are of other protocols of the same command; unknown ones are refused before.
        chosen = {key: value for key, value in (evaluate.settings or {}).items() if key in names}
        return vars(cls.Settings(**typed_arguments("evaluate.settings", cls.Settings, chosen)))

    @classmethod
    def setting_names(cls) -> list[str]:
        """Keys of evaluate.settings that the protocol uses."""
        return [field.name for field in fields(cls.Settings)] if cls.Settings else []

    @property
    def settings(self) -> Any:
        """Instance of `Settings` with the values of the evaluation."""
        return self.Settings(**self.evaluation.config.settings)

    @classmethod
    def version_of(cls, evaluate: EvaluateConfig) -> int:
        """Version of what is read and scored under the resolved settings of an evaluation."""
        return cls.version

    @classmethod
    def check(cls, extension: "Extension", config: EvaluateConfig, train_len: int) -> None:
        """Check the settings before text or model is loaded. Raises ConfigError for those that
        cannot work.
        """
        least = min(config.lengths)
        if least < cls.shortest:
            raise ConfigError(
                f"evaluate.lengths={config.lengths} holds {least}, and the scripts' windows of one"
                f" token predict nothing: leave out lengths below {cls.shortest}."
            )
        if "targets" in cls.uses:
            config.check_room()
        # A protocol that reads a whole text at once names another, for extensions that cannot.
        if cls.replacement:
            cls._check_whole_texts(extension, config, train_len)
        longest_stride = least - cls.unscored_start
        if "stride" in cls.uses and config.stride > longest_stride:
            raise ConfigError(
                f"evaluate.stride={config.stride} leaves tokens unscored between windows at the"
                f" shortest of evaluate.lengths={config.lengths}: set evaluate.stride to"
                f" {longest_stride} or less, or leave out the shorter lengths."
            )

    @classmethod
    def _check_whole_texts(
        cls, extension: "Extension", config: EvaluateConfig, train_len: int
    ) -> None:
        """Raise ConfigError for an extension that gives each target its own text."""
        from posbench.position.legality import fed_length, name_of

        for length in config.lengths:
            if fed_length(extension, train_len, length) < length:
                raise ConfigError(
                    f"evaluate.protocol={name_of(cls)} reads one text at once, which"
                    f" extension={name_of(extension)} never does: use"
                    f" 'evaluate.protocol=[{cls.replacement}]'."
                )

    @classmethod
    def check_text(cls, corpus: "Corpus", config: EvaluateConfig, train_len: int) -> None:
        """Check, before any training, that a text has room for what is read. Raises ConfigError."""
        cls.place_windows(getattr(corpus, config.split), config, train_len)

    @classmethod
    def planned_windows(cls, config: EvaluateConfig, train_len: int) -> int:
        """Number of windows to place. A short text has room for fewer."""
        return config.windows

    @classmethod
    def place_windows(cls, file: TokenFile, config: EvaluateConfig, train_len: int) -> Windows:
        """Choose the windows and their targets. Raises ConfigError, before any training, if the
        documents are too short.
        """
        return choose_windows(
            file,
            max_length=config.max_length,
            windows=cls.planned_windows(config, train_len),
            n_targets=config.targets,
            seed=config.seed,
            documents=config.documents,
            unit=config.unit,
        )

    def n_windows(self, length: int) -> int:
        """Number of windows that were placed."""
        return len(self.windows.last_N)

    def lengths_by_text(self, lengths: list[int]) -> dict[int, list[int]]:
        """{length of a text that is read: the lengths that are evaluated by it, the longest first},
        for `lengths` together.
        """
        if not self.nested:  # the text of no length is the beginning of another's
            return {length: [length] for length in lengths}
        from posbench.position.effect import shared_texts

        return shared_texts(self.evaluation.plan, lengths)

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Upper bound of the reading for one length. `fed` is below `length` if each target has
        its own text. Without `n_windows`, before there is text, all that are planned.
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        losses = n_windows * config.targets
        if fed == length:
            return ReadVolume(
                n_windows, tokens_per_text=length, rows_per_text=config.targets, total_losses=losses
            )
        block = cls.block_size(config, fed)
        texts = n_windows * _ceil_div(config.targets, block)
        return ReadVolume(texts, tokens_per_text=fed, rows_per_text=block, total_losses=losses)

    @classmethod
    def read_volumes_first(
        cls, config: EvaluateConfig, train_len: int, n_windows: int | None = None
    ) -> list[ReadVolume]:
        """Upper bound of what is read once, before the first length and for all of them."""
        return []

    def tokens_to_read(self, length: int) -> int:
        """Upper bound of the tokens that the model reads for one length."""
        evaluation = self.evaluation
        fed = evaluation.fed_length(length)
        n_windows = self.n_windows(length)
        volume = self.read_volume(evaluation.config, evaluation.train_len, length, fed, n_windows)
        return volume.total_tokens

    def tokens_to_read_first(self) -> int:
        """Tokens that the model has yet to read before the first length."""
        return 0

    @staticmethod
    def block_size(config: EvaluateConfig, fed: int) -> int:
        """Largest number of targets that share a text of `fed` tokens: floor_block, but at most an
        eighth of the text.
        """
        return max(1, min(config.floor_block or 1, fed // 8))

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, S] of the targets."""
        raise NotImplementedError

    def target_weights(self, length: int) -> np.ndarray | float:
        """Weights of a window's targets in the mean: [S], 1 on average."""
        return 1.0

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Evaluate one length. Returns the values of its rows, and arrays nll and correct: [N * S]
        if `paired`, else [N, S].
        """
        evaluation = self.evaluation
        with evaluation.seconds_and_memory() as spent:
            nll_NS, correct_NS = self.score(length)
            rows = self.rows(length, nll_NS, correct_NS)
        plan = evaluation.plan(evaluation.fed_length(length))
        spent["max_distance"] = evaluation.max_distance(plan)
        arrays = {"nll": nll_NS.astype(np.float32), "correct": correct_NS}
        if self.paired:  # target by target, as `document` and `offset` of shared_arrays
            arrays = {name: array.ravel() for name, array in arrays.items()}
        return [{**row, **spent} for row in rows], arrays

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        """Columns of the rows of one length that are computed from its targets."""
        windows = self.windows
        weighted_NS = nll_NS.astype(np.float64) * self.target_weights(length)
        bytes_NS = np.asarray(windows.file.n_bytes)[windows.targets_NS]
        return [self.mean_columns(weighted_NS, correct_NS, windows.document_N, bytes_NS)]

    def mean_columns(
        self, nll_NS: np.ndarray, correct: np.ndarray, document_N: np.ndarray, n_bytes: np.ndarray
    ) -> dict:
        """Columns of `mean_row` for texts of the documents document_N, in the units of intervals
        that the configuration names.
        """
        unit_N = self.windows.unit_D[document_N]
        return mean_row(nll_NS, correct, unit_N, n_bytes, self.evaluation.config.unit)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Arrays [N * S] that all lengths share."""
        windows = self.windows
        return {
            "bytes": np.asarray(windows.file.n_bytes)[windows.targets_NS].ravel(),
            "document": np.repeat(windows.document_N, windows.n_targets),
            "offset": windows.offset_NS().ravel(),
        }

    def length_facts(self) -> dict[str, dict]:
        """Facts about the texts of the length that `run` read last, which the evaluation's json
        keeps by length.
        """
        return {}

    def target_facts(self) -> dict:
        """Facts about the targets that the evaluation's json states beside its settings."""
        return {}

    def indices_up_to_targets(self, at_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] of texts that each end with a target; at_n are the targets'
        indices among all M.
        """
        target_n = self.windows.targets_NS.ravel()[at_n]
        return self.evaluation.with_bos_first(target_n[:, None] + np.arange(-length, 1))

    def indices_from_starts(self, start_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices [n, length + 1] of the windows that start at start_n. Past the end of the
        file its last token is repeated.
        """
        last_token = len(self.windows.file.tokens) - 1
        index_nL = start_n[:, None] + np.arange(length + 1)
        return self.evaluation.with_bos_first(np.minimum(index_nL, last_token))

    def context_lengths(self, length: int) -> np.ndarray:
        """Tokens [N, S] before each target, if the extension gives each a text of its own."""
        raise NotImplementedError

    def score_separately(self, context_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, S], each target read from a text of its own with context_NS
        tokens before it.

        Several targets may share a text, a block. Then only the last of them has all its context,
        and one that n targets follow has n tokens less. Scores are kept by context_NS, since
        lengths beyond the most tokens that an extension feeds have the same."""
        key = context_NS.tobytes()
        if key not in self.separate_scores:
            nll_M, correct_M = self._score_blocks(context_NS)
            shape = context_NS.shape
            self.separate_scores[key] = nll_M.reshape(shape), correct_M.reshape(shape)
        return self.separate_scores[key]

    def _score_blocks(self, context_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [M]. Blocks of one context and size are read together."""
        nll_M, correct_M = unscored_arrays(context_NS.size)
        last_B, size_B = self.target_blocks(context_NS)
        context_and_size_B2 = np.stack([context_NS.ravel()[last_B], size_B], axis=1)
        for context, size in np.unique(context_and_size_B2, axis=0).tolist():
            last_b = last_B[(context_and_size_B2 == (context, size)).all(axis=1)]
            target_bS = last_b[:, None] + np.arange(1 - size, 1)
            plan = self.evaluation.plan(context)
            nll_bS, correct_bS = self.evaluation.score_windows(
                plan, last_b, size, self.indices_up_to_targets
            )
            nll_M[target_bS] = nll_bS
            correct_M[target_bS] = correct_bS
        return nll_M, correct_M

    def target_blocks(self, context_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Blocks of consecutive targets that share a text: index of the last among all M targets,
        and number of targets, both [B].

        context_NS holds the tokens before each target. It grows by at most one from a target to
        the next, so no target of a block, whose text is that of its last one, gets more tokens of
        context than are its own. A block is as large as allowed. It lies in one window, and ends
        where the context shrinks: the shorter text of later targets would leave earlier ones less.
        """
        size = self.block_size(self.evaluation.config, int(context_NS.max()))
        at_M = np.arange(context_NS.size)
        opens_NS = np.diff(context_NS, axis=1, prepend=context_NS[:, :1]) < 0
        opens_NS[:, 0] = True
        # Number of targets since the latest opening, each `size` of which begin a block.
        within_M = at_M - np.maximum.accumulate(np.where(opens_NS.ravel(), at_M, 0))
        first_B = np.flatnonzero(within_M % size == 0)
        size_B = np.diff(first_B, append=context_NS.size)
        return first_B + size_B - 1, size_B


def unscored_arrays(n_targets: int) -> tuple[np.ndarray, np.ndarray]:
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
    """Columns of a row: mean and error of the losses nll_NS, which have their weights already, of
    texts that belong to the units unit_N; accuracy and counts from `correct` and `n_bytes` of every
    token that was predicted.
    """
    unit_M = np.repeat(unit_N, nll_NS.shape[1])
    mean, sem, n_units = clustered_mean(nll_NS.ravel().astype(np.float64), unit_M)
    return {
        "nll": mean,
        "nll_sem": sem,
        "n_units": n_units,
        "sem_unit": unit,
        "accuracy": float(correct.mean()),
        "n_targets": correct.size,
        "n_bytes": int(n_bytes.sum()),
    }


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
