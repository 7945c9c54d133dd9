"""What decides: Student's t, clustered errors, the crossed interval, usable length, rules, Holm. On
fabricated data of known truth.
"""

import math

import numpy as np
import pytest

from posbench.common.errors import ConfigError
from posbench.statistics.clustered import clustered_mean, student_interval, student_quantile
from posbench.statistics.crossed import Estimate, estimate, gain, sums
from posbench.statistics.usable_length import Usable
from posbench.statistics.verdict_rules import (
    Rule,
    are_exclusive,
    benjamini_hochberg,
    decide,
    holm,
    n_sides,
)


def crossed(values_ST, clusters_T, *anova_from):
    """The estimate of the mean of the same targets under each seed."""
    return estimate([(1.0, sums(values_ST, clusters_T))], *anova_from)


def fabricated(rng, n_seeds, of_seed=0.0, of_document=0.0, of_both=0.0, n_documents=30):
    """d [S, T] and the document of each target: documents of 1 to 15 targets."""
    document_T = np.repeat(np.arange(n_documents), 1 + np.arange(n_documents) % 15)
    d_ST = (
        0.25 + rng.normal(0, 1, (n_seeds, len(document_T))) + rng.normal(0, of_seed, (n_seeds, 1))
    )
    d_ST += (
        rng.normal(0, of_document, n_documents)[document_T]
        + rng.normal(0, of_both, (n_seeds, n_documents))[:, document_T]
    )
    return d_ST, document_T


@pytest.mark.parametrize("n_seeds", [2, 5])
def test_the_variance_is_the_sandwich_of_cameron_gelbach_and_miller(n_seeds):
    """Pairs of observations, all of them: e e' where they share a seed, a document, or both."""
    d_ST, document_T = fabricated(np.random.default_rng(0), n_seeds, 0.5, 0.5, 0.2, n_documents=6)
    e_N = (d_ST - d_ST.mean()).ravel()
    seed_N, document_N = (
        np.repeat(np.arange(n_seeds), len(document_T)),
        np.tile(document_T, n_seeds),
    )
    both_N = seed_N * 1000 + document_N
    parts = []
    for cluster_N in (seed_N, document_N, both_N):
        g = len(set(cluster_N))
        shared_NN = cluster_N[:, None] == cluster_N
        parts.append(g / (g - 1) * float(e_N @ shared_NN @ e_N) / len(e_N) ** 2)
    estimated = crossed(d_ST, document_T, math.inf)
    assert estimated.value == pytest.approx(d_ST.mean(), rel=1e-12)
    assert estimated.sem**2 == pytest.approx(max(parts[0] + parts[1] - parts[2], *parts), rel=1e-9)
    assert (estimated.df, estimated.n_documents, estimated.n_targets) == (
        n_seeds - 1,
        6,
        len(document_T),
    )
    assert estimated.by_seed == pytest.approx(d_ST.mean(1))


def test_one_seed_is_the_interval_over_documents():
    d_ST, document_T = fabricated(np.random.default_rng(2), 1, of_document=0.5)
    estimated = crossed(d_ST, document_T)
    mean, sem, g = clustered_mean(d_ST[0], document_T)
    assert (estimated.value, estimated.sem, estimated.df) == pytest.approx((mean, sem, g - 1))
    assert (
        estimated.over == "documents (one seed)"
        and crossed(np.repeat(d_ST, 2, 0), document_T).over == "seeds x documents"
    )


