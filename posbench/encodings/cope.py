"""CoPE: positions count gates, not tokens.

g_ij = sigmoid(z_ij), p_ij = min(g_ij + ... + g_ii, P - 1), and q_i . e[p_ij] is added to z_ij.

Golovneva et al. 2024, arXiv 2405.18719. z = q.k / sqrt(head_dim); e is a learned table of P rows,
zeros at the start, one for each layer and shared by its heads; between rows it is read by linear
interpolation. The copies people run add q.e as it is (`divide: false`); facebookresearch/RAM
divides it by sqrt(head_dim) too, unless run with --cope-nodiv (`divide: true`). A factor on the
logits multiplies z after the gates are formed, and never q.e: the counts stay those of training.
"""

import torch
from torch import Tensor, nn

from posbench.position.geometry import Several, Shape, Trait
from posbench.position.interfaces import Encoding


class Cope(Encoding):
    """Contextual positions."""

    traits = Trait.CONTENT

    def __init__(self, shape: Shape, positions: Several | None = 64, divide: bool = False):
        super().__init__(shape)
        n_rows = shape.train_len + 1 if positions is None else positions
        self.scale = shape.head_dim**-0.5 if divide else 1.0
        self.weight = nn.Parameter(torch.zeros(shape.n_layer, n_rows, shape.head_dim))

    def weights(
        self,
        q_BHSD: Tensor,
        scores_BHSK: Tensor,
        bias_HSK: Tensor | None,
        seen_SK: Tensor,
        factor: Tensor | float,
        layer: int,
    ) -> Tensor:
        """Softmax of the scores with q.e added for the position of each key, a sum of gates.

        `scores_BHSK` are z of the formula, without `factor`. `bias_HSK` is None, since this
        encoding adds no bias."""
        last = self.weight.shape[1] - 1  # row of the table for this count and all larger ones
        gate_BHSK = scores_BHSK.sigmoid().masked_fill(~seen_SK, 0)
        # Position of a key: the sum of the gates from it up to the query, a fraction.
        count_BHSK = gate_BHSK.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=last)
        low_BHSK = count_BHSK.long()
        high_BHSK = (low_BHSK + 1).clamp(max=last)
        score_BHSN = q_BHSD @ self.weight[layer].mT
        added_BHSK = torch.lerp(
            score_BHSN.gather(-1, low_BHSK), score_BHSN.gather(-1, high_BHSK), count_BHSK - low_BHSK
        )
        scores_BHSK = scores_BHSK * factor + self.scale * added_BHSK
        return scores_BHSK.masked_fill(~seen_SK, -torch.inf).softmax(dim=-1)
