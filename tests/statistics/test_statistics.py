import math

import numpy as np
import pytest

from posbench.statistics.clustered import clustered_mean, student_interval, student_quantile
from posbench.statistics.crossed import gain, sums

# Printed tables of Student's t (two decimals of the tail: 97.5 % and 95 %).
PRINTED = {1: (12.706, 6.314), 2: (4.303, 2.920), 3: (3.182, 2.353), 4: (2.776, 2.132), 5: (2.571, 2.015), 7: (2.365, 1.895),
           10: (2.228, 1.812), 29: (2.045, 1.699), 30: (2.042, 1.697), 120: (1.980, 1.658), 10**6: (1.960, 1.645)}  # fmt: skip


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
    return gain(*(sums([np.asarray(values, dtype=np.float64)], clusters) for values in (full, half)))


def test_what_is_not_finite_stays_so():
    assert math.isnan(gained([np.inf, 1.0], [np.inf, 1.0], np.arange(2)).value)


def test_pairing_removes_what_both_share():
    shared = np.random.default_rng(0).normal(0, 3, 100)
    found = gained(shared, shared + 0.25, np.arange(100) // 5)
    assert found.value == pytest.approx(0.25) and found.sem < 1e-12


def test_interval_over_seeds():
    mean, half, n = student_interval([1.0, 2.0, 3.0])
    assert (mean, n) == (2.0, 3)
    assert half == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert student_interval([1.5]) == (1.5, None, 1)


def test_gain_and_its_gate():
    full, clusters = np.zeros(4), np.arange(4)
    found = gained(full, [0.1, 0.2, 0.3, 0.4], clusters)
    assert found.value == pytest.approx(0.25) and found.ok
    assert found.lower == pytest.approx(0.25 - 3.182 * np.std([0.1, 0.2, 0.3, 0.4], ddof=1) / 2, abs=1e-4)
    assert not gained(full, [-0.1, 0.2, 0.3, 0.1], clusters).ok
    assert not gained(full, full + 0.1, np.zeros(4)).ok  # one document proves nothing
