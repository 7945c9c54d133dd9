"""npz files beside eval jsons: loss and correctness of every target at every length, so that nothing is evaluated twice."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from posbench.common.errors import RunError
from posbench.common.files import atomic_path, opened

NAMES = ("nll", "correct")
KINDS = {"nll": "f", "length": "iu", "document": "iu", "offset": "iu"}  # {field: legal kinds of numpy dtypes}, of some fields
LARGEST = 4 * 2**30  # bytes


def save_arrays(path: Path, shared: dict[str, np.ndarray], by_length: dict[int, dict[str, np.ndarray]]) -> None:
    """Write `shared`, `length` [n_length], nll and correct to an npz.

    nll and correct are [n_length, n_targets] if all lengths score the same targets, else one field per length (nll_1024).
    """
    lengths = sorted(by_length)
    fields = {**shared, "length": np.array(lengths)}
    for name in NAMES:
        found = [by_length[length][name] for length in lengths]
        same_targets = all(array.ndim == 1 for array in found)
        fields |= {name: np.stack(found)} if same_targets else {f"{name}_{length}": a for length, a in zip(lengths, found, strict=True)}
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **fields)


def load_arrays(path: Path) -> dict[int, dict[str, np.ndarray]]:
    """{length: {"nll": array, "correct": array}} of an npz. Raises RunError when the file is damaged."""
    try:
        stored = read_npz(path)
        return {
            int(length): {name: stored[name][i] if name in stored else stored[f"{name}_{length}"] for name in NAMES}
            for i, length in enumerate(stored["length"])
        }
    except Exception as error:
        raise RunError(f"{path} is damaged ({error}): delete it with its .json, and run the same command again.") from error


def read_npz(path: Path, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """{name: array} of an npz, restricted to `names` if given. Arrays hold numbers or booleans; nothing is unpickled.

    Raises ValueError for other types, for losses or coordinates of a wrong type, and for more than LARGEST unpacked bytes; RunError
    if it is not a regular file; OSError and the errors of zipfile, zlib and numpy for damage.
    """
    with opened(path) as file:
        with zipfile.ZipFile(file) as packed:
            size = sum(one.file_size for one in packed.infolist())
        if size > LARGEST:
            raise ValueError(f"it unpacks to {size:,} bytes, and {LARGEST:,} are read")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored if not names or name in names}
    for name, array in found.items():
        kinds = next((kinds for start, kinds in KINDS.items() if name.split("_")[0] == start), "fiub")
        if array.dtype.kind not in kinds:
            raise ValueError(f"{name} holds {array.dtype}")
    return found
