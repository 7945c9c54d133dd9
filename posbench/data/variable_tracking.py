"""Variable tracking: all names assigned a value through a chain of assignments (RULER, Hsieh et al. 2024, arXiv 2404.06654).

VAR X1 = 12345, VAR X2 = VAR X1, ... in this order in noise, `hops` + 1 names of five letters. A worked example with a short haystack comes
first. The answer is all names in the order of the chain, each an answer of its own that follows the right ones (there the share of names
contained in 30 written tokens).
"""

from string import ascii_uppercase

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.text_task import NOISE, Question, TextTask
from posbench.data.words import random_words


class VariableTracking(TextTask):
    """One chain of `hops` hops."""

    def __init__(self, hops: int = 4, haystack: str = "noise"):
        if hops < 1:
            raise ConfigError(f"hops={hops} of a text task must be 1 or more.")
        super().__init__(haystack, depths=0)
        self.hops = hops

    def ask(self, random: np.random.Generator, depth: float | None, length: int) -> Question:
        value, names, lines = self.chain(random)
        shown, known, example = self.chain(random)
        text = " ".join(f"{line} {sentence}" for line, sentence in zip(example, NOISE * len(example), strict=False))
        return Question(
            f"Track the chain of variable assignments hidden in a text.\n{text}{''.join(self.question(shown))} {' '.join(known)}\n\n",
            list(zip(np.sort(random.random(len(lines))).tolist(), lines, strict=True)),
            *self.question(value),
            [(f" {name}", at) for at, name in enumerate(names)],
            value=lambda line: f" {line.split()[1]}",
        )

    def chain(self, random: np.random.Generator) -> tuple[int, list[str], list[str]]:
        """Value, names and assignments of a chain."""
        value = int(random.integers(10_000, 99_999))
        names = random_words(random, self.hops + 1, 5, ascii_uppercase)
        return value, names, [f"VAR {names[0]} = {value}.", *(f"VAR {b} = VAR {a}." for a, b in zip(names, names[1:], strict=False))]

    def question(self, value: int) -> tuple[str, str]:
        """The question, and the beginning of its answer."""
        return (
            f"\nQuestion: Find all variables that are assigned the value {value} in the text above.",
            f" Answer: According to the chain of assignments, {self.hops + 1} variables are assigned the value {value}, they are:",
        )
