"""npz files, written atomically and read with one idea of damage. Nothing is unpickled."""

import math
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from posbench.common.errors import RunError
from posbench.common.files import atomic_path, opened

INTEGERS = "iu"
NUMBERS = "fiub"
# {first word of a field's name: legal kinds of numpy dtypes}; others hold NUMBERS
DTYPE_KINDS = {
    "nll": "f",
    "length": INTEGERS,
    "document": INTEGERS,
    "offset": INTEGERS,
    "unit": INTEGERS,
    "part": INTEGERS,
    "rank": INTEGERS,
}
MOST_BYTES = 4 * 2**30  # bytes


class DamagedArrays(ValueError):
    """An npz that no run writes: broken, too large, or with other arrays."""


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write {name: array}, compressed."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def read_npz(path: Path, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """{name: array} of an npz, restricted to `names` if given. Arrays hold numbers or booleans.

    Raises FileNotFoundError, RunError for what is no regular file, and DamagedArrays for damage,
    for losses or coordinates of a wrong type, and for more than MOST_BYTES unpacked bytes."""
    try:
        arrays = _unpacked_arrays(path, names)
        for name, array in arrays.items():
            quantity = name.split("_")[0]  # the nll of nll_1024
            if array.dtype.kind not in DTYPE_KINDS.get(quantity, NUMBERS):
                raise DamagedArrays(f"{name} holds {array.dtype}")
        return arrays
    except (FileNotFoundError, RunError, DamagedArrays):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds of errors for damage
        raise DamagedArrays(str(error)) from error


def _unpacked_arrays(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """{name: array} of an npz, of `names` or of all. Raises DamagedArrays for one too large."""
    arrays = {}
    with opened(path) as file, zipfile.ZipFile(file) as packed:
        entries = packed.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > MOST_BYTES:
            raise DamagedArrays(f"it unpacks to {size:,} bytes, and {MOST_BYTES:,} are read")
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if not names or name in names:
                arrays[name] = _array_of_entry(packed, entry)
    return arrays


def _array_of_entry(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Array of an entry. Raises DamagedArrays for one that is no array, or is larger than the entry
    states.

    Nothing is read or allocated beyond the stated size.
    """
    with packed.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise DamagedArrays(f"{entry.filename} is no array of version 1.0, which savez writes")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        size = math.prod(shape) * dtype.itemsize
        if size > entry.file_size:
            raise DamagedArrays(
                f"{entry.filename} states {entry.file_size:,} bytes, and its array has {size:,}"
            )
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
