"""Extensions that only change frequencies.

These can be trained into a spectrum and written in other formats.
"""

import math
from dataclasses import replace

import torch

from posbench.common.errors import ConfigError
from posbench.position.geometry import Span, Spectrum, Trait
from posbench.position.interfaces import Extension

FAR_POSITION = 2**40  # a position beyond any window
# Traits of a rotation by frequencies.
FREQUENCY_TRAITS = Trait.COORDINATE | Trait.RELATIVE | Trait.SPECTRUM


def pure_spectrum(extension: Extension, spectrum: Spectrum, span: Span) -> Spectrum | None:
    """Spectrum of an extension at one length, if it changes nothing else but the temperature;
    otherwise None.
    """
    extended = extension.spectrum(spectrum, span)
    bands = extension.bands(span)
    if len(bands) > 1 or extension.crop(span) is not None:
        return None
    if extended.exact_F is not None:  # other frequencies at some positions than at the rest
        return None
    # Three tokens show it: maps of coordinates are lines if that through the first two holds at
    # the last, and the band hides no key if the last token sees all.
    index_T = torch.tensor([0.0, 1.0, FAR_POSITION], dtype=torch.float64)
    (band,) = bands
    if band.first(index_T).any() or not band.last(index_T).equal(index_T):
        return None
    q_pos_T = band.q(index_T)
    k_pos_T = band.k(index_T)
    slope = q_pos_T[1]
    if k_pos_T[1] != slope:
        return None
    for pos_T in (q_pos_T, k_pos_T):
        if not torch.allclose(pos_T, index_T * slope, rtol=1e-12):
            return None
    # A coordinate times the slope turns as far as a frequency times it.
    return replace(extended, freq_F=extended.freq_F * slope)


def is_spectrum_by_length(scaling: Extension) -> bool:
    """True if an extension has other frequencies for each length, and nothing else: ntk and
    dynamic_ntk without a fixed target.
    """
    if not scaling.follows_length:
        return False
    if scaling.fed:  # then one text has several sets (dynamic_ntk)
        return False
    # Of the largest factor: a temperature that ever acts differs from 1 here.
    sharpest = scaling.temperature(Span(2, FAR_POSITION, FAR_POSITION))
    return scaling.needs == Trait.SPECTRUM and sharpest == 1


def _is_fixed_spectrum(scaling: Extension) -> bool:
    """True if an extension acts on frequencies alone, and not by the length of a text."""
    if scaling.needs & ~FREQUENCY_TRAITS:
        return False
    return not scaling.follows_length


def spectrum_trained_in(
    scaling: Extension, spectrum: Spectrum, scaling_len: float, length: int
) -> tuple[Spectrum, float]:
    """Spectrum at `length` tokens of a model with an extension trained in, and its factor on cos
    and sin.

    It was trained with `spectrum` up to `scaling_len` tokens, and then with `scaling`. Raises
    ConfigError for an extension that is not a set of frequencies, of one target or of any
    length."""
    span = Span(scaling_len, length, scaling.target_len(length))
    scaled = None
    if _is_fixed_spectrum(scaling) or is_spectrum_by_length(scaling):
        scaled = pure_spectrum(scaling, spectrum, span)
    if scaled is None:
        raise ConfigError(
            f"extension={type(scaling).__module__.rpartition('.')[2]} is not a fixed set of"
            " frequencies, as encoding.scaling requires: choose pi, ntk, yarn, abf, llama3 or"
            " longrope, with mode=fixed and target_len=TOKENS where it has them."
        )
    # A temperature is a factor on q k, and cos and sin turn both q and k.
    return scaled, math.sqrt(scaling.temperature(span))
