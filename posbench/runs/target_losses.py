"""npz files beside eval jsons: loss and correctness of every target at every length, so that
nothing is evaluated twice.
"""

import hashlib
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from posbench.common.errors import RunError
from posbench.common.files import atomic_path, opened
from posbench.statistics.crossed import Sums, sums

NAMES = ("nll", "correct")
# Fields that all lengths share; those of one length, such as nll_1024, are read alone.
SHARED = (*NAMES, "length", "document", "offset", "unit")
ASKED = ("part", "rank")  # further fields of one length, of protocol accuracy
# {field: legal kinds of numpy dtypes}, of some.
KINDS = {"nll": "f", **dict.fromkeys(("length", "document", "offset", "unit", *ASKED), "iu")}
LARGEST = 4 * 2**30  # bytes
Place = tuple[
    str, int, int | None, int | None
]  # name (nll or correct), length, position, part of protocol accuracy


def save_arrays(
    path: Path, shared: dict[str, np.ndarray], by_length: dict[int, dict[str, np.ndarray]]
) -> None:
    """Write `shared`, `length` [n_length], nll and correct, and what else each length has, to an
    npz.

    These are [n_length, n_targets] if all lengths score the same targets, else one field per length
    (nll_1024)."""
    lengths = sorted(by_length)
    fields = {**shared, "length": np.array(lengths)}
    for name in dict.fromkeys(
        (*NAMES, *(name for length in lengths for name in by_length[length]))
    ):
        found = [by_length[length][name] for length in lengths]
        same_targets = all(array.ndim == 1 for array in found)
        fields |= (
            {name: np.stack(found)}
            if same_targets
            else {f"{name}_{length}": a for length, a in zip(lengths, found, strict=True)}
        )
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **fields)


def load_arrays(path: Path) -> dict[int, dict[str, np.ndarray]]:
    """{length: {"nll": array, "correct": array, ...}} of an npz. Raises RunError when the file is
    damaged.
    """
    try:
        stored = read_npz(path)
        return {
            int(length): (
                {
                    name: stored[name][i] if name in stored else stored[f"{name}_{length}"]
                    for name in NAMES
                }
                | {
                    name: stored[f"{name}_{length}"]
                    for name in ASKED
                    if f"{name}_{length}" in stored
                }
            )
            for i, length in enumerate(stored["length"])
        }
    except Exception as error:
        raise RunError(
            f"{path} is damaged ({error}): delete it with its .json, and run the same command"
            " again."
        ) from error


