"""Position interpolation: coordinate t becomes t / s, s = max(1, target_len / train_len).

Chen, Wong, Chen, Tian 2023, arXiv 2306.15595 (and kaiokendev 2023). For RoPE the same as theta / s,
but for encoding.resonance, which rounds the wavelengths before the division; for ALiBi the same as
slope / s (Al-Khateeb et al. 2023, arXiv 2310.13017); for a learned table linear interpolation
between rows."""

from posbench.position.geometry import Band, Span, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class Pi(ScaledExtension):
    """Every coordinate divided by the factor."""

    needs = Trait.COORDINATE
    tested_with = {
        "rope": "the paper",
        "p_rope": "transformers 2023: rope type linear of GPT-NeoX",
        "alibi": "Al-Khateeb et al. 2023, arXiv 2310.13017",
        "learned": (
            "as Dosovitskiy et al. 2020, arXiv 2010.11929, interpolate the table of an image model"
        ),
        "xpos": "x-transformers 2023: RotaryEmbedding(use_xpos=True, interpolation_factor=...)",
        **dict.fromkeys(("pope", "fox"), AS_ROPE),
    }

    def bands(self, span: Span) -> tuple[Band, ...]:
        def shrink(index_T):
            return index_T / span.factor

        return (Band(q=shrink, k=shrink),)
