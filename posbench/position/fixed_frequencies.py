"""Extensions that only change frequencies.

These can be trained into a spectrum and written in other formats.
"""

import math
from dataclasses import replace

import torch

from posbench.common.errors import ConfigError
from posbench.position.geometry import Span, Spectrum, Trait
from posbench.position.interfaces import Extension, ScaledExtension

FAR = 2**40  # a position beyond any window
OFFERED = (
    Trait.COORDINATE | Trait.RELATIVE | Trait.SPECTRUM
)  # the traits of a rotation by frequencies


def frequencies(extension: Extension, spectrum: Spectrum, span: Span) -> Spectrum | None:
    """Spectrum of an extension at one length, if it changes nothing else but the temperature;
    otherwise None.
    """
    found, bands = extension.spectrum(spectrum, span), extension.bands(span)
    index_T = torch.tensor([0.0, 1.0, FAR], dtype=torch.float64)
    q_pos_T, k_pos_T = bands[0].q(index_T), bands[0].k(index_T)
    line = q_pos_T[1] == k_pos_T[1] and all(
        torch.allclose(pos_T, index_T * pos_T[1], rtol=1e-12) for pos_T in (q_pos_T, k_pos_T)
    )
    everything = not bands[0].first(index_T).any() and bands[0].last(index_T).equal(index_T)
    if (
        len(bands) > 1
        or not line
        or not everything
        or extension.crop(span) is not None
        or found.exact_F is not None
    ):
        return None
    return replace(found, freq_F=found.freq_F * q_pos_T[1])


def by_length(scaling: Extension) -> bool:
    """True if an extension has other frequencies for each length, and nothing else: ntk and
    dynamic_ntk without a fixed target.
    """
    sharpest = scaling.temperature(Span(2, FAR, FAR))
    by_text = (
        isinstance(scaling, ScaledExtension)
        and not scaling.fixed_target
        and not getattr(scaling, "fed", None)
    )
    return by_text and scaling.needs == Trait.SPECTRUM and sharpest == 1


def trained_in(
    scaling: Extension, own: Spectrum, scaling_len: float, length: int
) -> tuple[Spectrum, float]:
    """Spectrum at `length` tokens of a model first trained at `scaling_len` and then with
    `scaling`, and its factor on cos and sin.

    Raises ConfigError for an extension that is not a set of frequencies, of one target or of any
    length."""
    scaled = None
    fixed = not scaling.needs & ~OFFERED and (
        not isinstance(scaling, ScaledExtension) or scaling.fixed_target
    )
    if fixed or by_length(scaling):
        span = Span(scaling_len, length, scaling.target_len(length))
        scaled = frequencies(scaling, own, span)
    if scaled is None:
        raise ConfigError(
            f"extension={type(scaling).__module__.rpartition('.')[2]} is not a fixed set of"
            " frequencies, as encoding.scaling requires: choose pi, ntk, yarn, abf, llama3 or"
            " longrope, with mode=fixed and target_len=TOKENS where it has them."
        )
    return scaled, math.sqrt(scaling.temperature(span))
