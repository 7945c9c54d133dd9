"""The causal triangle with gradients on a CPU, a block of queries at a time: faster than torch's fused kernel beyond some length.

The backward pass computes the weights again, as FlashAttention does (Dao et al. 2022, arXiv 2205.14135), so that no [T, T] is kept. Scores
and weights are float32; their products with values and gradients are in the format of the values.

Letters: B batch, T tokens, H heads, W width of queries and keys, D of values, N batch times heads, S queries of a block, K their keys.
"""

import math

import torch
from torch import Tensor

LEAST, LEAST_FP32 = 128, 512  # tokens below which torch's kernel is as fast, with values in bf16 and in float32
BLOCK = 128  # queries


def faster(length: int, dtype: torch.dtype) -> bool:
    """True if a text is long enough for this to be faster than torch's kernel, by the format of the values."""
    return length >= (LEAST if dtype == torch.bfloat16 else LEAST_FP32)


def causal(q_BHTW: Tensor, k_BHTW: Tensor, v_BHTD: Tensor) -> Tensor:
    """Attention of queries that are scaled already, all heads with keys of their own: [B, H, T, D], float32."""
    y_NTD = _Causal.apply(*(one.flatten(0, 1) for one in (q_BHTW.float(), k_BHTW.float(), v_BHTD)))
    return y_NTD.unflatten(0, q_BHTW.shape[:2])


class _Causal(torch.autograd.Function):
    """Outputs block by block; of the way back, gradients of the weights' scores from the mean of each row, as in FlashAttention."""

    @staticmethod
    def forward(ctx: object, q_NTW: Tensor, k_NTW: Tensor, v_NTD: Tensor) -> Tensor:
        y_NTD = v_NTD.new_empty(v_NTD.shape, dtype=torch.float32)
        for some, seen in _blocks(q_NTW.shape[1]):
            y_NTD[:, some] = _weights(q_NTW[:, some], k_NTW[:, seen]).to(v_NTD.dtype) @ v_NTD[:, seen]
        ctx.save_for_backward(q_NTW, k_NTW, v_NTD, y_NTD)
        return y_NTD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, dy_NTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_NTW, k_NTW, v_NTD, y_NTD = ctx.saved_tensors
        dtype = v_NTD.dtype
        dy_NTD, q, k = dy_NTD.to(dtype), q_NTW.to(dtype), k_NTW.to(dtype)
        mean_NT1 = (dy_NTD * y_NTD).sum(dim=-1, keepdim=True)  # of what is rounded already, so that a single key has no gradient
        dq_NTW, dk_NTW = torch.empty_like(q_NTW), torch.zeros_like(k_NTW)
        dv_NTD = torch.zeros_like(y_NTD)
        for some, seen in _blocks(q.shape[1]):
            p_NSK = _weights(q_NTW[:, some], k_NTW[:, seen])
            dv_NTD[:, seen] += p_NSK.to(dtype).mT @ dy_NTD[:, some]
            ds_NSK = (dy_NTD[:, some] @ v_NTD[:, seen].mT).float().sub_(mean_NT1[:, some]).mul_(p_NSK).to(dtype)
            dq_NTW[:, some] = ds_NSK @ k[:, seen]
            dk_NTW[:, seen] += ds_NSK.mT @ q[:, some]
        return dq_NTW, dk_NTW, dv_NTD.to(dtype)


def _weights(q_NSW: Tensor, k_NKW: Tensor) -> Tensor:
    """Attention weights of queries whose own tokens are the last of the keys: [N, S, K]."""
    scores_NSK, n_rows = q_NSW @ k_NKW.mT, q_NSW.shape[1]
    scores_NSK[..., -n_rows:] += torch.full((n_rows, n_rows), -math.inf).triu(1)
    return scores_NSK.softmax(dim=-1)


def _blocks(length: int) -> list[tuple[slice, slice]]:
    """Queries of each block, and the keys that they see."""
    return [(slice(start, min(start + BLOCK, length)), slice(min(start + BLOCK, length))) for start in range(0, length, BLOCK)]
