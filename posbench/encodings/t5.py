"""T5 relative bias: one learned number for each head and bucket of distances.

The score is z_ij + beta[h, bucket(i - j)], beta learned. Raffel et al. 2019, arXiv 1910.10683,
causal form, with N = n_buckets and D = max_distance: distances below N/2 have a bucket each, then
bucket(d) = N/2 + floor(ln(d / (N/2)) / ln(D / (N/2)) * (N - N/2)), at most N - 1. A fraction of a
token counts as the whole one below. Bucket edges are solved in integers; T5's float32 logarithm may
put a distance exactly on an edge one bucket too low (17, 27: d = 18). Deviations: content scores
keep 1 / sqrt(head_dim), which T5 does not have; D is length-matched, the paper's is 128."""

import bisect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.position.geometry import Several, Shape, Trait
from posbench.position.interfaces import Encoding


def bucket_starts(n_buckets: int, max_distance: int) -> list[int]:
    """Smallest distance in tokens of bucket 1, 2, ..., ascending; equal ones are possible.

    >>> bucket_starts(8, 32)
    [1, 2, 3, 4, 7, 12, 20]
    """
    exact = n_buckets // 2  # buckets of one distance each
    wide = n_buckets - exact  # buckets that grow in equal ratios
    starts = list(range(1, exact + 1))
    for k in range(1, wide):
        # ln(d / exact) / ln(max_distance / exact) * wide >= k, without logarithms.
        bound = max_distance**k * exact ** (wide - k)
        starts.append(bisect.bisect_left(range(max_distance + 1), bound, key=lambda d: d**wide))
    return starts


class T5(Encoding):
    """Learned biases of distance buckets. Raises ConfigError for a max_distance within the exact
    ones.
    """

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.UNBOUNDED

    def __init__(
        self,
        shape: Shape,
        n_buckets: Several = 32,
        max_distance: int | None = None,
        share_layers: bool = True,
        init_std: float = 0.02,
    ):
        super().__init__(shape)
        if max_distance is None:
            max_distance = max(shape.reach, n_buckets)  # every trained distance has a bucket
        # Half of the buckets hold one distance each, the others share out the rest.
        if max_distance <= n_buckets // 2:
            raise ConfigError(
                f"encoding.max_distance={max_distance} must exceed {n_buckets // 2}, half of"
                f" encoding.n_buckets={n_buckets}."
            )
        start_N = torch.tensor(bucket_starts(n_buckets, max_distance), dtype=torch.float32)
        self.register_buffer("start_N", start_N, persistent=False)
        n_tables = 1 if share_layers else shape.n_layer
        self.weight = nn.Parameter(torch.randn(n_tables, n_buckets, shape.n_head) * init_std)

    def profile(self, delta: Tensor, layer: int) -> Tensor:
        bucket = torch.bucketize(delta, self.start_N, right=True)
        return F.embedding(bucket, self.weight[layer % len(self.weight)]).movedim(-1, 0)
