"""DAPE: an MLP over the scores and biases of one pair of tokens corrects its scores.

Weights are softmax(z + b + MLP([z; b])), with the content scores z and biases b, 2H in all, of the
H heads for the pair (i, j). Zheng et al. 2024, arXiv 2405.14722 (version 1), as in
chuanyang-Zheng/DAPE: 2H -> 32 -> H with LeakyReLU, one MLP for each layer. The base bias b is
KERPLE's logarithmic form (kerple.py). A factor on the logits multiplies z alone; the MLP sees z
without it, as in training."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.kerple import Kerple
from posbench.position.geometry import Shape, Size, Trait
from posbench.position.interfaces import Encoding


class Dape(Encoding):
    """Data-adaptive biases."""

    # Not RELATIVE: whole rows are weighed, so there are no bands.
    traits = Trait.COORDINATE | Trait.UNBOUNDED

    def __init__(self, shape: Shape, width: Size = 32):
        super().__init__(shape)
        self.base = Kerple(shape)
        self.inner = nn.ModuleList(nn.Linear(2 * shape.n_head, width) for _ in range(shape.n_layer))
        self.outer = nn.ModuleList(nn.Linear(width, shape.n_head) for _ in range(shape.n_layer))

    def profile(self, delta: Tensor, layer: int) -> Tensor:
        return self.base.profile(delta, layer)

    def weights(
        self,
        q_BHSD: Tensor,
        scores_BHSK: Tensor,
        bias_HSK: Tensor,
        seen_SK: Tensor,
        factor: Tensor | float,
        layer: int,
    ) -> Tensor:
        """Softmax of scores and biases that an MLP over both corrects; it sees the scores without
        `factor`, as in training.
        """
        inner = self.inner[layer]
        outer = self.outer[layer]
        score_weight, bias_weight = inner.weight.chunk(2, dim=1)
        # The bias's half of the first layer is the same for the whole batch; heads stay in front,
        # so nothing is transposed.
        hidden_of_bias = bias_weight @ bias_HSK.flatten(1) + inner.bias[:, None]
        hidden = score_weight @ scores_BHSK.flatten(2) + hidden_of_bias
        extra = outer.weight @ F.leaky_relu(hidden) + outer.bias[:, None]
        scores_BHSK = scores_BHSK * factor + bias_HSK + extra.unflatten(-1, seen_SK.shape)
        return scores_BHSK.masked_fill(~seen_SK, -torch.inf).softmax(dim=-1)
