"""Overlap of a held-out split with training: the share of its token sequences that occur in both.

Tokens are compared, not words, since tokens are scored. BPE cuts a text at fixed patterns, so equal text gives equal tokens except for
the first few. Letters: N tokens, n tokens of a sequence, M sequences.
"""

import numpy as np

from posbench.data.tokenfile import TokenFile

FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: a polynomial hash modulo 2^64


def sequences(train: TokenFile, n: int) -> np.ndarray:
    """Distinct hashes of all sequences of n tokens of a split."""
    return np.unique(_hashes(train, n)[0])


def overlap(held_out: TokenFile, known: np.ndarray, n: int) -> tuple[float, np.ndarray]:
    """(share of the sequences of n tokens inside a document that are in `known`, the same share per document [D]).

    A share without any sequence that long is nan. `known` comes from `sequences`. A sequence is wrongly found
    in it once in about 10^19 / len(known) cases, since hashes are compared.
    """
    hash_M, document_M = _hashes(held_out, n)
    seen_M = np.isin(hash_M, known)
    total_D = np.bincount(document_M, minlength=len(held_out.names))
    with np.errstate(invalid="ignore"):
        share_D = np.bincount(document_M, weights=seen_M, minlength=len(held_out.names)) / total_D
    return (float(seen_M.mean()) if len(seen_M) else float("nan")), share_D


def _hashes(file: TokenFile, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(hash [M], document [M]) of every sequence of n tokens inside one document."""
    token_N = np.asarray(file.tokens).astype(np.uint64) + np.uint64(1)
    count = max(0, len(token_N) - n + 1)
    hash_M = np.zeros(count, np.uint64)
    for step in range(n):
        hash_M = hash_M * FACTOR + token_N[step : step + count]
    document_M = np.repeat(np.arange(len(file.names)), file.document_lengths())[:count]
    inside_M = np.asarray(file.starts)[document_M + 1] - np.arange(count) >= n
    return hash_M[inside_M], document_M[inside_M]
