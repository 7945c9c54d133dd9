"""RoPE of a training with an extension, in the keys of config.json.

They are rope_theta, rope_scaling and max_position_embeddings.

transformers 4 and 5 both read these keys. Their longrope has one divisor per pair, so it can hold
any set of frequencies, and it is used for those without a type of their own, and in Phi-3, which
knows no other type. They multiply cos and sin with a factor, which is the square root of our
temperature."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.config.identity import method_name, typed_words
from posbench.config.schema import JobConfig
from posbench.encodings.rope import Rope
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.model.build import make_encoding
from posbench.position.fixed_frequencies import pure_spectrum
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension
from posbench.position.legality import file_of, name_of, verdict_of
from posbench.scale_attention.none import NoScale


class RopeKeys(NamedTuple):
    """Values of config.json: the base of RoPE, rope_scaling, and the longest text."""

    theta: float
    scaling: dict | None
    longest: int


class Frequencies(NamedTuple):
    """Frequencies at one length: radians per token of each pair, their base, the temperature."""

    freq_F: Tensor
    base: float
    temperature: float


def rope_keys(trained: JobConfig, extension: dict, own_config: dict | None = None) -> dict:
    """Keys of RoPE for a training's configuration and an extension.

    `own_config` is the checkpoint's config.json, whose other keys stay. Raises ConfigError for
    settings that the format, or that of `own_config`, cannot express.
    """
    encoding = make_encoding(trained)
    method = make_method(extension)
    # The class of an export turns whole heads, that of a checkpoint also a part of one.
    _check_expressible(trained, encoding, method, whole_head=own_config is None)
    # Phi-3's class takes longrope alone; an export writes another class.
    only_divisors = own_config is not None and own_config["model_type"] == "phi3"
    theta, scaling, longest = _keys_of_method(encoding, method, only_divisors)
    return {"max_position_embeddings": longest, "rope_theta": theta, "rope_scaling": scaling}


def _check_expressible(
    trained: JobConfig, encoding: Encoding, extension: Extension, whole_head: bool
) -> None:
    """Raise ConfigError for an encoding, a trained scale or a temperature that the format lacks.

    With `whole_head` RoPE must turn all channels of a head, as the classes of an export do. A
    checkpoint's own config.json may turn a part of them.
    """
    train = trained.train
    has_format = file_of(encoding) in ("rope", "p_rope") and not encoding.resonance
    if not has_format or (whole_head and encoding.rotary_dim != encoding.shape.head_dim):
        raise ConfigError(
            f"{typed_words('encoding', trained.encoding)} cannot be exported: the format has"
            " encoding=rope, whole, and p_rope."
        )
    if method_name(train.scale_attention) != "none":
        raise ConfigError(
            f"train.scale_attention={method_name(train.scale_attention)} cannot be exported: the"
            " format has none."
        )
    far = 4 * train.train_len  # any length beyond training
    # It raises for methods that do not go together.
    verdict_of(encoding, extension, NoScale(encoding.shape), [far], allow_untested=True)
    # The format's factor is on cos and sin, so it leaves out layers and channels that do not turn.
    everywhere = not encoding.unturned and encoding.rotary_dim == encoding.shape.head_dim
    span = Span(train.train_len, far, extension.target_len(far))
    if not everywhere and extension.temperature(span) != 1:
        raise ConfigError(
            f"extension={name_of(extension)} has a temperature where nothing turns too: add"
            " extension.temperature=false."
        )


def _keys_of_method(encoding: Rope, extension: Extension, only_divisors: bool) -> RopeKeys:
    """Keys of an encoding with an extension; with `only_divisors` no type but default and longrope
    is used, since Phi-3's format has no other.
    """
    name = name_of(extension)
    scaled = encoding.scaling is not None  # an extension was trained in
    if scaled and name == "none" and name_of(encoding) == "rope":
        return _rope_of_trained_scaling(encoding, only_divisors)
    _check_spectrum(encoding, name)
    train_len = encoding.shape.train_len
    # dynamic, yarn and llama3 are computed from plain RoPE, and Phi-3 has none of them.
    plain_types = not scaled and not only_divisors
    turned = 2 * len(encoding.spectrum().freq_F)  # channels
    if plain_types and turned == encoding.rotary_dim and _is_dynamic(extension):
        # Ntk, which has no factor, goes by the length alone: dynamic with a factor of 1.
        factor = float(getattr(extension, "factor", 1.0))
        return RopeKeys(encoding.base, {"rope_type": "dynamic", "factor": factor}, train_len)
    near, far = _fixed_frequencies(encoding, extension)  # within the training length, and beyond
    longest = max(train_len, extension.target_len(train_len))
    partial = _partial_keys(encoding.rotary_dim, turned)
    slowdown = _uniform_slowdown(near, far, encoding.spectrum().rotary_dim)
    # None: no one factor slows all pairs. About 1: the extension changes the base at most.
    if slowdown is not None and abs(slowdown - 1) < 1e-9:
        return RopeKeys(far.base, partial or None, longest)
    if slowdown is not None and not only_divisors:
        # The type of `partial`, proportional, replaces linear and takes a factor too.
        return RopeKeys(far.base, {"rope_type": "linear", **partial, "factor": slowdown}, longest)
    if partial:  # no other type turns a part of the pairs
        raise ConfigError(
            f"extension={name} with encoding=p_rope cannot be exported: choose none, pi, ntk or"
            " abf."
        )
    # All remaining cases need a factor on cos and sin, or a divisor per pair.
    by_parts = isinstance(extension, NtkByParts) and plain_types
    keys = _by_parts_keys(encoding, extension, far.temperature) if by_parts else None
    keys = keys or _divisor_keys(encoding, near, far)
    shared = {"factor": longest / train_len, "original_max_position_embeddings": train_len}
    return RopeKeys(encoding.base, {"rope_type": keys.pop("rope_type"), **shared, **keys}, longest)


def _rope_of_trained_scaling(encoding: Rope, only_divisors: bool) -> RopeKeys:
    """Keys of an encoding whose trained scaling is an extension of the earlier model."""
    earlier = Rope(
        replace(encoding.shape, train_len=encoding.scaling_len),
        base=encoding.base,
        layout=encoding.layout,
        fraction=encoding.rotary_dim / encoding.shape.head_dim,
    )
    theta, scaling, _longest = _keys_of_method(earlier, encoding.scaling, only_divisors)
    if scaling and "attention_factor" in scaling:
        # A checkpoint may have been trained with another one than its scaling has by itself.
        scaling["attention_factor"] = encoding.amplitude
    if scaling and scaling["rope_type"] == "dynamic":
        # transformers takes max_position_embeddings for the length before the scaling, from which
        # it computes the factor of a text.
        return RopeKeys(theta, scaling, longest=encoding.scaling_len)
    return RopeKeys(theta, scaling, longest=encoding.shape.train_len)


def _check_spectrum(encoding: Rope, name: str) -> None:
    """Raise ConfigError for an encoding that turns nothing, or one way in training, another later.

    `name` is the extension's.
    """
    trained = encoding.spectrum()
    if trained is None:
        raise ConfigError(
            "encoding=p_rope that turns no pair cannot be exported: train it with a larger"
            " encoding.p."
        )
    # A scaling that was trained in may turn short texts at other frequencies.
    if not encoding.spectrum_at(1).freq_F.equal(trained.freq_F):
        raise ConfigError(
            f"extension={name} has no place beside encoding.scaling={name_of(encoding.scaling)}:"
            " choose extension=none."
        )


def _is_dynamic(extension: Extension) -> bool:
    """True for what rope_type dynamic computes: NTK by the length of the text, with no target."""
    is_ntk = isinstance(extension, Ntk) and extension.multiplier == 1
    if not is_ntk and not isinstance(extension, DynamicNtk):
        return False
    return extension.fixed_target is None and not extension.fed


def _fixed_frequencies(encoding: Rope, extension: Extension) -> tuple[Frequencies, Frequencies]:
    """(frequencies within the training length, those beyond it).

    Raises ConfigError if those beyond it depend on the length, or the extension changes more.
    """
    train_len = encoding.shape.train_len
    # Any two lengths beyond training tell whether frequencies depend on the length.
    near, far, beyond = (
        _frequencies_at(encoding, extension, length)
        for length in (train_len, 4 * train_len, 16 * train_len)
    )
    # Within training too, since the format has one factor on cos and sin for all lengths.
    one_temperature = near.temperature == far.temperature == beyond.temperature
    if not far.freq_F.equal(beyond.freq_F) or not one_temperature:
        raise ConfigError(
            f"extension={name_of(extension)} has a factor for each length: add extension.mode=fixed"
            " extension.target_len=TOKENS."
        )
    return near, far


def _frequencies_at(encoding: Rope, extension: Extension, length: int) -> Frequencies:
    """Frequencies at a length. Raises ConfigError for an extension that changes more than these."""
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    spectrum = pure_spectrum(extension, encoding.spectrum_at(length), span)
    if spectrum is None:
        raise ConfigError(
            f"extension={name_of(extension)} does not only change frequencies, as the format"
            " requires: choose pi, ntk, yarn or alike."
        )
    # An amplitude multiplies queries and keys, a temperature the scores of both.
    temperature = extension.temperature(span) * encoding.amplitude**2
    return Frequencies(spectrum.freq_F, spectrum.base, temperature)


def _partial_keys(rotary_dim: int, turned: int) -> dict:
    """Keys for an encoding that turns so many of its channels; {} if it turns all."""
    if turned == rotary_dim:
        return {}
    share = turned / rotary_dim
    if int(share * rotary_dim // 2) != turned // 2:  # proportional rounds the channels down
        share = math.nextafter(share, 1)
    return {"rope_type": "proportional", "partial_rotary_factor": share}


def _uniform_slowdown(near: Frequencies, far: Frequencies, rotary_dim: int) -> float | None:
    """Factor by which all pairs turn slower than their base says, at all lengths; None if none."""
    pair_F = torch.arange(len(far.freq_F), dtype=torch.float64)
    slower_F = far.base ** (-2 * pair_F / rotary_dim) / far.freq_F
    one_factor = torch.allclose(slower_F, slower_F[:1], rtol=1e-9)
    # linear, the type for it, has no factor on cos and sin.
    if near.freq_F.equal(far.freq_F) and far.temperature == 1 and one_factor:
        return float(slower_F[0])
    return None


def _by_parts_keys(encoding: Rope, extension: NtkByParts, temperature: float) -> dict | None:
    """Keys of rope_type yarn or llama3, by the extension's ramp; None if it is neither of them."""
    train_len = encoding.shape.train_len
    kept_from = extension.turns_kept_from(encoding.spectrum().freq_F, train_len)
    fastest_turns = train_len / (2 * math.pi)  # of the first pair, a radian per token
    # With a larger alpha the ramp ends before the first pair, and transformers moves its end there.
    ends_at_a_pair = extension.alpha <= fastest_turns
    if extension.ramp == "index" and ends_at_a_pair:
        return {
            "rope_type": "yarn",
            "attention_factor": math.sqrt(temperature),
            "beta_slow": extension.alpha,
            "beta_fast": kept_from,
            "truncate": extension.truncate,
        }
    if extension.ramp == "turns" and temperature == 1:
        return {
            "rope_type": "llama3",
            "low_freq_factor": extension.alpha,
            "high_freq_factor": kept_from,
        }
    return None


def _divisor_keys(encoding: Rope, near: Frequencies, far: Frequencies) -> dict:
    """Keys of rope_type longrope: divisors of the pairs, beyond and within the training length."""
    pair_F = torch.arange(len(far.freq_F), dtype=torch.float64)
    plain_F = encoding.base ** (-2 * pair_F / encoding.rotary_dim)
    return {
        "rope_type": "longrope",
        # It multiplies queries and keys alike, and near texts too: the format has one for all.
        "attention_factor": math.sqrt(far.temperature),
        "long_factor": (plain_F / far.freq_F).tolist(),
        "short_factor": (plain_F / near.freq_F).tolist(),
    }
