"""Choice of the scored tokens. Windows never cross a document, and their places depend on
max_length, not on the evaluated length.

Letters: N windows, S targets per window, L tokens fed.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.tokenfile import TokenFile

BOS_INDEX = -1  # the BOS token, in an array of token indices


@dataclass(frozen=True)
class Windows:
    """Windows of a text: last_N is the index in `file.tokens` of each window's last target,
    document_N its document.

    unit_D is the number of the unit of intervals that each document of the file belongs to.
    """

    file: TokenFile
    last_N: np.ndarray
    document_N: np.ndarray
    n_targets: int
    unit_D: np.ndarray

    @property
    def targets_NS(self) -> np.ndarray:
        """Indices of the targets, the last `n_targets` tokens of each window."""
        return self.last_N[:, None] + np.arange(1 - self.n_targets, 1)

    def offset_NS(self) -> np.ndarray:
        """Positions of the targets within their documents."""
        return self.targets_NS - np.asarray(self.file.starts)[self.document_N][:, None]


def choose_windows(
    file: TokenFile,
    max_length: int,
    windows: int,
    n_targets: int,
    seed: int,
    documents: str | None = None,
    unit: str = "document",
) -> Windows:
    """Spread `windows` windows evenly over all places with `max_length` tokens of the same document
    before the last target.

    It is a systematic sample: each place is equally likely, so a document weighs as much as the
    number of its places. There are fewer windows if their targets would overlap. With unit
    "project" each project that has places gets as many windows, and within it each place is equally
    likely. `documents` is a glob; only documents whose name matches have places. Raises ConfigError
    if no document is long enough or no name matches, and for one project alone."""
    length_D = _matching_lengths(file, documents)
    n_places_D = np.maximum(length_D - max_length, 0)
    if not n_places_D.any():
        longest = int(length_D.max(initial=0))
        raise ConfigError(
            f"No document has the {max_length + 1} tokens that evaluate.max_length={max_length}"
            f" needs; the longest has {longest}: lower evaluate.lengths and evaluate.max_length to"
            f" {max(1, longest - 1)}, or give longer documents (books with data=books, or for a"
            " checkpoint those of every split with evaluate.split=all)."
        )
    rng = np.random.default_rng(seed)
    if unit == "document":
        unit_D = np.arange(len(file.names))
        document_N, within_N = _spread_over_places(n_places_D, windows, n_targets, rng)
    else:
        unit_D = _project_numbers(file)
        projects = np.unique(unit_D[n_places_D > 0])
        if len(projects) == 1:
            raise ConfigError(
                f"evaluate.unit={unit} takes intervals over projects, and all documents with"
                f" {max_length + 1} tokens are of one"
                f" ({file.names[int(np.argmax(n_places_D))].partition('/')[0]}): leave"
                " evaluate.unit out, or choose a text of several, such as evaluate.text=projects."
            )
        n_places_by_project = [np.where(unit_D == project, n_places_D, 0) for project in projects]
        count = windows // len(projects)
        places = [
            _spread_over_places(n_places_of_project_D, count, n_targets, rng)
            for n_places_of_project_D in n_places_by_project
        ]
        document_N, within_N = (np.concatenate(arrays) for arrays in zip(*places, strict=True))
    last_N = np.asarray(file.starts)[document_N] + max_length + within_N
    return Windows(file, last_N, document_N, n_targets, unit_D)


def _matching_lengths(file: TokenFile, documents: str | None) -> np.ndarray:
    """Tokens of each document, 0 where its name does not match the glob `documents`."""
    length_D = file.document_lengths()
    if documents is None:
        return length_D
    length_D = np.where([fnmatchcase(name, documents) for name in file.names], length_D, 0)
    if not length_D.any():
        raise ConfigError(
            f"evaluate.documents={documents} matches none of the {len(file.names)} documents,"
            f" the first of which is {file.names[0]}: give a glob that fits the whole name."
        )
    return length_D


def _project_numbers(file: TokenFile) -> np.ndarray:
    """Number of the project of each document, which is the first folder of its name."""
    folders = [name.partition("/")[0] for name in file.names]
    _, project_D = np.unique(folders, return_inverse=True)
    return project_D


def _spread_over_places(
    n_places_D: np.ndarray, windows: int, n_targets: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Documents of a systematic sample of places, and the places within them; n_places_D: number of
    places of each document.
    """
    total = int(n_places_D.sum())
    edge_D = np.cumsum(n_places_D)
    count = max(1, min(windows, total // n_targets))
    # Equal steps over the places of all documents laid end to end, from a random beginning.
    place_N = ((np.arange(count) + rng.random()) * total / count).astype(np.int64)
    document_N = np.searchsorted(edge_D, place_N, side="right")
    return document_N, place_N - (edge_D - n_places_D)[document_N]
