"""Usable length: the length up to which a curve stays within a margin of its floor. Curves are not
monotone, so every length counts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from posbench.statistics.crossed import Estimate

LEAST_P = 1e-9  # smallest alpha that is tried
BISECTIONS = 40  # of the range that a p is in


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
        # From the longest down, so that the shortest length that fits is what stays.
        for length in sorted(self.rises, reverse=True):
            bottom, top = self.rises[length].interval(level)
            broken = not math.isfinite(self.rises[length].value)
            if broken or not top <= self.margin:  # nan, without an interval, may exceed it
                low = length
            if broken or bottom > self.margin:
                high = length
        return low, high

    @property
    def value(self) -> float:
        """First length whose difference exceeds the margin, inf if none does. A point estimate
        without its uncertainty.
        """
        beyond = [length for length, rise in self.rises.items() if not rise.value <= self.margin]
        return min(beyond, default=math.inf)

    def p_above(self, length: float) -> float:
        """Smallest alpha at which the (1 - alpha) interval lies above `length`."""
        return self._p(lambda level: self.interval(level)[0] > length)

    def p_below(self, length: float) -> float:
        """Smallest alpha at which the (1 - alpha) interval lies below `length`."""
        return self._p(lambda level: self.interval(level)[1] < length)

    def _p(self, decided: Callable[[float], bool]) -> float:
        """Smallest alpha at which `decided(1 - alpha)`, found by halving."""
        low, high = LEAST_P, 1.0
        if decided(1 - low):
            return low
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if decided(1 - middle):
                high = middle
            else:
                low = middle
        return high
