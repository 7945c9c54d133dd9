"""Choice of the tokens that are scored. Windows never cross a document, and their places depend on max_length, not on the length read.

Letters: N windows, S targets per window, L tokens fed.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.tokenfile import TokenFile

BOS = -1  # the BOS token, in an array of token indices


@dataclass(frozen=True)
class Windows:
    """Windows of a text: last_N is the index in `file.tokens` of each window's last target, document_N its document."""

    file: TokenFile
    last_N: np.ndarray
    document_N: np.ndarray
    n_targets: int

    @property
    def targets_NS(self) -> np.ndarray:
        """Indices of the targets, the last `n_targets` tokens of each window."""
        return self.last_N[:, None] + np.arange(1 - self.n_targets, 1)

    def offset_NS(self) -> np.ndarray:
        """Positions of the targets within their documents."""
        return self.targets_NS - np.asarray(self.file.starts)[self.document_N][:, None]


def choose(file: TokenFile, max_length: int, windows: int, n_targets: int, seed: int, documents: str | None = None) -> Windows:
    """Spread `windows` windows evenly over all places with `max_length` tokens of the same document before the last target.

    It is a systematic sample: each place is equally likely, so a document weighs as much as the number of its places. There are fewer
    windows if their targets would overlap. `documents` is a glob; only documents whose name matches have places.
    Raises ConfigError if no document is long enough or no name matches.
    """
    length_D = file.document_lengths()
    if documents is not None:
        length_D = np.where([fnmatchcase(name, documents) for name in file.names], length_D, 0)
        if not length_D.any():
            raise ConfigError(
                f"evaluate.documents={documents} fits none of the {len(file.names)} documents, of which the first is {file.names[0]}: "
                "give a glob that fits the whole name."
            )
    room_D = np.maximum(length_D - max_length, 0)
    total, longest = int(room_D.sum()), int(length_D.max(initial=0))
    if total == 0:
        raise ConfigError(
            f"No document has the {max_length + 1} tokens that evaluate.max_length={max_length} needs; the longest has {longest}: "
            f"lower evaluate.lengths and evaluate.max_length to {max(1, longest - 1)}, or give longer documents (books with data=books, or "
            "for a checkpoint those of every split with evaluate.split=all)."
        )
    count = max(1, min(windows, total // n_targets))
    place_N = ((np.arange(count) + np.random.default_rng(seed).random()) * total / count).astype(np.int64)
    edge_D = np.cumsum(room_D)
    document_N = np.searchsorted(edge_D, place_N, side="right")
    within_N = place_N - (edge_D - room_D)[document_N]
    return Windows(file, np.asarray(file.starts)[document_N] + max_length + within_N, document_N, n_targets)
