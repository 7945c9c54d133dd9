"""The gated delta rule: a state that forgets, that each token corrects, and that queries read.

S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T and o_t = S_t q_t, S_0 = 0 (Yang et al. 2024,
arXiv 2412.06464). a_t is one number for each head, or one for each channel of the key, S_{t-1}
diag(a_t) (I - b_t k_t k_t^T) (Kimi Team 2025, arXiv 2510.26692). It is computed in chunks. With S
the state before a chunk and g_i the sum of log a over its tokens up to i, token i writes u_i k_i^T,

u_i = b_i (v_i - S (e^{g_i} * k_i) - sum over j < i of <k_i, e^{g_i - g_j} * k_j> u_j),

a triangular system for all u of the chunk. Every exponent is at most 0, so nothing overflows.

Letters: B batch, H heads, T tokens, N chunks, C tokens of a chunk, D channels of a key, V of a
value, E rates of forgetting (1 or D)."""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_BY_HEAD = 64  # tokens, with a rate for each head
# With a rate for each channel every pair of a chunk takes D numbers.
CHUNK_BY_CHANNEL = 16
PIECE_TOKENS = 4096  # tokens whose chunks are prepared at once: whole chunks of either kind


def gated_delta_rule(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTV: Tensor, log_a_BHTE: Tensor, b_BHT: Tensor
) -> Tensor:
    """Output of every token: [B, H, T, V], in the format of the arguments, which is one.

    log_a holds E rates of forgetting, 1 for each head or D for its channels; b is the strength of
    each write."""
    outputs = []
    state_BHDV = None
    arguments = (q_BHTD, k_BHTD, v_BHTV, log_a_BHTE, b_BHT)
    for piece in zip(*(argument.split(PIECE_TOKENS, dim=2) for argument in arguments), strict=True):
        output_BHTV, state_BHDV = _piece_output_and_state(*piece, state_BHDV)
        outputs.append(output_BHTV)
    return torch.cat(outputs, dim=2)


def _piece_output_and_state(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTV: Tensor,
    log_a_BHTE: Tensor,
    b_BHT: Tensor,
    state_BHDV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output of some tokens, and the state behind them, from the state before them, None for 0.

    The u_i of a chunk (see above) are linear in the state S before it: `value` - `key` S, where
    `value` is the solution without a state and `key` that of the part which S multiplies."""
    length = q_BHTD.shape[2]
    chunk = CHUNK_BY_HEAD if log_a_BHTE.shape[-1] == 1 else CHUNK_BY_CHANNEL

    def chunks(x_BHTX: Tensor) -> Tensor:
        """Chunks [B, H, N, C, X] of any width X; zeros, which write nothing, fill the last."""
        return F.pad(x_BHTX, (0, 0, 0, -length % chunk)).unflatten(2, (-1, chunk))

    q_BHNCD = chunks(q_BHTD)
    k_BHNCD = chunks(k_BHTD)
    b_BHNC1 = chunks(b_BHT.unsqueeze(-1))
    # logarithm of the decay from the chunk's beginning up to each token
    g_BHNCE = chunks(log_a_BHTE).cumsum(dim=-2)
    weighted_k_BHNCD = k_BHNCD * b_BHNC1
    # Products of tokens i and j of a chunk: of the triangular system, and of queries with keys.
    system_BHNCC, query_products_BHNCC = _decayed_products(
        weighted_k_BHNCD, q_BHNCD, k_BHNCD, g_BHNCE
    )
    right_side = torch.cat((chunks(v_BHTV) * b_BHNC1, weighted_k_BHNCD * g_BHNCE.exp()), dim=-1)
    solved = torch.linalg.solve_triangular(
        system_BHNCC, right_side, upper=False, unitriangular=True
    )
    value_BHNCV, key_BHNCD = solved.split([v_BHTV.shape[-1], k_BHTD.shape[-1]], dim=-1)
    end_BHN1E = g_BHNCE[..., -1:, :]
    # each as the loop below names it
    parts = (
        value_BHNCV,
        key_BHNCD,
        q_BHNCD * g_BHNCE.exp(),
        query_products_BHNCC,
        (k_BHNCD * (end_BHN1E - g_BHNCE).exp()).mT,
        end_BHN1E.exp().mT,
    )
    outputs = []
    # `unbind`, since the gradient of a slice is as large as the whole.
    for value, key, query, query_products, ending_key, decay in zip(
        *(part.unbind(dim=2) for part in parts), strict=True
    ):
        if state_BHDV is None:
            outputs.append(query_products @ value)
            state_BHDV = ending_key @ value
            continue
        value = value - key @ state_BHDV
        outputs.append(query @ state_BHDV + query_products @ value)
        state_BHDV = decay * state_BHDV + ending_key @ value
    return torch.cat(outputs, dim=2)[:, :, :length], state_BHDV


def _decayed_products(
    weighted_k_BHNCD: Tensor, q_BHNCD: Tensor, k_BHNCD: Tensor, g_BHNCE: Tensor
) -> tuple[Tensor, Tensor]:
    """Products of the weighted keys and of the queries i with the keys j <= i of their chunk, which
    decayed from j to i: both [B, H, N, C, C].
    """
    # [C, C]: True for the keys after a token
    chunk = g_BHNCE.shape[-2]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=g_BHNCE.device).triu(1)
    between = g_BHNCE.unsqueeze(-2) - g_BHNCE.unsqueeze(-3)
    decay_BHNCCE = between.masked_fill(later.unsqueeze(-1), -torch.inf).exp()
    # One decay for all channels can follow the product.
    if decay_BHNCCE.shape[-1] == 1:
        decay_BHNCC = decay_BHNCCE.squeeze(-1)
        products = [x_BHNCD @ k_BHNCD.mT * decay_BHNCC for x_BHNCD in (weighted_k_BHNCD, q_BHNCD)]
        return products[0], products[1]
    decayed_key_BHNCCD = decay_BHNCCE * k_BHNCD.unsqueeze(-3)
    both_BHNCD2 = torch.stack((weighted_k_BHNCD, q_BHNCD), dim=-1)
    return (decayed_key_BHNCCD @ both_BHNCD2).unbind(dim=-1)
