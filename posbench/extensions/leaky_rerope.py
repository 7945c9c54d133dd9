"""Leaky ReRoPE: distances are exact up to a window w and grow at 1/k of their pace beyond it.

Beyond it they are w + (i - j - w) / k. Su 2023 (kexue.fm/archives/9708, bojone/rerope). Near band:
query i, key j. Far band (i - j >= w): query at (i + w (k - 1)) / k, key at j / k. k = 1 is no
change, k to infinity is ReRoPE. Defaults: w = train_len / 2, and the smallest k whose largest
distance was seen in training, w + (target_len - 1 - w) / k <= train_len - 1; the authors write k =
16 for a factor of 8.

Deviation: log-n is a separate switch (see rerope)."""

from posbench.common.errors import ConfigError
from posbench.position.geometry import AtLeast1, Band, Mode, Span, Tokens, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class LeakyRerope(ScaledExtension):
    """Two bands: near as trained, far compressed. Raises ConfigError if no k is large enough."""

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {
        "rope": "Su 2023 (kexue.fm/archives/9708)",
        **dict.fromkeys(("p_rope", "pope", "fox"), AS_ROPE),
    }

    def __init__(
        self,
        window: Tokens | None = None,
        k: AtLeast1 | None = None,
        mode: Mode = "dynamic",
        target_len: int | None = None,
    ):
        super().__init__(mode, target_len)
        self.window = window  # None: by the training length
        self.k = k  # None: the smallest that the length needs

    def bands(self, span: Span) -> tuple[Band, ...]:
        w = self.window or max(1, span.train_len // 2)
        k = self.k or self._smallest_k(w, span)
        near = Band(first=lambda i: i - w + 1)
        far = Band(last=lambda i: i - w, q=lambda i: (i + w * (k - 1)) / k, k=lambda j: j / k)
        return near, far

    def _smallest_k(self, w: int, span: Span) -> float:
        """Smallest divisor of distances beyond w with which all are within the trained ones."""
        farthest = span.target_len - 1
        trained = span.train_len - 1
        # No distance lies beyond the window, or none beyond the trained ones.
        if farthest <= max(w, trained):
            return 1.0
        if w >= trained:
            raise ConfigError(
                f"extension.window={w} leaves no trained distance below train_len={span.train_len}"
                f" to compress into: choose a window below {trained}, or give extension.k."
            )
        return (farthest - w) / (trained - w)
