"""A band cut into pieces that torch's fused kernel runs: rectangles and triangles of queries and keys, and narrow diagonals.

Letters: T tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

ROWS = 8192  # most queries of a piece, so that one key head takes seconds at most
STEP = 256  # queries that the kernel takes at once from long texts; triangles of other sizes are slower
# Widest interval that moves along with its query and is masked: two triangles are faster beyond (in float32 from 1,500 keys, in bf16
# from 800). Blocks of 128 queries are within 15 % of the fastest for every width.
NARROW, MASKED = 1024, 128


@dataclass(frozen=True)
class Piece:
    """Queries start..start+rows-1 and keys first..first+keys-1. Of the keys row r sees

    all; in `lower` keys 0..r; in `upper` keys r and later (triangles, rows == keys); in `diagonal` keys r..r+keys-rows.
    """

    kind: Literal["all", "lower", "upper", "diagonal"]
    start: int
    rows: int
    first: int
    keys: int


def cut(first_T: Tensor, last_T: Tensor, begin: int) -> list[Piece] | None:
    """Pieces that together hold every pair of a band once, for queries `begin` and later, which see keys first_T..last_T.

    None unless there are long runs of queries in which each end of the interval stands still or moves along.
    """
    runs = _runs(first_T, last_T, begin)
    return None if len(runs) > 8 + len(first_T) // 64 else [piece for run in runs for piece in _blocks(first_T, last_T, *run)]


def _runs(first_T: Tensor, last_T: Tensor, begin: int) -> list[tuple[int, int]]:
    """Ranges of queries that see keys, in which both ends of the interval move by the same steps, 0 or 1."""
    seen_T = (last_T >= first_T)[begin:]
    ends_2T = torch.stack((first_T, last_T))[:, begin:].where(seen_T, 0)
    step_2T = ends_2T.diff(dim=1, prepend=ends_2T[:, :1])
    torn_T = ((step_2T < 0) | (step_2T > 1)).any(dim=0) | (seen_T != seen_T.roll(1))
    bent_T = (step_2T != step_2T.roll(1, dims=1)).any(dim=0)
    starts = [0]
    for at in (torn_T | bent_T)[1:].nonzero().flatten().add(1).tolist():
        # A bend right after a start is only the first step of that run.
        if torn_T[at] or at - 1 > starts[-1]:
            starts.append(at)
    return [(begin + start, begin + stop) for start, stop in pairwise([*starts, len(seen_T)]) if seen_T[start]]


def _blocks(first_T: Tensor, last_T: Tensor, start: int, stop: int) -> Iterator[Piece]:
    """Pieces of a run."""
    low, high, second = int(first_T[start]), int(last_T[start]), min(start + 1, stop - 1)
    left, right = int(first_T[second]) - low, int(last_T[second]) - high
    width, rows = high - low + 1, ROWS
    narrow = left and right and width <= NARROW
    if left and right:
        rows = MASKED if narrow else min(ROWS, (width - 1) // STEP * STEP)
    for at in range(start, stop, rows):
        size, moved = min(rows, stop - at), at - start
        if narrow:
            yield Piece("diagonal", at, size, low + moved, width + size - 1)
        else:
            yield from _block(at, size, low + left * moved, high + right * moved, left, right)


def _block(start: int, rows: int, low: int, high: int, left: int, right: int) -> Iterator[Piece]:
    """Pieces of queries of which the first sees keys low..high; each end moves by `left` or `right` keys a query."""
    if left:
        yield Piece("upper", start, rows, low, rows)
    inner, outer = low + left * rows, high + 1 - right
    if outer > inner:
        yield Piece("all", start, rows, inner, outer - inner)
    if right:
        yield Piece("lower", start, rows, high, rows)


@dataclass(frozen=True)
class Series:
    """`count` pieces of one size: from each to the next, queries move on by row_step and keys by key_step (0 for a single piece)."""

    piece: Piece
    count: int = 1
    row_step: int = 0
    key_step: int = 0

    def joined(self, piece: Piece) -> "Series | None":
        """The series with one more piece of its size; None if that does not go on with it."""
        gone = self.count - 1
        steps = piece.start - self.piece.start - gone * self.row_step, piece.first - self.piece.first - gone * self.key_step
        if min(steps) < 0 or (self.count > 1 and steps != (self.row_step, self.key_step)):
            return None
        return Series(self.piece, self.count + 1, *steps)


def joined(pieces: Iterable[Piece]) -> list[Series]:
    """Series that hold the pieces, each of which one call can run."""
    found: list[Series] = []
    latest: dict[tuple, int] = {}
    for piece in pieces:
        size = piece.kind, piece.rows, piece.keys
        longer = found[latest[size]].joined(piece) if size in latest else None
        if longer is None:
            latest[size] = len(found)
            found.append(Series(piece))
        else:
            found[latest[size]] = longer
    return found
