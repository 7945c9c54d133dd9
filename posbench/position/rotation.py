"""Rotation of pairs of channels by a table of angles, equal with and without gradients.

Letters: B batch, T tokens, H heads, R turned channels, F pairs, S tokens of a piece.
"""

import torch
from torch import Tensor

from posbench.position.geometry import Layout

# Numbers of a piece: 24 MiB in float32. Blocks above 32 MiB get new pages each time, which are
# cleared first. Of smaller pieces there are so many that their calls take time: at 2,048 tokens of
# 135 M parameters 2^17 numbers cost a tenth or more.
PIECE = 6 * 2**20


def wide(table: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """cos and signed sin for every channel, [T, R] each, of a table [2, T, F]: channel x becomes x
    cos + partner sin.
    """
    cos_TF, sin_TF = table
    signed = torch.stack((cos_TF, cos_TF), dim=-1), torch.stack((-sin_TF, sin_TF), dim=-1)
    return tuple((one.mT if layout == "half" else one).flatten(-2) for one in signed)


def turned(x_BHTR: Tensor, cos_TR: Tensor, sin_TR: Tensor, layout: Layout) -> Tensor:
    """Channels turned in pairs: [B, H, T, R]."""
    return _Turned.apply(x_BHTR, cos_TR, sin_TR, layout)


class _Turned(torch.autograd.Function):
    """Four operations over whole heads, piece by piece. The gradient is turned back by the same."""

    @staticmethod
    def forward(
        ctx: object, x_BHTR: Tensor, cos_TR: Tensor, sin_TR: Tensor, layout: Layout
    ) -> Tensor:
        ctx.layout, learned = layout, any(ctx.needs_input_grad[1:3])
        ctx.save_for_backward(cos_TR, sin_TR, x_BHTR if learned else None)
        return _turn(x_BHTR, cos_TR, sin_TR, layout)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient_BHTR: Tensor) -> tuple:
        cos_TR, sin_TR, x_BHTR = ctx.saved_tensors
        back = (
            _turn(gradient_BHTR, cos_TR, -sin_TR, ctx.layout) if ctx.needs_input_grad[0] else None
        )
        if x_BHTR is None:
            return back, None, None, None
        heads = gradient_BHTR.ndim - 2
        found = [
            (gradient_BHTR * one).sum(dim=list(range(heads)))
            for one in (x_BHTR, _partner(x_BHTR, ctx.layout))
        ]
        return back, *found, None


def _turn(x_BHTR: Tensor, cos_TR: Tensor, sin_TR: Tensor, layout: Layout) -> Tensor:
    made_BHTR = torch.empty_like(
        x_BHTR, memory_format=torch.contiguous_format
    )  # blocks of keys are then read without a copy
    for some in pieces(x_BHTR, 2):
        x_BHSR = x_BHTR[:, :, some]
        partner_BHSR = _partner(x_BHSR, layout)
        torch.mul(x_BHSR, cos_TR[..., some, :], out=made_BHTR[:, :, some]).add_(
            partner_BHSR.mul_(sin_TR[..., some, :])
        )
    return made_BHTR


def _partner(x_BHSR: Tensor, layout: Layout) -> Tensor:
    """The other channel of each pair, in a new tensor."""
    if layout == "half":
        return x_BHSR.roll(x_BHSR.shape[-1] // 2, dims=-1)
    return x_BHSR.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def pieces(x: Tensor, dim: int) -> list[slice]:
    """Slices of one dimension, one after the other, so that the result of each is small enough to
    reuse its memory (model/memory.py).

    It is a single one on a GPU, and for a tensor without elements.
    """
    length, numbers = x.shape[dim], x.numel()
    step = (
        max(1, PIECE * length // numbers) if numbers and x.device.type == "cpu" else max(1, length)
    )
    return [slice(start, start + step) for start in range(0, length, step)]
