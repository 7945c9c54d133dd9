"""RePo: RoPE at positions that each head computes from a token's hidden state.

z = (silu(h W_g) * (h W_c)) W_z is the position of a token in every head, a real number; pair c of q
and k turns by the angle z theta_c. Li et al. 2025, arXiv 2512.14391. W_g and W_c have d_model / 8
columns, W_z has one for each head. Layers before the first third turn by the token's index, as RoPE
does (SakanaAI/repo: from layer 5 of 16, 10 of 32).

Deviations: the paper goes on training OLMo-2, here a model is trained from the start; h is the
normalised input of the attention, which OLMo-2 does not normalise before. W_g, W_c and W_z begin
with standard deviation `init_std`, so that at first all tokens of these layers are at almost one
place (NoPE)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Count, Layout, Shape
from posbench.position.interfaces import Layer


class Repo(Rope):
    """RoPE by content. Raises ConfigError for a `start` beyond the last layer."""

    tested_with = {"window": "a mask: no position moves"}

    def __init__(
        self,
        shape: Shape,
        start: Count | None = None,
        share: float = 0.125,
        init_std: float = 0.02,
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        # None: the first third turns by index, as in the authors' models.
        self.start = shape.n_layer // 3 if start is None else start
        if self.start >= shape.n_layer:
            raise ConfigError(
                f"encoding.start={start} is beyond the last of {shape.n_layer} layers, counted from"
                " 0: choose a smaller one, or encoding=rope."
            )
        self.by_index = Rope(shape, base, layout)  # of the layers before `start`
        width = max(1, round(share * shape.d_model))  # axis P, between a token and its positions
        layers = shape.n_layer - self.start
        self.gate_LCP = nn.Parameter(torch.empty(layers, shape.d_model, width))
        self.content_LCP = nn.Parameter(torch.empty(layers, shape.d_model, width))
        self.position_LPH = nn.Parameter(torch.empty(layers, width, shape.n_head))
        for weight in (self.gate_LCP, self.content_LCP, self.position_LPH):
            nn.init.normal_(weight, std=init_std)

    def layers(self) -> list[Layer]:
        layers = []
        for number in range(self.shape.n_layer):
            encoding = self.by_index if number < self.start else self
            layers.append(Layer(encoding, index=number))
        return layers

    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        number = layer - self.start  # among the layers that turn by content
        gate_BTP = silu(x_BTC @ self.gate_LCP[number])
        position_BTP = gate_BTP * (x_BTC @ self.content_LCP[number])
        return (position_BTP @ self.position_LPH[number]).mT
