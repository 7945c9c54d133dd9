"""by_position: the loss against the position in one long window; it shows where a method breaks.

Each window of L tokens is read once and every token scored. A row is a bin of positions p (tokens of context), named by its largest:
every position up to 8, then four bins per doubling. A dynamic method uses the factor of L at every position, so the curve of L
differs from the losses of shorter runs. The first position follows the BOS, if there is one, else the token before it.

References: none, since the floor is the same number for every position.
"""

from __future__ import annotations

import numpy as np

from posbench.config.schema import EvaluateConfig
from posbench.evaluation.protocol import Protocol, Reading, mean_row


class ByPosition(Protocol):
    """One row for each length and bin of positions."""

    same_targets = False
    paired = False
    instead = "fixed_targets"

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> Reading:
        return Reading(config.windows, length, length, config.windows * length)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, L], column p - 1 for p tokens of context."""
        return self.evaluation.score(self.evaluation.plan(length), self.whole_N, length, self.index)

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        windows, edges, rows = self.windows, bins(length), []
        bytes_NS = np.asarray(windows.file.n_bytes)[windows.last_N[:, None] + np.arange(1 - length, 1)]
        for low, high in zip([0, *edges[:-1]], edges, strict=True):
            nll, correct, n_bytes = (part[:, low:high] for part in (nll_NS, correct_NS, bytes_NS))
            rows.append({"position": high, **mean_row(nll, correct, windows.document_N, n_bytes)})
        return rows

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [N] that all lengths share."""
        windows = self.windows
        return {"document": windows.document_N, "offset": windows.offset_NS()[:, -1]}


def bins(length: int) -> list[int]:
    """Upper edges of the bins: 1..8, then four per doubling, then `length`."""
    edges = list(range(1, 9)) + [round(8 * 2 ** (k / 4)) for k in range(1, 4 * 40)]
    return [edge for edge in edges if edge < length] + [length]