def test_degenerate_cases():
    same = crossed(np.full((3, 8), 0.5), np.arange(8) // 2)
    assert (
        same.sem == 0
        and same.interval() == (0.5, 0.5)
        and same.p_above(0.4) == 0
        and same.p_above(0.5) == 1
    )
    for lost in (
        crossed(np.ones((3, 8)), np.zeros(8)),
        crossed([[1.0, math.inf], [0.0, 1.0]], [0, 1]),
    ):
        assert math.isnan(lost.interval()[0]) and lost.p_above(-1e9) == lost.p_below(1e9) == 1
    assert (
        crossed(np.random.default_rng(0).normal(size=(9, 4)), np.arange(4), math.inf).df == 3
    )  # fewer documents than seeds
    for values, clusters in (
        (np.ones(3), np.arange(3)),
        (np.ones((2, 3)), np.arange(2)),
        (np.ones((0, 3)), np.arange(3)),
    ):
        with pytest.raises(ValueError, match="targets"):
            crossed(values, clusters)
    with pytest.raises(ValueError, match="paired"):
        estimate(
            [(1, sums(np.ones((2, 3)), np.arange(3))), (-1, sums(np.ones((3, 3)), np.arange(3)))]
        )


def test_errors_that_cancel_are_no_certainty():
    """One-way variances 0, so their sum less the third is negative; 4/3 of the mean square of four
    cells is what is known of the noise.
    """
    d_ST = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert crossed(d_ST, np.arange(2)).sem == pytest.approx(math.sqrt(4 / 3 / 4))


def test_terms_of_the_same_targets_are_the_paired_difference_and_of_others_the_ratio_estimator():
    rng = np.random.default_rng(3)
    a_ST, document_T = fabricated(rng, 3, 0.2, 0.5)
    b_ST = a_ST - 0.4 + rng.normal(0, 0.1, a_ST.shape)
    both = estimate([(1, sums(a_ST, document_T)), (-1, sums(b_ST, document_T))])
    paired = crossed(a_ST - b_ST, document_T)
    assert (both.value, both.sem, both.by_seed) == (
        pytest.approx(paired.value),
        pytest.approx(paired.sem),
        pytest.approx(paired.by_seed),
    )
    # Other targets of the same documents, and a document that only one of the two has: 2 - 1 = 1
    # exactly, whatever their numbers.
    twos, ones = sums(np.full((2, 5), 2.0), [0, 0, 1, 2, 2]), sums(np.ones((2, 3)), [0, 1, 1])
    assert (estimate([(1, twos), (-1, ones)]).value, estimate([(1, twos), (-1, ones)]).sem) == (
        1,
        0,
    )
    # By hand, one seed: documents 0 and 1 have sums 1 and 5 of 2 and 1 targets, mean 2; e / n =
    # (-1, 1); g / (g - 1) = 2
    assert estimate([(3, sums([[0.0, 1.0, 5.0]], [0, 0, 1]))]).sem == pytest.approx(
        3 * math.sqrt(2 * 2)
    )


def exact(value, sem=0.01, df=4):
    return Estimate(value, sem, df, (value,) * (df + 1), 50, 400)


def test_p_is_the_alpha_at_which_the_interval_leaves_the_bound():
    estimated = exact(0.5, 0.1, 4)
    assert estimated.interval()[0] == pytest.approx(0.5 - 0.2776, abs=1e-4)  # printed table: 2.776
    assert estimated.p_above(0.5 - 0.2776) == pytest.approx(0.05, abs=1e-4)
    assert estimated.p_below(0.5 + 0.2132) == pytest.approx(0.10, abs=1e-4)  # printed table: 2.132
    assert estimated.p_above(0.6) == 1
    level = 1 - estimated.p_above(0.3)
    assert estimated.interval(level)[0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "rule, low, high, fits",
    [("above 0.1", 0.11, 0.3, True), ("above 0.1", 0.09, 0.3, False),
        ("below -0.1", -0.3, -0.11, True), ("below -0.1", -0.3, -0.09, False),
     ("within 0.02", -0.019, 0.018, True), ("within 0.02", -0.001, 0.021, False),
     ("between 1.1 1.5", 1.2, 1.4, True),
     ("between 1.1 1.5", 1.0, 1.4, False), ("outside 1.1 1.5", 1.6, 1.9, True),
     ("outside 1.1 1.5", 1.0, 1.05, True),
     ("outside 1.1 1.5", 1.0, 1.6, False)],
)  # fmt: skip
def test_a_rule_holds_when_the_whole_interval_does(rule, low, high, fits):
    middle, sem = (low + high) / 2, (high - low) / 2 / 2.776445
    rule = Rule.parse(rule)
    assert (rule.p(lambda bound: (exact(middle, sem), bound)) < 0.05) == fits
    assert str(Rule.parse(str(rule))) == str(rule)


def test_verdicts_come_from_the_interval_and_never_from_the_point():
    confirm, refute = Rule.parse("above 0.1"), Rule.parse("below 0.05")

    def verdict(value, sem):
        return decide(confirm, refute, lambda bound: (exact(value, sem), bound))[0]

    assert verdict(0.5, 0.01) == "confirmed" and verdict(0.5, 0.2) == "undecided"
    assert verdict(0.0, 0.01) == "refuted" and verdict(0.0, 0.1) == "undecided"
    assert verdict(0.075, 0.001) == "undecided"  # between the two margins, however well known


@pytest.mark.parametrize(
    "text",
    ["above x", "near 0.1", "between 2 1", "within 0", "above 1 2", "above 0.1 H", "above nan"],
)
def test_rules_that_are_none(text):
    with pytest.raises(ConfigError, match="must be one of: above X"):
        Rule.parse(text)


def test_rules_exclude_each_other_or_are_refused():
    def ok(a, b):
        return are_exclusive(Rule.parse(a), Rule.parse(b))

    assert (
        ok("above 0.1", "below 0.1")
        and ok("within 0.02", "outside -0.05 0.05")
        and ok("between 1 2", "outside 1 2")
    )
    assert (
        not ok("above 0.1", "below 0.2")
        and not ok("within 0.02", "above 0.01")
        and not ok("above 1", "outside 1 2")
    )


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> running maximum
    # (textbook example of p.adjust)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.2]) == [0.2] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_readings_of_one_comparison_cost_holms_correction_one_question():
    # Groups a (0.005 and 0.03), b (0.01), c (0.04): sorted factors 3 (a, b, c are left), 3, 2 (a's
    # other reading and c), 1
    assert holm([0.01, 0.04, 0.03, 0.005], "bcaa") == pytest.approx([0.03, 0.06, 0.06, 0.015])
    assert holm([0.01, 0.04, 0.03, 0.005], "bcad") == holm([0.01, 0.04, 0.03, 0.005])
    assert holm([0.02, 0.03], "aa") == [0.02, 0.03]


def test_q_by_its_definition():
    """Deciding all with q below a level is deciding the k smallest p, for the largest k with p_k <=
    level k / n.
    """
    ps = np.random.default_rng(8).beta(0.3, 1, 40).tolist()
    for level in (0.01, 0.05, 0.2, 0.5):
        k = max((k for k in range(1, 41) if sorted(ps)[k - 1] <= level * k / 40), default=0)
        assert {p for p, q in zip(ps, benjamini_hochberg(ps), strict=True) if q <= level} == set(
            sorted(ps)[:k]
        )
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "BH")
    assert (
        benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
        and benjamini_hochberg([]) == []
    )


