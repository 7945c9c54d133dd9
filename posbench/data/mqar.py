"""MQAR, multi-query associative recall (Arora et al. 2023, arXiv 2312.04927;
zoology/data/multiquery_ar.py).

A text begins with pairs of a key and a value; later each key stands once more, and its value is
asked for there. Keys are 1 .. V/2 - 1, values V/2 .. V - 1, each at most once in a text. With g =
1, 2, ... counting the even places behind the pairs, a key's place is drawn without replacement with
probability in proportion to g^(a - 1): most are asked for soon. Random tokens fill the rest, and
the answer itself is never read. A text of T tokens holds up to T / 4 pairs.

With `filler: no_key` (configs/data/mqar.yaml) these tokens are none of the text's keys. With `any`
(zoology, and here before there was a choice) a key also stands between its pair and its question
with a random token behind it, the more often the longer the text: in 8,000 texts with 4 and 8 pairs
before 4.4, 14.9 and 30.9 % of the questions at 64, 256 and 1,024 tokens of V = 256 (0.1, 0.5, 2.0
of 8,192). zoology asks for V > T, where that is rare.

Deviations: examples are drawn anew in every step (there 20,000 to 100,000 are repeated); the number
of pairs is drawn for each text from those in `pairs` that fit (there each number has a length of
its own); odd lengths are possible. Places are drawn by Gumbel keys, which is drawing one after the
other without replacement. At longer lengths the same numbers of pairs are asked for: only the text
grows.

Letters: N examples, T tokens, P pairs, M examples with n pairs, G places.

The places decide what a method that sees the first four and the last tokens of a text can answer,
whatever it does: mqar_uniform.py."""

from typing import ClassVar, Literal

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.task import IGNORED, Examples, Task, TaskVariant


class Mqar(Task):
    """MQAR with one of `pairs` pairs in each text; `power` is the a of the places, `filler` the
    tokens between.
    """

    least_vocab = 8
    lead: ClassVar[int] = 0  # tokens of filler before the pairs

    def __init__(
        self,
        vocab_size: int,
        pairs: list[int],
        power: float = 0.01,  # as in zoology
        filler: Literal["any", "no_key"] = "any",
    ):
        super().__init__(vocab_size)
        self.pairs = sorted(set(pairs))
        self.power = power  # 1: all places are alike; less: near ones are likelier
        self.filler = filler
        if not pairs or self.pairs[0] < 1 or self.pairs[-1] >= vocab_size // 2:
            raise ConfigError(
                f"data.source.pairs={pairs} must lie in 1 .. {vocab_size // 2 - 1}, the keys of"
                f" vocab_size={vocab_size}."
            )

    def draw(
        self,
        random: np.random.Generator,
        length: int,
        count: int,
        pairs: int | None = None,
        **part: object,
    ) -> Examples:
        """Examples as Task.draw: with `pairs` all have so many, else each a number that fits.

        Keys are 1 .. V/2 - 1, as in zoology, where 0 marks filler; values are V/2 .. V - 1."""
        if pairs is None:
            pairs_N = random.choice(self._fitting_pair_counts(length), count)
        else:
            pairs_N = np.full(count, pairs)
        most = int(pairs_N.max())
        half = self.vocab_size // 2
        # the highest of equal chances: drawn without replacement
        key_NP = 1 + highest_indices(random.random((count, half - 1)), most)
        value_NP = half + highest_indices(random.random((count, self.vocab_size - half)), most)
        # filler, which may hold keys
        inputs_NT = random.integers(self.vocab_size, size=(count, length))
        targets_NT = np.full((count, length), IGNORED)
        answer_NT = np.full((count, length), -1)  # nothing is asked
        for n in np.unique(pairs_N):
            row_M = np.flatnonzero(pairs_N == n)
            row_M1 = row_M[:, None]  # to index rows and places together
            key_MP = key_NP[row_M, :n]
            value_MP = value_NP[row_M, :n]
            if self.filler == "no_key":
                rank_MT = random.integers(self.vocab_size - n, size=(len(row_M), length))
                inputs_NT[row_M] = tokens_besides_keys(key_MP, rank_MT)
            end = self.lead + 2 * n  # of the pairs
            inputs_NT[row_M, self.lead : end : 2] = key_MP
            inputs_NT[row_M, self.lead + 1 : end : 2] = value_MP
            # an even number of tokens behind the pairs
            at_MP = end + 2 * self.question_places(random, len(row_M), length, n, **part)
            inputs_NT[row_M1, at_MP] = key_MP
            targets_NT[row_M1, at_MP] = value_MP
            answer_NT[row_M1, at_MP] = np.arange(n)
        # A choice among one is none. In a training some texts have fewer pairs than there are
        # values here, but choices are read in an evaluation alone, which asks for `pairs`.
        choices_NK = value_NP if most > 1 else None
        return Examples(inputs_NT, targets_NT, answer_NT, choices_NK)

    def question_places(
        self, random: np.random.Generator, count: int, length: int, n: int
    ) -> np.ndarray:
        """Places [count, n] of the questions on n pairs, counted in steps of two tokens from 0,
        which is right behind the pairs.
        """
        places = (length - self.lead - 2 * n) // 2
        # Gumbel's trick: the n highest are n places drawn without replacement, place g = 1, 2, ...
        # with the weight g ** (power - 1).
        log_weight_G = (self.power - 1) * np.log(np.arange(1, places + 1))
        return highest_indices(random.gumbel(size=(count, places)) + log_weight_G, n)

    def parts(self, length: int) -> list[TaskVariant]:
        return [
            TaskVariant(f"{self.name} {n} pairs", depth=None, arguments={"pairs": n})
            for n in self._fitting_pair_counts(length)
        ]

    def _fitting_pair_counts(self, length: int) -> list[int]:
        """Numbers of pairs that fit a length: 4 tokens each, as a question has 2 of its own.

        Raises ConfigError without any."""
        fitting = [n for n in self.pairs if self.lead + 4 * n <= length]
        if fitting:
            return fitting
        needed = self.lead + 4 * self.pairs[0]
        raise ConfigError(
            f"MQAR with {self.pairs[0]} pairs needs {needed} tokens, not {length}: see"
            " data.source.pairs."
        )


def tokens_besides_keys(key_NP: np.ndarray, rank_NT: np.ndarray) -> np.ndarray:
    """Tokens by their ranks, from 0, among those that are not among the keys of their row.

    >>> tokens_besides_keys(np.array([[1, 3]]), np.array([[0, 1, 2]])).tolist()
    [[0, 2, 4]]
    """
    token_NT = rank_NT.copy()
    for key_N in np.sort(key_NP, axis=1).T:  # the lowest key of each row first
        token_NT += token_NT >= key_N[:, None]  # step over it
    return token_NT


def highest_indices(score_NM: np.ndarray, n: int) -> np.ndarray:
    """Indices of the `n` highest scores of each row, the highest first.

    >>> highest_indices(np.array([[0.5, 0.1, 0.9]]), 2).tolist()
    [[2, 0]]
    """
    first_NP = np.argpartition(-score_NM, n - 1, axis=1)[:, :n]
    order_NP = np.argsort(-np.take_along_axis(score_NM, first_NP, 1), axis=1)
    return np.take_along_axis(first_NP, order_NP, 1)
