"""Stick-breaking attention: the nearest key takes its share first.

A_ij = sigmoid(z_ij) * product over j < t < i of (1 - sigmoid(z_it)). Tan et al. 2024, arXiv
2410.17980. No softmax and no parameters: recency comes from the order of the keys. Rows sum to at
most 1; the remainder is the product of all 1 - sigmoid(z_it). By default a query does not see
itself, and the remainder is dropped, as in fla, so the first token gets nothing at all.
`attend_self` starts the product at the query itself. `remainder: self` gives what is left to the
query's own value, as the authors' models do by default (dolomite-engine, sb_remainder); their
kernel returns it apart. Which of the two the paper's equations have could not be checked: only its
abstract was read, in which tokens before the current one are weighed. In float32 and in logarithms,
where a product over thousands of keys loses nothing."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.position.geometry import Shape
from posbench.position.interfaces import Encoding


class StickBreaking(Encoding):
    """Shares of a stick, broken from the query backwards."""

    scalable = False

    def __init__(
        self, shape: Shape, attend_self: bool = False, remainder: Literal["drop", "self"] = "drop"
    ):
        super().__init__(shape)
        self.attend_self = attend_self
        self.remainder = remainder

    def weights(
        self,
        q_BHSD: Tensor,
        scores_BHSK: Tensor,
        bias_HSK: Tensor | None,
        seen_SK: Tensor,
        factor: Tensor | float,
        layer: int,
    ) -> Tensor:
        """Share of the stick that each key takes, after the keys nearer to the query.

        `bias_HSK` is None and `factor` 1: this encoding adds no bias, and it is not `scalable`."""
        n_query, n_key = seen_SK.shape
        # The last key is the last query's own, so query s is key s + K - S.
        is_self_SK = torch.ones_like(seen_SK).triu(n_key - n_query).tril(n_key - n_query)
        takes_SK = seen_SK if self.attend_self else seen_SK & ~is_self_SK
        # Logarithm of what each key, and all nearer ones, leave of the stick.
        leaves_BHSK = F.logsigmoid(-scores_BHSK).masked_fill(~takes_SK, 0)
        after_BHSK = leaves_BHSK.flip(-1).cumsum(dim=-1).flip(-1)
        # What the keys nearer than each have left of it.
        before_BHSK = F.pad(after_BHSK[..., 1:], (0, 1))
        weights_BHSK = torch.exp(F.logsigmoid(scores_BHSK) + before_BHSK).masked_fill(~takes_SK, 0)
        if self.remainder == "self":  # what all keys leave goes to the query's own value
            weights_BHSK = weights_BHSK + is_self_SK * after_BHSK[..., :1].exp()
        return weights_BHSK
