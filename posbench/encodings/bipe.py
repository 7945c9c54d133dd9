"""BiPE: a position within the segment, added to the embedding, and one of the segment.

A segment ends with a separator. Token t, the n-th of segment s, gets row n of a learned table; and
pairs of tokens are told apart by the numbers of their segments alone, by RoPE here or by ALiBi in
bipe_alibi.py. He et al. 2024, arXiv 2401.16421 (ICML 2024), and zhenyuhe00/BiPE: separators are the
line end and the full stop; the table has train_len rows, and later tokens of a segment take the
last.

`separators` are numbers of tokens, by default the bytes of line end and full stop. With another
tokenizer they must be named. PI and changes of frequencies act on the numbers of segments."""

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Layout, Shape

LINE_END_AND_FULL_STOP = (10, 46)  # as bytes


def positions_and_segments(tokens_BT: Tensor, separators: list[int]) -> tuple[Tensor, Tensor]:
    """Position of each token within its segment, which is about a sentence, and the number of its
    segment: int64 [B, T] each.

    A separator is the last token of its segment."""
    ends_BT = torch.isin(tokens_BT, torch.tensor(separators, device=tokens_BT.device)).long()
    number_BT = ends_BT.cumsum(dim=1) - ends_BT
    index_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    # The first token of a text begins a segment too, so a smaller number is put in front of it.
    begins_BT = number_BT.diff(dim=1, prepend=number_BT[:, :1] - 1) > 0
    first_BT = torch.where(begins_BT, index_T, 0).cummax(dim=1).values
    return index_T - first_BT, number_BT


class BipeRope(Rope):
    """Rows within segments, RoPE between them. Raises ConfigError for no separators."""

    reads_tokens = True
    tested_with = {"window": "a mask: no position moves"}

    def __init__(
        self,
        shape: Shape,
        separators: list[int] | None = None,
        init_std: float = 0.02,
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        self.separators = checked_separators(separators)
        self.rows_TC = new_position_rows(shape, init_std)

    def check_tokenizer(self, tokenizer: str) -> None:
        check_separators_of(tokenizer, self.separators)

    def embed_text(self, tokens_BT: Tensor) -> Tensor:
        return position_rows(self.rows_TC, tokens_BT, self.separators)

    def content_positions(self, x_BTC: Tensor, layer: int, tokens_BT: Tensor) -> Tensor:
        _, segment_BT = positions_and_segments(tokens_BT, self.separators)
        return segment_BT[:, None].float()


def checked_separators(separators: list[int] | None) -> list[int]:
    """The separators, by default LINE_END_AND_FULL_STOP. Raises ConfigError for an empty list."""
    if separators is None:
        return list(LINE_END_AND_FULL_STOP)
    if not separators:
        raise ConfigError(
            "encoding.separators=[] ends no segment: give numbers of tokens, or null for the bytes"
            " of line end and full stop."
        )
    return separators


def check_separators_of(tokenizer: str, separators: list[int]) -> None:
    """Raise ConfigError if the usual separators, which are bytes, are left for a tokenizer of
    other tokens.
    """
    # "": a tokenizer that nothing is known of
    if tokenizer not in ("bytes", "") and separators == list(LINE_END_AND_FULL_STOP):
        raise ConfigError(
            f"encoding.separators={separators} are bytes, and data.tokenizer={tokenizer} has other"
            " tokens: give the numbers of its tokens that end a segment, or set"
            " data.tokenizer=bytes."
        )


def new_position_rows(shape: Shape, init_std: float) -> nn.Parameter:
    """Learned rows [train_len, C] of positions within a segment, normal with this deviation."""
    return nn.Parameter(torch.empty(shape.train_len, shape.d_model).normal_(std=init_std))


def position_rows(rows_TC: Tensor, tokens_BT: Tensor, separators: list[int]) -> Tensor:
    """Row of each token by its position within its segment: [B, T, C]."""
    position_BT, _ = positions_and_segments(tokens_BT, separators)
    return rows_TC[position_BT.clamp(max=len(rows_TC) - 1)]
