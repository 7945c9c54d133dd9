"""The causal triangle on a CPU, a block of queries at a time: faster than torch's fused kernel with gradients, or with values in bf16.

The weights of a short text are kept for the backward pass, which otherwise computes them again, as FlashAttention does (Dao et al. 2022,
arXiv 2205.14135). Scores and the softmax are float32; weights and their products are in the format of the values.

Letters: B batch, T tokens, H heads, W width of queries and keys, D of values, N batch times heads, S queries of a block, K their keys.
"""

import math

import torch
from torch import Tensor

BLOCK, LEAST = 128, 16  # most queries of a block, and fewest
SCORES = 2**23  # of a block of more than LEAST: 32 MiB, above which memory is new each time
LONGEST = 4096  # tokens beyond which an evaluation in bf16 is as fast in torch's kernel
KEPT = 2**22  # attention weights of all blocks that are kept for the way back; more are computed again


def causal(q_BHTW: Tensor, k_BHTW: Tensor, v_BHTD: Tensor) -> Tensor:
    """Attention of queries that are scaled already, all heads with keys of their own: [B, H, T, D], in the format of v."""
    y_NTD = _Causal.apply(*(one.flatten(0, 1) for one in (q_BHTW.float(), k_BHTW.float(), v_BHTD)))
    return y_NTD.unflatten(0, q_BHTW.shape[:2])


class _Causal(torch.autograd.Function):
    """Outputs block by block; of the way back, gradients of the weights' scores from the mean of each row, as in FlashAttention."""

    @staticmethod
    def forward(ctx: object, q_NTW: Tensor, k_NTW: Tensor, v_NTD: Tensor) -> Tensor:
        y_NTD, kept, length = torch.empty_like(v_NTD), [], q_NTW.shape[1]
        ctx.keeps = any(ctx.needs_input_grad) and len(q_NTW) * length**2 // 2 <= KEPT
        for some, seen in _blocks(length, len(q_NTW)):
            p_NSK = _weights(q_NTW[:, some], k_NTW[:, seen]).to(v_NTD.dtype)
            y_NTD[:, some] = p_NSK @ v_NTD[:, seen]
            if ctx.keeps:
                kept.append(p_NSK)
        ctx.save_for_backward(q_NTW, k_NTW, v_NTD, y_NTD, *kept)
        return y_NTD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, dy_NTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_NTW, k_NTW, v_NTD, y_NTD, *kept = ctx.saved_tensors
        q, k = q_NTW.to(v_NTD.dtype), k_NTW.to(v_NTD.dtype)
        mean_NT1 = (dy_NTD.float() * y_NTD).sum(dim=-1, keepdim=True)  # of what is rounded already, so that a single key has no gradient
        dq_NTW, dk_NTW, dv_NTD = torch.empty_like(q_NTW), torch.empty_like(k_NTW), torch.empty_like(v_NTD, dtype=torch.float32)
        blocks = _blocks(q.shape[1], len(q))
        for number, (some, seen) in reversed(list(enumerate(blocks))):
            p_NSK = kept[number] if ctx.keeps else _weights(q_NTW[:, some], k_NTW[:, seen]).to(v_NTD.dtype)
            ds_NSK = (dy_NTD[:, some] @ v_NTD[:, seen].mT).float().sub_(mean_NT1[:, some]).mul_(p_NSK).to(v_NTD.dtype)
            dq_NTW[:, some] = ds_NSK @ k[:, seen]
            add = Tensor.copy_ if number == len(blocks) - 1 else Tensor.add_  # queries of the last block see all keys
            add(dk_NTW[:, seen], ds_NSK.mT @ q[:, some])
            add(dv_NTD[:, seen], p_NSK.mT @ dy_NTD[:, some])
        return dq_NTW, dk_NTW, dv_NTD.to(v_NTD.dtype)


def _weights(q_NSW: Tensor, k_NKW: Tensor) -> Tensor:
    """Attention weights of queries whose own tokens are the last of the keys: [N, S, K]."""
    scores_NSK, n_rows = q_NSW @ k_NKW.mT, q_NSW.shape[1]
    scores_NSK[..., -n_rows:] += torch.full((n_rows, n_rows), -math.inf).triu(1)
    return scores_NSK.softmax(dim=-1)


def _blocks(length: int, heads: int) -> list[tuple[slice, slice]]:
    """Queries of each block, and the keys that they see."""
    step = max(LEAST, min(BLOCK, SCORES // (heads * length)))
    return [(slice(start, min(start + step, length)), slice(min(start + step, length))) for start in range(0, length, step)]
