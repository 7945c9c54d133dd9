"""Task, the base class of generated data: questions with answers in their own tokens, drawn from a seed; no text is read.

A task is one file with a class and one yaml of configs/data. Training draws its batches by (seed, step), and evaluate.protocol=accuracy
draws its questions by (evaluate.seed, length); the splits draw from streams of random numbers of their own. What is asked for travels as
in any batch: as targets, which are IGNORED wherever nothing is asked, so that the loss is the mean over the tokens of answers.

Letters: N examples, T tokens, K choices.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json
from posbench.config.identity import without_later
from posbench.data.sources import SPLITS, Source

IGNORED = -100  # target of a position where nothing is asked, which torch's cross entropy leaves out


@dataclass(frozen=True)
class Examples:
    """Examples of one length: `inputs_NT` are read, `targets_NT` asked for behind them.

    `answer_NT` is the number of the answer that a target belongs to, counted from 0 in each example and -1 where nothing is asked. All
    examples have equally many answers. `choices_NK`: the tokens among which an answer is to be found, if it is one of those in the text.
    `rival_NAKR`: instead, tokens of other values in the text, IGNORED behind the last: K of them, of up to R tokens, for each of A answers.
    `depth_N`: share of the haystack's tokens that stand before the asked item, if one was asked for at a depth.
    """

    inputs_NT: np.ndarray
    targets_NT: np.ndarray
    answer_NT: np.ndarray
    choices_NK: np.ndarray | None = None
    rival_NAKR: np.ndarray | None = None
    depth_N: np.ndarray | None = None


@dataclass(frozen=True)
class TaskVariant:
    """Variant of a task that is evaluated apart: its name in the column `task`, its depth if it has one, and the arguments of `draw`."""

    task: str
    depth: float | None = None
    arguments: dict = field(default_factory=dict)


def task_fingerprint(task: object) -> str:
    """Hex SHA-256 of the class, version and attributes of a task."""
    kept = {key: value for key, value in vars(task).items() if key not in ("memo", "again")}
    return sha256_json([f"{type(task).__module__}.{type(task).__qualname__}", task.version, without_later("data.source", kept)])


class Task(Source):
    """Generated data. A subclass has `draw`, and `parts` if there are several; its attributes determine the examples."""

    version: ClassVar[int] = 1  # raised when the same seed gives other examples, so that earlier trainings keep their ids
    least_vocab: ClassVar[int] = 2

    def __init__(self, vocab_size: int):
        if vocab_size < self.least_vocab:
            raise ConfigError(f"data.vocab_size={vocab_size} cannot hold the tokens of data={self.name}: give {self.least_vocab} or more.")
        self.vocab_size = vocab_size

    @property
    def name(self) -> str:
        """Name of the task, that of its module."""
        return type(self).__module__.rpartition(".")[2]

    def fingerprint(self) -> str:
        return task_fingerprint(self)

    def documents(self, split: str):
        raise ConfigError(f"data={self.name} is a task whose examples are drawn in training: there are no documents to read.")

    def draw(self, random: np.random.Generator, length: int, count: int, **part: object) -> Examples:
        """`count` examples of `length` tokens: for training without `part`, else of one of `parts`, by its arguments.

        Raises ConfigError if `length` is too short for the task.
        """
        raise NotImplementedError

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts that are evaluated apart at a length: all of a shorter one's too. Raises ConfigError if `length` is too short for any."""
        return [TaskVariant(self.name, None, {"full": True})]


@dataclass(frozen=True)
class TaskSplit:
    """Split of a task, in place of a token file: a stream of random numbers of its own. Its ids begin at `offset`."""

    task: Task
    split: str
    offset: int = 0

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts that are evaluated apart at a length."""
        return self.task.parts(length)

    def check(self, length: int) -> None:
        """Raise ConfigError if `length` is too short for the task."""
        self.draw(length, 1, [0])

    def draw(self, length: int, count: int, key: list[int], **part: object) -> Examples:
        """`count` examples of `length` tokens that depend on the split and on `key` alone."""
        found = self.task.draw(np.random.default_rng([SPLITS.index(self.split), *key]), length, count, **part)
        ids = {name: getattr(found, name) for name in ("inputs_NT", "targets_NT", "choices_NK")}
        return replace(found, **{name: np.where(own == IGNORED, own, own + self.offset) for name, own in ids.items() if own is not None})
