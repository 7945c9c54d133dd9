"""Hierarchical decomposition of a learned table of n rows into up to n^2 rows.

Row a n + b is alpha u_a + (1 - alpha) u_b, u_a = (p_a - alpha p_0) / (1 - alpha). Su 2020
(kexue.fm/archives/7947), alpha = 0.4; p_0 .. p_(n-1) is the trained table. The first n rows are p
itself. With alpha = 1/2 the rows of (a, b) and (b, a) would be equal."""

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Span, Trait
from posbench.position.interfaces import Extension


class TableHierarchical(Extension):
    """A table of up to n^2 rows. Raises ConfigError for an alpha outside 0..1 or of 1/2, and for
    texts beyond n^2 tokens.
    """

    needs = Trait.TABLE
    tested_with = {"learned": "Su 2020 (kexue.fm/archives/7947)"}

    def __init__(self, alpha: float = 0.4):
        if not 0 < alpha < 1 or alpha == 0.5:
            raise ConfigError(
                f"extension.alpha={alpha} must be between 0 and 1 but not 0.5, where two positions"
                " share a row."
            )
        self.alpha = alpha

    def rows(self, rows_NC: Tensor, span: Span) -> Tensor:
        n = len(rows_NC)
        if span.length <= n:
            return rows_NC
        if span.length > n * n:
            raise ConfigError(
                f"extension=table_hierarchical makes {n * n} rows of {n} but length={span.length}:"
                f" stay within {n * n}."
            )
        index_T = torch.arange(span.length, device=rows_NC.device)
        # Row i n + j is alpha u_i + (1 - alpha) u_j; the parts u are such that rows 0..n-1 stay.
        parts_NC = (rows_NC - self.alpha * rows_NC[0]) / (1 - self.alpha)
        longer_NC = self.alpha * parts_NC[index_T // n] + (1 - self.alpha) * parts_NC[index_T % n]
        return torch.cat((rows_NC, longer_NC[n:]))
