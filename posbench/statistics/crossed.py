"""The interval that decides: seeds crossed with documents, because every seed is measured on the same documents. numpy alone.

Letters: S seeds, C documents (else windows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbench.statistics.clustered import student_cdf, student_quantile


@dataclass(frozen=True)
class Sums:
    """Parts of a mean over targets: sorted `documents` [C], `counts` of targets in each [C], `totals` of each seed [S, C]."""

    documents: np.ndarray
    counts: np.ndarray
    totals: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Mean of each seed [S], with all targets weighing alike."""
        return self.totals.sum(1) / self.counts.sum()

    def minus(self, other: Sums) -> Sums:
        """Sums of the differences on the same targets."""
        with np.errstate(invalid="ignore"):
            return Sums(self.documents, self.counts, self.totals - other.totals)


def sums(values_ST: Sequence[np.ndarray] | np.ndarray, clusters_T: np.ndarray) -> Sums:
    """Sum the values of the same targets under each seed by cluster. Raises ValueError unless shapes are [S, T] and [T], T > 0."""
    values_ST = np.asarray(values_ST, dtype=np.float64)
    if values_ST.ndim != 2 or values_ST.shape[1:] != np.shape(clusters_T) or not values_ST.size:
        raise ValueError(f"values {values_ST.shape} must be [seeds, targets] of the targets in clusters {np.shape(clusters_T)}")
    documents, member = np.unique(clusters_T, return_inverse=True)
    totals = np.stack([np.bincount(member, weights=values_T, minlength=len(documents)) for values_T in values_ST])
    return Sums(documents, np.bincount(member), totals)


def across(seeds: Sequence[Sums]) -> Sums | None:
    """Join the `sums` of several seeds; None unless they have equally many targets in the same documents."""
    first = seeds[0]
    alike = all(np.array_equal(one.documents, first.documents) and np.array_equal(one.counts, first.counts) for one in seeds)
    return Sums(first.documents, first.counts, np.concatenate([one.totals for one in seeds])) if alike else None


@dataclass(frozen=True)
class Estimate:
    """Value with its standard error and degrees of freedom; the error is nan for one document, or if a loss is not finite."""

    value: float
    sem: float
    df: int
    by_seed: tuple[float, ...]
    n_documents: int
    n_targets: int

    @property
    def over(self) -> str:
        """Units of the interval, in words."""
        return "documents (one seed)" if len(self.by_seed) == 1 else "seeds x documents"

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Both ends of the two-sided t interval."""
        if not math.isfinite(self.sem):
            return math.nan, math.nan
        half = student_quantile((1 + level) / 2, self.df) * self.sem
        return self.value - half, self.value + half

    def p_above(self, bound: float) -> float:
        """Smallest alpha at which the two-sided (1 - alpha) interval lies above `bound`; 1 if none does."""
        if not math.isfinite(self.sem) or self.value <= bound:
            return 1.0
        return 2 * student_cdf((bound - self.value) / self.sem, self.df) if self.sem else 0.0

    def p_below(self, bound: float) -> float:
        """Smallest alpha at which the two-sided (1 - alpha) interval lies below `bound`; 1 if none does."""
        return replace(self, value=-self.value).p_above(-bound)


def estimate(terms: Sequence[tuple[float, Sums]]) -> Estimate:
    """Estimate of the sum of weight x mean over (weight, Sums), all of the same seeds in the same order.

    Two-way clustered variance of Cameron, Gelbach and Miller (2011): V_seeds + V_documents - V_seeds&documents, each with its g / (g - 1).
    By chance it can fall below one of its parts, or below zero. So the largest of it and its parts is taken (the max-se of MacKinnon,
    Nielsen and Webb 2024, arXiv 2406.08880, who take the one-way variances), since in expectation no part exceeds it. Student's t has
    min(seeds, documents) - 1 degrees of freedom. One seed: documents alone, documents - 1. Terms may have different targets in the
    same documents: each enters with its own residuals (sum - mean x count) / targets, which for equal targets is the paired difference.

    Raises ValueError if the terms do not have equally many seeds.
    """
    n_seeds = {len(one.totals) for _, one in terms}
    if len(n_seeds) != 1:
        raise ValueError(f"terms of {sorted(n_seeds)} seeds cannot be paired")
    documents = np.unique(np.concatenate([one.documents for _, one in terms]))
    residual_SC = np.zeros((n_seeds.pop(), len(documents)))
    by_seed_S = np.zeros(len(residual_SC))
    with np.errstate(invalid="ignore"):
        for weight, one in terms:
            at = np.searchsorted(documents, one.documents)
            residual_SC[:, at] += weight * (one.totals - one.means.mean() * one.counts) / one.counts.sum()
            by_seed_S += weight * one.means
        s, c = residual_SC.shape
        by_document = _variance(residual_SC.mean(0), c)
        if s > 1:
            by_seeds, both = _variance(residual_SC.sum(1) / s, s), _variance(residual_SC.ravel() / s, s * c)
            variance = max(by_seeds + by_document - both, by_seeds, by_document, both) if c > 1 else math.nan
            df = min(s, c) - 1
        else:
            variance, df = by_document, c - 1
        value = float(by_seed_S.mean())
    n_targets = max(int(one.counts.sum()) for _, one in terms)
    return Estimate(value, math.sqrt(variance) if math.isfinite(variance) else math.nan, df, tuple(map(float, by_seed_S)), c, n_targets)


def _variance(total_G: np.ndarray, g: int) -> float:
    return g / (g - 1) * float(np.square(total_G).sum()) if g > 1 else math.nan
