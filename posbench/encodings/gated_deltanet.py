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

from posbench.position.delta_rule import gated_delta_rule
from posbench.position.geometry import Shape, Size
from posbench.position.interfaces import Encoding
from posbench.position.products import Linear

NORM_EPS = 1e-6  # of q, k and the output, as in Qwen3-Next
LEAST_RATE = 0.01  # of A, whose logarithm is learned
FIRST_STEPS = (0.001, 0.1)  # ends of softplus(c) at the start


class GatedDeltaNet(Encoding):
    """Recurrence in every layer; beside layers with attention as `local` of a hybrid."""

    def __init__(self, shape: Shape, value_heads: Size = 2, kernel: Size = 4):
        super().__init__(shape)
        self.value_heads = value_heads
        self.kernel = kernel

    def mixer(self, layer: int) -> nn.Module:
        return GatedDeltaMixer(self.shape, self.value_heads, self.kernel)


class DeltaMixer(nn.Module):
    """The layer without its forgetting and its output gate, which subclasses define."""

    def __init__(self, shape: Shape, value_heads: int, kernel: int):
        super().__init__()
        self.head_dim = shape.head_dim
        self.value_heads = value_heads
        key_width = shape.n_head * shape.head_dim
        self.widths = (key_width, key_width, value_heads * key_width)
        self.q_proj = Linear(shape.d_model, key_width, bias=False)
        self.k_proj = Linear(shape.d_model, key_width, bias=False)
        self.v_proj = Linear(shape.d_model, self.widths[2], bias=False)
        self.b_proj = Linear(shape.d_model, value_heads * shape.n_head, bias=False)
        self.conv = ShortConvolution(sum(self.widths), kernel)
        self.norm = nn.RMSNorm(shape.head_dim, eps=NORM_EPS)
        self.o_proj = Linear(self.widths[2], shape.d_model, bias=False)

    def log_decay(self, x_BTC: Tensor) -> Tensor:
        """Logarithm of a_t <= 1, float32: [B, H, T, 1], or [B, H, T, D] for each channel."""
        raise NotImplementedError

    def gate(self, x_BTC: Tensor) -> Tensor:
        """Factor on each channel of the output: [B, T, H D], float32."""
        raise NotImplementedError

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Output [B, T, C]; each token depends on itself and on those before it."""
        qkv = torch.cat((self.q_proj(x_BTC), self.k_proj(x_BTC), self.v_proj(x_BTC)), dim=-1)
        # A state sums over the whole text, so all of it is float32, also in a model in bf16.
        log_a_BHTE = self.log_decay(x_BTC)
        b_BHT = self.b_proj(x_BTC).float().sigmoid().mT
        with torch.autocast(x_BTC.device.type, enabled=False):
            parts = F.silu(self.conv(qkv.float())).split(self.widths, dim=-1)
            q_BHTD, k_BHTD, v_BHTD = (self._heads(part_BTW) for part_BTW in parts)
            q_BHTD = self._shared(_unit(q_BHTD) * self.head_dim**-0.5)
            k_BHTD = self._shared(_unit(k_BHTD))
            o_BHTD = gated_delta_rule(q_BHTD, k_BHTD, v_BHTD, log_a_BHTE, b_BHT)
            o_BTHD = self.norm(o_BHTD.transpose(1, 2))
        return self.o_proj(o_BTHD.flatten(2) * self.gate(x_BTC))

    def _heads(self, x_BTW: Tensor) -> Tensor:
        return x_BTW.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _shared(self, x_BHTD: Tensor) -> Tensor:
        """Heads of keys, repeated for the heads of values that each of them serves."""
        if self.value_heads == 1:
            return x_BHTD
        return x_BHTD.repeat_interleave(self.value_heads, dim=1)


class GatedDeltaMixer(DeltaMixer):
    """Forgetting by one rate for each head of values, and a gate of full rank."""

    def __init__(self, shape: Shape, value_heads: int, kernel: int):
        super().__init__(shape, value_heads, kernel)
        heads = value_heads * shape.n_head
        self.a_proj = Linear(shape.d_model, heads, bias=False)
        self.gate_proj = Linear(shape.d_model, self.widths[2], bias=False)
        self.log_rate_H = log_rates(heads, LEAST_RATE)
        ends = [math.log(step) for step in FIRST_STEPS]
        step_H = torch.empty(heads).uniform_(*ends).exp()
        self.step_bias_H = nn.Parameter(step_H.expm1().log())  # whose softplus is the step

    def log_decay(self, x_BTC: Tensor) -> Tensor:
        step_BTH = F.softplus(self.a_proj(x_BTC).float() + self.step_bias_H)
        return (-self.log_rate_H.exp() * step_BTH).mT.unsqueeze(-1)

    def gate(self, x_BTC: Tensor) -> Tensor:
        return F.silu(self.gate_proj(x_BTC).float())


class ShortConvolution(nn.Module):
    """Causal convolution of each channel by itself: zeros stand before the first token."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        bound = kernel**-0.5  # as torch's convolutions begin
        self.weight_KW = nn.Parameter(torch.empty(kernel, width).uniform_(-bound, bound))

    def forward(self, x_BTW: Tensor) -> Tensor:
        length = x_BTW.shape[1]
        padded_BTW = F.pad(x_BTW, (0, 0, len(self.weight_KW) - 1, 0))
        result_BTW = torch.zeros_like(x_BTW)
        for first, weight_W in enumerate(self.weight_KW):
            result_BTW = result_BTW + padded_BTW[:, first : first + length] * weight_W
        return result_BTW


def log_rates(heads: int, least: float) -> nn.Parameter:
    """Logarithms of the rates A of all heads [H], drawn evenly from `least` to 16."""
    return nn.Parameter(torch.empty(heads).uniform_(least, 16.0).log())


def _unit(x_BHTD: Tensor) -> Tensor:
    """Vectors of norm 1; those near zero stay short."""
    return x_BHTD * (x_BHTD.square().sum(dim=-1, keepdim=True) + NORM_EPS).rsqrt()
