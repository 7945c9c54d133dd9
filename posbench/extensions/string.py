"""STRING: far keys are moved to distances that were trained often.

Distances are exact below D and i - j - D + w beyond it. An et al. 2024, arXiv 2410.18745
(HKUNLP/STRING): D = a third of the text (0.25 to 0.4), w = 128 of 131072. Near band: query i, key
j. Shifted band (i - j >= D): query at i - D + w, key j. It is made for texts up to train_len, which
it changes; distances stay trained up to train_len + D - w tokens, with D at most train_len.
Defaults: D = target_len / 3, w = train_len / 32 (more than the published share: 1/1024 of a short
text is less than a token), and w never above D, where nothing changes. A query below D has no far
key, so its coordinate in that band may be negative. Deviation: the authors' code counts the key at
distance D in both bands; here it is a far key alone."""

from posbench.position.geometry import Band, Mode, Span, Tokens, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class String(ScaledExtension):
    """Two bands: near as trained, far shifted nearer."""

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {"rope": "the paper", **dict.fromkeys(("p_rope", "pope", "fox"), AS_ROPE)}

    def __init__(
        self,
        shift: Tokens | None = None,
        window: Tokens | None = None,
        mode: Mode = "dynamic",
        target_len: int | None = None,
    ):
        super().__init__(mode, target_len)
        self.shift = shift  # None: a third of the target length
        self.window = window  # None: by the training length

    def bands(self, span: Span) -> tuple[Band, ...]:
        # Keys from distance d on move nearer, so that their distances begin at w.
        d = self.shift or max(1, span.target_len // 3)
        w = min(d, self.window or max(1, span.train_len // 32))
        near = Band(first=lambda i: i - d + 1)
        far = Band(last=lambda i: i - d, q=lambda i: i - d + w)
        return near, far
