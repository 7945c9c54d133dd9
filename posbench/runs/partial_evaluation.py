"""Texts already read at an unfinished length of an evaluation, so that the same command resumes
after them.

NAME.part.npz (PART_ENDING) beside an evaluation's NAME.json. It holds `made`, the JSON of code and
machine as bytes, and of each batch of texts, under the digest of what was read, the arrays of
Scorer.score_texts (nll_DIGEST, correct_DIGEST, rank_DIGEST, among_DIGEST), and `spent_DIGEST`, its
seconds and the peak memory in MiB. A file of other code or another machine is not used, since a row
names one of each. Short lengths have no such file, and the others none once their rows are
written."""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from posbench.common.errors import RunError
from posbench.runs.npz import DamagedArrays, read_npz, write_npz

PART_ENDING = ".part.npz"
SECONDS_BETWEEN_WRITES = 60.0  # seconds between two writes, at least
SCORE_ARRAYS = ("nll", "correct", "rank", "among")


class PartialEvaluation:
    """Batches of one evaluation, in a file that is written every `seconds_between_writes`.
    `producer` is the code and the machine that read them.

    `seconds` is the time of those that an earlier process read, and `peak_mib` their peak memory.
    """

    def __init__(self, path: Path, producer: dict):
        self.path = path
        self.producer = producer
        self.seconds = 0.0
        self.peak_mib = 0.0
        self.seconds_between_writes = SECONDS_BETWEEN_WRITES
        # {key: {name: array}} of the batches
        self.batches = self._batches_of_file() if path.exists() else {}
        self.written = time.monotonic()

    @staticmethod
    def key(length: int, batch: tuple[np.ndarray | None, ...]) -> str:
        """Digest of a batch: the length of its plan, and the tokens, targets and choices of its
        texts.
        """
        digest = hashlib.sha256(str(length).encode())
        for array in batch:
            if array is None:  # hashed as in files of earlier versions
                digest.update(str(False).encode())
            else:
                digest.update(str((array.shape, array.dtype.str)).encode())
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def find(self, key: str) -> list[np.ndarray] | None:
        """Arrays of a batch that was read before, whose time and memory then count in `seconds` and
        `peak_mib`; None without it.
        """
        if key not in self.batches:
            return None
        batch = self.batches[key]
        seconds, peak_mib = batch["spent"].tolist()
        self.seconds += seconds
        self.peak_mib = max(self.peak_mib, peak_mib)
        return [batch[name] for name in SCORE_ARRAYS if name in batch]

    def add(self, key: str, arrays: Sequence[np.ndarray], seconds: float, peak_mib: float) -> None:
        """Keep the arrays of a batch, with its seconds and the peak memory so far."""
        batch = dict(zip(SCORE_ARRAYS, arrays, strict=False))
        self.batches[key] = {**batch, "spent": np.array([seconds, peak_mib])}
        if time.monotonic() - self.written >= self.seconds_between_writes:
            self.write()

    def write(self) -> None:
        """Write the batches that are not in the file yet, with all others."""
        fields = {"made": np.frombuffer(json.dumps(self.producer).encode(), np.uint8)}
        for key, batch in self.batches.items():
            for name, array in batch.items():
                fields[f"{name}_{key}"] = array
        write_npz(self.path, fields)
        self.written = time.monotonic()

    def end(self) -> None:
        """Forget all batches, and delete the file."""
        self.batches = {}
        self.path.unlink(missing_ok=True)
        self.written = time.monotonic()

    def _batches_of_file(self) -> dict[str, dict[str, np.ndarray]]:
        """{key: arrays of the batch} of the file; {} if other code or another machine made it, or
        if it is damaged.
        """
        batches: dict[str, dict[str, np.ndarray]] = {}
        try:
            fields = read_npz(self.path)
            if json.loads(fields.pop("made").tobytes()) != self.producer:
                raise DamagedArrays("it is of other code or another machine")
            for name, array in fields.items():
                field, _, key = name.partition("_")
                batches.setdefault(key, {})[field] = array
        except (OSError, RunError, ValueError, LookupError) as error:
            print(
                f"{self.path} cannot be used ({error}): its texts are read again",
                file=sys.stderr,
                flush=True,
            )
            return {}
        return batches
