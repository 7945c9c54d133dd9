"""Self-Extend: distances are exact below W; beyond, positions count in groups of G.

A distance beyond is floor(i/G) - floor(j/G) + W - floor(W/G). Jin et al. 2024, arXiv 2401.01325
(datamllab/LongLM). Near band: query i, key j. Far band (i - j >= W): query at floor(i/G) + W -
floor(W/G), key at floor(j/G). G = 1 is no change. The authors take W = 512 to 1536 of 4096 and G =
2 to 64; distances stay trained up to (train_len - W) G + W tokens. Defaults: W = train_len / 4, and
the smallest G with which target_len stays within trained distances, as a divisor of the default W
if there is one (then distances never step back at W). Deviations: the authors' code floors
positions and leaves W / G a fraction (but for its flash kernel while decoding), the same wherever G
divides W; they drop the shift for texts shorter than W, which sees no far key anyway; log-n is a
separate switch (see rerope). Without any floors it is leaky_rerope."""

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Mode, Span, Tokens, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class SelfExtend(ScaledExtension):
    """Two bands: near as trained, far by groups. Raises ConfigError if no group is large enough."""

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {
        "rope": "the paper",
        "p_rope": "the paper: Phi-2, 32 of whose 80 channels turn",
        **dict.fromkeys(("pope", "fox"), AS_ROPE),
    }

    def __init__(
        self,
        window: Tokens | None = None,
        group: Tokens | None = None,
        mode: Mode = "dynamic",
        target_len: int | None = None,
    ):
        super().__init__(mode, target_len)
        self.window = window  # None: by the training length
        self.group = group  # None: the smallest that the length needs

    def bands(self, span: Span) -> tuple[Band, ...]:
        w = self.window or max(1, span.train_len // 4)  # the authors': an eighth to three eighths
        group = self.group or self._smallest_group(w, span)  # that keeps distances trained

        def group_index(pos_T: Tensor) -> Tensor:
            return torch.div(pos_T, group, rounding_mode="floor")

        near = Band(first=lambda i: i - w + 1)
        # Shifted, so that grouped distances go on from w, where those of single tokens end.
        far = Band(
            last=lambda i: i - w, q=lambda i: group_index(i) + (w - w // group), k=group_index
        )
        return near, far

    def _smallest_group(self, w: int, span: Span) -> int:
        """Smallest group that is large enough; of the default window, a divisor if there is one."""
        farthest = span.target_len - 1
        # All distances lie within the window.
        if farthest < w:
            return 1
        trained_beyond = span.train_len - 1 - w  # trained distances beyond the window
        # A distance d beyond the window is read as w + d // g - w // g at the most.
        large_enough = (
            g for g in range(1, farthest + 2) if farthest // g - w // g <= trained_beyond
        )
        smallest = next(large_enough, None)
        if smallest is None:
            raise ConfigError(
                f"extension.window={w} leaves no trained distance below train_len={span.train_len}"
                f" to compress into: choose a window below {span.train_len}, or give"
                " extension.group."
            )
        if self.window is not None:  # may have no divisor but itself
            return smallest
        # A group that divides w has no jump at the border of the window.
        return next((g for g in (smallest, *large_enough) if w % g == 0), smallest)
