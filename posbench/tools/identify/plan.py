"""Candidates: things that an engine may do with a model's positions, as posbench's own methods.

A candidate is an extension of the model as it was before any scaling (model.own_scaling=false), and
perhaps a factor on the logits.

What is wrong on purpose, by the mistakes that engines' trackers report: the setting ignored; the
text cut, or seen through a window, of the training length; a factor halved (as for a length of its
own) or doubled (read twice); YaRN without its factor on the logits, with it twice, or with nothing
else; its ramp by turns or without rounding; its original length taken from the target or from half;
the checkpoint's base replaced by the usual one (an override in vLLM that leaves rope_theta out);
dynamic NTK fixed at the target (vLLM's issue 3488), or with keys cached as they were turned when
they were fed (transformers' issue 25104); the scaling of the checkpoint's config.json applied
twice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.identity import NO_SCALE
from posbench.config.names import shipped_yamls

USUAL_BASE = 1e4  # that an engine takes where it is given none
PUBLISHED_TURNS = {"alpha": 1.0, "beta": 32.0}  # YaRN's turns in every engine


@dataclass(frozen=True)
class Candidate:
    """One thing that an engine may do: its name, what it is in words, and its methods."""

    name: str
    words: str
    extension: dict
    scale: dict = field(default_factory=NO_SCALE.copy)
    cut: int | None = None  # last tokens of a text that are read; None: all


def setting_candidates(
    original: int, factor: float, fed: int, base: float = USUAL_BASE
) -> list[Candidate]:
    """Candidates for a model of `original` tokens and `base`.

    Its engine was asked for `factor` and feeds `fed` tokens at once.
    """
    methods = _Methods(original, factor)
    target = round(factor * original)

    def yarn(_: str, times: float = 1.0) -> dict:
        return methods.yarn(times)

    return [
        Candidate("none", "no scaling", _extension_node("none")),
        Candidate(
            "cut",
            f"no scaling, and the text cut to its last {original:,} tokens",
            _extension_node("none"),
            cut=original,
        ),
        Candidate(
            "window",
            f"no scaling, and a window of {original:,} tokens",
            _extension_node("window", window=original),
        ),
        *_candidates_by_factor("pi", "linear interpolation", methods.fixed, factor),
        *_candidates_by_factor("ntk", "NTK by the base", methods.fixed, factor),
        *_dynamic_candidates(methods, factor, fed, target),
        *_candidates_by_factor("yarn", "YaRN", yarn, factor),
        *_yarn_candidates(methods, factor, original, target),
        Candidate("llama3", f"llama3's scaling with factor {factor:g}", methods.fixed("llama3")),
        *_base_candidates(methods, factor, base),
        Candidate(
            "yarn_amplitude_twice",
            f"YaRN with factor {factor:g}, its factor on the logits twice",
            methods.yarn(),
            scale=dict(shipped_yamls("scale_attention")["yarn_temperature"]),
        ),
    ]


def _extension_node(name: str, **arguments: object) -> dict:
    """Content of an extension's yaml with other arguments."""
    return {**shipped_yamls("extension")[name], **arguments}


@dataclass(frozen=True)
class _Methods:
    """Extensions of a model of `original` tokens that an engine was asked to extend by `factor`."""

    original: int
    factor: float

    def fixed(self, name: str, times: float = 1.0, **arguments: object) -> dict:
        """An extension for `times` the factor at every length."""
        target = max(1, round(times * self.factor * self.original))
        return _extension_node(name, mode="fixed", target_len=target, **arguments)

    def yarn(self, times: float = 1.0, original_times: float = 1.0, **arguments: object) -> dict:
        """YaRN whose original length is `original_times` the right one.

        A pair makes so many times as many turns in it.
        """
        turns = {key: number / original_times for key, number in PUBLISHED_TURNS.items()}
        return self.fixed("yarn", times, **{**turns, **arguments})


def _candidates_by_factor(
    name: str, words: str, make_node: Callable[..., dict], factor: float
) -> list[Candidate]:
    """A method with the factor, with half of it and with its double."""
    return [
        Candidate(name, f"{words} with factor {factor:g}", make_node(name)),
        Candidate(f"{name}_half", f"{words} with factor {factor / 2:g}", make_node(name, 0.5)),
        Candidate(f"{name}_double", f"{words} with factor {2 * factor:g}", make_node(name, 2)),
    ]


