"""by_position: the loss against the position in one long window; it shows where a method breaks.

A window is a text of max_length tokens; at length L its first L tokens are read, and every one of
them predicts the next. So all lengths begin with the same token. A row is a bin of positions p
(tokens of context), named by its largest: every position up to 8, then four bins per doubling. The
first position follows the BOS, if there is one, else the token before it.

Where a method treats the first L tokens of a longer text as it treats a text of L tokens, the
losses are the same but for rounding (in bf16 a short text may be attended in float32, a long one
not), and all such lengths are read at once, as the longest of them. Its rows have the seconds of
that pass, the others next to none. It is decided by comparing the plans of the lengths (keys seen,
coordinates, tables, factors). A dynamic method uses the factor of L at every position, so each
length takes a pass of its own and has another curve, also at positions that a shorter one holds.
The evaluation's json has, under `texts`, the length of the text that each was read from.

Version 2. In version 1 the windows of all lengths ended, not began, with the same token; at L =
max_length it is the same.

References: none, since the floor is the same number for every position.
"""

from typing import TYPE_CHECKING

import numpy as np

from posbench.config.schema import EvaluateConfig
from posbench.evaluation.protocol import TEXT_KEYS, Protocol, ReadVolume

if TYPE_CHECKING:
    from posbench.evaluation.scorer import Scorer
    from posbench.position.plan import Plan


class ByPosition(Protocol):
    """One row for each length and bin of positions."""

    version = 2
    same_targets = False
    paired = False
    nested = True
    uses = TEXT_KEYS - {"targets", "floor_block"}
    replacement = "fixed_targets"

    def __init__(self, evaluation: "Scorer"):
        super().__init__(evaluation)
        # The latest text that was read: its plan, losses and correctness.
        self.latest_reading: tuple[Plan, np.ndarray, np.ndarray] | None = None

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Volume of reading. `fed` is `length`: an extension that crops is refused
        (`replacement`).
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        # Every token predicts the next one.
        return ReadVolume(
            n_windows, tokens_per_text=length, rows_per_text=length, total_losses=n_windows * length
        )

    @property
    def start_N(self) -> np.ndarray:
        """Index in the file of each window's first token."""
        return self.windows.last_N - self.evaluation.config.max_length

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [N, L], column p - 1 for p tokens of context. The latest text is not
        read again for its first tokens.
        """
        from posbench.position.effect import same_prefix

        plan = self.evaluation.plan(length)
        latest_plan = None if self.latest_reading is None else self.latest_reading[0]
        if latest_plan is None or not same_prefix(latest_plan, plan):
            nll_NT, correct_NT = self.evaluation.score_windows(
                plan, self.start_N, length, self.indices_from_starts
            )
            self.latest_reading = (plan, nll_NT, correct_NT)
        _, nll_NT, correct_NT = self.latest_reading
        return nll_NT[:, :length], correct_NT[:, :length]

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        """A row for each bin of positions, `position` its upper edge."""
        windows = self.windows
        target_NT = self.start_N[:, None] + np.arange(1, length + 1)
        bytes_NT = np.asarray(windows.file.n_bytes)[target_NT]
        rows = []
        low = 0
        for high in bin_edges(length):
            nll, correct, n_bytes = (part[:, low:high] for part in (nll_NS, correct_NS, bytes_NT))
            means = self.mean_columns(nll, correct, windows.document_N, n_bytes)
            rows.append({"position": high, **means})
            low = high
        return rows

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Arrays [N] that all lengths share: the document of each window, and the position of its
        first target there.
        """
        windows = self.windows
        last_N = windows.offset_NS()[:, -1]  # at max_length; shorter texts begin with the same one
        return {
            "document": windows.document_N,
            "offset": last_N - self.evaluation.config.max_length + 1,
        }


def bin_edges(length: int) -> list[int]:
    """Upper edges of the bins: 1..8, then four per doubling, then `length`.

    >>> bin_edges(20)
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 20]
    """
    doublings = 40  # beyond any length
    edges = list(range(1, 9)) + [round(8 * 2 ** (k / 4)) for k in range(1, 4 * doublings)]
    return [edge for edge in edges if edge < length] + [length]
