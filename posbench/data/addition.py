"""Addition of two numbers, digit by digit (Kazemnejad et al. 2023, arXiv 2305.19466, McGill-NLP).

BOS a + b SEP sum EOS, a token for each digit. In training both numbers have 1 to n digits, drawn
alike, n the most that fit the training length: 3 n + 5 tokens with the last target. An evaluation
at L tokens asks for the n that fit L: one of the numbers has exactly n digits, so that beyond the
training length at least one is longer than any seen. With `reverse_answer` the sum begins with its
last digit, so that each digit needs those before it and one carry alone.

Deviations: by length of the text, not by number of digits (1 to 8 in training and 9 to 16 in the
test there); digits are tokens of their own, and there is no instruction in words."""

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.copy import FIRST_SYMBOL, examples_of_pairs
from posbench.data.task import Examples, Task, TaskVariant

PLUS = FIRST_SYMBOL + 10


class Addition(Task):
    """Addition of numbers of up to (length - 4) // 3 digits."""

    least_vocab = PLUS + 1

    def __init__(self, vocab_size: int, reverse_answer: bool = False):
        super().__init__(vocab_size)
        self.reverse_answer = reverse_answer

    def draw(
        self, random: np.random.Generator, length: int, count: int, full: bool = False
    ) -> Examples:
        """Examples as Task.draw; with `full` one number of each sum has the most digits that
        fit.
        """
        # BOS a + b SEP sum EOS takes 3 n + 5 tokens, of which the last is a target alone
        most_digits = (length - 4) // 3
        if most_digits < 1:
            raise ConfigError(
                f"data=addition needs 7 tokens for one-digit numbers, but length={length}: use"
                " longer texts."
            )
        size_N2 = random.integers(1, most_digits + 1, size=(count, 2))
        if full:
            which_N = random.integers(2, size=count)  # the first or the second number
            size_N2[np.arange(count), which_N] = most_digits
        digit_N2P = random.integers(10, size=(count, 2, most_digits))
        # A number of several digits does not begin with 0.
        first_N2 = random.integers(1, 10, size=(count, 2))
        digit_N2P[:, :, 0] = np.where(size_N2 > 1, first_N2, digit_N2P[:, :, 0])
        pairs = [
            self.question_and_answer(a[:m], b[:n])
            for (a, b), (m, n) in zip(digit_N2P, size_N2, strict=True)
        ]
        return examples_of_pairs(length, pairs)

    def parts(self, length: int) -> list[TaskVariant]:
        task = "addition reversed" if self.reverse_answer else "addition"
        return [TaskVariant(task, depth=None, arguments={"full": True})]

    def question_and_answer(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of "a + b" and of the sum, without marks, of two numbers as digits, the highest
        first.
        """
        # by hand, since Python's int reads no more than 4,300 digits
        total = np.zeros(max(len(a), len(b)) + 1, np.int64)
        for digits in (a, b):
            total[len(total) - len(digits) :] += digits
        for at in range(len(total) - 1, 0, -1):  # carries
            total[at - 1] += total[at] // 10
            total[at] %= 10
        if not total[0]:  # the last carry is 0
            total = total[1:]
        if self.reverse_answer:
            total = total[::-1]
        # The token of a digit is FIRST_SYMBOL and the digit.
        return np.concatenate([FIRST_SYMBOL + a, [PLUS], FIRST_SYMBOL + b]), FIRST_SYMBOL + total
