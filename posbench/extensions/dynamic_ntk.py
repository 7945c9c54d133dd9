"""Dynamic NTK: NTK-aware scaling (see ntk) by s_eff = f s - (f - 1), s = target_len / train_len once that exceeds 1.

emozilla 2023 (forum post); jquesnelle/yarn LlamaDynamicScaledRotaryEmbedding, rope type `dynamic` of transformers. f = 1 is ntk,
f = 2 the usual setting (2 L / L0 - 1), f = 4 at 8 times the length already 29.
Deviation: common implementations keep the largest length's frequencies until a short text comes; here each length has its own.
"""

from posbench.common.errors import ConfigError
from posbench.extensions.ntk import slowed
from posbench.position.geometry import Mode, Span, Spectrum, Trait
from posbench.position.interfaces import AS_ROPE, ScaledExtension


class DynamicNtk(ScaledExtension):
    """A base that overshoots with length. Raises ConfigError for a factor below 1."""

    needs = Trait.SPECTRUM
    tested_with = {
        "rope": "emozilla 2023; Peng et al. 2023, arXiv 2309.00071",
        "p_rope": "transformers 2023: rope type dynamic of GPT-NeoX",
        "fox": AS_ROPE,
    }

    def __init__(self, factor: float = 2.0, mode: Mode = "dynamic", target_len: int | None = None):
        super().__init__(mode, target_len)
        if factor < 1:
            raise ConfigError(f"extension.factor={factor} must be at least 1: below it, long texts would meet faster frequencies.")
        self.factor = factor

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        return spectrum if span.factor == 1 else slowed(spectrum, self.factor * span.factor - (self.factor - 1))
