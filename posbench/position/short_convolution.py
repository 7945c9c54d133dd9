"""Short convolution: a causal one of each channel by itself, over a few tokens.

Letters: B batch, T tokens, K tokens of the kernel, W channels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
