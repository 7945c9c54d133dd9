"""npz files beside eval jsons: loss and correctness of every target at every length, so that
nothing is evaluated twice.

Letters: N windows, S targets of a window, T all targets.
"""

import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from posbench.common.errors import RunError
from posbench.runs.npz import DamagedArrays, read_npz, write_npz
from posbench.statistics.crossed import Sums, sums

LOSS_ARRAYS = ("nll", "correct")
# Fields that all lengths share; those of one length, such as nll_1024, are read alone.
SHARED_ARRAYS = (*LOSS_ARRAYS, "length", "document", "offset", "unit")
ACCURACY_ARRAYS = ("part", "rank")  # further fields of one length, of protocol accuracy


class Place(NamedTuple):
    """Row that sums belong to: a name (nll or correct) at a length, of a bin of positions or of a
    part of protocol accuracy.
    """

    name: str
    length: int
    position: int | None
    part: int | None


def save_arrays(
    path: Path, shared: dict[str, np.ndarray], by_length: dict[int, dict[str, np.ndarray]]
) -> None:
    """Write `shared`, `length` [n_length], nll and correct, and what else each length has, to an
    npz.

    These are [n_length, n_targets] if all lengths score the same targets, else one field per length
    (nll_1024)."""
    lengths = sorted(by_length)
    fields = {**shared, "length": np.array(lengths)}
    names = dict.fromkeys(LOSS_ARRAYS)  # an ordered set; all lengths have the same names
    for length in lengths:
        names |= dict.fromkeys(by_length[length])
    for name in names:
        arrays = [by_length[length][name] for length in lengths]
        # Protocols whose lengths share their targets give [n_targets], others a text by row.
        same_targets = all(array.ndim == 1 for array in arrays)
        if same_targets:
            fields[name] = np.stack(arrays)
        else:
            for length, array in zip(lengths, arrays, strict=True):
                fields[f"{name}_{length}"] = array
    write_npz(path, fields)


def load_arrays(path: Path) -> dict[int, dict[str, np.ndarray]]:
    """{length: {"nll": array, "correct": array, ...}} of an npz. Raises RunError when the file is
    damaged.
    """
    try:
        stored = read_npz(path)
        lengths = stored["length"].tolist()
        return {length: _arrays_of_length(stored, i, length) for i, length in enumerate(lengths)}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"{path} is damaged ({error}): delete it with its .json, and run the same command"
            " again."
        ) from error


def _arrays_of_length(stored: dict[str, np.ndarray], i: int, length: int) -> dict[str, np.ndarray]:
    """Arrays of the i-th length."""
    arrays = {}
    # One array holds all lengths where these score the same targets, else there is one for each.
    for name in LOSS_ARRAYS:
        arrays[name] = stored[name][i] if name in stored else stored[f"{name}_{length}"]
    for name in ACCURACY_ARRAYS:
        if f"{name}_{length}" in stored:
            arrays[name] = stored[f"{name}_{length}"]
    return arrays


