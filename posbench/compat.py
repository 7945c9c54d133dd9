"""Which combinations are defined: refused ones are told what is legal instead, before any data is read or weight is made.

No table of pairs: a method says what it needs and what it offers (`Trait`), so a new one is judged by the same rules.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from posbench import extensions
from posbench.errors import ConfigError
from posbench.geometry import Span, Trait
from posbench.interfaces import ANY, Encoding, Extension, ScaleAttention
from posbench.plan import make_plan

REASONS = {
    Trait.COORDINATE: "has no coordinates to move",
    Trait.RELATIVE: "does not score by distance alone, so a band cannot have its own",
    Trait.SPECTRUM: "has no spectrum to change",
}


@dataclass(frozen=True)
class Verdict:
    """A legal combination: nobody may have tested it, or it may provably change nothing (`noop` says why)."""

    untested: bool = False
    noop: str | None = None


def check(encoding: Encoding, extension: Extension, scale: ScaleAttention, lengths: list[int], allow_untested: bool = False) -> Verdict:
    """Judge one combination at the lengths (tokens) it is to be evaluated at. Raises ConfigError with the legal alternatives."""
    names = name_of(encoding), name_of(extension), name_of(scale)
    if not uses_position(encoding) and extension.needs:
        return Verdict(noop=f"encoding={names[0]} has no positions, so extension={names[1]} changes nothing")
    missing = extension.needs & ~encoding.traits
    if missing:
        raise ConfigError(
            f"encoding={names[0]} {REASONS[next(iter(missing))]}, which extension={names[1]} needs: {_alternatives(encoding, names)}."
        )
    _check_bounds(encoding, extension, lengths, names)
    if names[2] != "none" and _scale_is_noop(encoding, extension, scale, lengths):
        return Verdict(
            noop=f"scale_attention={names[2]} changes nothing: with extension={names[1]} no query sees more keys than in training"
        )
    untested = [f"{names[0]}+{name_of(other)}" for other in (extension, scale) if not _tested(encoding, other)]
    if untested and not allow_untested:
        raise ConfigError(
            f"{' and '.join(untested)} is defined but nobody has published a test of it: add allow_untested=true to run it "
            f"(its rows are marked), or {_alternatives(encoding, names)}."
        )
    return Verdict(untested=bool(untested))


def uses_position(encoding: Encoding) -> bool:
    """Whether any layer of the encoding overrides a hook through which position enters."""
    hooks = ("embed", "rotate", "columns")
    parts = [encoding, *(layer.encoding for layer in encoding.layers())]
    return any(getattr(type(part), hook) is not getattr(Encoding, hook) for part in parts for hook in hooks)


def name_of(method: object) -> str:
    """A method's name: the name of its file."""
    return (method if isinstance(method, type) else type(method)).__module__.split(".")[-1]


def _tested(encoding: Encoding, other: object) -> bool:
    either = name_of(other) in encoding.tested_with or name_of(encoding) in other.tested_with
    return either or ANY in (encoding.tested_with, other.tested_with)


def _alternatives(encoding: Encoding, names: tuple[str, str, str]) -> str:
    legal = []
    for module in pkgutil.iter_modules(extensions.__path__):
        for found in vars(importlib.import_module(f"{extensions.__name__}.{module.name}")).values():
            own = isinstance(found, type) and issubclass(found, Extension) and name_of(found) == module.name
            if own and not found.needs & ~encoding.traits and _tested(encoding, found):
                legal.append(module.name)
    return f"with encoding={names[0]} choose extension={'|'.join(legal)}"


def _check_bounds(encoding: Encoding, extension: Extension, lengths: list[int], names: tuple[str, str, str]) -> None:
    train_len = encoding.shape.train_len
    if Trait.UNBOUNDED in encoding.traits or Trait.COORDINATE not in encoding.traits:
        return
    for length in lengths:
        fed = fed_length(extension, train_len, length)
        band = make_plan(encoding, extension, length=fed).layers[0].bands[0]
        if max(band.q_pos_T.max(), band.k_pos_T.max()) >= train_len:
            raise ConfigError(
                f"encoding={names[0]} has no position {length - 1}: it was trained for train_len={train_len} and length={length} was "
                f"asked with extension={names[1]}; evaluate up to {train_len}, or choose extension=pi|recompute_window or another encoding."
            )


def fed_length(extension: Extension, train_len: int, length: int) -> int:
    """How many tokens the model is fed at once for one target when `length` tokens are there."""
    crop = extension.crop(Span(train_len, length, extension.target_len(length)))
    return length if crop is None else min(crop, length)


def _scale_is_noop(encoding: Encoding, extension: Extension, scale: ScaleAttention, lengths: list[int]) -> bool:
    train_len = encoding.shape.train_len
    longer = [length for length in lengths if length > train_len]
    if not longer:
        return False
    plan = make_plan(encoding, extension, scale, length=fed_length(extension, train_len, max(longer)))
    return all(layer.factor is None for layer in plan.layers)
