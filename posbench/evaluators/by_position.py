"""by_position: the loss against the position in one long window; it shows where a method breaks.

Each window of L tokens is read once and every token scored. A row is a bin of positions p (tokens of context), named by its largest:
every position up to 8, then four bins per doubling. A dynamic method uses the factor of L at every position, so the curve of L
differs from the losses of shorter runs. The first position follows the BOS, if there is one, else the token before it.

References: none, since the floor is the same number for every position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from posbench.evaluation.protocol import Protocol, Reading, check_whole
from posbench.statistics.clustered import clustered_mean

if TYPE_CHECKING:
    from posbench.config.schema import EvaluateConfig
    from posbench.position.interfaces import Extension


class ByPosition(Protocol):
    """One row for each length and bin of positions."""

    same_targets = False

    @classmethod
    def check(cls, extension: Extension, config: EvaluateConfig, train_len: int) -> None:
        check_whole(cls, extension, config, train_len, instead="fixed_targets")

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> Reading:
        return Reading(config.windows, length, length, config.windows * length)

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Values of the rows of one length; arrays nll and correct [N, L], column p - 1 for p tokens of context."""
        evaluation, windows = self.evaluation, self.windows
        plan, arrays = evaluation.plan(length), {}

        def call() -> dict:
            nll_NL, correct_NL = evaluation.score(plan, self.whole_N, length, self.index)
            arrays.update(nll=nll_NL.astype(np.float32), correct=correct_NL)
            return {"sem_unit": "document", "max_distance": evaluation.max_distance(plan)}

        shared = evaluation.measured(call)
        token_NL = windows.last_N[:, None] + np.arange(1 - length, 1)
        bytes_NL = np.asarray(windows.file.n_bytes)[token_NL]
        rows, edges = [], bins(length)
        for low, high in zip([0, *edges[:-1]], edges, strict=True):
            nll = arrays["nll"][:, low:high]
            mean, sem, n_units = clustered_mean(nll.ravel().astype(np.float64), np.repeat(windows.document_N, high - low))
            values = {"position": high, "nll": mean, "nll_sem": sem, "n_units": n_units, "n_targets": nll.size}
            rows.append(
                {**shared, **values, "n_bytes": int(bytes_NL[:, low:high].sum()), "accuracy": float(arrays["correct"][:, low:high].mean())}
            )
        return rows, arrays

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [N] that all lengths share."""
        windows = self.windows
        return {"document": windows.document_N, "offset": windows.offset_NS()[:, -1]}


def bins(length: int) -> list[int]:
    """Upper edges of the bins: 1..8, then four per doubling, then `length`."""
    edges = list(range(1, 9)) + [round(8 * 2 ** (k / 4)) for k in range(1, 4 * 40)]
    return [edge for edge in edges if edge < length] + [length]
