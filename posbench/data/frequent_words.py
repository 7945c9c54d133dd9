"""Frequent words: the three most frequent words of a text of coded words (RULER, Hsieh et al. 2024, arXiv 2404.06654).

A coded word is six random letters. The word of rank k stands floor(m / k^alpha) times, in a random order; the most frequent of all is
noise, three dots that are to be ignored, and the words of ranks 2 to 4 are asked for, the most frequent first. m is the largest number at
which the text holds them and no two of these ranks, nor the next, are equally frequent.

Deviations: as many words as have one place or more, which is what the law leaves of the length / 50 words there; each word is an answer of
its own that follows the right ones (there the share of words contained in 50 written tokens).
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import count
from string import ascii_lowercase

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.text_task import Question, TextTask
from posbench.data.words import random_words

DOTS = "..."


class FrequentWords(TextTask):
    """`words` words behind the noise, whose frequencies fall as rank^-`alpha`."""

    def __init__(self, alpha: float = 2.0, words: int = 3):
        if alpha <= 1 or words < 1:
            raise ConfigError(f"alpha={alpha} must be above 1 and words={words} 1 or more, of a text task.")
        super().__init__(depths=0)
        self.alpha, self.words = alpha, words

    def ask(self, random: np.random.Generator, depth: float | None, length: int) -> Question:
        ranks = np.arange(1, max(self.words + 2, math.ceil(length ** (1 / self.alpha))) + 1)
        words = [DOTS, *random_words(random, len(ranks) - 1, 6, ascii_lowercase)]

        def counts(m: int) -> np.ndarray:
            return np.floor(m / ranks**self.alpha + 1e-9).astype(np.int64)

        def clear(m: int) -> bool:
            return bool((np.diff(counts(m)[: self.words + 2]) < 0).all())

        def fill(room: int, cost: Callable[[str], int]) -> list[str]:
            tokens = np.array([cost(word) for word in words])
            most = bisect_right(range(1, room + 1), room, key=lambda m: counts(m) @ tokens)
            m = next((m for m in range(most, 0, -1) if clear(m)), None) or next(m for m in count(1) if clear(m))
            made = np.repeat(words, counts(m)).tolist()
            return [made[at] for at in random.permutation(len(made))]

        return Question(
            "Words in a code follow. Keep track of how often each of them comes, and find the most frequent ones.\n",
            [],
            f"\nQuestion: Leave the dots '{DOTS}' aside. Which {self.words} words come most often in the coded text above?",
            f" Answer: In the coded text above the {self.words} most frequent words are:",
            [part for at, word in enumerate(words[1 : self.words + 1]) for part in ([(",", -1)] if at else []) + [(f" {word}", at)]],
            fill=fill,
            value=lambda word: None if word == DOTS else f" {word}",
        )
