"""FoPE: RoPE whose cos and sin are mixtures of frequencies.

C_gc(t) = sum_m A_gmc cos(t theta_m), S_gc(t) = sum_m A'_gmc sin(t theta_m). Hua et al. 2024, arXiv
2412.17739. Only frequencies with a full turn in training take part, theta_m >= 2 pi / train_len;
the other pairs have frequency zero and do not turn. A and A' are the identity plus Xavier noise of
gain 0.3 (0.3 to 0.6 for larger models), separate for each head and for sines and cosines, fixed
unless `learnable`. Not orthogonal: scores are not a function of distance alone. An extension gets
all head_dim / 2 frequencies; the pairs that rest are those that rested in training.

Between paper and the code people run (olmo/model.py): the code turns at most head_dim / 4 pairs,
spread over the kept frequencies (`pairs`); it pads the resting pairs with sin = 1, which here is 0;
its Xavier reads the head count as a width. Deviations: A belongs to a key head and its queries
share it, and all layers share it. With fewer pairs than frequencies the identity steps evenly (8
pairs of 11: 0 1 2 4 5 6 8 9), where the code steps by ceil(11 / 8) = 2 and leaves the last two
pairs noise alone."""

import math

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.encodings.p_rope import with_resting_pairs
from posbench.encodings.rope import Rope
from posbench.position.geometry import AtLeast0, Base, Layout, Shape, Spectrum, Trait


class Fope(Rope):
    """Fourier positions. Raises ConfigError for more pairs than frequencies that are kept."""

    traits = Trait.COORDINATE | Trait.SPECTRUM | Trait.UNBOUNDED

    def __init__(
        self,
        shape: Shape,
        gain: AtLeast0 = 0.3,
        learnable: bool = False,
        zero: bool = True,
        pairs: int | None = None,
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape, base, layout)
        turns_F = super().spectrum().freq_F * shape.reach / (2 * math.pi)
        # With `zero` the pairs without a full turn in training rest.
        self.n_kept = int((turns_F >= 1).sum()) if zero else len(turns_F)
        pairs = self.n_kept if pairs is None else pairs
        if not 0 <= pairs <= self.n_kept:
            raise ConfigError(
                f"encoding.pairs={pairs} must be between 0 and {self.n_kept}, the frequencies for"
                f" train_len={shape.reach}."
            )
        shape_GMF = (shape.n_kv_head, self.n_kept, pairs)
        # The identity, with its pairs spread evenly over the kept frequencies if they are fewer.
        pair_F = torch.arange(pairs)
        spread = torch.zeros(self.n_kept, pairs)
        spread[pair_F * self.n_kept // max(1, pairs), pair_F] = 1
        # Xavier noise of a matrix [kept, pairs].
        std = gain * math.sqrt(2 / max(1, self.n_kept + pairs))
        for name in ("cos_GMF", "sin_GMF"):
            mixture_GMF = spread + std * torch.randn(shape_GMF)
            if learnable:
                self.register_parameter(name, torch.nn.Parameter(mixture_GMF))
            else:
                self.register_buffer(name, mixture_GMF)

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """cos and sin of the kept frequencies: [2, T, M], float32."""
        return super().table(pos_T, spectrum)[..., : self.n_kept]

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        groups = q_BHTD.shape[1] // k_BGTD.shape[1]
        q_mixed = self._mixed_table(q_table).repeat_interleave(groups, dim=1)
        return self._turned(q_BHTD, q_mixed), self._turned(k_BGTD, self._mixed_table(k_table))

    def _mixed_table(self, table: Tensor) -> Tensor:
        """Mixtures of cos and sin of every pair, 1 and 0 for the pairs at rest: [2, G, T, F]."""
        mixed = torch.stack((table[0] @ self.cos_GMF, table[1] @ self.sin_GMF))
        return with_resting_pairs(mixed, self.shape.head_dim // 2)
