"""Candidates: what an engine may do with a model's positions when it was asked for a factor, each as posbench's own methods.

Of a model without a scaling of its own, a candidate is an extension, and perhaps a factor on the logits. A model whose config.json has
a scaling turns at changed frequencies already. There every candidate but "own" begins again from the frequencies before it: its
frequencies, as factors of extension=longrope, take the place of the model's, and scale_attention=yarn_temperature has the coefficient that
gives the ratio of the factors on cos and sin (with partial RoPE it reaches all channels, as that of extension=yarn does).

What is wrong on purpose, by the mistakes that engines' trackers report: the setting ignored; the text cut, or seen through a window, of the
training length; a factor halved (as for a length of its own) or doubled (read twice); YaRN without its factor on the logits, or with it
twice; its ramp by turns or without rounding; its original length taken from the target or from half; dynamic NTK fixed at the target, or
with keys cached as they were turned when they were fed.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.identity import NO_SCALE
from posbench.config.names import nodes

if TYPE_CHECKING:
    from posbench.position.geometry import Spectrum
    from posbench.position.interfaces import Encoding

FED = 512  # tokens that llama.cpp feeds at once (n_batch 2048, n_ubatch 512)
PUBLISHED = {"alpha": 1.0, "beta": 32.0}  # YaRN's turns in every engine


@dataclass(frozen=True)
class Candidate:
    """One thing that an engine may do: its name, what it is in words, and its methods."""

    name: str
    words: str
    extension: dict
    scale: dict
    cut: int | None = None  # last tokens of a text that are read; None: all
    twice: bool = False  # the extension's factor on the logits acts twice


def _node(name: str, **arguments: object) -> dict:
    return {**copy.deepcopy(nodes("extension")[name]), **arguments}


def setting_candidates(original: int, factor: float) -> list[Candidate]:
    """Candidates for a model first trained at `original` tokens, whose engine was asked for `factor`."""

    def fixed(name: str, times: float = 1.0, **arguments: object) -> dict:
        return _node(name, mode="fixed", target_len=max(1, round(times * factor * original)), **arguments)

    def yarn(times: float = 1.0, trained: float = 1.0, **arguments: object) -> dict:
        """YaRN whose original length is `trained` times the right one: a pair makes so many times as many turns in it."""
        return fixed("yarn", times, **{**{key: turns / trained for key, turns in PUBLISHED.items()}, **arguments})

    s, half, double, target = f"{factor:g}", f"{factor / 2:g}", f"{2 * factor:g}", round(factor * original)
    made = [
        ("none", "no scaling", _node("none")),
        ("window", f"no scaling, and a window of {original:,} tokens", _node("window", window=original)),
        ("pi", f"linear interpolation with factor {s}", fixed("pi")),
        ("pi_half", f"linear interpolation with factor {half}", fixed("pi", 0.5)),
        ("pi_double", f"linear interpolation with factor {double}", fixed("pi", 2)),
        ("ntk", f"NTK by the base with factor {s}", fixed("ntk")),
        ("ntk_half", f"NTK by the base with factor {half}", fixed("ntk", 0.5)),
        ("ntk_double", f"NTK by the base with factor {double}", fixed("ntk", 2)),
        ("dynamic_ntk", f"dynamic NTK with factor {s}", _node("dynamic_ntk", factor=factor)),
        ("dynamic_ntk_by_length", "dynamic NTK with factor 1", _node("dynamic_ntk", factor=1.0)),
        (
            "dynamic_ntk_fixed",
            f"dynamic NTK with factor {s}, every text as if it had {target:,} tokens",
            fixed("dynamic_ntk", factor=factor),
        ),
        ("dynamic_ntk_cached", f"dynamic NTK with factor {s}, keys cached token by token", _node("dynamic_ntk", factor=factor, fed=1)),
        ("dynamic_ntk_pieces", f"dynamic NTK with factor {s}, keys cached {FED} at a time", _node("dynamic_ntk", factor=factor, fed=FED)),
        ("yarn", f"YaRN with factor {s}", yarn()),
        ("yarn_half", f"YaRN with factor {half}", yarn(0.5)),
        ("yarn_double", f"YaRN with factor {double}", yarn(2)),
        ("yarn_no_amplitude", f"YaRN with factor {s} without its factor on the logits", yarn(temperature=False)),
        ("yarn_turns", f"YaRN with factor {s}, the ramp by turns", yarn(ramp="turns")),
        ("yarn_untruncated", f"YaRN with factor {s}, the ramp not rounded to whole pairs", yarn(truncate=False)),
        ("yarn_long_original", f"YaRN with factor {s} from an original length of {target:,}", yarn(trained=factor)),
        ("yarn_short_original", f"YaRN with factor {s} from an original length of {original // 2:,}", yarn(trained=0.5)),
        ("llama3", f"llama3's scaling with factor {s}", fixed("llama3")),
    ]
    found = [Candidate(name, words, extension, dict(NO_SCALE)) for name, words, extension in made]
    found.insert(
        1, Candidate("cut", f"no scaling, and the text cut to its last {original:,} tokens", _node("none"), dict(NO_SCALE), original)
    )
    again, words = dict(nodes("scale_attention")["yarn_temperature"]), f"YaRN with factor {s}, its factor on the logits twice"
    return [*found, Candidate("yarn_amplitude_twice", words, yarn(), again, twice=True)]


def chosen_candidates(found: Sequence[Candidate], names: Iterable[str] | None) -> list[Candidate]:
    """Candidates of candidates=, or all. Raises ConfigError for an unknown name, and for fewer than two."""
    known = [one.name for one in found]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"candidates={name} is unknown{did_you_mean(name, known)}: choose from {', '.join(known)}.")
    kept = [one for one in found if not names or one.name in names]
    if len(kept) < 2:
        raise ConfigError(f"candidates={kept[0].name} leaves nothing to compare it with: give two or more.")
    return kept


def own_scaling(encoding: "Encoding") -> bool:
    """True if a model turns at the frequencies of a scaling in its own config.json, from which the candidates can begin again."""
    from posbench.position.geometry import Trait

    return getattr(encoding, "scaling", None) is not None and bool(encoding.traits & Trait.SPECTRUM)


def over_own(encoding: "Encoding", found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates for a model with `own_scaling`, each in the place of its scaling, and what may be done with that one.

    Those of a factor that follows the length are left out.
    """
    own = Candidate("own", "the scaling of the checkpoint's config.json", _node("none"), dict(NO_SCALE))
    again = replace(own, name="own_twice", words=f"{own.words}, twice", extension=encoding.scaling.node)
    kept = [one for one in found if one.extension.get("mode") != "dynamic"]
    return [own, _instead(encoding, again, encoding.own, encoding.amplitude), *(_instead(encoding, one, encoding.plain) for one in kept)]


