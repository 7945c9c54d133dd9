"""GALI: keys far away share the trained positions, and logits between positions are interpolated.

A query beyond training belongs to a chunk that ends before token e. The e keys lie at positions
below train_len: in the far part, of p positions, key j at j / g; later ones at j - (e - train_len),
as in training. g = ceil((e - w) / (train_len - w)) is the smallest with which the last w keys can
lie so, and p = ceil((e - train_len) / (g - 1)) as small as fits, so that each query uses all
trained distances (greedy). A query lies where its own key does, rounded up. The logit at a distance
r of no whole number is on the line between those at floor(r) and ceil(r). Li et al. 2025, arXiv
2502.02659, equations 2 and 3, algorithms 2 and 3 (adlnlp/Gali). Up to train_len tokens nothing
changes.

Rotations are linear in cos and sin, so the line between two logits is that between two rotations of
the key. Queries of equal g share a band, whatever their chunks. Defaults: w = train_len / 8, chunks
of train_len / 2; the authors try w = 128 to 1024 and chunks of 1000 to 3000 for 2048 to 8192.
Deviations: no Gaussian noise of deviation r / train_len is added to interpolated logits, so that a
loss depends on no draw; a last chunk counts as a whole one, and decoding goes on in chunks, so that
a longer text leaves the beginning as it is (the authors cut the last chunk, and decode as chunk=1
does).

Limit: each far band turns the keys anew, and there is one for about each train_len tokens. A model
of the demo's size, trained on 64 tokens, takes 0.8 GiB for 4,096 tokens and 9 GiB for 16,384."""

from typing import NamedTuple

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Span, Tokens, Trait
from posbench.position.interfaces import AS_ROPE, Extension


class _Layout(NamedTuple):
    """Of the queries at some indices: `group` keys to a position before key `border`, and later
    keys `shift` tokens nearer to the start than they stand.
    """

    group_T: Tensor
    border_T: Tensor
    shift_T: Tensor


class Gali(Extension):
    """A near band, and a far one for each number of keys to a position. Raises ConfigError for a
    window that leaves no trained position to share.
    """

    needs = Trait.COORDINATE | Trait.RELATIVE | Trait.SPECTRUM
    tested_with = {"rope": "the paper", **dict.fromkeys(("p_rope", "pope", "fox"), AS_ROPE)}

    def __init__(self, window: Tokens | None = None, chunk: Tokens | None = None):
        self.window = window  # None: by the training length
        self.chunk = chunk  # None: by the training length

    def bands(self, span: Span) -> tuple[Band, ...]:
        """The near band, and a far one for each number g of keys to a position.

        A query beyond training belongs to a chunk that ends `shift` tokens beyond it. Far keys lie
        at p positions, g at each; the border is key g p = shift + p, and the keys from there on lie
        `shift` nearer to the start than they stand."""
        train_len = span.train_len
        w = self.window or max(1, train_len // 8)  # as large as the authors' smaller ones
        chunk = self.chunk or max(1, train_len // 2)
        if w >= train_len:
            raise ConfigError(
                f"extension.window={w} leaves no position below train_len={train_len} for far keys:"
                f" choose a window below {train_len}."
            )

        def layout(index_T: Tensor) -> _Layout:
            """Places of the keys as queries at these indices see them."""
            beyond_T = (index_T - train_len + 1).clamp(min=0)
            shift_T = chunk * _ceil_div(beyond_T, chunk)  # tokens beyond training at a chunk's end
            # The last w keys lie as in training. The shift + train_len - w before them share the
            # train_len - w positions that are left.
            group_T = _ceil_div(shift_T + train_len - w, train_len - w)
            # g p keys at p positions gain (g - 1) p, which has to be the shift.
            positions_T = _ceil_div(shift_T, (group_T - 1).clamp(min=1))  # p
            return _Layout(group_T, border_T=shift_T + positions_T, shift_T=shift_T)

        def far(group: int) -> Band:
            """Far keys of the queries with `group` keys to a position."""

            def last(index_T: Tensor) -> Tensor:
                """Index of a query's last far key; -1, which is none, for another group."""
                query = layout(index_T)
                return torch.where(query.group_T == group, query.border_T - 1, -1)

            def q(pos_T: Tensor) -> Tensor:
                query = layout(pos_T)
                # Queries of other groups have no far key here, so any number will do for them.
                place_T = torch.where(query.group_T == group, pos_T - query.shift_T, 0.0)
                # A query lies where its own key does, which in a long chunk may be a far one.
                return torch.where(pos_T < query.border_T, k(pos_T), place_T)

            def k(pos_T: Tensor) -> Tensor:
                return (pos_T / group).clamp(max=train_len - 1)

            return Band(last=last, q=q, k=k, interpolated=True)

        near = Band(first=lambda index_T: layout(index_T).border_T)
        beyond_T = torch.arange(train_len, max(train_len, span.length))
        groups = layout(beyond_T).group_T.unique()
        return near, *(far(group) for group in groups.tolist())


def _ceil_div(number_T: Tensor, divisor: Tensor | int) -> Tensor:
    """The quotient rounded up, in integers."""
    return -torch.div(-number_T, divisor, rounding_mode="floor")
