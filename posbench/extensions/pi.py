"""Position interpolation: coordinate t becomes t / s, s = max(1, target_len / train_len); it only ever shrinks.

Chen, Wong, Chen, Tian 2023, arXiv 2306.15595 (and kaiokendev 2023). For RoPE the same as theta / s; for ALiBi the same as slope / s
(Al-Khateeb et al. 2023, arXiv 2310.13017); for a learned table linear interpolation between rows.
"""

from posbench.position.geometry import Band, Span, Trait
from posbench.position.interfaces import ScaledExtension


class Pi(ScaledExtension):
    """Every coordinate divided by the factor."""

    needs = Trait.COORDINATE
    tested_with = frozenset({"rope", "p_rope", "learned", "sinusoidal", "alibi", "xpos", "fope", "pope", "fox"})

    def bands(self, span: Span) -> tuple[Band, ...]:
        def shrink(index_T):
            return index_T / span.factor

        return (Band(q=shrink, k=shrink),)