def _instead(encoding: "Encoding", one: Candidate, start: "Spectrum", before: float = 1.0) -> Candidate:
    """A candidate that changes the frequencies `start`, with `before` on cos and sin, in the place of the model's own."""
    import torch

    from posbench.position.fixed_frequencies import trained_in
    from posbench.position.instantiate import make

    if one.name == "window":
        return one  # of the model as it is
    spectrum, amplitude = trained_in(make(one.extension), start, encoding.scaling_len, encoding.shape.train_len)
    if one.extension is encoding.scaling.node:
        amplitude = encoding.amplitude  # config.json may state another than the scaling's
    ratio = before * amplitude ** (2 if one.twice else 1) / encoding.amplitude
    fixed = {"mode": "fixed", "target_len": 2 * encoding.shape.train_len}  # any factor: it acts at all lengths
    factor_F = encoding.own.freq_F / spectrum.freq_F
    if not torch.allclose(factor_F, torch.ones_like(factor_F), rtol=1e-12, atol=0):
        extension = _node("longrope", factors=factor_F.tolist(), temperature=False, **fixed)
    elif ratio != 1:  # YaRN that keeps every pair is there for its factor, which is taken back
        extension = _node("yarn", alpha=1e-9, beta=1e-8, ramp="turns", **fixed)
        ratio /= 0.1 * math.log(2) + 1
    else:
        extension = _node("none")
    if ratio == 1:
        return replace(one, extension=extension, scale=dict(NO_SCALE))
    scale = nodes("scale_attention")["yarn_temperature"]
    return replace(one, extension=extension, scale={**scale, "coefficient": (ratio - 1) / math.log(2)})
