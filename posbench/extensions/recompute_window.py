"""Recompute window: each target is predicted from exactly the last w tokens, re-encoded as a text of their own; w = train_len unless set.

What anyone gets by throwing away everything beyond the training length (stride 1 of a sliding evaluation): the
floor that an extension has to beat. Defined for every encoding, since the model never sees more than w tokens.
"""

from posbench.position.geometry import Span
from posbench.position.interfaces import ANY, Extension, window_size


class RecomputeWindow(Extension):
    """Feeds w tokens per target."""

    tested_with = ANY

    def __init__(self, window: int | None = None):
        self.window = window

    def crop(self, span: Span) -> int:
        return window_size(self.window, span.train_len)
