"""The causal triangle on a CPU, a block of queries at a time: faster than torch's fused kernel with
gradients, or with values in bf16.

The weights of a short text are kept for the backward pass, which otherwise computes them again, as
FlashAttention does (Dao et al. 2022, arXiv 2205.14135). Scores and the softmax are float32; weights
and their products are in the format of the values.

Letters: B batch, T tokens, H heads, W width of queries and keys, D of values, N batch times heads,
S queries of a block, K their keys."""

import math

import torch
from torch import Tensor

BLOCK, LEAST = 128, 16  # most queries of a block, and fewest
SCORES = 2**23  # of a block of more than LEAST: 32 MiB, above which memory is new each time
LONGEST = 4096  # tokens beyond which an evaluation in bf16 is as fast in torch's kernel
KEPT = 2**21  # bytes of a layer's weights that are kept for the way back; more are computed again


def causal(q_BHTW: Tensor, k_BHTW: Tensor, v_BHTD: Tensor) -> Tensor:
    """Attention of queries that are scaled already, all heads with keys of their own: [B, H, T, D],
    in the format of v.
    """
    y_NTD = _Causal.apply(*(one.flatten(0, 1) for one in (q_BHTW.float(), k_BHTW.float(), v_BHTD)))
    return y_NTD.unflatten(0, q_BHTW.shape[:2])


class _Causal(torch.autograd.Function):
    """Outputs and gradients block by block. A block has all keys of its queries."""

    @staticmethod
    def forward(ctx: object, q_NTW: Tensor, k_NTW: Tensor, v_NTD: Tensor) -> Tensor:
        y_NTD, kept, length = torch.empty_like(v_NTD), [], q_NTW.shape[1]
        ctx.keeps = (
            any(ctx.needs_input_grad) and len(q_NTW) * length**2 // 2 * v_NTD.element_size() <= KEPT
        )
        for some, seen in _blocks(length, len(q_NTW)):
            p_NSK = _weights(q_NTW[:, some], k_NTW[:, seen]).to(v_NTD.dtype)
            y_NTD[:, some] = p_NSK @ v_NTD[:, seen]
            if ctx.keeps:
                kept.append(p_NSK)
        ctx.save_for_backward(q_NTW, k_NTW, v_NTD, *kept)
        return y_NTD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, dy_NTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_NTW, k_NTW, v_NTD, *kept = ctx.saved_tensors
        dtype = v_NTD.dtype
        q, k = q_NTW.to(dtype), k_NTW.to(dtype)
        dq_NTW, dk_NTW, dv_NTD = (
            torch.empty_like(q_NTW),
            torch.empty_like(k_NTW),
            torch.empty_like(v_NTD, dtype=torch.float32),
        )
        blocks = _blocks(q.shape[1], len(q))
        for number, (some, seen) in reversed(list(enumerate(blocks))):
            p_NSK = (
                kept[number] if ctx.keeps else _weights(q_NTW[:, some], k_NTW[:, seen]).to(dtype)
            )
            ds_NSK = torch.ops.aten._softmax_backward_data(
                dy_NTD[:, some] @ v_NTD[:, seen].mT, p_NSK, -1, dtype
            )
            dq_NTW[:, some] = ds_NSK @ k[:, seen]
            add = (
                Tensor.copy_ if number == len(blocks) - 1 else Tensor.add_
            )  # queries of the last block see all keys
            add(dk_NTW[:, seen], ds_NSK.mT @ q[:, some])
            add(dv_NTD[:, seen], p_NSK.mT @ dy_NTD[:, some])
        return dq_NTW, dk_NTW, dv_NTD.to(dtype)


def _weights(q_NSW: Tensor, k_NKW: Tensor) -> Tensor:
    """Attention weights of queries whose own tokens are the last of the keys: [N, S, K]."""
    scores_NSK, n_rows = q_NSW @ k_NKW.mT, q_NSW.shape[1]
    scores_NSK[..., -n_rows:] += torch.full((n_rows, n_rows), -math.inf).triu(1)
    return scores_NSK.softmax(dim=-1)


def _blocks(length: int, heads: int) -> list[tuple[slice, slice]]:
    step = max(LEAST, min(BLOCK, SCORES // max(1, heads * length)))
    return [
        (slice(start, min(start + step, length)), slice(min(start + step, length)))
        for start in range(0, length, step)
    ]
