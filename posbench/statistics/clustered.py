"""Standard errors over documents, intervals over seeds and of shares, and the gain G of a model
from its window. numpy alone.

n targets, g clusters (documents, else windows), all one-dimensional arrays.
"""

import functools
import math
from statistics import NormalDist

import numpy as np

TINY = 1e-30  # stands for zero in a continued fraction
MOST_TERMS = 1000  # of the fraction
CONVERGED = 1e-15  # part by which its last term changes it
NORMAL_FROM = 1000  # degrees of freedom above which a quantile of t is the normal's
BISECTIONS = 80  # of the range that a quantile is in


def clustered_mean(values: np.ndarray, clusters: np.ndarray) -> tuple[float, float, int]:
    """Mean, standard error and number of clusters of n values that are correlated within clusters.

    The mean weighs every target alike, so it is the ratio estimator sum(cluster totals) /
    sum(cluster sizes). With e_c the sum of (value - mean) over cluster c, its variance is g / (g -
    1) * sum_c e_c^2 / n^2: the ratio estimator of Cochran, Sampling Techniques (3rd ed. 1977,
    chapters 6 and 9A), which is also the cluster-robust variance of Liang and Zeger (1986) for a
    regression on a constant. For clusters of one size it equals the variance of the cluster means
    over g. The error is nan for one cluster."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape != np.shape(clusters) or values.ndim != 1 or not values.size:
        raise ValueError(
            f"values {values.shape} and clusters {np.shape(clusters)} must be equally many, and at"
            " least one"
        )
    _, member = np.unique(clusters, return_inverse=True)
    with np.errstate(invalid="ignore"):  # an infinite loss is legal, and inf - inf is nan
        mean = values.mean()
        residual = np.bincount(member, weights=values - mean)
    g = len(residual)
    if g == 1:
        return float(mean), math.nan, g
    sem = math.sqrt(g / (g - 1) * float(np.square(residual).sum())) / len(values)
    return float(mean), sem, g


def student_cdf(t: float, df: float) -> float:
    """P(T <= t) of Student's t: for whole degrees of freedom the finite series of Abramowitz and
    Stegun 26.7.3-4, else the incomplete beta function I_x(df / 2, 1 / 2) at x = df / (df + t^2),
    which is P(|T| > |t|) (26.7.1)."""
    if df != int(df):
        tail = _beta_ratio(df / (df + t * t), df / 2, 0.5) / 2
        return tail if t < 0 else 1 - tail
    theta = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(theta), math.cos(theta)
    is_odd = int(df) % 2 == 1
    # The series in brackets: cos + 2/3 cos^3 + ... of odd df, empty for 1; 1 + 1/2 cos^2 + ... of
    # even df. Each term is the one before times cos^2 k / (k + 1).
    term = cosine if is_odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(2 if is_odd else 1, int(df) - 2, 2):
        term *= cosine * cosine * k / (k + 1)
        total += term
    if is_odd:
        return (1 + 2 / math.pi * (theta + sine * total)) / 2
    return (1 + sine * total) / 2


def _beta_ratio(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by the continued fraction of Abramowitz and
    Stegun 26.5.8 in Lentz's form.
    """
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # beyond it the fraction of the complement converges faster
        return 1 - _beta_ratio(1 - x, b, a)
    ratio = TINY  # the first term, n = 0, makes it 1
    above = TINY  # ratio of two numerators of the fraction cut off at n and n - 1
    below = 0.0  # the inverse ratio of the denominators
    for n in range(MOST_TERMS):
        m = n // 2
        if n == 0:
            part = 1.0
        elif n % 2:  # the coefficients d of 26.5.8 have one formula for odd n and one for even
            part = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            part = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / ((1 + part * below) or TINY)
        above = (1 + part / above) or TINY
        ratio *= below * above
        if abs(below * above - 1) < CONVERGED:
            break
    logarithm = (
        a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    return math.exp(logarithm) / a * ratio


@functools.lru_cache(maxsize=4096)
def student_quantile(probability: float, df: float) -> float:
    """Quantile t with P(T <= t) = probability, for probability in (0.5, 1) and df >= 1; the
    normal's above 1000 degrees of freedom.
    """
    if df > NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < probability:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if student_cdf(middle, df) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_interval(values: list[float] | np.ndarray) -> tuple[float, float | None, int]:
    """Mean, half width of the 95 % t interval, and n of independent values such as seeds; the half
    width is None for one value.

    >>> student_interval([1.0])
    (1.0, None, 1)
    """
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    mean = float(values.mean())
    if n < 2:
        return mean, None, n
    return mean, student_quantile(0.975, n - 1) * float(values.std(ddof=1)) / math.sqrt(n), n


def wilson(share: float, n: int) -> tuple[float, float]:
    """Two-sided 95 % interval of a share of `n` independent trials, by Wilson (1927): it holds near
    0 and 1, and for few.
    """
    z2 = NormalDist().inv_cdf(0.975) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # Rounding may not exclude the share itself.
    low = max(0.0, min(share, centre - half))
    high = min(1.0, max(share, centre + half))
    return low, high
