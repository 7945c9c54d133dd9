"""GRAPE-AP: a bias that sums potentials along the path from key to query.

score(i, j) += sum of psi(i, l) over j < l <= i, psi(i, l) = m_h log sigmoid(p_i . R_l u_l / P).
Zhang et al. 2025, arXiv 2512.07805 (ICLR 2026), in the form of model-architectures/GRAPE: p = W_p x
has P numbers for each head, u is p over its root mean square, R_l turns pair (c, c + P / 2) by -l
radians, whatever c is, and m_h are ALiBi's slopes.

Where psi depends on l alone it is a forget gate, and the sum is FoX's; where it is constant, that
of ALiBi: W_p = 0 is ALiBi with slopes m_h ln 2. The authors normalise q and k too (model.qk_norm).
Paths count tokens, whatever an extension does."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.alibi import alibi_slopes
from posbench.position.geometry import PairBias, Shape, Size, Trait
from posbench.position.interfaces import Encoding
from posbench.position.rotation import cos_and_sin_by_channel, turned_pairs


class GrapeAp(Encoding):
    """Path sums of potentials. Raises ConfigError for an odd width."""

    traits = Trait.CONTENT
    tested_with = {"window": "a mask: no position moves"}

    def __init__(self, shape: Shape, width: Size = 8, init_std: float | None = None):
        super().__init__(shape)
        if width % 2:
            raise ConfigError(f"encoding.width={width} must be even: its numbers turn in pairs.")
        self.width = width
        # W_p of each layer: from its input to p, `width` numbers for each head.
        weight_LCN = torch.empty(shape.n_layer, shape.d_model, shape.n_head * width)
        self.weight_LCN = nn.Parameter(weight_LCN)
        if init_std is None:
            # p then starts with deviation 0.5, for inputs of mean square 1 as norms give them.
            init_std = 0.5 * shape.d_model**-0.5
        nn.init.normal_(self.weight_LCN, std=init_std)
        self.register_buffer("slope_H", torch.tensor(alibi_slopes(shape.n_head)), persistent=False)

    def content_bias(self, x_BTC: Tensor, layer: int) -> PairBias:
        """Sums over the path of slope x logsigmoid(p_i . R_l u_l / P): p_i of P numbers for each
        head, u_l is p_l over its root mean square, R_l turns it by -l radians.
        """
        p_BHTP = (x_BTC @ self.weight_LCN[layer]).unflatten(-1, (-1, self.width)).transpose(1, 2)
        # Every pair turns by one radian for each token, whatever its number; -sin turns backwards.
        turn_T = torch.arange(x_BTC.shape[1], dtype=torch.float64, device=x_BTC.device)
        turn_TF = turn_T[:, None].expand(-1, self.width // 2)
        table = torch.stack((turn_TF.cos(), -turn_TF.sin())).float()
        unit_BHTP = F.rms_norm(p_BHTP, (self.width,))
        turned_BHTP = turned_pairs(unit_BHTP, *cos_and_sin_by_channel(table, "half"), "half")

        def potential(queries: slice, tokens: slice) -> Tensor:
            product_BHSK = p_BHTP[:, :, queries] @ turned_BHTP[:, :, tokens].mT
            return self.slope_H[:, None, None] * F.logsigmoid(product_BHSK / self.width)

        return path_sums(potential)


def path_sums(potential: Callable[[slice, slice], Tensor]) -> PairBias:
    """Bias that sums the potentials [B, H, S, K] of a query's path: those of the tokens after the
    key, up to the query itself. Of keys after the query it is 0.
    """

    def bias(queries: slice, keys: slice) -> Tensor:
        """Sum of the potentials of the tokens behind each key, up to the query: [B, H, S, K]."""
        # From the first key on; K counts these tokens until the last line.
        tokens = slice(keys.start, max(keys.stop, queries.stop))
        psi_BHSK = potential(queries, tokens)
        query_S = torch.arange(queries.start, queries.stop, device=psi_BHSK.device)
        token_K = torch.arange(tokens.start, tokens.stop, device=psi_BHSK.device)
        psi_BHSK = psi_BHSK.masked_fill(token_K > query_S[:, None], 0)
        # Summed from the query outwards, near which float32 is exact enough.
        later_BHSK = psi_BHSK.flip(-1).cumsum(dim=-1).flip(-1) - psi_BHSK
        return later_BHSK[..., : keys.stop - keys.start]

    return bias