def interval_units_of(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Units of intervals that the targets or windows of `arrays` belong to: projects, if these were
    asked for, else documents.
    """
    return arrays.get("unit", arrays["document"])


def part_of(row: dict) -> int | None:
    """Number that stands for a row's task and depth among the columns of its arrays; None but for
    protocol accuracy.
    """
    if row["protocol"] != "accuracy":
        return None
    return zlib.crc32(f"{row['task']} {row['depth']}".encode())


@dataclass(frozen=True)
class Document:
    """Document or project of a set of targets. The set is named by its SHA-256; n_bytes is None
    where the targets' bytes are not known.
    """

    targets: str
    document: int
    n_targets: int
    n_bytes: int | None


class TargetLosses:
    """npz beside an eval json with rows of `lengths`, read when its arrays are first needed."""

    def __init__(self, path: Path, lengths: Collection[int]):
        self.path = path
        self.lengths = set(lengths)
        # The values that `at` returned last, under (name, length): the bins of one window are
        # asked for one by one.
        self._last_key: tuple[str, int] | None = None
        self._last_values: np.ndarray | None = None

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Those of SHARED_ARRAYS that the npz holds, {} if there is no npz. Raises RunError if it
        is damaged.
        """
        try:
            arrays = read_npz(self.path, SHARED_ARRAYS)
            self._check_shapes(arrays)
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError, TypeError) as error:
            raise self._damage_error(error) from error
        return arrays

    def _check_shapes(self, arrays: dict[str, np.ndarray]) -> None:
        """Raise DamagedArrays for losses of other lengths or targets than the file states."""
        if "nll" not in arrays:  # each length has targets, and arrays, of its own
            return
        lengths = set(arrays["length"].tolist())
        n_targets = len(arrays["document"])
        as_stated = (
            arrays["nll"].shape == (len(arrays["length"]), n_targets)
            and len(arrays["offset"]) == n_targets
            and self.lengths <= lengths
        )
        if not as_stated:
            raise DamagedArrays(
                f"losses {arrays['nll'].shape} of lengths {sorted(lengths)}, which are not those of"
                f" {self.path.stem}.json"
            )

    def at(self, name: str, length: int) -> np.ndarray | None:
        """nll or correct at one length [N, targets of each of the N `document`s], as floats; None
        if not evaluated, or of no document.

        Raises RunError if the npz is damaged.
        """
        # Without an npz there is no "length", and nothing equals None.
        indices = np.flatnonzero(self.arrays.get("length") == length)
        if not len(indices):
            return None  # not evaluated
        if self._last_key != (name, length):
            try:
                values = self._values(name, length, indices[0])
            except (LookupError, TypeError, ValueError) as error:
                # Arrays of other shapes than those of the losses, of text, or none.
                raise self._damage_error(error) from error
            if values is None:
                return None  # of no document
            self._last_key = (name, length)
            self._last_values = values
        return self._last_values

    def _values(self, name: str, length: int, index: int) -> np.ndarray | None:
        """Values [N, S] of `at`; None for windows that run across documents.

        `index` is the length's place among those of the npz."""
        arrays = self.arrays
        # Lengths that score the same targets are rows of one array, else each has its own.
        values = arrays[name][index] if name in arrays else self._array_of_file(f"{name}_{length}")
        n_windows = len(values)
        # `document` has an entry for each row of the values, but for windows across documents.
        if not n_windows or n_windows != len(arrays["document"]):
            return None
        # Of targets that all lengths share each is a row of its own, [N] here: S is 1.
        return values.reshape(n_windows, -1).astype(np.float64)

    def sums(
        self, name: str, length: int, columns: slice = slice(None), part: int | None = None
    ) -> Sums | None:
        """Sums by document of nll or correct at one length, of all targets of a window, of some
        columns, or of a part (`part_of`).

        None if not evaluated.
        """
        value_NS = self.at(name, length)
        if value_NS is None:
            return None
        if part is None:
            value_NS = value_NS[:, columns]
        else:
            value_NS = value_NS[:, self._array_of_file(f"part_{length}").ravel() == part]
        return sums(
            [value_NS.ravel()], np.repeat(interval_units_of(self.arrays), value_NS.shape[1])
        )

    def _array_of_file(self, name: str) -> np.ndarray:
        try:
            return np.atleast_1d(read_npz(self.path, (name,))[name])
        except (OSError, ValueError, LookupError) as error:
            raise self._damage_error(error) from error

    @cached_property
    def targets(self) -> str | None:
        """SHA-256 of the scored targets: their documents and their offsets there; None without
        arrays.
        """
        arrays = self.arrays
        if not arrays:
            return None
        digest = hashlib.sha256()
        for name in ("document", "offset"):
            digest.update(arrays[name].astype("<i8").tobytes())
        return digest.hexdigest()

    @property
    def documents(self) -> list[Document]:
        """Documents of the targets, or their projects, with the bytes of their targets if all
        lengths share them.
        """
        bytes_T = read_npz(self.path, ("bytes",)).get("bytes")
        numbers, member_T, counts = np.unique(
            interval_units_of(self.arrays), return_inverse=True, return_counts=True
        )
        if bytes_T is None:
            n_bytes = [None] * len(numbers)
        else:
            n_bytes = np.bincount(member_T, weights=bytes_T).astype(int).tolist()
        return [
            Document(self.targets, *document)
            for document in zip(numbers.tolist(), counts.tolist(), n_bytes, strict=True)
        ]

    def _damage_error(self, error: Exception) -> RunError:
        return RunError(
            f"{self.path} is damaged ({error}): delete it and {self.path.stem}.json, and evaluate"
            " again."
        )


@dataclass(frozen=True)
class PooledLosses:
    """Sums by document of one evaluation, in place of the losses of single targets."""

    path: Path
    sums_by_place: Mapping[Place, Sums]
    targets: str | None
    documents: Sequence[Document]
    arrays: ClassVar[dict] = {}  # there are no losses of single targets

    def sums(
        self, name: str, length: int, columns: slice = slice(None), part: int | None = None
    ) -> Sums | None:
        """Sums by document of nll or correct at one length, of the bins of positions within
        `columns`, or of a part. A bin's `place.position` is its last position.
        """
        if columns.stop is None:  # all positions, or a part
            return self.sums_by_place.get(Place(name, length, position=None, part=part))
        # A name and length have either bins or one sum of all positions.
        bins = [
            bin_sums
            for place, bin_sums in self.sums_by_place.items()
            if (place.name, place.length) == (name, length)
            and columns.start < place.position <= columns.stop
        ]
        if not bins:
            return None
        counts = sum(bin_sums.counts for bin_sums in bins)
        totals = sum(bin_sums.totals for bin_sums in bins)
        return Sums(bins[0].documents, counts, totals)
