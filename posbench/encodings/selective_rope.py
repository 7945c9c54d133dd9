"""Selective RoPE: each token turns q and k further by an angle that it says itself.

Pair c at token t is turned by theta_c (phi_1c + ... + phi_tc), phi = conv(W_2 W_1 x), theta_c =
base^(-2c / head_dim). Movahedi et al. 2025, arXiv 2511.17388 (ICLR 2026), in the form of
timurcarstensen/selective-rope: x is divided by its norm in each head's share of the channels, W_1
has `rank` columns, conv is causal over `kernel` tokens, each pair by itself. RoPE is phi = 1.

`bias` adds exp(b) to phi, b one number for each pair, 0 at the start: the angles then begin near
those of RoPE. `gate` multiplies phi by sigmoid(w x + b), one number for each head. Both are off in
the code's defaults. Sums are float64.

Rotations that are accumulated over the tokens between query and key are the subject of Godavarti
2026, arXiv 2606.24975: they become incoherent after a number of tokens that does not grow with the
text, so that far keys lose weight, but each keeps some, and their sum grows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Layout, Shape, Size
from posbench.position.products import Linear
from posbench.position.short_convolution import ShortConvolution


class SelectiveRope(Rope):
    """RoPE by accumulated angles. Raises ConfigError for heads that do not share out d_model."""

    tested_with = {"window": "a mask: no position moves"}

    def __init__(
        self,
        shape: Shape,
        rank: Size = 16,
        kernel: Size = 4,
        bias: bool = False,
        gate: bool = False,
        base: Base = 500000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        if shape.d_model % shape.n_head:
            raise ConfigError(
                f"model.d_model={shape.d_model} is not a multiple of model.n_head={shape.n_head},"
                " in whose shares encoding=selective_rope normalises: change one of them."
            )
        n_pairs = shape.n_head * shape.head_dim // 2
        layers = range(shape.n_layer)
        self.angles = nn.ModuleList(_Angles(shape.d_model, n_pairs, rank, kernel) for _ in layers)
        self.bias_LHF = None
        if bias:
            pairs = (shape.n_layer, shape.n_head, shape.head_dim // 2)
            self.bias_LHF = nn.Parameter(torch.zeros(pairs))
        self.gate = None
        if gate:
            self.gate = nn.ModuleList(Linear(shape.d_model, shape.n_head) for _ in layers)

    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        """Angle of each pair after every token, the sum of what the tokens so far add to it."""
        heads = self.shape.n_head
        # Each head's share of the channels gets norm 1, as published.
        x_BTC = F.normalize(x_BTC.unflatten(-1, (heads, -1)), dim=-1).flatten(-2)
        phi_BTHF = self.angles[layer](x_BTC).unflatten(-1, (heads, -1))
        # The logarithm of a step is learned, so that it stays positive.
        if self.bias_LHF is not None:
            phi_BTHF = phi_BTHF + self.bias_LHF[layer].exp()
        if self.gate is not None:
            phi_BTHF = phi_BTHF * self.gate[layer](x_BTC).sigmoid().unsqueeze(-1)
        # float64, since a sum over a long text outgrows the digits of float32.
        return phi_BTHF.double().cumsum(dim=1).transpose(1, 2)


class _Angles(nn.Module):
    """Low-rank map of a token to the angles of all pairs, and a causal convolution of each."""

    def __init__(self, d_model: int, n_pairs: int, rank: int, kernel: int):
        super().__init__()
        self.down = Linear(d_model, rank, bias=False)
        self.up = Linear(rank, n_pairs, bias=False)
        self.conv = ShortConvolution(n_pairs, kernel)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Angles of all heads' pairs in units of their frequency: [B, T, H F]."""
        return self.conv(self.up(self.down(x_BTC)))
