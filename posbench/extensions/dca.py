"""Dual chunk attention: distances are exact within chunks of tokens, and capped beyond.

In chunks of S tokens, key j lies at j mod S, query i at i mod S for its own chunk, at most at c = S
+ w beyond it. An et al. 2024, arXiv 2402.17463 (HKUNLP/ChunkLlama). Three bands: keys of the
query's own chunk (query at i mod S), of the chunk before (min(i mod S + S, c)) and of older ones
(as the last query of a chunk in the second band: c, but 2S - 1 for w = S). Distances are exact
within a chunk and within w tokens across a boundary, and never above c. Up to S tokens nothing
changes. Defaults are the authors': c = 3/4 train_len, w = train_len / 16. The reference adds
exponentials of three partial softmaxes, which can overflow; here one softmax covers all bands."""

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Span, Trait
from posbench.position.interfaces import AS_ROPE, Extension


class Dca(Extension):
    """Three bands by chunk. Raises ConfigError unless 0 <= local <= chunk and chunk >= 1, also if
    the chunk follows from the training length.
    """

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {"rope": "the paper", **dict.fromkeys(("p_rope", "pope", "fox"), AS_ROPE)}

    def __init__(self, chunk: int | None = None, local: int | None = None):
        # `bands` computes one that is None, and then checks `local`.
        is_too_small = (chunk is not None and chunk < 1) or (local is not None and local < 0)
        exceeds_chunk = chunk is not None and local is not None and local > chunk
        if is_too_small or exceeds_chunk:
            raise ConfigError(
                f"extension.chunk={chunk} and extension.local={local} must be tokens, 1 <= chunk"
                " and 0 <= local <= chunk."
            )
        self.chunk = chunk
        self.local = local  # None: by the training length, as the chunk

    def bands(self, span: Span) -> tuple[Band, ...]:
        # The authors' defaults: local tokens, a chunk of three quarters of training with them.
        w = span.train_len // 16 if self.local is None else self.local
        chunk_and_local = 3 * span.train_len // 4
        if self.chunk is None and w > max(0, chunk_and_local - w):
            raise ConfigError(
                f"extension.local={w} exceeds the chunk, which is the rest of 3/4"
                f" train_len={span.train_len}: give extension.local of at most"
                f" {chunk_and_local // 2}, or extension.chunk too."
            )
        size = self.chunk or max(1, chunk_and_local - w)
        cap = min(size + w, 2 * size - 1)  # largest coordinate of a query

        def index_in_chunk(pos_T: Tensor) -> Tensor:
            return pos_T % size

        def chunk_start(index_T: Tensor) -> Tensor:
            """Index of the first token of each token's chunk."""
            return index_T - index_T % size

        # Keys of the query's own chunk, of the one before, and of all older ones.
        same_chunk = Band(first=chunk_start, q=index_in_chunk, k=index_in_chunk)
        chunk_before = Band(
            first=lambda i: chunk_start(i) - size,
            last=lambda i: chunk_start(i) - 1,
            q=lambda i: (index_in_chunk(i) + size).clamp(max=cap),
            k=index_in_chunk,
        )
        older_chunks = Band(
            last=lambda i: chunk_start(i) - size - 1,
            q=lambda i: torch.full_like(i, cap),
            k=index_in_chunk,
        )
        return same_chunk, chunk_before, older_chunks
