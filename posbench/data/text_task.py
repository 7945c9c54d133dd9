"""TextTask, the base class of text tasks: an item is hidden in a long text of an exact number of tokens, and queried at its end.

A text is: what will be asked, the haystack with the items in it, the question and the beginning of the answer; then the answer.
posbench/data/text_questions.py puts it into tokens.

Haystacks: `noise`, a few sentences over and over; `corpus`, a run of tokens of one document of the evaluated split; `items`, others of the
kind that is asked for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.named_class import class_named
from posbench.config.typed_args import arguments
from posbench.data.task import TaskVariant, task_fingerprint

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")


@dataclass(frozen=True)
class Question:
    """Parts of one text in words. `items` are (depth, sentence), depth 0 at the start of the haystack and 1 at its end.

    `head` ends with a line, `tail` begins one and asks, and `start` begins the answer. `answer` is (words, number of the answer they belong
    to, or -1 for words between answers). `others` makes sentences of the kind of the items without end. `value(sentence)` is the answer's
    words that an item or another of its kind would be; where it is given, the answers have rivals.
    """

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
        count = max(number for _, number in self.answer) + 1
        return ["".join(words for words, number in self.answer if number == at) for at in range(count)]

    def values(self, sentences: list[str]) -> list[str]:
        """Different values of the sentences of a text, in their order."""
        return list(dict.fromkeys(map(self.value, sentences))) if self.value else []


class TextTask:
    """Questions in words. A subclass has `ask`; `depths` places of the item are evaluated apart, evenly from start to end; 0: any place."""

    version: ClassVar[int] = 2  # raised when the same seed gives other texts, so that earlier evaluations and trainings stay apart
    vocab_size: ClassVar[int] = 0  # of tokens of its own

    def __init__(self, haystack: str = "noise", depths: int = 5):
        if haystack not in ("noise", "corpus", "items"):
            raise ConfigError(f"haystack={haystack} of a text task must be noise, corpus or items.")
        if depths < 0 or depths == 1:
            raise ConfigError(f"depths={depths} of a text task must be 0, for any depth, or 2 or more.")
        self.haystack, self.depths = haystack, depths

    def ask(self, random: np.random.Generator, depth: float | None) -> Question:
        """A question whose item stands at `depth`, or anywhere."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Hex SHA-256 that changes with any text."""
        return task_fingerprint(self)

    def rivals(self, most: int) -> int:
        """Number of further texts, at most, in which up to `most` rivals of each answer of a text are read."""
        asked = self.ask(np.random.default_rng(0), None)
        if asked.value and self.haystack == "items":
            return most * len(asked.answers)
        others = len(asked.values([sentence for _, sentence in asked.items])) - 1
        return max(0, min(most, others)) * len(asked.answers)

    def parts(self, name: str) -> list[TaskVariant]:
        """Parts that are evaluated apart: the depths."""
        return [TaskVariant(name, float(depth), {"depth": float(depth)}) for depth in np.linspace(0, 1, self.depths)] or [TaskVariant(name)]


def is_text_task(node: dict) -> bool:
    """True if the class `_target_` is a TextTask. Raises ConfigError for an unknown class."""
    return issubclass(class_named(node.get("_target_")), TextTask)


def make_text_task(node: dict, key: str = "") -> TextTask:
    """Task from its class `_target_` and arguments. Raises ConfigError for an unknown class or argument, or a wrong value, of `key`."""
    found = class_named(node["_target_"])
    if not issubclass(found, TextTask):
        raise ConfigError(f"evaluate.tasks: {node['_target_']} is not a TextTask: choose a class that is one.")
    given = {key: value for key, value in node.items() if key not in ("_target_", "name")}
    return found(**arguments(key or f"evaluate.tasks.{node['name']}", found, given))
