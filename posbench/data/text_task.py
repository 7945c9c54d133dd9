"""TextTask, the base class of questions in words: an item is hidden in a long text, and asked for at its end, at an exact number of tokens.

A text is: what will be asked, the haystack with the items in it, the question and the beginning of the answer; then the answer. Each part
is tokenized by itself with the model's own tokenizer, as in running text, and the haystack is cut at its start so that the text has exactly
the tokens that were asked for. Items stand where a sentence or line of the haystack ends.

Haystacks: `noise`, a few sentences over and over; `corpus`, a run of tokens of one document of the evaluated split; `items`, others of the
kind that is asked for; or a list that the task makes itself, with a few tokens of noise before it that make the length exact.

Letters: N examples, T tokens, F tokens of the haystack.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.named_class import class_named
from posbench.config.typed_args import arguments
from posbench.data.continued import Encode, continued, whole
from posbench.data.sources import SPLITS
from posbench.data.task import IGNORED, Examples, Part
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import Tokenizer

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")


@dataclass(frozen=True)
class Question:
    """Parts of one text in words. `items` are (depth, sentence), depth 0 at the start of the haystack and 1 at its end.

    `tail` asks, and `start` begins the answer. `answer` is (words, number of the answer they belong to, or -1 for words between answers).
    `others` makes sentences of the kind of the items without end. `fill(room, cost)` makes a haystack: words of at most `room` tokens
    together, where `cost(word)` tells how many tokens a word has; or the fewest words there can be, if they need more.
    """

    head: str
    items: list[tuple[float, str]]
    tail: str
    start: str
    answer: list[tuple[str, int]]
    others: Iterator[str] | None = field(default=None, repr=False)
    fill: Callable[[int, Callable[[str], int]], list[str]] | None = field(default=None, repr=False)


class TextTask:
    """Questions in words. A subclass has `ask`; `depths` places of the item are evaluated apart, evenly from start to end; 0: any place."""

    def __init__(self, haystack: str = "noise", depths: int = 5):
        if haystack not in ("noise", "corpus", "items"):
            raise ConfigError(f"haystack={haystack} of a task in evaluate.tasks must be noise, corpus or items.")
        if depths < 0 or depths == 1:
            raise ConfigError(f"depths={depths} of a task in evaluate.tasks must be 0, for any depth, or 2 or more.")
        self.haystack, self.depths = haystack, depths

    def ask(self, random: np.random.Generator, depth: float | None, length: int) -> Question:
        """A question whose item stands at `depth`, or anywhere, in a text of `length` tokens."""
        raise NotImplementedError

    def parts(self, name: str) -> list[Part]:
        """Parts that are evaluated apart: the depths."""
        return [Part(name, float(depth), {"depth": float(depth)}) for depth in np.linspace(0, 1, self.depths)] or [Part(name)]


def make_text_task(node: dict) -> TextTask:
    """Task from its class `_target_` and arguments. Raises ConfigError for an unknown class or argument, or a wrong value."""
    found = class_named(node["_target_"])
    if not issubclass(found, TextTask):
        raise ConfigError(f"evaluate.tasks: {node['_target_']} is no TextTask: choose a class that is one.")
    given = {key: value for key, value in node.items() if key not in ("_target_", "name")}
    return found(**arguments(f"evaluate.tasks.{node['name']}", found, given))


@dataclass(frozen=True)
class TextQuestions:
    """Questions of a task in the tokens of a model, in place of a `TaskSplit`. `bos` begins every text, if it is there.

    With `around`, what stands before and behind the message of a user, all but the answer and its beginning is that message.
    """

    task: TextTask
    name: str
    split: str
    file: TokenFile | None
    tokenizer: Tokenizer
    bos: int | None
    around: tuple[str, str] | None = None
    known: dict[str, np.ndarray] = field(default_factory=dict, repr=False)  # ids of texts met before
    ending: dict[int, bool] = field(default_factory=dict, repr=False)  # `_ends` of tokens met before

    def parts(self, length: int) -> list[Part]:
        """Parts that are evaluated apart at a length."""
        return self.task.parts(f"{self.name} chat" if self.around else self.name)

    def draw(self, length: int, count: int, key: list[int], depth: float | None = None) -> Examples:
        """`count` examples of `length` tokens. Raises ConfigError if a question does not fit, or no document can be its haystack."""
        random = self._random(key)
        made = [self._example(random, length, depth) for _ in range(count)]
        return Examples(*(np.stack([one[part] for one in made]) for part in range(3)))

    def check(self, length: int, key: list[int], depth: float | None = None) -> None:
        """Raise ConfigError as `draw` does if its first question does not fit; neither document nor text is read."""
        self._parts(self._random(key), length, depth)

    def _random(self, key: list[int]) -> np.random.Generator:
        return np.random.default_rng([(*SPLITS, "all").index(self.split), *key])

    def fits(self, length: int) -> bool:
        """True if questions fit `length` tokens, whatever the haystack."""
        random = np.random.default_rng(0)
        with contextlib.suppress(ConfigError):
            return all(self._parts(random, length, None) for _ in range(8))
        return False

    def _parts(self, random: np.random.Generator, length: int, depth: float | None) -> tuple:
        """A question, tokens of all its parts but the haystack, and their number. Raises ConfigError if they are more than `length`."""
        asked = self.task.ask(random, depth, length)
        before, behind = self.around or ("", "")
        head = whole(self.tokenizer)(before + asked.head)
        tail = self._ids(asked.tail + behind + (asked.start.lstrip() if self.around else asked.start))
        head = head if self.bos is None else np.r_[self.bos, head]
        items = sorted((place, at, self._ids(f" {text}")) for at, (place, text) in enumerate(asked.items))
        answer = [(self._ids(words), number) for words, number in asked.answer]
        needed = len(head) + len(tail) + sum(len(ids) for *_, ids in items) + sum(len(ids) for ids, _ in answer)
        words = asked.fill(length - needed, lambda word: len(self._ids(f" {word}"))) if asked.fill else []
        listed = [self._ids(f" {word}") for word in words]
        needed += sum(map(len, listed))
        if needed > length:
            raise ConfigError(
                f"evaluate.tasks={self.name} needs {needed} tokens with this tokenizer, and evaluate.lengths holds {length}: leave it out."
            )
        return asked, head, items, listed, tail, answer, needed

    def _example(self, random: np.random.Generator, length: int, depth: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, targets and numbers of answers [T] of one text."""
        asked, head, items, listed, tail, answer, needed = self._parts(random, length, depth)
        hay_F, ends = self._haystack(random, length + 1 - needed, asked)
        hay_F = np.concatenate([hay_F, *listed])
        pieces, before = [head], 0
        for place, _, ids in items:
            at = ends[np.abs(ends - place * len(hay_F)).argmin()]
            pieces += [hay_F[before:at], ids]
            before = max(before, at)
        text = np.concatenate([*pieces, hay_F[before:], tail, *(ids for ids, _ in answer)]).astype(np.int64)
        numbers = np.concatenate([np.full(len(ids), number) for ids, number in answer])
        answer_T = np.r_[np.full(length - len(numbers), -1), numbers]
        return text[:-1], np.where(answer_T < 0, IGNORED, text[1:]), answer_T

    def _haystack(self, random: np.random.Generator, size: int, asked: Question) -> tuple[np.ndarray, np.ndarray]:
        """`size` tokens, and the numbers of tokens after which an item may stand, ascending."""
        if self.task.haystack == "corpus":
            return self._document(random, size)
        units, total = [], 0
        sentences = asked.others if self.task.haystack == "items" else None
        while total < size:
            ids = self._ids(f" {next(sentences)}") if sentences else self._ids(f" {NOISE[len(units) % len(NOISE)]}")
            units.append(ids)
            total += len(ids)
        ends = np.cumsum([0, *map(len, units)]) - (total - size)
        return np.concatenate([np.zeros(0, np.int64), *units])[total - size :], np.r_[0, ends[ends > 0]]

    def _document(self, random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        room_D = np.maximum(self.file.document_lengths() - size + 1, 0)
        if not room_D.any():
            raise ConfigError(
                f"evaluate.tasks={self.name} takes its haystack from one document, and none of the {self.split} split has {size} tokens: "
                "lower evaluate.lengths, or take longer documents."
            )
        document = int(random.choice(len(room_D), p=room_D / room_D.sum()))
        start = int(self.file.starts[document]) + int(random.integers(room_D[document]))
        hay_F = np.asarray(self.file.tokens[start : start + size]).astype(np.int64)
        ends = np.flatnonzero([self._ends(token) for token in hay_F.tolist()]) + 1
        return hay_F, np.r_[0, ends if len(ends) else size]

    def _ids(self, text: str) -> np.ndarray:
        """Token ids of a piece behind the head. Sentences of the noise come again and again."""
        if text not in self.known:
            if len(self.known) > 10_000:
                self.known.clear()
            self.known[text] = self._continued(text)
        return self.known[text]

    @functools.cached_property
    def _continued(self) -> Encode:
        return continued(self.tokenizer)

    def _ends(self, token: int) -> bool:
        """True if a sentence or line ends with a token."""
        if token not in self.ending:
            self.ending[token] = self.tokenizer.decode([token]).rstrip(" ").endswith((".", "!", "?", "\n"))
        return self.ending[token]