def _dynamic_candidates(methods: _Methods, factor: float, fed: int, target: int) -> list[Candidate]:
    """Dynamic NTK as published, without a factor, fixed at the target, and with cached keys."""
    words = f"dynamic NTK with factor {factor:g}"
    return [
        Candidate("dynamic_ntk", words, _extension_node("dynamic_ntk", factor=factor)),
        Candidate(
            "dynamic_ntk_by_length",
            "dynamic NTK with factor 1",
            _extension_node("dynamic_ntk", factor=1.0),
        ),
        Candidate(
            "dynamic_ntk_fixed",
            f"{words} as at {target:,} tokens",
            methods.fixed("dynamic_ntk", factor=factor),
        ),
        Candidate(
            "dynamic_ntk_cached",
            f"{words}, keys cached token by token",
            _extension_node("dynamic_ntk", factor=factor, fed=1),
        ),
        Candidate(
            "dynamic_ntk_pieces",
            f"{words}, keys cached {fed} at a time",
            _extension_node("dynamic_ntk", factor=factor, fed=fed),
        ),
    ]


def _yarn_candidates(
    methods: _Methods, factor: float, original: int, target: int
) -> list[Candidate]:
    """YaRN as other code may compute it: each with one part left out or done in another way."""
    words = f"YaRN with factor {factor:g}"
    return [
        Candidate(
            "yarn_no_amplitude",
            f"{words} without its factor on the logits",
            methods.yarn(temperature=False),
        ),
        Candidate(
            "yarn_amplitude",
            "no scaling but YaRN's factor on the logits",
            # The ramp ends below any number of turns, so that every pair is kept.
            methods.yarn(alpha=1e-9, beta=1e-8, ramp="turns"),
        ),
        Candidate("yarn_turns", f"{words}, the ramp by turns", methods.yarn(ramp="turns")),
        Candidate(
            "yarn_untruncated",
            f"{words}, the ramp not rounded to whole pairs",
            methods.yarn(truncate=False),
        ),
        Candidate(
            "yarn_long_original",
            f"{words} from an original length of {target:,}",
            methods.yarn(original_times=factor),
        ),
        Candidate(
            "yarn_short_original",
            f"{words} from an original length of {original // 2:,}",
            methods.yarn(original_times=0.5),
        ),
    ]


def _base_candidates(methods: _Methods, factor: float, base: float) -> list[Candidate]:
    """The usual base in place of the model's; none where it has the usual one."""
    if base == USUAL_BASE:
        return []
    lost = _extension_node("abf", base=USUAL_BASE)
    words = f"the base {USUAL_BASE:,.0f} in place of {base:,.0f}"
    return [
        Candidate("base_lost", f"no scaling, and {words}", lost),
        Candidate(
            "yarn_base_lost",
            f"YaRN with factor {factor:g}, and {words}",
            _extension_node("compose", parts=[lost, methods.yarn()]),
        ),
    ]


def chosen_candidates(
    candidates: Sequence[Candidate], names: Iterable[str] | None
) -> list[Candidate]:
    """Candidates of candidates=, or all.

    Raises ConfigError for an unknown name, and for fewer than two.
    """
    if not names:
        return list(candidates)
    candidate_names = [candidate.name for candidate in candidates]
    for name in names:
        if name not in candidate_names:
            raise ConfigError(
                f"candidates={name} is unknown{did_you_mean(name, candidate_names)}: choose from"
                f" {', '.join(candidate_names)}."
            )
    chosen = [candidate for candidate in candidates if candidate.name in names]
    if len(chosen) < 2:
        raise ConfigError(
            f"candidates={chosen[0].name} leaves nothing to compare it with: give two or more."
        )
    return chosen


def candidates_of_own_scaling(encoding: dict) -> list[Candidate]:
    """The scaling that a checkpoint's config.json has, as written and applied twice."""
    from posbench.position.geometry import Span
    from posbench.position.instantiate import make_method

    scaling = encoding["scaling"]
    scale = dict(NO_SCALE)
    if encoding.get("amplitude"):  # else the usual one of this scaling
        # What it has beyond the usual one is a factor on the logits.
        # The amplitude multiplies q and k, a temperature their product: so its root is compared.
        # yarn_temperature is (1 + coefficient ln factor)^2, which is solved for the coefficient.
        target = scaling["target_len"]
        span = Span(train_len=encoding["scaling_len"], length=target, target_len=target)
        rest = encoding["amplitude"] / math.sqrt(make_method(scaling).temperature(span))
        coefficient = (rest - 1) / math.log(span.factor)
        scale = {**shipped_yamls("scale_attention")["yarn_temperature"], "coefficient": coefficient}
    words = "the scaling of the checkpoint's config.json"
    twice = _extension_node("compose", parts=[scaling, scaling])
    return [
        Candidate("own", words, scaling, scale),
        Candidate("own_twice", f"{words}, twice", twice, scale),
    ]