def test_one_side_where_the_rules_are_the_two_sides_of_one_bound():
    def of(a, b):
        return n_sides(Rule.parse(a), Rule.parse(b))

    assert of("above 0.1", "below 0.1") == of("below -0.1 G", "above -0.1 G") == 1
    assert (
        of("above 0.1", "below 0")
        == of("within 0.1", "outside -0.1 0.1")
        == of("between 1 2", "outside 1 2")
        == 2
    )
    rules = Rule.parse("above 0"), Rule.parse("below 0")
    word, p = decide(*rules, lambda bound: (exact(0.02, 0.01, 10), bound))
    assert (word, decide(*rules, lambda bound: (exact(0.02, 0.01, 10), bound), 1)) == (
        "undecided",
        ("confirmed", p / 2),
    )
    assert decide(*rules, lambda bound: (exact(0.0), bound), 1) == ("undecided", 1.0)


def test_usable_length_by_hand():
    """Not monotone: what dips back under the margin later is not usable again."""
    curve = {
        64: exact(0.0),
        72: exact(0.005),
        80: exact(0.03),
        96: exact(0.2),
        128: exact(0.01),
    }  # half width 0.0278
    usable = Usable(curve, 0.05)
    assert usable.interval() == (80, 96) and usable.value == 96
    assert Usable(curve, 0.001).interval() == (64, 80)
    assert (
        Usable(curve, 1.0).interval() == (math.inf, math.inf)
        and Usable(curve, 1.0).value == math.inf
    )


