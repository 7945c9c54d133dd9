"""Interval of a share, by Wilson (1927), which holds near 0 and 1 and for few trials."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Both ends of the two-sided interval of a share of `n` independent trials."""
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))  # rounding may not exclude the share itself
