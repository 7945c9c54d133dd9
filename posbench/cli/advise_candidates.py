"""Candidates of scripts/advise.py: methods with a fixed factor, with the factor of each text's length, or with attention of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.names import nodes
from posbench.report.advice import CUT, PLAIN, Option

SCALED = ("pi", "ntk", "yarn", "llama3")  # change frequencies by a factor, which may be fixed
FOLLOWS = ("dynamic_ntk",)  # changes frequencies by the length of the text alone, with a factor that overshoots
OVERSHOOT = ("ntk",)  # better with a larger factor than the length's (posbench/extensions/ntk.py), so compared with twice that too
# Attention of their own, or a factor on the logits that no engine has.
OWN = ("log_n", "ntk+log_n", "rerope", "rerope+log_n", "self_extend", "dca", "string", "streaming", "lm_infinite")
SINKS = ("streaming", "lm_infinite")
FAMILIES = (*SCALED, *FOLLOWS, *OWN)
# Work of one text of some families, as a multiple of the plain model's.
WORK = {**dict.fromkeys(("rerope", "self_extend", "dca", "string"), 1.7), **dict.fromkeys(SINKS, 0.6)}


@dataclass(frozen=True)
class Candidate:
    """An option with its methods' nodes; `at` gives those to evaluate at one length."""

    option: Option
    extension: dict
    scale: dict

    @property
    def name(self) -> str:
        """Name of the option."""
        return self.option.name

    def at(self, length: int, train_len: int) -> tuple[dict, dict]:
        """(extension, scale) at one length. A factor that follows the length is a fixed one there, so both forms share evaluations."""
        inside = length <= train_len
        if self.option.name == CUT:
            return (_node("none") if inside else self.extension), self.scale
        extension, factor = self.extension, self.option.factor
        if "mode" in extension and (self.option.frequencies or "+" in self.option.family):
            target = max(length, train_len) if factor is None else factor * train_len
            extension = {**extension, "mode": "fixed", "target_len": int(target) if target == int(target) else target}
        return extension, _scale("none") if inside else self.scale  # log-n is 1 within the training length


def references() -> list[Candidate]:
    """The two options that need no setting."""
    return [
        Candidate(Option(PLAIN, PLAIN), _node("none"), _scale("none")),
        Candidate(Option(CUT, CUT), _node("recompute_window"), _scale("none")),
    ]


def follow(family: str) -> Candidate:
    """A family whose factor follows the length of each text, or one without a factor."""
    method, _, scale = family.partition("+")
    method, scale = ("none", "log_n") if method == "log_n" else (method, scale or "none")
    frequencies = family in SCALED or family in FOLLOWS
    return Candidate(Option(f"{family} by length" if frequencies else family, family, None, frequencies), _node(method), _scale(scale))


def fixed(family: str, factors: Iterable[float]) -> list[Candidate]:
    """A family with each of the factors; none for a family that has no fixed form here."""
    if family not in SCALED:
        return []
    return [Candidate(Option(f"{family} x{factor:g}", family, factor, True), _node(family), _scale("none")) for factor in factors]


def probed(families: Iterable[str], factor: float) -> list[Candidate]:
    """Candidates of the first stage: every family by length, and those of OVERSHOOT with a fixed factor too."""
    return [one for family in families for one in [follow(family), *(fixed(family, [factor]) if family in OVERSHOOT else [])]]


def chosen(methods: Sequence[str] | None) -> tuple[str, ...]:
    """Families of methods=, or all of them. Raises ConfigError for an unknown one."""
    for name in methods or ():
        if name not in FAMILIES:
            raise ConfigError(f"methods={name} is unknown{did_you_mean(name, FAMILIES)}: choose from {', '.join(FAMILIES)}.")
    return tuple(name for name in FAMILIES if not methods or name in methods)


def _node(name: str) -> dict:
    return copy.deepcopy(nodes("extension")[name])


def _scale(name: str) -> dict:
    return copy.deepcopy(nodes("scale_attention")[name])
