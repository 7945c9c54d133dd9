"""RoPE of a training with an extension, in the keys of config.json: rope_theta, rope_scaling and
max_position_embeddings.

transformers 4 and 5 both read these keys. Their longrope has one divisor per pair, so it can hold
any set of frequencies, and it is used for those without a type of their own, and in Phi-3, which
knows no other type. They multiply cos and sin with a factor, which is the square root of our
temperature."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.config.identity import as_typed, method_name
from posbench.config.schema import JobConfig
from posbench.encodings.rope import Rope
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.model.build import make_encoding
from posbench.position.fixed_frequencies import frequencies
from posbench.position.geometry import Span
from posbench.position.instantiate import make
from posbench.position.interfaces import Extension
from posbench.position.legality import check, file_of, name_of
from posbench.scale_attention.none import NoScale


def rope_keys(trained: JobConfig, extension: dict, own: dict | None = None) -> dict:
    """Keys of RoPE for a training's configuration and an extension. `own` is the checkpoint's
    config.json, whose other keys stay.

    Raises ConfigError for settings that the format, or that of `own`, cannot express.
    """
    train, encoding, method = trained.train, make_encoding(trained), make(extension)
    known = file_of(encoding) in ("rope", "p_rope") and not encoding.resonance
    if not known or (own is None and encoding.rotary_dim != encoding.shape.head_dim):
        raise ConfigError(
            f"{as_typed('encoding', trained.encoding)} cannot be exported: the format has"
            " encoding=rope, whole, and p_rope."
        )
    if method_name(train.scale_attention) != "none":
        raise ConfigError(
            f"train.scale_attention={method_name(train.scale_attention)} cannot be exported: the"
            " format has none."
        )
    far = 4 * train.train_len
    check(encoding, method, NoScale(encoding.shape), [far], allow_untested=True)
    everywhere = not encoding.unturned and encoding.rotary_dim == encoding.shape.head_dim
    if (
        not everywhere
        and method.temperature(Span(train.train_len, far, method.target_len(far))) != 1
    ):
        raise ConfigError(
            f"extension={name_of(method)} has a temperature where nothing turns too: add"
            " extension.temperature=false."
        )
    theta, scaling, longest = _rope(
        encoding, method, own is not None and own["model_type"] == "phi3"
    )
    return {"max_position_embeddings": longest, "rope_theta": theta, "rope_scaling": scaling}


def _rope(encoding: Rope, extension: Extension, divisors: bool) -> tuple[float, dict | None, int]:
    """(rope_theta, rope_scaling, max_position_embeddings) of both; with `divisors` no type but
    default and longrope is used.
    """
    name = name_of(extension)
    scaled = encoding.scaling is not None
    if scaled and name == "none" and name_of(encoding) == "rope":
        # The trained scaling is an extension of the earlier model.
        share = encoding.rotary_dim / encoding.shape.head_dim
        source = Rope(
            replace(encoding.shape, train_len=encoding.scaling_len),
            encoding.base,
            encoding.layout,
            share,
        )
        theta, scaling, _ = _rope(source, encoding.scaling, divisors)
        if scaling and "attention_factor" in scaling:
            scaling["attention_factor"] = encoding.amplitude
        # Of dynamic they compute the factor from the longest length, which a fine-tuning left where
        # it was.
        dynamic = scaling and scaling["rope_type"] == "dynamic"
        return theta, scaling, encoding.scaling_len if dynamic else encoding.shape.train_len
    trained, L, width = encoding.spectrum(), encoding.shape.train_len, encoding.rotary_dim
    if trained is None:
        raise ConfigError(
            "encoding=p_rope that turns no pair cannot be exported: train it with a larger"
            " encoding.p."
        )
    if not encoding.spectrum_at(1).freq_F.equal(trained.freq_F):
        raise ConfigError(
            f"extension={name} has no place beside encoding.scaling={name_of(encoding.scaling)}:"
            " choose extension=none."
        )
    turned = 2 * len(trained.freq_F)
    whole, longest = turned == width, max(L, extension.target_len(L))
    ntk = isinstance(extension, DynamicNtk) or (
        isinstance(extension, Ntk) and extension.multiplier == 1
    )
    if (
        ntk
        and whole
        and not scaled
        and not divisors
        and extension.fixed_target is None
        and not getattr(extension, "fed", None)
    ):
        return (
            encoding.base,
            {"rope_type": "dynamic", "factor": float(getattr(extension, "factor", 1.0))},
            L,
        )
    near, far, beyond = (_seen(encoding, extension, name, length) for length in (L, 4 * L, 16 * L))
    if not far[0].equal(beyond[0]) or not near[2] == far[2] == beyond[2]:
        raise ConfigError(
            f"extension={name} has a factor for each length: add extension.mode=fixed"
            " extension.target_len=TOKENS."
        )
    (far_F, base, temperature), near_F = far, near[0]
    share = turned / width
    exact = (
        int(share * width // 2) == turned // 2
    )  # proportional rounds the channels that it takes down
    part = (
        {}
        if whole
        else {
            "rope_type": "proportional",
            "partial_rotary_factor": share if exact else math.nextafter(share, 1),
        }
    )
    pair_F = torch.arange(len(far_F), dtype=torch.float64)
    slower_F = base ** (-2 * pair_F / trained.rotary_dim) / far_F
    if (
        near_F.equal(far_F)
        and temperature == 1
        and torch.allclose(slower_F, slower_F[:1], rtol=1e-9)
    ):
        theta, slower = base, float(slower_F[0])
        if abs(slower - 1) < 1e-9:
            return theta, part or None, longest
        if not divisors:
            return theta, {"rope_type": "linear", **part, "factor": slower}, longest
    if not whole:
        raise ConfigError(
            f"extension={name} with encoding=p_rope cannot be exported: choose none, pi, ntk or"
            " abf."
        )
    # All remaining cases need a factor on cos and sin, or a divisor per pair.
    shared = {"factor": longest / L, "original_max_position_embeddings": L}
    sharper = {"attention_factor": math.sqrt(temperature)}
    by_parts = isinstance(extension, NtkByParts) and not scaled and not divisors
    if by_parts and extension.ramp == "index" and 2 * math.pi * extension.alpha <= L:
        bounds = {
            "beta_slow": extension.alpha,
            "beta_fast": extension.kept_from(trained.freq_F, L),
            "truncate": extension.truncate,
        }
        return encoding.base, {"rope_type": "yarn", **shared, **sharper, **bounds}, longest
    if by_parts and extension.ramp == "turns" and temperature == 1:
        bounds = {
            "low_freq_factor": extension.alpha,
            "high_freq_factor": extension.kept_from(trained.freq_F, L),
        }
        return encoding.base, {"rope_type": "llama3", **shared, **bounds}, longest
    plain_F = encoding.base ** (-2 * pair_F / width)
    divisors = {
        "long_factor": (plain_F / far_F).tolist(),
        "short_factor": (plain_F / near_F).tolist(),
    }
    return encoding.base, {"rope_type": "longrope", **shared, **sharper, **divisors}, longest


def _seen(
    encoding: Rope, extension: Extension, name: str, length: int
) -> tuple[Tensor, float, float]:
    """(radians per token of each pair, their base, temperature) at one length."""
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    spectrum = frequencies(extension, encoding.spectrum_at(length), span)
    if spectrum is None:
        raise ConfigError(
            f"extension={name} does not only change frequencies, as the format requires: choose pi,"
            " ntk, yarn or alike."
        )
    return spectrum.freq_F, spectrum.base, extension.temperature(span) * encoding.amplitude**2
