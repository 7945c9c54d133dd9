"""Scale-invariant attention: each content score gets a factor and an addend by its distance.

The score z at distance d becomes a z + m, a = sqrt(1 + 2 ln(1 + d / tau)), m = -2 ln(1 + d / tau).
Anson et al. 2025, arXiv 2505.17083, tau = 10. For Gaussian scores every decade of distance then has
the same total weight, and attention within it the same sparsity, at all lengths. d counts tokens,
whatever an extension does to coordinates. m is a bias much like ALiBi's, so the paper trains with
it (train.scale_attention) and with p-RoPE; at evaluation alone it changes short texts too."""

from torch import Tensor

from posbench.position.geometry import Above0, Shape
from posbench.position.interfaces import ScaleAttention


class ScaleInvariant(ScaleAttention):
    """Factor and addend by distance."""

    tested_with = {"rope": "the paper", "p_rope": "the paper"}

    def __init__(self, shape: Shape, tau: Above0 = 10.0):
        super().__init__(shape)
        self.tau = tau

    def distance(self, delta_K: Tensor) -> tuple[Tensor, Tensor]:
        growth_K = 2 * (delta_K / self.tau).log1p()
        return (1 + growth_K).sqrt(), -growth_K
