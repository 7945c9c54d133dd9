"""mqar_uniform: MQAR whose pairs are no sinks and whose questions stand at all distances alike.

In MQAR the first four tokens are two pairs, and 54 % of the questions on four pairs stand within 60
tokens of them, however long the text is. A method that sees the first four and the last 64 tokens,
such as extension=streaming, holds the pair of 77 % of the questions at 1,024 tokens. So the outcome
of a comparison with such a method is decided before any model is read. Here:

- `lead` tokens of filler stand before the pairs, where sinks are;
- every place behind the pairs is drawn with the same probability, without replacement, so that the
  distance from a question to its pair is spread evenly over the text;
- with `window` the questions inside and outside of so many tokens are asked apart, too: inside, the
  text from the first pair to the question has at most `window` tokens; outside, that from the last
  pair's value to the question has more. Set it to train.length.

The filler is never a key of the text. All else is as in mqar.py, and the choice of the value among
those in the text too.

Of the questions that are asked apart those inside begin at the training length, and those outside
exist beyond it alone. A training has learned the task if it answers those of the whole at the
training length."""

from typing import Literal

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.mqar import Mqar, highest_indices
from posbench.data.task import TaskVariant


class MqarUniform(Mqar):
    """MQAR with `lead` tokens of filler before the pairs, and questions at all distances alike.

    With `window`, questions within so many tokens from the first pair are also asked apart from
    those further away."""

    def __init__(self, vocab_size: int, pairs: list[int], lead: int = 4, window: int | None = None):
        super().__init__(vocab_size, pairs, power=1.0, filler="no_key")  # all places alike
        self.lead = lead
        self.window = window
        if lead < 0:
            raise ConfigError(
                f"data.source.lead={lead} must be 0 or more tokens of filler before the pairs."
            )
        # a pair has two tokens, and so has its question
        if window is not None and window < 4 * self.pairs[-1]:
            raise ConfigError(
                f"data.source.window={window} cannot hold {self.pairs[-1]} pairs and as many"
                f" questions: give {4 * self.pairs[-1]} or more, such as the training length, or"
                " fewer data.source.pairs."
            )

    def question_places(
        self,
        random: np.random.Generator,
        count: int,
        length: int,
        n: int,
        where: Literal["inside", "outside"] | None = None,
    ) -> np.ndarray:
        """Places [count, n] as Mqar.question_places, all with the same probability."""
        first, end = self._place_bounds(length, n, where)
        return first + highest_indices(random.random((count, end - first)), n)

    def parts(self, length: int) -> list[TaskVariant]:
        """Those of each number of pairs, then inside and outside of the window, of which the second
        needs a text that is longer.
        """
        variants = super().parts(length)
        if self.window is None:
            return variants
        apart = []
        for variant in variants:
            n = variant.arguments["pairs"]
            for where in ("inside", "outside"):
                first, end = self._place_bounds(length, n, where)
                if end - first >= n:  # a place for each question
                    task = f"{variant.task} {where} {self.window}"
                    apart.append(
                        TaskVariant(task, depth=None, arguments={"pairs": n, "where": where})
                    )
        return variants + apart

    def _place_bounds(self, length: int, n: int, where: str | None) -> tuple[int, int]:
        """First place of a question on one of n pairs, and the end of the places, as counted in
        `question_places`.
        """
        end = (length - self.lead - 2 * n) // 2
        # Place g has 2 g tokens between the pairs and its question.
        if where == "inside":
            # from the first pair to the question: 2 n + 2 g + 1 tokens, at most the window
            return 0, min(end, (self.window - 2 * n + 1) // 2)
        if where == "outside":
            # from the last pair's value to the question: 2 g + 2 tokens, more than the window
            return min(end, self.window // 2), end
        return 0, end
