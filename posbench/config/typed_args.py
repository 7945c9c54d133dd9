"""Checks of configuration values against annotations: types, choices and ranges, of dataclasses and
of the arguments of classes.

Nothing heavy is imported here: this is what pydantic would do, without the tenth of a second that
importing it takes."""

import functools
import inspect
import json
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, did_you_mean

BITS = 64  # bits of the largest whole number; counts and seeds need no more
LONGEST = 80  # characters of a value quoted in an error
WORDS = {  # (singular, plural)
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    bool: ("true or false", "true and false"),
    str: ("text", "words"),
    type(None): ("null", "nulls"),
    list: ("a list", "lists"),
    dict: ("a mapping", "mappings"),
}
TOKENS = frozenset(  # keys whose values are tokens, in whatever group
    "length lengths train_len target target_len max_length max_len scaling_len window targets"
    " stride floor_block key_context tokens_per_step batch_tokens shift chunk local keys".split()
)
SIZES = {"k": 2**10, "m": 2**20}
OFF = (
    "off",
    "false",
    "False",
    "no",
    "none",
)  # words that people type for disabled; YAML reads some of them as false


@dataclass(frozen=True)
class Check:
    """Condition on a value of the right type, for Annotated; `words` stand behind "must be" in the
    error.
    """

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Convert:
    """Conversion of a value before its type is checked, for Annotated."""

    convert: Callable[[Any], Any]


def in_tokens(value: Any, key: str = "") -> Any:
    """`value` with 16k written out as 16,384, and 1m as 1,048,576, wherever tokens are meant; all
    else stays.
    """
    if isinstance(value, dict):
        found = {name: in_tokens(one, name) for name, one in value.items()}
        return value if found == value else found  # parts that stay are shared between cells
    if isinstance(value, list):
        return [in_tokens(one, key) for one in value]
    if key not in TOKENS:
        return value
    sized = (
        re.fullmatch(r"(\d{1,9})([kKmM])", value.strip(), re.ASCII)
        if isinstance(value, str)
        else None
    )
    return int(sized[1]) * SIZES[sized[2].lower()] if sized else value


class _Misfit(Exception):
    """Mismatch of a value with the tried type, or with the words of a Must."""


def convert(name: str, value: object, hint: Any) -> Any:
    """`value` converted to the type `hint`: 64.0 becomes 64 for int, 1 becomes True for bool, all
    else stays.

    Raises ConfigError, under `name`, for a value that does not match. A hint that is a class is not
    checked."""
    try:
        return _fit(value, hint)
    except _Misfit as error:
        legal = str(error) or f"{type_words(hint)}{_hint(name, value, hint)}"
        raise ConfigError(f"{name}={shown(value)} must be {legal}.") from None


