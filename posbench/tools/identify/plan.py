"""Candidates: what an engine may do with a model's positions when it was asked for a factor, each
as posbench's own methods.

A candidate is an extension of the model as it was before any scaling (model.own_scaling=false), and
perhaps a factor on the logits.

What is wrong on purpose, by the mistakes that engines' trackers report: the setting ignored; the
text cut, or seen through a window, of the training length; a factor halved (as for a length of its
own) or doubled (read twice); YaRN without its factor on the logits, with it twice, or with nothing
else; its ramp by turns or without rounding; its original length taken from the target or from half;
the checkpoint's base replaced by the usual one (an override in vLLM that leaves rope_theta out);
dynamic NTK fixed at the target (vLLM's issue 3488), or with keys cached as they were turned when
they were fed (transformers' issue 25104); the scaling of the checkpoint's config.json applied
twice."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.identity import NO_SCALE
from posbench.config.names import nodes

USUAL_BASE = 1e4  # that an engine takes where it is given none
PUBLISHED = {"alpha": 1.0, "beta": 32.0}  # YaRN's turns in every engine


@dataclass(frozen=True)
class Candidate:
    """One thing that an engine may do: its name, what it is in words, and its methods."""

    name: str
    words: str
    extension: dict
    scale: dict = field(default_factory=NO_SCALE.copy)
    cut: int | None = None  # last tokens of a text that are read; None: all


def _node(name: str, **arguments: object) -> dict:
    return {**nodes("extension")[name], **arguments}


def setting_candidates(
    original: int, factor: float, fed: int, base: float = USUAL_BASE
) -> list[Candidate]:
    """Candidates for a model of `original` tokens and `base`, whose engine was asked for `factor`
    and feeds `fed` tokens at once.
    """

    def fixed(name: str, times: float = 1.0, **arguments: object) -> dict:
        return _node(
            name, mode="fixed", target_len=max(1, round(times * factor * original)), **arguments
        )

    def yarn(times: float = 1.0, trained: float = 1.0, **arguments: object) -> dict:
        """YaRN whose original length is `trained` times the right one: a pair makes so many times
        as many turns in it.
        """
        return fixed(
            "yarn",
            times,
            **{**{key: turns / trained for key, turns in PUBLISHED.items()}, **arguments},
        )

    s, half, double, target = (
        f"{factor:g}",
        f"{factor / 2:g}",
        f"{2 * factor:g}",
        round(factor * original),
    )
    made = [
        ("none", "no scaling", _node("none")),
        (
            "cut",
            f"no scaling, and the text cut to its last {original:,} tokens",
            _node("none"),
            dict(NO_SCALE),
            original,
        ),
        (
            "window",
            f"no scaling, and a window of {original:,} tokens",
            _node("window", window=original),
        ),
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
            f"dynamic NTK with factor {s} as at {target:,} tokens",
            fixed("dynamic_ntk", factor=factor),
        ),
        (
            "dynamic_ntk_cached",
            f"dynamic NTK with factor {s}, keys cached token by token",
            _node("dynamic_ntk", factor=factor, fed=1),
        ),
        (
            "dynamic_ntk_pieces",
            f"dynamic NTK with factor {s}, keys cached {fed} at a time",
            _node("dynamic_ntk", factor=factor, fed=fed),
        ),
        ("yarn", f"YaRN with factor {s}", yarn()),
        ("yarn_half", f"YaRN with factor {half}", yarn(0.5)),
        ("yarn_double", f"YaRN with factor {double}", yarn(2)),
        (
            "yarn_no_amplitude",
            f"YaRN with factor {s} without its factor on the logits",
            yarn(temperature=False),
        ),
        (
            "yarn_amplitude",
            "no scaling but YaRN's factor on the logits",
            yarn(alpha=1e-9, beta=1e-8, ramp="turns"),
        ),  # every pair is kept
        ("yarn_turns", f"YaRN with factor {s}, the ramp by turns", yarn(ramp="turns")),
        (
            "yarn_untruncated",
            f"YaRN with factor {s}, the ramp not rounded to whole pairs",
            yarn(truncate=False),
        ),
        (
            "yarn_long_original",
            f"YaRN with factor {s} from an original length of {target:,}",
            yarn(trained=factor),
        ),
        (
            "yarn_short_original",
            f"YaRN with factor {s} from an original length of {original // 2:,}",
            yarn(trained=0.5),
        ),
        ("llama3", f"llama3's scaling with factor {s}", fixed("llama3")),
    ]
    if base != USUAL_BASE:
        lost, said = (
            _node("abf", base=USUAL_BASE),
            f"the base {USUAL_BASE:,.0f} in place of {base:,.0f}",
        )
        made += [("base_lost", f"no scaling, and {said}", lost)]
        made += [
            (
                "yarn_base_lost",
                f"YaRN with factor {s}, and {said}",
                _node("compose", parts=[lost, yarn()]),
            )
        ]
    again = dict(nodes("scale_attention")["yarn_temperature"])
    made += [
        (
            "yarn_amplitude_twice",
            f"YaRN with factor {s}, its factor on the logits twice",
            yarn(),
            again,
        )
    ]
    return [Candidate(*one) for one in made]


def chosen_candidates(found: Sequence[Candidate], names: Iterable[str] | None) -> list[Candidate]:
    """Candidates of candidates=, or all. Raises ConfigError for an unknown name, and for fewer than
    two.
    """
    known = [one.name for one in found]
    for name in names or ():
        if name not in known:
            raise ConfigError(
                f"candidates={name} is unknown{did_you_mean(name, known)}: choose from"
                f" {', '.join(known)}."
            )
    kept = [one for one in found if not names or one.name in names]
    if len(kept) < 2:
        raise ConfigError(
            f"candidates={kept[0].name} leaves nothing to compare it with: give two or more."
        )
    return kept


def own_candidates(own: dict) -> list[Candidate]:
    """The scaling that a checkpoint's config.json has, of its encoding `own`, as written and
    applied twice.
    """
    from posbench.position.geometry import Span
    from posbench.position.instantiate import make

    node, scale, words = (
        own["scaling"],
        dict(NO_SCALE),
        "the scaling of the checkpoint's config.json",
    )
    if own[
        "amplitude"
    ]:  # not the usual one of this scaling: the rest of it is a factor on the logits
        span = Span(own["scaling_len"], node["target_len"], node["target_len"])
        rest = own["amplitude"] / math.sqrt(make(node).temperature(span))
        scale = {
            **nodes("scale_attention")["yarn_temperature"],
            "coefficient": (rest - 1) / math.log(span.factor),
        }
    return [
        Candidate("own", words, node, scale),
        Candidate("own_twice", f"{words}, twice", _node("compose", parts=[node, node]), scale),
    ]
