"""Rotation of pairs of channels by a table of angles, equal with and without gradients.

Letters: B batch, T tokens, H heads, R turned channels, F pairs, S tokens of a piece.
"""

import torch
from torch import Tensor

from posbench.position.geometry import Layout

# Numbers of a piece: 24 MiB in float32. Blocks above 32 MiB get new pages each time, which are
# cleared first. Of smaller pieces there are so many that their calls take time: at 2,048 tokens of
# 135 M parameters 2^17 numbers cost a tenth or more.
MOST_NUMBERS = 6 * 2**20


def cos_and_sin_by_channel(table: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """cos and signed sin for every channel, [T, R] each, of a table [2, T, F]: channel x becomes x
    cos + partner sin.
    """
    cos_TF, sin_TF = table
    cos_TF2 = torch.stack((cos_TF, cos_TF), dim=-1)
    sin_TF2 = torch.stack((-sin_TF, sin_TF), dim=-1)
    if layout == "half":
        return cos_TF2.mT.flatten(-2), sin_TF2.mT.flatten(-2)
    return cos_TF2.flatten(-2), sin_TF2.flatten(-2)


def turned_pairs(x_BHTR: Tensor, cos_TR: Tensor, sin_TR: Tensor, layout: Layout) -> Tensor:
    """Channels turned in pairs: [B, H, T, R]."""
    return _Turned.apply(x_BHTR, cos_TR, sin_TR, layout)


class _Turned(torch.autograd.Function):
    """Four operations over whole heads, piece by piece. The gradient is turned back by the same."""

    @staticmethod
    def forward(
        ctx: object, x_BHTR: Tensor, cos_TR: Tensor, sin_TR: Tensor, layout: Layout
    ) -> Tensor:
        ctx.layout = layout
        learns_table = any(ctx.needs_input_grad[1:3])  # of cos or sin; only then x is needed
        ctx.save_for_backward(cos_TR, sin_TR, x_BHTR if learns_table else None)
        return _turn_in_pieces(x_BHTR, cos_TR, sin_TR, layout)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient_BHTR: Tensor) -> tuple:
        cos_TR, sin_TR, x_BHTR = ctx.saved_tensors
        dx_BHTR = None
        if ctx.needs_input_grad[0]:
            # The inverse of a rotation is its transpose: the same angle backwards.
            dx_BHTR = _turn_in_pieces(gradient_BHTR, cos_TR, -sin_TR, ctx.layout)
        if x_BHTR is None:  # neither cos nor sin is learned
            return dx_BHTR, None, None, None
        # A table of one batch has its dimensions B and H too, of size 1 if they share it.
        dcos_TR = (gradient_BHTR * x_BHTR).sum_to_size(cos_TR.shape)
        dsin_TR = (gradient_BHTR * _partner(x_BHTR, ctx.layout)).sum_to_size(sin_TR.shape)
        return dx_BHTR, dcos_TR, dsin_TR, None


def _turn_in_pieces(x_BHTR: Tensor, cos_TR: Tensor, sin_TR: Tensor, layout: Layout) -> Tensor:
    """x cos + partner sin of every channel, in pieces whose results are small enough for a CPU to
    reuse their memory.
    """
    # Contiguous, so that blocks of keys are read without a copy.
    y_BHTR = torch.empty_like(x_BHTR, memory_format=torch.contiguous_format)
    for piece in small_slices(x_BHTR, dim=2):
        x_BHSR = x_BHTR[:, :, piece]
        cos_SR = cos_TR[..., piece, :]
        sin_SR = sin_TR[..., piece, :]
        partner_BHSR = _partner(x_BHSR, layout)
        torch.mul(x_BHSR, cos_SR, out=y_BHTR[:, :, piece]).add_(partner_BHSR.mul_(sin_SR))
    return y_BHTR


def _partner(x_BHSR: Tensor, layout: Layout) -> Tensor:
    """The other channel of each pair, in a new tensor."""
    if layout == "half":
        return x_BHSR.roll(x_BHSR.shape[-1] // 2, dims=-1)
    return x_BHSR.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def small_slices(x: Tensor, dim: int) -> list[slice]:
    """Slices of one dimension, one after the other, so that the result of each is small enough to
    reuse its memory (model/memory.py).

    It is a single one on a GPU, and for a tensor without elements.
    """
    length = x.shape[dim]
    step = max(1, length)
    if x.numel() and x.device.type == "cpu":
        step = max(1, MOST_NUMBERS * length // x.numel())
    return [slice(start, start + step) for start in range(0, length, step)]
