"""Recompute window: each target is predicted from exactly the last w tokens, as a separate text.

w = train_len unless set. This is the floor that an extension has to beat: all text beyond the
training length is thrown away (stride 1 of a sliding evaluation). Defined for every encoding, since
by default the model never reads more than it was trained on. With evaluate.floor_block above 1
consecutive targets share a text, and all but its last have slightly fewer tokens before them."""

from posbench.position.geometry import Span, Tokens
from posbench.position.interfaces import TESTED_WITH_ALL, Extension


class RecomputeWindow(Extension):
    """Crop to the last w tokens for each target."""

    tested_with = TESTED_WITH_ALL

    def __init__(self, window: Tokens | None = None):
        self.window = window

    def crop(self, span: Span) -> int:
        return self.window or span.train_len
