"""Copy: a string of random symbols, a separator and the same string (Kazemnejad et al. 2023, arXiv
2305.19466, McGill-NLP).

BOS s_1 .. s_n SEP s_1 .. s_n EOS: everything behind SEP is the answer, EOS too, and one wrong token
makes it wrong. In training n is drawn from 1 to the largest that fits the training length; an
evaluation at L tokens asks for the largest that fits L: (L - 2) // 2 symbols. What is left of a
text is padding, in which nothing is asked.

With `distinct` no symbol stands twice in a string, as in the easier of the two copies of Zhou et
al. 2023 (arXiv 2310.16028): then the symbol before tells which one follows, however long the string
is, and an error is one of finding the place. Where symbols repeat, a longer string asks for more
symbols of context as well.

Deviation: tokens are symbols of data.vocab_size, not words of a language model's vocabulary, and
there is no instruction in words."""

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.task import IGNORED, Examples, Task

PAD, BOS, SEP, EOS, FIRST_SYMBOL = range(5)  # symbols follow from there


class Copy(Task):
    """Copying of strings of up to (length - 2) // 2 symbols, each at most once in a string if
    `distinct`.
    """

    least_vocab = FIRST_SYMBOL + 2

    def __init__(self, vocab_size: int, distinct: bool = False):
        super().__init__(vocab_size)
        self.distinct = distinct

    def draw(
        self, random: np.random.Generator, length: int, count: int, full: bool = False
    ) -> Examples:
        """Examples as Task.draw; with `full` all strings are the longest that fit."""
        # BOS, n symbols, SEP, n symbols, EOS: 2 n + 3 tokens, of which the last is a target alone
        most = (length - 2) // 2
        if most < 1:
            raise ConfigError(
                f"data={self.name} needs 4 tokens for one symbol, but length={length}: use longer"
                " texts."
            )
        n_symbols = self.vocab_size - FIRST_SYMBOL
        if self.distinct and most > n_symbols:
            raise ConfigError(
                f"data={self.name} with distinct symbols has {n_symbols} and needs"
                f" {most} of them at {length} tokens: give data.vocab_size={most + FIRST_SYMBOL} or"
                " more, or shorter texts."
            )
        size_N = np.full(count, most) if full else random.integers(1, most + 1, size=count)
        if self.distinct:
            score_NV = random.random((count, n_symbols))
            symbol_NP = FIRST_SYMBOL + score_NV.argsort(1)[:, :most]  # drawn without replacement
        else:
            symbol_NP = random.integers(FIRST_SYMBOL, self.vocab_size, size=(count, most))
        questions = [symbols[:n] for symbols, n in zip(symbol_NP, size_N, strict=True)]
        pairs = [(question, self.answer(question)) for question in questions]
        return examples_of_pairs(length, pairs)

    def answer(self, symbols: np.ndarray) -> np.ndarray:
        """Answer to a string of symbols, without EOS."""
        return symbols


def examples_of_pairs(length: int, pairs: list[tuple[np.ndarray, np.ndarray]]) -> Examples:
    """Examples BOS question SEP answer EOS of (question, answer), padded to `length` tokens and a
    last target.
    """
    text_NW = np.full((len(pairs), length + 1), PAD)
    answer_NT = np.full((len(pairs), length), -1)  # nothing is asked
    for row, (question, answer) in enumerate(pairs):
        text = np.concatenate([[BOS], question, [SEP], answer, [EOS]])
        text_NW[row, : len(text)] = text
        # the one answer of an example, number 0: from SEP, which predicts its first token, to EOS
        answer_NT[row, len(question) + 1 : len(text) - 1] = 0
    targets_NT = np.where(answer_NT < 0, IGNORED, text_NW[:, 1:])
    return Examples(text_NW[:, :-1].copy(), targets_NT, answer_NT)