def test_a_loss_that_is_not_finite_is_beyond_any_margin_and_one_document_proves_nothing():
    lost, unknown = exact(math.inf, math.nan), exact(0.0, math.nan)
    assert Usable({64: exact(0.0), 128: lost}, 0.05).interval() == (128, 128)
    assert Usable({64: exact(0.0), 128: unknown}, 0.05).interval() == (128, math.inf)


def test_p_of_a_usable_length_is_where_its_interval_leaves_the_bound():
    curve = Usable({64: exact(0.0), 96: exact(0.06), 128: exact(0.2)}, 0.05)
    for bound in (64, 96, 127, 128, 200):
        for p, left in (
            (curve.p_above(bound), lambda low, high, at=bound: low > at),
            (curve.p_below(bound), lambda low, high, at=bound: high < at),
        ):
            assert p == 1 or left(*curve.interval(1 - p * 1.001))
            assert p < 1e-8 or not left(*curve.interval(1 - p * 0.999))
    assert curve.p_above(64) < 0.05 < curve.p_above(96) and curve.p_below(
        200
    ) < 0.05 < curve.p_below(96)


# Printed tables of Student's t (two decimals of the tail: 97.5 % and 95 %).
PRINTED = {
    1: (12.706, 6.314),
    2: (4.303, 2.920),
    3: (3.182, 2.353),
    4: (2.776, 2.132),
    5: (2.571, 2.015),
    7: (2.365, 1.895),
    # fmt: skip
    10: (2.228, 1.812),
    29: (2.045, 1.699),
    30: (2.042, 1.697),
    120: (1.980, 1.658),
    10**6: (1.960, 1.645),
}


@pytest.mark.parametrize("df", PRINTED)
def test_t_quantiles_match_printed_tables(df):
    assert student_quantile(0.975, df) == pytest.approx(PRINTED[df][0], abs=6e-4)
    assert student_quantile(0.95, df) == pytest.approx(PRINTED[df][1], abs=6e-4)


def test_unequal_clusters_by_hand():
    # mean 2; residual sums: (1-2)+(1-2)+(1-2) = -3 and 5-2 = 3; 2/1 * (9+9) / 16
    mean, sem, n = clustered_mean(np.array([1.0, 1.0, 1.0, 5.0]), np.array([0, 0, 0, 1]))
    assert (mean, n) == (2.0, 2)
    assert sem == pytest.approx(1.5)


def test_one_cluster_has_no_error_and_shapes_must_agree():
    assert math.isnan(clustered_mean(np.ones(3), np.zeros(3))[1])
    with pytest.raises(ValueError, match="equally many"):
        clustered_mean(np.ones(3), np.zeros(4))


def gained(full, half, clusters):
    return gain(
        *(sums([np.asarray(values, dtype=np.float64)], clusters) for values in (full, half))
    )


def test_what_is_not_finite_stays_so():
    assert math.isnan(gained([np.inf, 1.0], [np.inf, 1.0], np.arange(2)).value)


def test_pairing_removes_what_both_share():
    shared = np.random.default_rng(0).normal(0, 3, 100)
    estimated = gained(shared, shared + 0.25, np.arange(100) // 5)
    assert estimated.value == pytest.approx(0.25) and estimated.sem < 1e-12


def test_interval_over_seeds():
    mean, half, n = student_interval([1.0, 2.0, 3.0])
    assert (mean, n) == (2.0, 3)
    assert half == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert student_interval([1.5]) == (1.5, None, 1)


def test_gain_and_its_gate():
    full, clusters = np.zeros(4), np.arange(4)
    estimated = gained(full, [0.1, 0.2, 0.3, 0.4], clusters)
    assert estimated.value == pytest.approx(0.25) and estimated.lower > 0
    assert estimated.lower == pytest.approx(
        0.25 - 3.182 * np.std([0.1, 0.2, 0.3, 0.4], ddof=1) / 2, abs=1e-4
    )
    assert gained(full, [-0.1, 0.2, 0.3, 0.1], clusters).lower < 0
    assert math.isnan(gained(full, full + 0.1, np.zeros(4)).lower)  # one document proves nothing
