"""Usable length: the length up to which a curve stays within a margin of its floor. Curves are not
monotone, so every length counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from posbench.statistics.crossed import Estimate


@dataclass(frozen=True)
class Usable:
    """Differences to the floor by length, and the margin, in one unit. Lengths are those of the
    grid, so its steps are the resolution.
    """

    rises: Mapping[float, Estimate]
    margin: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """First length whose upper bound exceeds the margin, and first whose lower bound does; inf
        if no length of the grid does.

        The first is the usable length: up to there the curve demonstrably stays within the margin.
        The lengths between them could be the true first exceedance, since neither "exceeded
        earlier" nor "not exceeded yet" is rejected there. A difference that is not finite exceeds
        every margin. One without an interval (one document) may exceed it."""
        low = high = math.inf
        for length in sorted(self.rises, reverse=True):
            bottom, top = self.rises[length].interval(level)
            broken = not math.isfinite(self.rises[length].value)
            low = low if top <= self.margin and not broken else length
            high = length if bottom > self.margin or broken else high
        return low, high

    @property
    def value(self) -> float:
        """First length whose difference exceeds the margin, inf if none does. A point estimate
        without its uncertainty.
        """
        return min(
            (length for length, rise in self.rises.items() if not rise.value <= self.margin),
            default=math.inf,
        )

    def p_above(self, length: float) -> float:
        """Smallest alpha at which the (1 - alpha) interval lies above `length`."""
        return self._p(lambda level: self.interval(level)[0] > length)

    def p_below(self, length: float) -> float:
        """Smallest alpha at which the (1 - alpha) interval lies below `length`."""
        return self._p(lambda level: self.interval(level)[1] < length)

    def _p(self, decided) -> float:
        low, high = 1e-9, 1.0
        if decided(1 - low):
            return low
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if decided(1 - middle) else (middle, high)
        return high