def units(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Units of intervals that the targets or windows of `arrays` belong to: projects, if these were
    asked for, else documents.
    """
    return arrays.get("unit", arrays["document"])


def part_of(row: dict) -> int | None:
    """Number that stands for a row's task and depth among the columns of its arrays; None but for
    protocol accuracy.
    """
    return (
        zlib.crc32(f"{row['task']} {row['depth']}".encode())
        if row["protocol"] == "accuracy"
        else None
    )


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
        self._last: tuple = (None, None)

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of SHARED that the npz holds, {} if there is no npz. Raises RunError if it is
        damaged.
        """
        try:
            found = read_npz(self.path, SHARED)
            if "nll" in found:
                lengths, shape = (
                    set(found["length"].tolist()),
                    (len(found["length"]), len(found["document"])),
                )
                if (
                    found["nll"].shape != shape
                    or len(found["offset"]) != shape[1]
                    or not self.lengths <= lengths
                ):
                    said = f"losses {found['nll'].shape} of lengths {sorted(lengths)}"
                    raise ValueError(f"{said}, which are not those of {self.path.stem}.json")
            return found
        except FileNotFoundError:
            return {}
        except (
            Exception
        ) as error:  # zipfile, zlib and numpy raise a dozen kinds of errors for damage
            raise self._damaged(error) from error

    def at(self, name: str, length: int) -> np.ndarray | None:
        """nll or correct at one length [N, targets of each of the N `document`s], as floats; None
        if not evaluated, or of no document.

        Raises RunError if the npz is damaged.
        """
        arrays = self.arrays
        found = np.flatnonzero(arrays.get("length") == length)
        if not len(found):
            return None
        if self._last[0] != (name, length):  # the bins of one window are asked for one by one
            try:
                values = (
                    arrays[name][found[0]] if name in arrays else self._alone(f"{name}_{length}")
                )
                if not len(values) or len(values) != len(
                    arrays["document"]
                ):  # windows that run across documents
                    return None
                self._last = (name, length), values.reshape(len(values), -1).astype(np.float64)
            except (
                LookupError,
                TypeError,
                ValueError,
            ) as error:  # arrays of other shapes than those of the losses, of text, or none
                raise self._damaged(error) from error
        return self._last[1]

    def sums(
        self, name: str, length: int, columns: slice = slice(None), part: int | None = None
    ) -> Sums | None:
        """Sums by document of nll or correct at one length, of all targets of a window, of some
        columns, or of a part (`part_of`).

        None if not evaluated.
        """
        found = self.at(name, length)
        if found is None:
            return None
        value_NS = found[
            :, columns if part is None else self._alone(f"part_{length}").ravel() == part
        ]
        return sums([value_NS.ravel()], np.repeat(units(self.arrays), value_NS.shape[1]))

    def _alone(self, name: str) -> np.ndarray:
        try:
            return np.atleast_1d(read_npz(self.path, (name,))[name])
        except Exception as error:
            raise self._damaged(error) from error

    @cached_property
    def targets(self) -> str | None:
        """SHA-256 of the scored targets: their documents and their offsets there; None without
        arrays.
        """
        arrays = self.arrays
        if not arrays:
            return None
        return hashlib.sha256(
            b"".join(arrays[name].astype("<i8").tobytes() for name in ("document", "offset"))
        ).hexdigest()

    @property
    def documents(self) -> list[Document]:
        """Documents of the targets, or their projects, with the bytes of their targets if all
        lengths share them.
        """
        each, bytes_T = units(self.arrays), read_npz(self.path, ("bytes",)).get("bytes")
        documents, member, counts = np.unique(each, return_inverse=True, return_counts=True)
        n_bytes = (
            [None] * len(documents)
            if bytes_T is None
            else np.bincount(member, weights=bytes_T).astype(int).tolist()
        )
        return [
            Document(self.targets, *one)
            for one in zip(documents.tolist(), counts.tolist(), n_bytes, strict=True)
        ]

    def _damaged(self, error: Exception) -> RunError:
        return RunError(
            f"{self.path} is damaged ({error}): delete it and {self.path.stem}.json, and evaluate"
            " again."
        )


@dataclass(frozen=True)
class PooledLosses:
    """Sums by document of one evaluation, in place of the losses of single targets: `found` is
    {(name, length, position, part): Sums}.
    """

    path: Path
    found: Mapping[Place, Sums]
    targets: str | None
    documents: Sequence[Document]
    arrays: ClassVar[dict] = {}  # there are no losses of single targets

    def sums(
        self, name: str, length: int, columns: slice = slice(None), part: int | None = None
    ) -> Sums | None:
        """Sums by document of nll or correct at one length, of the bins of positions within
        `columns`, or of a part.
        """
        if columns.stop is None:
            return self.found.get((name, length, None, part))
        bins = [
            one
            for (*at, position, _), one in self.found.items()
            if at == [name, length] and columns.start < position <= columns.stop
        ]
        return (
            Sums(
                bins[0].documents, sum(one.counts for one in bins), sum(one.totals for one in bins)
            )
            if bins
            else None
        )


def read_npz(path: Path, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """{name: array} of an npz, restricted to `names` if given. Arrays hold numbers or booleans;
    nothing is unpickled.

    Raises ValueError for other types, for losses or coordinates of a wrong type, and for more than
    LARGEST unpacked bytes; RunError if it is not a regular file; OSError and the errors of zipfile,
    zlib and numpy for damage."""
    arrays = {}
    with opened(path) as file, zipfile.ZipFile(file) as packed:
        size = sum(entry.file_size for entry in packed.infolist())
        if size > LARGEST:
            raise ValueError(f"it unpacks to {size:,} bytes, and {LARGEST:,} are read")
        for entry in packed.infolist():
            name = entry.filename.removesuffix(".npy")
            if not names or name in names:
                arrays[name] = _array(packed, entry)
    for name, array in arrays.items():
        kinds = next(
            (kinds for start, kinds in KINDS.items() if name.split("_")[0] == start), "fiub"
        )
        if array.dtype.kind not in kinds:
            raise ValueError(f"{name} holds {array.dtype}")
    return arrays


def _array(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Array of an entry. Raises ValueError for one that is no array, or is larger than the entry
    states.

    Nothing is read or allocated beyond the stated size.
    """
    with packed.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename} is no array of version 1.0, which savez writes")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if (size := math.prod(shape) * dtype.itemsize) > entry.file_size:
            raise ValueError(
                f"{entry.filename} states {entry.file_size:,} bytes, and its array has {size:,}"
            )
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
