"""fixed_targets: the same tokens are scored at every length; only how much text precedes them changes.

For length L the L tokens before the last target are fed and the last S positions scored (S <= train_len / 8), so the target that
is s-th from the end has L - s tokens of context. Differences between lengths and methods are paired, and an ideal method never
rises. An extension that crops (recompute_window) gets each target's own text: exactly its w tokens.
"""

from __future__ import annotations

import numpy as np

from posbench.evaluate import Evaluation, measured
from posbench.statistics import clustered_mean


class FixedTargets:
    """Rows, one for each length, and the arrays behind them."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation
        self.seen: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Values of the row of one length; arrays nll and correct [N * S]."""
        arrays: dict[str, np.ndarray] = {}

        def call() -> dict:
            nll_NS, correct_NS = self._score(length)
            arrays.update(nll=nll_NS.astype(np.float32).ravel(), correct=correct_NS.ravel())
            clusters = np.repeat(windows.document_N, windows.n_targets)
            mean, sem, n_units = clustered_mean(nll_NS.ravel().astype(np.float64), clusters)
            return {"nll": mean, "nll_sem": sem, "n_units": n_units, "accuracy": float(correct_NS.mean())}

        evaluation, windows = self.evaluation, self.evaluation.windows
        values = measured(call, evaluation.device)
        n_bytes = int(self.shared()["bytes"].sum())
        row = {"n_targets": windows.targets_NS.size, "n_bytes": n_bytes, "sem_unit": "document"}
        return [{**row, **values, "max_distance": evaluation.max_distance(evaluation.plan(evaluation.fed(length)))}], arrays

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [N * S] that all lengths share."""
        windows = self.evaluation.windows
        return {
            "bytes": np.asarray(windows.file.n_bytes)[windows.targets_NS].ravel(),
            "document": np.repeat(windows.document_N, windows.n_targets),
            "offset": windows.offset_NS().ravel(),
        }

    def _score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        evaluation, windows = self.evaluation, self.evaluation.windows
        full_S = length - np.arange(windows.n_targets - 1, -1, -1)
        fed = evaluation.fed(length)
        if fed == length:
            return evaluation.score(evaluation.plan(length), windows.last_N, windows.n_targets)
        context_S = np.minimum(full_S, fed)
        key = tuple(context_S.tolist())
        if key not in self.seen:  # beyond the crop every length feeds the same tokens: read once
            nll_NS = np.empty(windows.targets_NS.shape, np.float32)
            correct_NS = np.empty(windows.targets_NS.shape, bool)
            for context in np.unique(context_S):
                column = np.flatnonzero(context_S == context)
                nll, correct = evaluation.score(evaluation.plan(int(context)), windows.targets_NS[:, column].ravel(), 1)
                nll_NS[:, column], correct_NS[:, column] = nll.reshape(-1, len(column)), correct.reshape(-1, len(column))
            self.seen[key] = nll_NS, correct_NS
        return self.seen[key]