def _fit(value: Any, hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:  # notes: First before, then Must, and float, which makes 1 a 1.0
        kind, *notes = inner
        for note in notes:
            value = note.convert(value) if isinstance(note, Convert) else value
        value = _fit(value, kind)
        for note in notes:
            if isinstance(note, Check) and not note.holds(value):
                raise _Misfit(note.words)
        return float(value) if float in notes else value
    if origin in (typing.Union, types.UnionType):
        failed = _Misfit()
        for kind in inner:
            try:
                return _fit(value, kind)
            except _Misfit as error:
                failed = error if error.args else failed
        raise failed
    number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = origin or hint
    if kind is Literal:
        good = any(value == one and type(value) is type(one) for one in inner)
    elif kind is int:
        good = number and abs(value) < 2**BITS and value == int(value)
        value = int(value) if good else value
    elif kind is float:
        good = number and abs(value) <= sys.float_info.max  # not nan either
    elif kind is bool:
        good = isinstance(value, bool) or (number and value in (0, 1))
        value = bool(value) if good else value
    elif kind is list:
        good = isinstance(value, list | tuple)
        value = [_fit(one, inner[0]) for one in value] if good and inner else value
    elif kind is dict:
        good = isinstance(value, Mapping)
        value = (
            {key: _fit(one, inner[1]) for key, one in value.items()} if good and inner else value
        )
    elif kind in (str, types.NoneType, None):
        good = isinstance(value, str) if kind is str else value is None
    else:
        good = True
    if not good:
        raise _Misfit
    return value


def _kinds(hint: Any) -> list[Any]:
    """The types that a hint allows, without notes."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _kinds(inner[0])
    return (
        [kind for one in inner for kind in _kinds(one)]
        if origin in (typing.Union, types.UnionType)
        else [hint]
    )


def type_words(hint: Any, many: bool = False) -> str:
    """Words for a type behind "must be"; with `many` the plural, behind "a list of"."""
    said = []
    for kind in _kinds(hint):
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        words = WORDS.get(origin or kind, ("anything", "anything"))[many]
        if origin is Literal:
            words = f"{'' if many else 'one '}of {', '.join(map(shown, inner))}"
        elif origin in (list, dict) and inner[-1] is not Any:
            words += f" of {type_words(inner[-1], many=True)}"
        said.append(words)
    return " or ".join(said)


def _hint(name: str, value: object, hint: Any) -> str:
    """Suffix of an error: the choice that was meant, how to type a number as text, or how large a
    number may be.
    """
    kinds = _kinds(hint)
    choices = [
        choice
        for kind in kinds
        if typing.get_origin(kind) is Literal
        for choice in typing.get_args(kind)
    ]
    if choices:
        return did_you_mean("disabled" if str(value) in OFF else value, choices)
    if isinstance(value, str) and str not in kinds and re.fullmatch(r"[\d.e+-]+", value):
        return ", not text"
    if not isinstance(value, int | float):
        return ""
    if str in kinds:
        return f" (to mean the word, type {name}=\"'{shown(value)}'\")"
    return f" of at most {BITS} bits" if int in kinds and abs(value) >= 2**BITS else ""


def shown(value: object) -> str:
    """Value as a user would type it: control characters replaced, cut to one line."""
    text = printable(
        str(value)
        if isinstance(value, str | float)
        else json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
    )
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def arguments(
    name: str, takes: type, given: dict[str, Any], theirs: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Arguments `given` to a class, each converted to its annotation or, without one, to the type
    of its default.

    `theirs` are parameters that posbench fills in itself. Raises ConfigError for a wrong type or an
    unknown argument."""
    hints, parameters, anything = _signature(takes)
    legal = [key for key in parameters if key not in theirs]
    if unknown := [key for key in given if key not in legal and not anything]:
        near, listed = did_you_mean(unknown[0], legal), ", ".join(legal) or "nothing"
        raise ConfigError(
            f"{name}.{unknown[0]} is not an argument of"
            f" {takes.__module__}.{takes.__qualname__}{near}: it takes {listed}."
        )
    return {
        key: convert(f"{name}.{key}", value, hints.get(key, Any)) for key, value in given.items()
    }


@functools.cache
def _signature(takes: type) -> tuple[dict[str, Any], list[str], bool]:
    """({argument: type}, argument names, True if the class takes **kwargs) of a class."""
    parameters = inspect.signature(takes).parameters
    try:
        hints = typing.get_type_hints(takes.__init__, include_extras=True)
    except Exception:  # an annotation that only a type checker can resolve
        hints = {}
    for key, parameter in parameters.items():
        kind = type(parameter.default)
        if parameter.annotation is parameter.empty and kind in (bool, int, float, str):
            hints[key] = {int: float}.get(kind, kind)  # a default of 4 does not forbid 4.5
        if parameter.default is None and key in hints:
            hints[key] = hints[key] | None
    named = [
        key
        for key, one in parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    return hints, named, any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def class_named(target: str) -> type:
    """Class with the dotted name `target`. Raises ConfigError if it cannot be imported, whatever
    its code raises, or is not a class.
    """
    try:
        found = pkgutil.resolve_name(target)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        way = "name MODULE.CLASS, give its folder with --config-dir, or install what it needs"
        raise ConfigError(f"{shown(target)} cannot be imported ({why}): {way}.") from error
    if not isinstance(found, type):
        raise ConfigError(
            f"{target} is of type {type(found).__name__} and is not a class: name one, such as"
            " posbench.extensions.ntk.Ntk."
        )
    return found
