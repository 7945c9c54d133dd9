"""A learned table stretched end to end, if target_len > train_len.

Coordinate t becomes t (train_len - 1) / (target_len - 1). Linear interpolation of position
embeddings, as common for vision transformers and longer BERTs. Unlike pi (t / s), whose last
coordinates lie beyond the last row, the last token reads exactly the last row."""

from torch import Tensor

from posbench.position.geometry import Band, Span, Trait
from posbench.position.interfaces import ScaledExtension


class TableLinear(ScaledExtension):
    """Every coordinate moved onto the table."""

    needs = Trait.COORDINATE | Trait.TABLE
    tested_with = {
        "learned": (
            "as Dosovitskiy et al. 2020, arXiv 2010.11929, interpolate the table of an image model"
        )
    }

    def bands(self, span: Span) -> tuple[Band, ...]:
        if span.factor == 1:
            return (Band(),)
        share = (span.train_len - 1) / (span.target_len - 1)  # the last token gets the last row

        def shrink(pos_T: Tensor) -> Tensor:
            return pos_T * share

        return (Band(q=shrink, k=shrink),)
