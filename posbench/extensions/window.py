"""Sliding window: a query sees the last w keys, itself included; w = train_len unless set.

As in Beltagy et al. 2020, arXiv 2004.05150 (causal form). Deeper layers still reach back layers x w
tokens: this is a mask, not the floor that recompute_window measures."""

from posbench.position.geometry import Band, Span, Tokens
from posbench.position.interfaces import Extension


class Window(Extension):
    """One band with a moving start."""

    tested_with = {
        "rope": "Mistral 7B (Jiang et al. 2023, arXiv 2310.06825)",
        "xpos": "Sun et al. 2022, arXiv 2212.10554: blockwise causal attention",
        **dict.fromkeys(
            (
                "p_rope",
                "none",
                "alibi",
                "fope",
                "pope",
                "fox",
                "t5",
                "kerple",
                "sandwich",
                "stick_breaking",
                "dape",
            ),
            "a mask: no position moves",
        ),
    }

    def __init__(self, window: Tokens | None = None):
        self.window = window

    def bands(self, span: Span) -> tuple[Band, ...]:
        w = self.window or span.train_len
        return (Band(first=lambda i: i - w + 1),)
