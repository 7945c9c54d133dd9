"""The causal triangle on a CPU, a block of queries at a time.

It is faster than torch's fused kernel with gradients, or with values in bf16. The weights of a
short text are kept for the backward pass, which otherwise computes them again, as FlashAttention
does (Dao et al. 2022, arXiv 2205.14135). Scores and the softmax are float32; weights and their
products are in the format of the values.

Letters: B batch, T tokens, H heads, W width of queries and keys, D of values, N batch times heads,
S queries of a block, K their keys."""

import math

import torch
from torch import Tensor

MOST_QUERIES = 128  # of a block
FEWEST_QUERIES = 16  # of a block
# Scores of a block of more than FEWEST_QUERIES: 32 MiB, above which memory is new each time.
MOST_SCORES = 2**23
LONGEST_IN_BF16 = 4096  # tokens beyond which an evaluation in bf16 is as fast in torch's kernel
# Of a layer's weights that are kept for the backward pass; more are computed again.
MOST_KEPT_BYTES = 2**21


def causal_attention(q_BHTW: Tensor, k_BHTW: Tensor, v_BHTD: Tensor) -> Tensor:
    """Attention of queries that are scaled already, all heads with keys of their own: [B, H, T, D],
    in the format of v.

    W may exceed D by the columns of a bias."""
    # Scores and their softmax are float32; weights are multiplied in the format of v.
    q_NTW = q_BHTW.float().flatten(0, 1)
    k_NTW = k_BHTW.float().flatten(0, 1)
    y_NTD = _Causal.apply(q_NTW, k_NTW, v_BHTD.flatten(0, 1))
    return y_NTD.unflatten(0, q_BHTW.shape[:2])


class _Causal(torch.autograd.Function):
    """Outputs and gradients block by block. A block has all keys of its queries."""

    @staticmethod
    def forward(ctx: object, q_NTW: Tensor, k_NTW: Tensor, v_NTD: Tensor) -> Tensor:
        """Output of all heads, in the format of v. q is scaled already."""
        y_NTD = torch.empty_like(v_NTD)
        n_heads, length, _ = q_NTW.shape
        weight_bytes = n_heads * length**2 // 2 * v_NTD.element_size()  # of the triangle
        # Else `backward`, if any, computes them again.
        ctx.keeps_weights = any(ctx.needs_input_grad) and weight_bytes <= MOST_KEPT_BYTES
        weights = []
        for queries, keys in _blocks_of_queries(length, n_heads):
            p_NSK = _softmax_weights(q_NTW[:, queries], k_NTW[:, keys]).to(v_NTD.dtype)
            y_NTD[:, queries] = p_NSK @ v_NTD[:, keys]
            if ctx.keeps_weights:
                weights.append(p_NSK)
        ctx.save_for_backward(q_NTW, k_NTW, v_NTD, *weights)
        return y_NTD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, dy_NTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. Weights that were too large to keep are computed again."""
        q_NTW, k_NTW, v_NTD, *weights = ctx.saved_tensors
        dtype = v_NTD.dtype
        q = q_NTW.to(dtype)
        k = k_NTW.to(dtype)
        dq_NTW = torch.empty_like(q_NTW)
        dk_NTW = torch.empty_like(k_NTW)
        dv_NTD = torch.empty_like(v_NTD, dtype=torch.float32)
        blocks = _blocks_of_queries(q.shape[1], len(q))
        add = Tensor.copy_  # the last block comes first, and its queries see all keys
        for number, (queries, keys) in reversed(list(enumerate(blocks))):
            if ctx.keeps_weights:
                p_NSK = weights[number]
            else:
                p_NSK = _softmax_weights(q_NTW[:, queries], k_NTW[:, keys]).to(dtype)
            # gradient of the scores
            ds_NSK = torch.ops.aten._softmax_backward_data(
                dy_NTD[:, queries] @ v_NTD[:, keys].mT, p_NSK, -1, dtype
            )
            dq_NTW[:, queries] = ds_NSK @ k[:, keys]
            add(dk_NTW[:, keys], ds_NSK.mT @ q[:, queries])
            add(dv_NTD[:, keys], p_NSK.mT @ dy_NTD[:, queries])
            add = Tensor.add_
        return dq_NTW, dk_NTW, dv_NTD.to(dtype)


def _softmax_weights(q_NSW: Tensor, k_NKW: Tensor) -> Tensor:
    """Attention weights of queries whose own tokens are the last of the keys: [N, S, K]."""
    n_rows = q_NSW.shape[1]
    scores_NSK = q_NSW @ k_NKW.mT
    scores_NSK[..., -n_rows:] += torch.full((n_rows, n_rows), -math.inf).triu(1)
    return scores_NSK.softmax(dim=-1)


def _blocks_of_queries(length: int, heads: int) -> list[tuple[slice, slice]]:
    """(queries, keys) of each block: some queries, and all keys up to the last of them."""
    step = max(FEWEST_QUERIES, min(MOST_QUERIES, MOST_SCORES // max(1, heads * length)))
    blocks = []
    for start in range(0, length, step):
        stop = min(start + step, length)
        blocks.append((slice(start, stop), slice(stop)))
    return blocks
