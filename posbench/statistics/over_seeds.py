"""Mean over seeds with its interval: the one place where reports, comparisons and pages decide
whether sums over documents carry an interval or the means of seeds alone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import Estimate, Sums, estimate, joined_seeds

FROM_SUMS = "documents"
FROM_SEEDS = "means of seeds"

Terms = list[tuple[float, Sums]]  # weights and sums, whose weighted means add up to a value


class SeedValue(NamedTuple):
    """Value of one seed, such as a paired difference of two losses."""

    value: float
    terms: Terms | None  # None if only the value is known


class OverSeeds(NamedTuple):
    """Mean over seeds, half of its 95 % interval (None for one value without sums), and the source
    of the interval: FROM_SUMS or FROM_SEEDS.
    """

    estimate: Estimate
    half_width: float | None
    source: str

    def interval(self) -> tuple[float, float]:
        """Both ends of the 95 % interval; nan without one."""
        if self.source == FROM_SUMS:
            return self.estimate.interval()
        if self.half_width is None:
            return math.nan, math.nan
        return self.estimate.value - self.half_width, self.estimate.value + self.half_width


def over_seeds(seeds: Sequence[SeedValue]) -> OverSeeds:
    """Mean of the values of seeds, which are at least one.

    Where all seeds have sums over the same documents, the interval is that of
    `crossed.estimate`: over seeds crossed with documents, over documents for one seed. Else it is
    Student's over the values."""
    terms = _joined_terms(seeds)
    if terms is not None:
        crossed = estimate(terms)
        low, high = crossed.interval()
        return OverSeeds(crossed, (high - low) / 2, FROM_SUMS)
    values = [float(seed.value) for seed in seeds]
    mean, half_width, n = student_interval(values)
    sem = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    df = max(n - 1, 1)  # of one value any number will do, since its sem is nan
    of_values = Estimate(mean, sem, df, tuple(values), n_documents=0, n_targets=0)
    return OverSeeds(of_values, half_width, FROM_SEEDS)


def _joined_terms(seeds: Sequence[SeedValue]) -> Terms | None:
    """Each term with the sums of all seeds; None if they do not have the same documents, or if only
    the value of a seed is known.
    """
    if not all(seed.terms for seed in seeds):
        return None
    joined = []
    for of_seeds in zip(*(seed.terms for seed in seeds), strict=True):
        weight = of_seeds[0][0]  # the same of every seed
        sums = joined_seeds([sums for _, sums in of_seeds])
        if sums is None:
            return None
        joined.append((weight, sums))
    return joined
