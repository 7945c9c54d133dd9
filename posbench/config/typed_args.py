"""Type checks of configuration values against the annotations of classes and dataclasses.

Ranges are checked by whoever takes the value. Nothing heavy is imported here.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

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


class _Other(Exception):
    """Mismatch of a value with the tried type."""


def fitting(name: str, value: object, hint: Any) -> Any:
    """`value` converted to the type `hint`: 64.0 becomes 64 for int, 1 becomes True for bool, all else stays.

    Raises ConfigError, under `name`, for a value that does not match. A hint that is a class is not checked.
    """
    try:
        return _fit(value, hint)
    except _Other:
        raise ConfigError(f"{name}={shown(value)} must be {in_words(hint)}{_way_out(name, value, hint)}.") from None


def _fit(value: Any, hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for kind in inner:
            try:
                return _fit(value, kind)
            except _Other:
                continue
        raise _Other
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
        value = {key: _fit(one, inner[1]) for key, one in value.items()} if good and inner else value
    elif kind in (str, types.NoneType, None):
        good = isinstance(value, str) if kind is str else value is None
    else:
        good = True
    if not good:
        raise _Other
    return value


def in_words(hint: Any, many: bool = False) -> str:
    """Words for a type behind "must be"; with `many` the plural, behind "a list of"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(kind, many) for kind in inner)
    if origin is Literal:
        return f"{'' if many else 'one '}of {', '.join(map(shown, inner))}"
    words = WORDS.get(origin or hint, ("anything", "anything"))[many]
    return f"{words} of {in_words(inner[-1], many=True)}" if origin in (list, dict) and inner[-1] is not Any else words


def _way_out(name: str, value: object, hint: Any) -> str:
    """Suffix of an error about a number: how to type it as text, or how large it may be."""
    if not isinstance(value, int | float):
        return ""
    wanted = (hint, *typing.get_args(hint))
    if str in wanted:
        return f" (to mean the word, type {name}=\"'{shown(value)}'\")"
    return f" of at most {BITS} bits" if int in wanted and abs(value) >= 2**BITS else ""


def shown(value: object) -> str:
    """Value as a user would type it: control characters replaced, cut to one line."""
    text = str(value) if isinstance(value, str | float) else json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def class_named(target: str) -> type:
    """Class with the dotted name `target`. Raises ConfigError if it cannot be imported or is not a class."""
    from hydra.utils import get_class

    logging.getLogger("hydra.utils").disabled = True  # it would log the same message as the error below
    try:
        return get_class(target)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{target} cannot be imported ({reason}): is its folder given with --config-dir, or installed?") from error


def arguments(name: str, takes: type, given: dict[str, Any], theirs: tuple[str, ...] = ()) -> dict[str, Any]:
    """Arguments `given` to a class, each converted to its annotation or, without one, to the type of its default.

    `theirs` are parameters that posbench fills in itself. Raises ConfigError for a wrong type or an unknown argument.
    """
    hints, parameters, anything = _signature(takes)
    legal = [key for key in parameters if key not in theirs]
    if unknown := [key for key in given if key not in legal and not anything]:
        listed = ", ".join(legal) or "nothing"
        near = did_you_mean(unknown[0], legal)
        raise ConfigError(f"{name}.{unknown[0]} is no argument of {takes.__module__}.{takes.__qualname__}{near}: it takes {listed}.")
    return {key: fitting(f"{name}.{key}", value, hints.get(key, Any)) for key, value in given.items()}


@functools.cache
def _signature(takes: type) -> tuple[dict[str, Any], list[str], bool]:
    """({argument: type}, argument names, True if the class takes **kwargs) of a class."""
    parameters = inspect.signature(takes).parameters
    try:
        hints = typing.get_type_hints(takes.__init__)
    except Exception:  # an annotation that only a type checker can resolve
        hints = {}
    for key, parameter in parameters.items():
        kind = type(parameter.default)
        if parameter.annotation is parameter.empty and kind in (bool, int, float, str):
            hints[key] = {int: float}.get(kind, kind)  # a default of 4 does not forbid 4.5
        if parameter.default is None and key in hints:
            hints[key] = hints[key] | None
    named = [key for key, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return hints, named, any(one.kind is one.VAR_KEYWORD for one in parameters.values())
