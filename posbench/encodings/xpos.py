"""xPos: RoPE whose pairs also decay with distance.

score_c(i, j) = zeta_c^((i - j) / B) x RoPE's, zeta_c = (2c / head_dim + g) / (1 + g). Sun et al.
2022, arXiv 2212.10554; g = 0.4, B = 512 in microsoft/torchscale and trained at 1024 tokens. B
decides how far a model can see (the fastest pair falls to 1/e within 0.8 B tokens), so the default
here is train_len / 2, the published ratio. The paper reads long texts by blocks of train_len
(extension=window is near to it). PI stretches the decay with the rotation. Deviation: the code
centres the exponents on the middle of the text, here each kernel counts from near its own queries;
the product is the same and nothing overflows at any length (DCA with chunks far above train_len
aside)."""

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.position.geometry import Above0, Base, Layout, Shape

# Per token: over the 512 queries that a kernel takes at once, e^(512 x 0.16) is still a float32.
FASTEST_DECAY = 0.16
LEAST_DEFAULT_B = 8.0  # keeps the fastest pair of the default gamma below FASTEST_DECAY


class Xpos(Rope):
    """Rotation with decay. Raises ConfigError for a decay too fast for float32."""

    def __init__(
        self,
        shape: Shape,
        B: Above0 | None = None,
        gamma: Above0 = 0.4,
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        if B is None:  # the authors' ratio: 512 for 1024 tokens
            B = max(LEAST_DEFAULT_B, shape.reach / 2)
        pair_F = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        # Pair c decays by zeta_c^(1 / B) for each token, zeta_c = (2 c / D + gamma) / (1 + gamma).
        rate_F = -((pair_F + gamma) / (1 + gamma)).log() / B
        if rate_F.max() > FASTEST_DECAY:
            raise ConfigError(
                f"encoding.B={B} with encoding.gamma={gamma} makes the fastest pair decay by"
                f" e^-{rate_F.max():.2g} at each token, too fast for float32: choose encoding.B of"
                f" at least {B * float(rate_F.max()) / FASTEST_DECAY:.3g}."
            )
        # Both channels of a pair decay alike, and `layout` says where they stand.
        rate_D = rate_F.repeat(2) if layout == "half" else rate_F.repeat_interleave(2)
        self.register_buffer("rate_D", rate_D.float(), persistent=False)

    def decay(self) -> Tensor:
        return self.rate_D

    def between(self, upper_table: Tensor, lower_table: Tensor, share_T: Tensor) -> Tensor:
        rate_D = self.rate_D.to(upper_table.device)
        rate_F = rate_D.chunk(2)[0] if self.layout == "half" else rate_D[::2]
        # Kernels decay a key from its own coordinate. The upper table lies share_T of a step
        # ahead of it, the lower one 1 - share_T behind.
        ahead_TF = share_T[:, None].float() * rate_F
        upper_table = upper_table * ahead_TF.exp()
        lower_table = lower_table * (ahead_TF - rate_F).exp()
        return super().between(upper_table, lower_table, share_T)
