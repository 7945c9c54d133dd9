"""Random attention: a query sees the last w keys and a random subset of all earlier ones.

It sees about `keys` in total at every length. Zaheer et al. 2020, arXiv 2007.14062 (BigBird),
section 2: a window and r random keys for each query. Here without global tokens, causal, token by
token, and nested: key j has a uniform number u_j, and query i sees it beyond the window if u_j <
(keys - w) / (i + 1 - w). So a key that one query has dropped no later one sees, as when a cache of
constant size evicts at random; all layers and heads drop the same ones. Up to `keys` tokens
(default train_len; w = train_len / 2) every key is seen. Far keys lie at their real distance or,
with `clamp`, all at the distance w, as in ReRoPE: the same keys at distances that training had.
Beside plain attention and ReRoPE, which see all keys, this tells unseen distances from too many
keys."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Count, Span, Tokens, Trait
from posbench.position.interfaces import Extension


class RandomKeys(Extension):
    """Two bands: near as trained, far thinned out. Raises ConfigError for a window of more tokens
    than `keys`.
    """

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {"rope": "results/reported/newer (2026)"}

    def __init__(
        self,
        keys: Tokens | None = None,
        window: Tokens | None = None,
        clamp: bool = False,
        draw: Count = 0,
    ):
        self.keys = keys  # None: by the training length, as the window
        self.window = window
        self.clamp = clamp  # True: far keys all lie at the distance `window`
        self.draw = draw  # seed of the keys' random numbers

    def bands(self, span: Span) -> tuple[Band, ...]:
        keys = self.keys or span.train_len
        # By default half of the keys are the last ones, and half are drawn.
        w = self.window or max(1, span.train_len // 2)
        if w > keys:
            raise ConfigError(
                f"extension.window={w} leaves no room for random keys among keys={keys}: choose a"
                f" window of at most {keys}."
            )
        near = Band(first=lambda i: i - w + 1)
        far = Band(
            last=lambda i: i - w,
            lot=self._uniform_numbers,
            # of the i + 1 - w keys beyond the window, so that keys - w are drawn on average
            share=lambda i: (keys - w) / (i + 1 - w).clamp(min=1).double(),
        )
        if self.clamp:  # far keys are seen at the distance w, which training had
            far = replace(far, q=lambda i: torch.full_like(i, w), k=torch.zeros_like)
        return near, far

    def _uniform_numbers(self, index_T: Tensor) -> Tensor:
        """Uniform number of each key. Those of a longer text begin with those of a shorter one."""
        uniform_T = np.random.default_rng(self.draw).random(int(index_T.max()) + 1)
        return torch.from_numpy(uniform_T)[index_T]
