"""Passkey: a number in irrelevant text, queried at its end (Mohtashami and Jaggi 2023;
jquesnelle/yarn, eval/passkey.py).

The number is from 1 to 50,000, the haystack five short sentences over and over. There the text
grows by whole repetitions, the place is drawn for each text, and the first run of digits of ten
written tokens counts; here the number of tokens is exact, places are at even depths (the PI paper
has 32 of them), and the answer is the digits alone: nothing scores where it ends, so that a longer
number that begins with a key of four digits or fewer (one in five) counts as right, as in RULER a
reference that is contained. With `end` the full stop behind the number belongs to the answer, as
there no digit may follow: of 100 texts of 512 and of 1,024 tokens SmolLM2-135M-Instruct (4-bit) has
1.00 and 0.99 right without it, 1.00 and 1.00 with it, so that it does not run on."""

import numpy as np

from posbench.data.task import Question, TextTask


class Passkey(TextTask):
    """A pass key at each of `depths` depths, up to its full stop if `end`."""

    def __init__(self, haystack: str = "noise", depths: int = 5, end: bool = False):
        super().__init__(haystack, depths)
        self.end = end

    def ask(self, random: np.random.Generator, depth: float | None) -> Question:
        """Question for a number from 1 to 50,000."""
        key = int(random.integers(1, 50_001))
        sentence = f"The pass key is {key}. Remember it. {key} is the pass key."
        place = random.random() if depth is None else depth
        # With the full stop a longer number that begins with the key is wrong.
        answer = f" {key}." if self.end else f" {key}"
        return Question(
            head="An important piece of information is hidden in a lot of irrelevant text. Find it"
            " and memorize it: it will be asked for.\n",
            items=[(place, sentence)],
            tail="\nWhat is the pass key?",
            start=" The pass key is",
            answer=[(answer, 0)],  # the only answer, number 0
        )
