"""One stored evaluation: its rows and the losses of its targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: its rows, and its arrays by length (None where the npz is missing, or the rows come from a CSV).

    In texts of `full_from` tokens and more every target has train_len tokens of context; None: not known, but in twice train_len.
    """

    rows: list[dict]
    arrays: dict[str, np.ndarray] | None
    path: Path | None = None  # the json, or the CSV
    source: str | None = None  # the CSV's name, where it is to be said
    full_from: int | None = None

    @property
    def rows_alone(self) -> bool:
        """Whether a CSV (.csv, .CSV) is all there is of it."""
        return self.path.suffix.lower() == ".csv"

    @property
    def origin(self) -> Path:
        """The directory of the run that it hangs off, RUN/evals/PROTOCOL/NAME.json, or the CSV."""
        return self.path if self.rows_alone else self.path.parents[2]

    def losses(self, length: int) -> np.ndarray | None:
        """nll of every target [n_targets] at `length`, or None."""
        found = () if self.arrays is None else np.flatnonzero(self.arrays["length"] == length)
        return self.arrays["nll"][found[0]] if len(found) else None

    def row(self, length: int) -> dict | None:
        """The row of `length`, or None; a protocol by position has none."""
        return next((row for row in self.rows if row["length"] == length and row["position"] is None), None)

    def exact_length(self, length: int) -> int | None:
        """`length`, or the shortest length of a reference at which every target has its full window."""
        evaluated = (row["length"] for row in self.rows) if self.arrays is None else self.arrays["length"]
        known = [int(n) for n in evaluated if n >= (self.full_from or 2 * self.rows[0]["train_len"])]
        return length if length in known else min(known, default=None)

    def exact_row(self) -> dict | None:
        """The row of the shortest such length, or None."""
        return self.row(self.exact_length(0) or 0)


def shortest_exact(evaluate: dict, train_len: int) -> int:
    """Tokens of text in which recompute_window gives all that a window scores, its last tokens, train_len tokens of context."""
    return train_len + (evaluate.get("stride") or evaluate["targets"]) - 1
