"""LongRoPE2's space of factors: those of the slow pairs, from a critical pair on.

Shang et al. 2025, arXiv 2502.20082, algorithms 1 and 2. An individual is (critical pair d, factors
of all pairs). Those from d on never fall, lie on the grid between s = target / train_len and 2 s,
and are searched; those before are NTK's, of the base with which pair d has its factor: pair c has
the factor of d to the power c / d. In theory d is the first pair that makes no full turn in
training; candidates begin where a pair makes 10. There is a start for each candidate, with one
factor between s and 2 s. exact_first is 0.

Deviations: crossovers are LongRoPE's and may take the other parent's d, where the paper shows the
mutation alone; the factors before d begin with d's base in the starts too (algorithm 1 takes that
of the first candidate, beyond which factors would exceed the searched ones)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from posbench.tools.factors.evolution import Individual, Space, never_falls

if TYPE_CHECKING:
    from torch import Tensor

MOST_TURNS = 10  # in training, of the first pair that may be critical


class CriticalSpace(Space):
    """Factors that follow from those of the pairs from the first number on."""

    name: ClassVar[str] = "critical"
    first_number_key: ClassVar[str] = "critical_pair"

    def starts(
        self, published: Mapping[str, Sequence[float]], turns_F: "Tensor", seed: int
    ) -> dict[str, Individual]:
        """{name: individual} of a start for each candidate, the last of them the pair of theory.

        Factors of other methods have no critical pair, so `published` gives no start.
        """
        rng = np.random.default_rng(seed)
        last_pair = len(turns_F) - 1
        # The first pair that makes no full turn, or the last of all where each makes one.
        in_theory = min(int((turns_F > 1).sum()), last_pair)
        first = min(int((turns_F > MOST_TURNS).sum()), in_theory)
        starts = {}
        for pair in range(first, in_theory + 1):
            # One factor of all pairs, in hundredths as the grid is; those before the pair follow.
            factor = round(rng.uniform(self.lowest, self.highest), 2)
            factors = [max(self.lowest, factor)] * len(turns_F)  # rounding may go below
            starts[f"critical pair {pair}"] = self.with_implied_factors((pair, *factors))
        return starts

    def exact_first(self, individual: Individual) -> int:
        return 0

    def may_be_measured_here(self, individual: Individual) -> bool:
        return True

    def first_searched(self, first: int) -> int:
        return first

    def with_implied_factors(self, individual: Individual) -> Individual:
        first, *factors = individual
        before = [factors[first] ** (pair / first) for pair in range(first)]
        return (first, *before, *factors[first:])

    def is_legal(self, individual: Individual) -> bool:
        first, *factors = individual
        return factors[first] >= self.lowest and never_falls(individual)


def critical_space(factor: float) -> CriticalSpace:
    """Space of an extension by a factor; the critical pair is none that a mutation draws."""
    return CriticalSpace(first_values=(), lowest=factor, highest=2 * factor)
