"""Token files: a prepared split on disk as raw little-endian arrays, which are memory-mapped and
never loaded whole.

The overlap of a held-out split with training is the share of its sequences of tokens that occur in
both. Tokens are compared, not words, since tokens are scored. BPE cuts a text at fixed patterns, so
equal text gives equal tokens except for the first few.

Shape letters: N tokens, D documents, n tokens of a sequence, M sequences.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posbench.common.errors import RunError
from posbench.common.files import sha256_file

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: a polynomial hash modulo 2^64


@dataclass(frozen=True)
class TokenFile:
    """Split on disk: `tokens` [N], `n_bytes` [N] (bytes of text per token), `starts` int64 [D+1],
    `names` [D].
    """

    tokens: np.ndarray
    n_bytes: np.ndarray
    starts: np.ndarray
    names: list[str]

    def document_lengths(self) -> np.ndarray:
        """Number of tokens per document, int64 [D]."""
        return np.diff(self.starts)


def write_split(
    folder: Path,
    split: str,
    documents: Iterable[tuple[str, np.ndarray, np.ndarray]],
    token_dtype: type,
    bytes_dtype: type,
) -> dict:
    """Write the files of one split from (name, ids [n], bytes [n]) per document, and return its
    part of the manifest.
    """
    names = []
    starts = [0]
    total_bytes = 0
    with (
        open(folder / f"{split}.tokens.bin", "wb") as tokens,
        open(folder / f"{split}.n_bytes.bin", "wb") as n_bytes,
    ):
        for name, ids, bytes_of in documents:
            tokens.write(ids.astype(token_dtype).tobytes())
            n_bytes.write(bytes_of.astype(bytes_dtype).tobytes())
            names.append(name)
            starts.append(starts[-1] + len(ids))
            total_bytes += int(bytes_of.sum(dtype=np.int64))
    np.array(starts, dtype="<i8").tofile(folder / f"{split}.starts.bin")
    (folder / f"{split}.names.json").write_text(json.dumps(names), encoding="utf-8")
    dtypes = {
        "tokens": np.dtype(token_dtype).str,
        "n_bytes": np.dtype(bytes_dtype).str,
        "starts": "<i8",
    }
    return {"documents": len(names), "tokens": starts[-1], "bytes": total_bytes, "dtypes": dtypes}


def verify_files(folder: Path, records: dict[str, dict]) -> None:
    """Compare every file with its record. Raises RunError for the first damaged file."""
    for name, record in records.items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != record["sha256"]:
            raise RunError(
                f"The token file {path} is missing or damaged: delete the folder {folder} and run"
                " the same command again."
            )


def open_split(folder: Path, split: str, record: dict) -> TokenFile:
    """Memory-map one split. Its files must have been verified."""
    arrays = {}
    for name in ("tokens", "n_bytes", "starts"):
        path = folder / f"{split}.{name}.bin"
        dtype = np.dtype(record["dtypes"][name])
        is_empty = path.stat().st_size == 0  # no file without content can be mapped
        arrays[name] = np.zeros(0, dtype) if is_empty else np.memmap(path, dtype, mode="r")
    names = json.loads((folder / f"{split}.names.json").read_text(encoding="utf-8"))
    return TokenFile(names=names, **arrays)


def sequence_hashes(train: TokenFile, n: int) -> np.ndarray:
    """Distinct hashes of all sequences of n tokens of a split."""
    return np.unique(_hashes_and_documents(train, n)[0])


def overlap(held_out: TokenFile, hash_K: np.ndarray, n: int) -> tuple[float, np.ndarray]:
    """(share of the sequences of n tokens inside a document that are in `hash_K`, the same for each
    document [D]).

    A share without any sequence that long is nan. `hash_K` comes from `sequence_hashes`. A sequence
    is wrongly found in it once in about 10^19 / K cases, since hashes are compared."""
    hash_M, document_M = _hashes_and_documents(held_out, n)
    seen_M = np.isin(hash_M, hash_K)
    total_D = np.bincount(document_M, minlength=len(held_out.names))
    with np.errstate(invalid="ignore"):
        share_D = np.bincount(document_M, weights=seen_M, minlength=len(held_out.names)) / total_D
    share = float(seen_M.mean()) if len(seen_M) else float("nan")
    return share, share_D


def _hashes_and_documents(file: TokenFile, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash and document [M] of each sequence of n tokens that lies inside one document.

    The hash is a polynomial in HASH_FACTOR, modulo 2^64.
    """
    token_N = np.asarray(file.tokens).astype(np.uint64)
    count = max(0, len(token_N) - n + 1)
    hash_M = np.zeros(count, np.uint64)
    for step in range(n):
        hash_M = hash_M * HASH_FACTOR + token_N[step : step + count]
    document_M = np.repeat(np.arange(len(file.names)), file.document_lengths())[:count]
    inside_M = np.asarray(file.starts)[document_M + 1] - np.arange(count) >= n
    return hash_M[inside_M], document_M[inside_M]
