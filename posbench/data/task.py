"""Task, the base class of generated data: questions with answers in their own tokens, drawn from a
seed; no text is read. And TextTask.

A task is one file with a class and one yaml of configs/data. Training draws its batches by (seed,
step), and evaluate.protocol=accuracy draws its questions by (evaluate.seed, length); the splits
draw from streams of random numbers of their own. What is asked for travels as in any batch: as
targets, which are IGNORED wherever nothing is asked, so that the loss is the mean over the tokens
of answers.

A text task asks in the words of a text: an item is hidden in a long text of an exact number of
tokens, and queried at its end. A text is: what will be asked, the haystack with the items in it,
the question and the beginning of the answer; then the answer. text_questions.py puts it into
tokens. Haystacks: `noise`, a few sentences over and over; `corpus`, a run of tokens of one document
of the evaluated split; `items`, others of the kind that is asked for.

Letters: N examples, T tokens, K choices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json
from posbench.config.identity import without_new_defaults
from posbench.config.typed_args import class_named, typed_arguments
from posbench.data.sources import SPLITS, Source

# target of a position where nothing is asked, which torch's cross entropy leaves out
IGNORED = -100
NOISE_SENTENCES = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)


@dataclass(frozen=True)
class Examples:
    """Examples of one length: `inputs_NT` are read, `targets_NT` asked for behind them.

    `answer_NT` is the number of the answer that a target belongs to, counted from 0 in each example
    and -1 where nothing is asked. All examples have equally many answers. `choices_NK`: the tokens
    among which an answer is to be found, if it is one of those in the text. `rival_NAKR`: instead,
    tokens of other values in the text, IGNORED behind the last: K of them, of up to R tokens, for
    each of A answers. `depth_N`: share of the haystack's tokens that stand before the asked item,
    if one was asked for at a depth."""

    inputs_NT: np.ndarray
    targets_NT: np.ndarray
    answer_NT: np.ndarray
    choices_NK: np.ndarray | None = None
    rival_NAKR: np.ndarray | None = None
    depth_N: np.ndarray | None = None


@dataclass(frozen=True)
class TaskVariant:
    """Variant of a task that is evaluated apart: its name in the column `task`, its depth if it has
    one, and the arguments of `draw`.
    """

    task: str
    depth: float | None = None
    arguments: dict = field(default_factory=dict)


def task_fingerprint(task: object) -> str:
    """Hex SHA-256 of the class, version and attributes of a task."""
    name = f"{type(task).__module__}.{type(task).__qualname__}"
    attributes = {key: value for key, value in vars(task).items() if key not in ("memo", "again")}
    return sha256_json([name, task.version, without_new_defaults("data.source", attributes)])


class Task(Source):
    """Generated data.

    A subclass has `draw`, and `parts` if there are several; its attributes determine the
    examples."""

    # raised when the same seed gives other examples, so that earlier trainings keep their ids
    version: ClassVar[int] = 1
    least_vocab: ClassVar[int] = 2

    def __init__(self, vocab_size: int):
        if vocab_size < self.least_vocab:
            raise ConfigError(
                f"data.vocab_size={vocab_size} cannot hold the tokens of data={self.name}: give"
                f" {self.least_vocab} or more."
            )
        self.vocab_size = vocab_size

    @property
    def name(self) -> str:
        """Name of the task, that of its module."""
        return type(self).__module__.rpartition(".")[2]

    fingerprint = task_fingerprint

    def documents(self, split: str):
        raise ConfigError(
            f"data={self.name} is a task whose examples are drawn in training: there are no"
            " documents to read."
        )

    def draw(
        self, random: np.random.Generator, length: int, count: int, **part: object
    ) -> Examples:
        """`count` examples of `length` tokens: for training without `part`, else of one of `parts`,
        by its arguments.

        Raises ConfigError if `length` is too short for the task.
        """
        raise NotImplementedError

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts that are evaluated apart at a length: all of a shorter one's too.

        Raises ConfigError if `length` is too short for any."""
        return [TaskVariant(self.name, depth=None, arguments={"full": True})]


