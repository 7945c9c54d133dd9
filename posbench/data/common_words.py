"""Common words: the ten most frequent words of a numbered list (RULER, Hsieh et al. 2024, arXiv 2404.06654).

In texts of `long_from` tokens or more each of them stands 30 times among others that stand 3 times, below 6 times among others that stand
once. A worked example comes first: 10 times among 30 others that stand 3 times, or 3 times among 10 others that stand once. There are as
many others as the length holds.

Deviations: names of two words instead of a package of words; since these have more tokens, long texts begin at 8,192 and not at 4,096; the
words are asked for in the order in which the list has them first, and each is an answer of its own that follows the right ones (there the
share of words contained in 120 written tokens).
"""

from collections.abc import Callable

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.text_task import Question, TextTask
from posbench.data.words import FIRST, SECOND, two_word_names

MOST = len(FIRST) * len(SECOND)
HEAD = "A numbered list of words follows. Some of them come more often than the others: memorize these.\n"


class CommonWords(TextTask):
    """`words` words that come often."""

    def __init__(self, words: int = 10, long_from: int = 8192):
        if not 1 <= words <= MOST // 2:
            raise ConfigError(f"words={words} of a text task must be from 1 to {MOST // 2}.")
        super().__init__(depths=0)
        self.words, self.long_from = words, long_from

    def ask(self, random: np.random.Generator, depth: float | None, length: int) -> Question:
        many = length >= self.long_from
        often, seldom, shown_often, shown_others = (30, 3, 10, 30) if many else (6, 1, 3, 10)
        drawn = two_word_names(random, MOST)
        common, others = drawn[: self.words], drawn[self.words :]
        shown = two_word_names(random, self.words + shown_others)
        known = shown[: self.words]
        example = numbered(mixed(random, known * shown_often + shown[self.words :] * seldom, known))
        question, start = (
            f"\nQuestion: Which {self.words} words come most often in the list above, in the order in which each comes first?",
            f" Answer: The {self.words} words that come most often in the list are:",
        )

        def fill(room: int, cost: Callable[[str], int]) -> list[str]:
            made = common * often
            room -= sum(map(cost, numbered(made)))
            for at, word in enumerate(others):
                room -= sum(map(cost, numbered([word] * seldom, len(made))))
                if room < 0 and at:
                    return numbered(mixed(random, made, common))
                made += [word] * seldom
            raise ConfigError(f"The {MOST} words of common_words do not fill a text of {length} tokens: lower evaluate.lengths.")

        return Question(
            f"{HEAD}{' '.join(example)}{question}{start} {' '.join(numbered(known))}\n\n{HEAD}",
            [],
            question,
            start,
            [part for at, word in enumerate(common) for part in ((f" {at + 1}.", -1), (f" {word}", at))],
            fill=fill,
            value=lambda word: None if word.endswith(".") else f" {word}",
        )


def mixed(random: np.random.Generator, words: list[str], first: list[str]) -> list[str]:
    """The words in a random order in which those of `first` come first in the order of `first`. They stand equally often."""
    shuffled = [words[at] for at in random.permutation(len(words))]
    found = dict.fromkeys(word for word in shuffled if word in set(first))
    ordered = dict(zip(found, first, strict=True))
    return [ordered.get(word, word) for word in shuffled]


def numbered(words: list[str], before: int = 0) -> list[str]:
    """A number before each word, counted on from `before`."""
    return [part for at, word in enumerate(words, before + 1) for part in (f"{at}.", word)]
