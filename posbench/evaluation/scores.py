"""Losses of targets before they are known, and the row that is made of them.

Letters: N texts, S targets per text, M all targets.
"""

import numpy as np

from posbench.statistics.clustered import clustered_mean


def not_scored(n_targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Initial nll and correctness [M]: False, and nan, so that a target that is never scored makes its row nan."""
    return np.full(n_targets, np.nan, np.float32), np.zeros(n_targets, bool)


def mean_row(nll_NS: np.ndarray, correct: np.ndarray, unit_N: np.ndarray, n_bytes: np.ndarray, unit: str = "document") -> dict:
    """Columns of a row from weighted losses of texts that belong to the units unit_N, and from all that was predicted."""
    mean, sem, n_units = clustered_mean(nll_NS.ravel().astype(np.float64), np.repeat(unit_N, nll_NS.shape[1]))
    found = {"nll": mean, "nll_sem": sem, "n_units": n_units, "sem_unit": unit, "accuracy": float(correct.mean())}
    return {**found, "n_targets": correct.size, "n_bytes": int(n_bytes.sum())}
