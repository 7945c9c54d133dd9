"""Gated DeltaNet: a recurrent state in place of attention, which tells order without positions.

o_t = S_t q_t, S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T. Yang, Kautz and Hatamizadeh
2024, arXiv 2412.06464, in the form of Qwen3-Next (Qwen 2025, transformers' models/qwen3_next). q, k
and v pass a causal convolution of `kernel` tokens, each channel by itself, and SiLU. Then q and k
get norm 1, and q is divided by sqrt(head_dim). b_t = sigmoid(W_b x), and a_t = exp(-A softplus(W_a
x + c)), A and c one number for each head of values. The output is normalised by its root mean
square and multiplied by SiLU(W_g x). Each head of keys serves `value_heads` heads of values.

A and c begin as in fla-org/flash-linear-attention: A evenly from 0.01 to 16 (there from 0), and
softplus(c) from 0.001 to 0.1, evenly in the logarithm. There are no scores and no pairs, so no
extension acts on such a layer, and no scale. Deviation: there are as many heads of keys as heads of
attention (Qwen3-Next: equally many, half as wide)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.position.delta_mixer import DeltaMixer, log_rates
from posbench.position.geometry import Shape, Size
from posbench.position.interfaces import Encoding
from posbench.position.products import Linear

LEAST_INITIAL_RATE = 0.01  # of A, whose logarithm is learned
INITIAL_STEP_RANGE = (0.001, 0.1)  # ends of softplus(c) at the start


class GatedDeltaNet(Encoding):
    """Recurrence in every layer; beside layers with attention as `local` of a hybrid."""

    def __init__(self, shape: Shape, value_heads: Size = 2, kernel: Size = 4):
        super().__init__(shape)
        self.value_heads = value_heads
        self.kernel = kernel

    def mixer(self, layer: int) -> nn.Module:
        return GatedDeltaMixer(self.shape, self.value_heads, self.kernel)


class GatedDeltaMixer(DeltaMixer):
    """Forgetting by one rate for each head of values, and a gate of full rank."""

    def __init__(self, shape: Shape, value_heads: int, kernel: int):
        super().__init__(shape, value_heads, kernel)
        heads = value_heads * shape.n_head
        # The decay a of a head of values is exp(-rate softplus(a_proj(x) + step_bias)).
        self.a_proj = Linear(shape.d_model, heads, bias=False)
        *_, value_width = self.widths  # of q, k and v
        self.gate_proj = Linear(shape.d_model, value_width, bias=False)
        self.log_rate_H = log_rates(heads, LEAST_INITIAL_RATE)
        ends = [math.log(step) for step in INITIAL_STEP_RANGE]
        step_H = torch.empty(heads).uniform_(*ends).exp()
        self.step_bias_H = nn.Parameter(step_H.expm1().log())  # whose softplus is the step

    def log_decay(self, x_BTC: Tensor) -> Tensor:
        step_BTH = F.softplus(self.a_proj(x_BTC).float() + self.step_bias_H)
        return (-self.log_rate_H.exp() * step_BTH).mT.unsqueeze(-1)

    def gate(self, x_BTC: Tensor) -> Tensor:
        return F.silu(self.gate_proj(x_BTC).float())