@dataclass(frozen=True)
class TaskSplit:
    """Split of a task, in place of a token file: a stream of random numbers of its own.

    Its ids begin at `offset`."""

    task: Task
    split: str
    offset: int = 0

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts that are evaluated apart at a length."""
        return self.task.parts(length)

    def check(self, length: int) -> None:
        """Raise ConfigError if `length` is too short for the task."""
        self.draw(length, count=1, key=[0])

    def draw(self, length: int, count: int, key: list[int], **part: object) -> Examples:
        """`count` examples of `length` tokens that depend on the split and on `key` alone.

        Their ids begin at `offset`, behind those of a text that the training mixes in."""
        random = np.random.default_rng([SPLITS.index(self.split), *key])
        examples = self.task.draw(random, length, count, **part)
        shifted = {}
        for name in ("inputs_NT", "targets_NT", "choices_NK"):
            ids = getattr(examples, name)
            if ids is not None:
                shifted[name] = np.where(ids == IGNORED, ids, ids + self.offset)
        return replace(examples, **shifted)


@dataclass(frozen=True)
class Question:
    """Parts of one text in words.

    `items` are (depth, sentence), depth 0 at the start of the haystack and 1 at its end. `head`
    ends with a line, `tail` begins one and asks, and `start` begins the answer. `answer` is
    (words, number of the answer they belong to, or -1 for words between answers). `others` makes
    sentences of the kind of the items without end. `value(sentence)` is the answer's words that
    an item or another of its kind would be; where it is given, the answers have rivals."""

    head: str
    items: list[tuple[float, str]]
    tail: str
    start: str
    answer: list[tuple[str, int]]
    others: Iterator[str] | None = field(default=None, repr=False)
    value: Callable[[str], str] | None = field(default=None, repr=False)

    @property
    def answers(self) -> list[str]:
        """Words of each answer."""
        count = max(number for _, number in self.answer) + 1  # numbers begin at 0
        answers = [""] * count
        for words, number in self.answer:
            if number >= 0:  # else words between answers
                answers[number] += words
        return answers

    def values(self, sentences: list[str]) -> list[str]:
        """Different values of the sentences of a text, in their order."""
        return list(dict.fromkeys(map(self.value, sentences))) if self.value else []


class TextTask:
    """Questions in words.

    A subclass has `ask`; `depths` places of the item are evaluated apart, evenly from start to
    end; 0: any place."""

    # raised when the same seed gives other texts, so that earlier evaluations and trainings stay
    # apart
    version: ClassVar[int] = 2
    vocab_size: ClassVar[int] = 0  # of tokens of its own

    def __init__(self, haystack: str = "noise", depths: int = 5):
        # noise: a few sentences over and over; corpus: tokens of a document; items: other items
        if haystack not in ("noise", "corpus", "items"):
            raise ConfigError(f"haystack={haystack} of a text task must be noise, corpus or items.")
        # Depths are spread evenly from the start to the end, which takes two.
        if depths < 0 or depths == 1:
            raise ConfigError(
                f"depths={depths} of a text task must be 0, for any depth, or 2 or more."
            )
        self.haystack, self.depths = haystack, depths

    def ask(self, random: np.random.Generator, depth: float | None) -> Question:
        """A question whose item stands at `depth`, or anywhere."""
        raise NotImplementedError

    fingerprint = task_fingerprint

    def rivals(self, most: int) -> int:
        """Number of further texts, at most, in which up to `most` rivals of each answer of a text
        are read.
        """
        any_random = np.random.default_rng(0)  # all questions have equally many parts
        question = self.ask(any_random, depth=None)
        # A haystack of items holds values too, and a long text any number of them.
        endless_values = question.value and self.haystack == "items"
        if not endless_values:
            # all but the answer's
            other_values = len(question.values([sentence for _, sentence in question.items])) - 1
            most = max(0, min(most, other_values))  # a question without `value` has no values
        return most * len(question.answers)

    def parts(self, name: str) -> list[TaskVariant]:
        """Parts that are evaluated apart: the depths."""
        depths = np.linspace(0, 1, self.depths).tolist()
        if not depths:
            return [TaskVariant(name)]
        return [TaskVariant(name, depth, {"depth": depth}) for depth in depths]


def is_text_task(node: dict) -> bool:
    """True if the class `_target_` is a TextTask. Raises ConfigError for an unknown class."""
    return issubclass(class_named(node.get("_target_")), TextTask)


def make_text_task(node: dict, key: str = "") -> TextTask:
    """Task from its class `_target_` and arguments.

    `key`: where it stands, for errors; "" stands for evaluate.tasks.NAME. Raises ConfigError for an
    unknown class or argument, or a wrong value."""
    task_class = class_named(node["_target_"])
    if not issubclass(task_class, TextTask):
        raise ConfigError(
            f"evaluate.tasks: {node['_target_']} is not a TextTask: choose a class that is one."
        )
    values = {name: value for name, value in node.items() if name not in ("_target_", "name")}
    return task_class(
        **typed_arguments(key or f"evaluate.tasks.{node['name']}", task_class, values)
    )
