"""The deciding interval: seeds crossed with documents, because every seed is measured on the same
documents. numpy alone.

Letters: S seeds, C documents (else windows), H strata of a design.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbench.statistics.clustered import student_cdf, student_quantile

# Seeds from which the variance is that of `anova`; with fewer it is that of `clustered`.
ANOVA_FROM = 5


@dataclass(frozen=True)
class Sums:
    """Parts of a mean over targets: sorted `documents` [C], `counts` of targets in each [C],
    `totals` of each seed [S, C].

    `strata` [C], if any, number the stratum of each document: values that were chosen, such as
    depths, and not drawn."""

    documents: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    strata: np.ndarray | None = None

    @property
    def means(self) -> np.ndarray:
        """Mean of each seed [S], with all targets weighing alike."""
        return self.totals.sum(1) / self.counts.sum()

    def minus(self, other: "Sums") -> "Sums":
        """Sums of the differences on the same targets."""
        with np.errstate(invalid="ignore"):
            return replace(self, totals=self.totals - other.totals)


def sums(values_ST: Sequence[np.ndarray] | np.ndarray, clusters_T: np.ndarray) -> Sums:
    """Sum the values of the same targets under each seed by cluster. Raises ValueError unless
    shapes are [S, T] and [T], T > 0.
    """
    values_ST = np.asarray(values_ST, dtype=np.float64)
    if values_ST.ndim != 2 or values_ST.shape[1:] != np.shape(clusters_T) or not values_ST.size:
        raise ValueError(
            f"values {values_ST.shape} must be [seeds, targets] of the targets in clusters"
            f" {np.shape(clusters_T)}"
        )
    documents, member = np.unique(clusters_T, return_inverse=True)
    totals = [np.bincount(member, values_T, minlength=len(documents)) for values_T in values_ST]
    return Sums(documents, np.bincount(member), np.stack(totals))


def joined_seeds(seeds: Sequence[Sums]) -> Sums | None:
    """Join the `sums` of several seeds; None unless they have equally many targets in the same
    documents.
    """
    first = seeds[0]
    for other in seeds[1:]:
        same_documents = np.array_equal(other.documents, first.documents)
        if not same_documents or not np.array_equal(other.counts, first.counts):
            return None
    return replace(first, totals=np.concatenate([seed.totals for seed in seeds]))


def joined_strata(parts: Sequence[Sums]) -> Sums:
    """Join the `sums` of the strata of a design, none of whose documents is a document of another
    one; they get new numbers.
    """
    counts = np.concatenate([part.counts for part in parts])
    totals = np.concatenate([part.totals for part in parts], axis=1)
    strata = np.repeat(np.arange(len(parts)), [len(part.counts) for part in parts])
    return Sums(np.arange(len(counts)), counts, totals, strata)


@dataclass(frozen=True)
class Estimate:
    """Value with its standard error and degrees of freedom.

    The error is nan for one document, also in a stratum, or if a loss is not finite.
    """

    value: float
    sem: float
    df: float
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

    @property
    def lower(self) -> float:
        """Lower end of the two-sided 95 % interval; nan without one."""
        return self.interval()[0]

    def p_above(self, bound: float) -> float:
        """Smallest alpha at which the two-sided (1 - alpha) interval lies above `bound`; 1 if none
        does.
        """
        if not math.isfinite(self.sem) or self.value <= bound:
            return 1.0
        if not self.sem:
            return 0.0  # without an error every interval is the value alone
        return 2 * student_cdf((bound - self.value) / self.sem, self.df)

    def p_below(self, bound: float) -> float:
        """Smallest alpha at which the two-sided (1 - alpha) interval lies below `bound`; 1 if none
        does.
        """
        return replace(self, value=-self.value).p_above(-bound)


def estimate(terms: Sequence[tuple[float, Sums]], anova_from: float = ANOVA_FROM) -> Estimate:
    """Estimate of the sum of weight x mean over (weight, Sums), all of the same seeds in the same
    order.

    Its variance is that of `clustered`, and from `anova_from` seeds on that of `anova`; of
    documents in strata that of `stratified`. One seed: documents alone, documents - 1 degrees of
    freedom. Terms may have different targets in the same documents: each enters with its own
    residuals (sum - mean x count) / targets, which for equal targets is the paired difference.

    Raises ValueError if the terms do not have equally many seeds, or not the same strata.
    """
    n_seeds = {len(sums.totals) for _, sums in terms}
    if len(n_seeds) != 1:
        raise ValueError(f"terms of {sorted(n_seeds)} seeds cannot be paired")
    (s,) = n_seeds
    documents = np.unique(np.concatenate([sums.documents for _, sums in terms]))
    c = len(documents)
    strata_C = _shared_strata([sums for _, sums in terms])
    residual_SC = np.zeros((s, c))  # from the mean over all seeds
    between_SC = np.zeros((s, c))  # the part of it that is a seed's own mean
    share_C = np.zeros(c)
    by_seed_S = np.zeros(s)
    with np.errstate(invalid="ignore"):  # an infinite loss is legal, and inf - inf is nan
        for weight, sums in terms:
            at = np.searchsorted(documents, sums.documents)  # columns of this term's documents
            mean = sums.means.mean()
            n = sums.counts.sum()
            residual_SC[:, at] += weight * (sums.totals - mean * sums.counts) / n
            between_SC[:, at] += weight * (sums.means - mean)[:, None] * sums.counts / n
            share_C[at] += abs(weight) * sums.counts / n
            by_seed_S += weight * sums.means
        if strata_C is not None:
            within_SC = residual_SC - between_SC
            variance, df = stratified(within_SC, by_seed_S, share_C, strata_C, anova_from)
        elif s == 1:
            variance, df = _clustered_variance(residual_SC[0], c), c - 1
        # Few seeds tell their variance too roughly to subtract it, and one document tells none.
        elif s < anova_from or c == 1:
            variance, df = clustered(residual_SC)  # with each seed's own mean in it
        else:
            variance, df = anova(residual_SC - between_SC, by_seed_S, share_C)
        value = float(by_seed_S.mean())
    return Estimate(
        value,
        math.sqrt(variance) if math.isfinite(variance) else math.nan,
        df,
        by_seed=tuple(map(float, by_seed_S)),
        n_documents=c,
        n_targets=max(int(sums.counts.sum()) for _, sums in terms),
    )


def clustered(residual_SC: np.ndarray) -> tuple[float, int]:
    """Variance and degrees of freedom, min(S, C) - 1, by clustering on both sides.

    Cameron, Gelbach and Miller (2011): V_seeds + V_documents - V_seeds&documents, each with its g /
    (g - 1). By chance it can fall below one of its parts, or below zero. So the largest of it and
    its parts is taken (the max-se of MacKinnon, Nielsen and Webb 2024, arXiv 2406.08880, who take
    the one-way variances), since in expectation no part exceeds it. Where documents decide, the few
    degrees of freedom make the interval wider than it needs to be. nan for one document."""
    s, c = residual_SC.shape
    df = min(s, c) - 1
    if c == 1:
        return math.nan, df
    # S is above 1: of one seed `estimate` takes the documents alone.
    by_seed = _clustered_variance(residual_SC.sum(1) / s, s)
    by_document = _clustered_variance(residual_SC.mean(0), c)
    both = _clustered_variance(residual_SC.ravel() / s, s * c)
    return max(by_seed + by_document - both, by_seed, by_document, both), df


def anova(
    residual_SC: np.ndarray, by_seed_S: np.ndarray, share_C: np.ndarray
) -> tuple[float, float]:
    """Variance and degrees of freedom by the analysis of variance of seeds crossed with documents,
    both random.

    Model: the mean of document c under seed s is m + a_s + b_c + e_sc, with independent a, b and e
    of variances A, B and E, and w_c is the document's share of the targets. What is estimated is
    the mean over seeds of sum_c w_c d_sc, so its variance is A / S + sum w^2 B + sum w^2 E / S.
    With the residuals r_sc = w_c (d_sc - d_s) from each seed's own mean d_s, three sums estimate
    it:

    seeds = sum_s (d_s - d)^2 / (S (S - 1)), of expectation A / S + sum w^2 E / S
    documents = sum_c (mean_s r_sc)^2 / f, of expectation sum w^2 (B + E / S)
    both = sum_sc (r_sc - mean_s r_sc)^2 / f / (S (S - 1)), of expectation sum w^2 E / S

    with f = 1 + sum w^2 - 2 sum w^3 / sum w^2,
    and the variance is seeds + documents - both. For documents of equally many targets f is (C - 1)
    / C, and these are the mean squares of the two-way layout without replication, each over S C
    (Searle, Casella and McCulloch, Variance Components, 1992, chapter 4). All three are unbiased
    for any numbers of targets as long as B and E are the same in every document. Where E falls with
    the number of targets, `seeds` and its share in the sum remain exact, and f is right up to the
    share of the largest documents. If several terms have other targets, w is the mean of their
    shares by |weight|.

    Degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2, 110-114): variance^2 over
    the sum of each part^2 / its own. Those of `seeds` are S - 1. Those of `documents` are C - 1
    only if all documents vary alike; here one may hold a twentieth of the targets. So they are
    taken from its terms x_c = mean_s r_sc: for normal x_c of any variances v_c, (sum v)^2 / sum v^2
    is estimated by 3 (sum x^2)^2 / sum x^4, less 1 for the mean. Of equal variances that is about 3
    too many (a mean of 16.5 for 13 with 14 documents, of 103 for 99 with 100, in 20,000 draws), so
    that an interval over 14 documents is 2 % too narrow; it is kept, as earlier verdicts rest on
    it. `both` has S - 1 times as many. If by chance `both` exceeds another part, that source does
    not show, and the larger of the two others stands alone with its own degrees."""
    s = len(by_seed_S)
    w_C = share_C / share_C.sum()
    square = float((w_C**2).sum())
    cube = float((w_C**3).sum())
    f = 1 + square - 2 * cube / square
    x_C = residual_SC.mean(0)
    seeds = float(np.var(by_seed_S, ddof=1)) / s
    documents = float((x_C**2).sum()) / f
    both = float(np.square(residual_SC - x_C).sum()) / f / (s * (s - 1))
    df = 1.0  # where all documents are alike, so that there is nothing to divide
    if documents:
        df = max(3 * (documents * f) ** 2 / float((x_C**4).sum()) - 1, 1.0)
    return _combined_variance(seeds, documents, both, s, df)


def stratified(
    residual_SC: np.ndarray,
    by_seed_S: np.ndarray,
    share_C: np.ndarray,
    strata_C: np.ndarray,
    anova_from: float = ANOVA_FROM,
) -> tuple[float, float]:
    """Variance and degrees of freedom of seeds crossed with documents that were drawn within the
    strata of a design.

    Needles stand at five depths because somebody chose these. Another draw has other texts and the
    same depths, so what differs between depths is no error, and the interval says nothing of other
    depths (Cochran, Sampling Techniques, 3rd ed. 1977, chapter 5). With e_sc the residual of
    document c under seed s from the mean of its stratum h, which has C_h documents,

    documents = sum_h C_h / (C_h - 1) sum_c (mean_s e_sc)^2, with C - H degrees of freedom
    both = sum_h C_h / (C_h - 1) sum_sc (e_sc - mean_s e_sc)^2 / (S (S - 1)), S - 1 times as many
    seeds = as in `anova`, with S - 1

    and the variance is seeds + documents - both, of one seed documents alone. If by chance `both`
    exceeds another part, the larger of the two others stands alone. Degrees of freedom are
    Satterthwaite's; with fewer than `anova_from` seeds the least of a part.

    nan if a stratum has one document, whose error nobody can know.
    """
    _, stratum_C, size_H = np.unique(strata_C, return_inverse=True, return_counts=True)
    if size_H.min() < 2:
        return math.nan, 1.0  # of nan any degrees of freedom will do
    share_H = np.bincount(stratum_C, weights=share_C)
    total_SH = np.stack([np.bincount(stratum_C, residual_C) for residual_C in residual_SC])
    mean_SH = total_SH / share_H
    # Of a document with more targets a larger part of the stratum's mean is taken off.
    error_SC = residual_SC - share_C * mean_SH[:, stratum_C]
    factor_C = (size_H / (size_H - 1))[stratum_C]  # since the stratum's mean is estimated too
    mean_C = error_SC.mean(0)
    documents = float((factor_C * mean_C**2).sum())
    df = float(len(strata_C) - len(size_H))
    s = len(by_seed_S)
    if s == 1:
        return documents, df
    seeds = float(np.var(by_seed_S, ddof=1)) / s
    both = float((factor_C * (error_SC - mean_C) ** 2).sum()) / (s * (s - 1))
    variance, satterthwaite = _combined_variance(seeds, documents, both, s, df)
    return variance, satterthwaite if s >= anova_from else min(s - 1.0, df)


def _combined_variance(
    seeds: float, documents: float, both: float, s: int, df: float
) -> tuple[float, float]:
    """Variance seeds + documents - both with Satterthwaite's degrees of freedom, of which the parts
    have s - 1, df and (s - 1) df; if `both` exceeds another part, the larger of the two others.
    """
    # So written that nan, of an infinite loss, comes here too.
    if not both < min(seeds, documents):
        return max((seeds, float(s - 1)), (documents, df))  # the larger variance, with its df
    variance = seeds + documents - both
    parts = seeds**2 / (s - 1) + documents**2 / df + both**2 / ((s - 1) * df)
    return variance, variance**2 / parts


def _shared_strata(terms: Sequence[Sums]) -> np.ndarray | None:
    """Strata [C] of terms of the same documents; None without any. Raises ValueError if terms
    differ in them.
    """
    first = terms[0]
    for term in terms[1:]:
        both_without = term.strata is None and first.strata is None
        same_documents = np.array_equal(term.documents, first.documents)
        if not both_without and not (same_documents and np.array_equal(term.strata, first.strata)):
            raise ValueError("terms of different strata cannot be paired")
    return first.strata


def _clustered_variance(total_G: np.ndarray, g: int) -> float:
    return g / (g - 1) * float(np.square(total_G).sum()) if g > 1 else math.nan


def gain(full: Sums, half: Sums) -> Estimate:
    """Gain G of a model from the second half of its window, in nats/token.

    It is the loss with exactly train_len / 2 tokens of context (`half`) minus that with exactly
    train_len (`full`), on the same targets. With `lower` above 0 the model demonstrably uses its
    window, without which a comparison of extensions means nothing."""
    return estimate([(1.0, half.minus(full))])
