"""LM-Infinite: a query sees the last w keys, and the first ones at one constant distance.

It sees the last w keys, itself included, and the first n_global keys, all of these at the distance
w. Han et al. 2023, arXiv 2308.16137 (Glaciohound/LM-Infinite): n_global = 10 to 100, w = train_len.
Near band (i - j < w): query i, key j. Global band (j < n_global, i - j >= w): query at w, key at 0.
Up to train_len tokens nothing changes. As in the code the cap is w itself, one beyond the largest
trained distance. Left out: the optional retrieval of top-k keys from the middle."""

import torch

from posbench.position.geometry import Band, Span, Tokens, Trait
from posbench.position.interfaces import Extension


class LmInfinite(Extension):
    """Two bands: a window and the start of the text."""

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {
        "rope": "the paper: Llama 2",
        "p_rope": "the paper: GPT-J, a quarter of whose channels turn",
        "alibi": "the paper: MPT-7B",
        **dict.fromkeys(
            ("pope", "kerple", "sandwich", "t5", "none"), "the paper: any relative encoding"
        ),
    }

    def __init__(self, n_global: Tokens = 10, window: Tokens | None = None):
        self.n_global = n_global  # first tokens, which all queries see
        self.window = window  # None: the training length

    def bands(self, span: Span) -> tuple[Band, ...]:
        w = self.window or span.train_len
        near = Band(first=lambda i: i - w + 1)
        # The first n_global keys, all of them at distance w.
        far = Band(
            last=lambda i: (i - w).clamp(max=self.n_global - 1),
            q=lambda i: torch.full_like(i, w),
            k=torch.zeros_like,
        )
        return near, far
