"""Kimi Delta Attention: Gated DeltaNet that forgets each channel of a key at a rate of its own.

S_t = S_{t-1} diag(a_t) (I - b_t k_t k_t^T) + b_t v_t k_t^T, a_t = exp(-A softplus(W_2 W_1 x + c)),
A a number for each head and c for each channel. Kimi Team 2025, arXiv 2510.26692, in the form of
transformers' models/kimi_linear: W_1 has head_dim columns, the gate of the output is sigmoid(U_2
U_1 x) of the same rank, and there are as many heads of values as of keys. The rest is as in
gated_deltanet.py. A begins evenly from 1 to 16 and c at 0, as in fla-org/flash-linear-attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.position.delta_mixer import DeltaMixer, log_rates
from posbench.position.geometry import Shape, Size
from posbench.position.interfaces import Encoding
from posbench.position.products import Linear


class KimiDelta(Encoding):
    """Recurrence in every layer; beside layers with attention as `local` of a hybrid."""

    def __init__(self, shape: Shape, kernel: Size = 4):
        super().__init__(shape)
        self.kernel = kernel

    def mixer(self, layer: int) -> nn.Module:
        return KimiDeltaMixer(self.shape, self.kernel)


class KimiDeltaMixer(DeltaMixer):
    """Forgetting by a rate for each channel, and a gate of low rank."""

    def __init__(self, shape: Shape, kernel: int):
        super().__init__(shape, value_heads=1, kernel=kernel)
        width = self.widths[0]  # that of queries, keys and values alike
        # The decay a of a channel is exp(-rate softplus(a_out_proj(a_in_proj(x)) + step_bias)).
        self.a_in_proj = Linear(shape.d_model, shape.head_dim, bias=False)
        self.a_out_proj = Linear(shape.head_dim, width, bias=False)
        self.gate_in_proj = Linear(shape.d_model, shape.head_dim, bias=False)
        self.gate_out_proj = Linear(shape.head_dim, width, bias=False)
        self.log_rate_H = log_rates(
            shape.n_head, least=1.0
        )  # these begin as in flash-linear-attention
        self.step_bias_W = nn.Parameter(torch.zeros(width))

    def log_decay(self, x_BTC: Tensor) -> Tensor:
        step_BTW = F.softplus(self.a_out_proj(self.a_in_proj(x_BTC)).float() + self.step_bias_W)
        return -self.log_rate_H.exp()[:, None, None] * self._split_heads(step_BTW)

    def gate(self, x_BTC: Tensor) -> Tensor:
        return self.gate_out_proj(self.gate_in_proj(x_BTC)).float().sigmoid()
