"""A layer with the gated delta rule in place of attention, but for how it forgets and is gated.

Both differ between gated_deltanet.py and kimi_delta.py, which have the formulas and sources.

Letters: B batch, T tokens, C width, H heads of values, D head width, E rates of
forgetting (1 or D), W channels of all heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.position.delta_rule import gated_delta_rule
from posbench.position.geometry import Shape
from posbench.position.products import Linear
from posbench.position.short_convolution import ShortConvolution

NORM_EPS = 1e-6  # of q, k and the output, as in Qwen3-Next


class DeltaMixer(nn.Module):
    """The layer without its forgetting and its output gate, which subclasses define."""

    def __init__(self, shape: Shape, value_heads: int, kernel: int):
        """`value_heads`: heads of values of each head of keys."""
        super().__init__()
        self.head_dim = shape.head_dim
        self.value_heads = value_heads
        key_width = shape.n_head * shape.head_dim
        self.widths = (key_width, key_width, value_heads * key_width)
        self.q_proj = Linear(shape.d_model, key_width, bias=False)
        self.k_proj = Linear(shape.d_model, key_width, bias=False)
        self.v_proj = Linear(shape.d_model, self.widths[2], bias=False)
        # b: strength of what a token writes, of each head of values
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
        """Output [B, T, C]; each token depends on itself and on those before it.

        E is 1 for a decay of each head, D for one of each of its channels."""
        qkv = torch.cat((self.q_proj(x_BTC), self.k_proj(x_BTC), self.v_proj(x_BTC)), dim=-1)
        # A state sums over the whole text, so all of it is float32, also in a model in bf16.
        log_a_BHTE = self.log_decay(x_BTC)
        b_BHT = self.b_proj(x_BTC).float().sigmoid().mT
        with torch.autocast(x_BTC.device.type, enabled=False):
            parts = F.silu(self.conv(qkv.float())).split(self.widths, dim=-1)
            q_BHTD, k_BHTD, v_BHTD = (self._split_heads(part_BTW) for part_BTW in parts)
            q_BHTD = self._repeated_for_value_heads(_unit_vectors(q_BHTD) * self.head_dim**-0.5)
            k_BHTD = self._repeated_for_value_heads(_unit_vectors(k_BHTD))
            o_BHTD = gated_delta_rule(q_BHTD, k_BHTD, v_BHTD, log_a_BHTE, b_BHT)
            o_BTHD = self.norm(o_BHTD.transpose(1, 2))
        return self.o_proj(o_BTHD.flatten(2) * self.gate(x_BTC))

    def _split_heads(self, x_BTW: Tensor) -> Tensor:
        return x_BTW.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _repeated_for_value_heads(self, x_BHTD: Tensor) -> Tensor:
        """Heads of keys, repeated for the heads of values that each of them serves."""
        if self.value_heads == 1:
            return x_BHTD
        return x_BHTD.repeat_interleave(self.value_heads, dim=1)


def log_rates(heads: int, least: float) -> nn.Parameter:
    """Logarithms of the rates A of all heads [H], drawn evenly from `least` to 16."""
    return nn.Parameter(torch.empty(heads).uniform_(least, 16.0).log())


def _unit_vectors(x_BHTD: Tensor) -> Tensor:
    """Vectors of norm 1; those near zero stay short."""
    return x_BHTD * (x_BHTD.square().sum(dim=-1, keepdim=True) + NORM_EPS).rsqrt()
