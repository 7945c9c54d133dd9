"""The npz beside an eval json: loss and correctness of every target at every length, so that nothing has to be evaluated twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posbench.errors import RunError
from posbench.files import atomic_path

NAMES = ("nll", "correct")


def save_arrays(path: Path, shared: dict[str, np.ndarray], by_length: dict[int, dict[str, np.ndarray]]) -> None:
    """Write `shared`, `length` [n_length], and nll and correct: [n_length, n_targets] where all lengths score the same targets, else one
    field for each length (nll_1024).
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
    """nll and correct of each length. Raises RunError when the file is damaged."""
    try:
        with np.load(path) as stored:
            return {
                int(length): {name: stored[name][i] if name in stored else stored[f"{name}_{length}"] for name in NAMES}
                for i, length in enumerate(stored["length"])
            }
    except Exception as error:
        raise RunError(f"{path} is damaged ({error}): delete it with its .json, and run the same command again.") from error
