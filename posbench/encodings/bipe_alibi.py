"""BiPE on ALiBi: a position within the segment (bipe.py), and ALiBi between segments.

score(i, j) -= m_h (s_i - s_j) for tokens of segments s_i and s_j. He et al. 2024, arXiv 2401.16421
(ICML 2024), and zhenyuhe00/BiPE, where the slopes m_h of ALiBi are multiplied by 96, since segments
are longer than tokens."""

import torch
from torch import Tensor

from posbench.encodings.alibi import alibi_slopes
from posbench.encodings.bipe import (
    check_separators_of,
    checked_separators,
    new_position_rows,
    position_rows,
    positions_and_segments,
)
from posbench.position.geometry import Above0, Shape, Trait
from posbench.position.interfaces import Encoding


class BipeAlibi(Encoding):
    """Rows within segments, ALiBi between them. Raises ConfigError for no separators."""

    traits = Trait.CONTENT
    reads_tokens = True
    tested_with = {"window": "a mask: no position moves"}

    def __init__(
        self,
        shape: Shape,
        separators: list[int] | None = None,
        init_std: float = 0.02,
        slope_scale: Above0 = 96.0,
    ):
        super().__init__(shape)
        self.separators = checked_separators(separators)
        self.rows_TC = new_position_rows(shape, init_std)  # of positions within a segment
        # Distances count segments, which are longer than tokens: the authors' code has 96.
        slope_H = slope_scale * torch.tensor(alibi_slopes(shape.n_head))
        self.register_buffer("slope_H", slope_H, persistent=False)

    def check_tokenizer(self, tokenizer: str) -> None:
        check_separators_of(tokenizer, self.separators)

    def embed_text(self, tokens_BT: Tensor) -> Tensor:
        return position_rows(self.rows_TC, tokens_BT, self.separators)

    def gates(self, x_BTC: Tensor, layer: int, tokens_BT: Tensor) -> Tensor:
        """Minus a slope at the first token of each segment but the first."""
        _, segment_BT = positions_and_segments(tokens_BT, self.separators)
        begins_B1T = segment_BT.diff(dim=1, prepend=segment_BT[:, :1])[:, None].float()
        return -self.slope_H[:, None] * begins_B1T
