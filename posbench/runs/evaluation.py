"""One stored evaluation: its rows and the losses of its targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """Stored evaluation: its rows, and its arrays by length (None if the npz is missing or the rows come from a CSV).

    From `full_from` tokens of text on, every target has train_len tokens of context. If None, twice train_len is assumed.
    """

    rows: list[dict]
    arrays: dict[str, np.ndarray] | None
    path: Path | None = None  # the json, or the CSV
    source: str | None = None  # name of the CSV, if it is to be shown
    full_from: int | None = None

    @property
    def rows_alone(self) -> bool:
        """True for an evaluation that was read from a CSV (.csv, .CSV)."""
        return self.path.suffix.lower() == ".csv"

    @property
    def origin(self) -> Path:
        """Run directory of the evaluation (RUN of RUN/evals/PROTOCOL/NAME.json), or its CSV."""
        return self.path if self.rows_alone else self.path.parents[2]

    def losses(self, length: int) -> np.ndarray | None:
        """Loss of every target [n_targets] at `length`, or None."""
        found = () if self.arrays is None else np.flatnonzero(self.arrays["length"] == length)
        return self.arrays["nll"][found[0]] if len(found) else None

    def row(self, length: int) -> dict | None:
        """Row of `length`, or None. Protocols by position have no such row."""
        return next((row for row in self.rows if row["length"] == length and row["position"] is None), None)

    def exact_length(self, length: int) -> int | None:
        """`length` if it gives every target its full window, else the shortest evaluated length that does, or None."""
        evaluated = (row["length"] for row in self.rows) if self.arrays is None else self.arrays["length"]
        known = [int(n) for n in evaluated if n >= (self.full_from or 2 * self.rows[0]["train_len"])]
        return length if length in known else min(known, default=None)

    def exact_row(self) -> dict | None:
        """Row of the shortest length that gives every target its full window, or None."""
        return self.row(self.exact_length(0) or 0)


def shortest_exact(evaluate: dict, train_len: int) -> int:
    """Shortest text, in tokens, in which recompute_window gives every scored token train_len tokens of context."""
    return train_len + (evaluate.get("stride") or evaluate["targets"]) - 1
