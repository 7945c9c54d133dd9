"""ReRoPE: distances are exact up to a window w and constant beyond it, min(i - j, w).

Su 2023 (kexue.fm/archives/9708, bojone/rerope). Near band: query i, key j. Far band (i - j >= w):
query at w, key at 0. Defaults: w = train_len / 2 (the authors use 1/8 to 1/2). Deviation: the
authors' patch always multiplies q by log-n; here that is scale_attention=log_n."""

import torch

from posbench.position.geometry import Band, Span, Tokens, Trait
from posbench.position.interfaces import AS_ROPE, Extension


class Rerope(Extension):
    """Two bands: near as trained, far at one constant distance."""

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {
        "rope": "Su 2023 (kexue.fm/archives/9708)",
        **dict.fromkeys(("p_rope", "pope", "fox"), AS_ROPE),
    }

    def __init__(self, window: Tokens | None = None):
        self.window = window

    def bands(self, span: Span) -> tuple[Band, ...]:
        w = self.window or max(1, span.train_len // 2)
        near = Band(first=lambda i: i - w + 1)
        far = Band(last=lambda i: i - w, q=lambda i: torch.full_like(i, w), k=torch.zeros_like)
        return near, far
