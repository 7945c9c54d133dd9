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
        power: float = 0.01,
        filler: Literal["any", "no_key"] = "any",
    ):
        super().__init__(vocab_size)
        self.pairs, self.power, self.filler = sorted(set(pairs)), power, filler
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
        pairs_N = (
            random.choice(self._fitting(length), count) if pairs is None else np.full(count, pairs)
        )
        most, keys = int(pairs_N.max()), self.vocab_size // 2
        key_NP = 1 + drawn(random.random((count, keys - 1)), most)
        value_NP = keys + drawn(random.random((count, self.vocab_size - keys)), most)
        inputs_NT = random.integers(self.vocab_size, size=(count, length))
        targets_NT, answer_NT = np.full((count, length), IGNORED), np.full((count, length), -1)
        for n in np.unique(pairs_N):
            of_N = np.flatnonzero(pairs_N == n)
            if self.filler == "no_key":
                inputs_NT[of_N] = besides(
                    key_NP[of_N, :n], random.integers(self.vocab_size - n, size=(len(of_N), length))
                )
            behind = self.lead + 2 * n
            at_NP, row_N1 = (
                behind + 2 * self.gaps(random, len(of_N), length, n, **part),
                of_N[:, None],
            )
            inputs_NT[of_N, self.lead : behind : 2] = key_NP[of_N, :n]
            inputs_NT[of_N, self.lead + 1 : behind : 2] = value_NP[of_N, :n]
            inputs_NT[row_N1, at_NP], targets_NT[row_N1, at_NP] = (
                key_NP[of_N, :n],
                value_NP[of_N, :n],
            )
            answer_NT[row_N1, at_NP] = np.arange(n)
        return Examples(inputs_NT, targets_NT, answer_NT, value_NP if most > 1 else None)

    def gaps(self, random: np.random.Generator, count: int, length: int, n: int) -> np.ndarray:
        """Places [count, n] of the questions on n pairs, counted in steps of two tokens from 0,
        which is right behind the pairs.
        """
        places = (length - self.lead - 2 * n) // 2
        return drawn(
            random.gumbel(size=(count, places))
            + (self.power - 1) * np.log(np.arange(1, places + 1)),
            n,
        )

    def parts(self, length: int) -> list[TaskVariant]:
        return [
            TaskVariant(f"{self.name} {n} pairs", None, {"pairs": n}) for n in self._fitting(length)
        ]

    def _fitting(self, length: int) -> list[int]:
        if fitting := [n for n in self.pairs if self.lead + 4 * n <= length]:
            return fitting
        needed = self.lead + 4 * self.pairs[0]
        raise ConfigError(
            f"MQAR with {self.pairs[0]} pairs needs {needed} tokens, not {length}: see"
            " data.source.pairs."
        )


def besides(key_NP: np.ndarray, rank_NT: np.ndarray) -> np.ndarray:
    """Tokens by their ranks, from 0, among those that are not among the keys of their row."""
    token_NT = rank_NT.copy()
    for key_N in np.sort(key_NP, axis=1).T:
        token_NT += token_NT >= key_N[:, None]
    return token_NT


def drawn(score_NM: np.ndarray, n: int) -> np.ndarray:
    """Indices of the `n` highest scores of each row, the highest first."""
    first_NP = np.argpartition(-score_NM, n - 1, axis=1)[:, :n]
    return np.take_along_axis(
        first_NP, np.argsort(-np.take_along_axis(score_NM, first_NP, 1), axis=1), 1
    )
