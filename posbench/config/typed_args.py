"""Values against the types that signatures and dataclasses state: the one place that decides whether what was typed is of the right kind.

Ranges are the business of whoever takes the value. Nothing heavy is imported here.
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

BITS = 64  # no number that counts or seeds anything is longer
LONGEST = 80  # characters of a value that a sentence quotes
WORDS = {  # of one, and of many
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    bool: ("true or false", "true and false"),
    str: ("text", "words"),
    type(None): ("null", "nulls"),
    list: ("a list", "lists"),
    dict: ("a mapping", "mappings"),
}


class _Other(Exception):
    """A value is not of the kind that was tried."""


def fitting(name: str, value: object, hint: Any) -> Any:
    """`value` as `hint` wants it: 64.0 for a whole number is 64, 1 for true or false is true; all else as it is.

    Raises ConfigError, under `name`, for a value that is none of what `hint` says. A hint of a class is not checked.
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
    """What a hint allows, to stand behind "must be"; `many` of them behind "a list of"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(kind, many) for kind in inner)
    if origin is Literal:
        return f"{'' if many else 'one '}of {', '.join(map(shown, inner))}"
    words = WORDS.get(origin or hint, ("anything", "anything"))[many]
    return f"{words} of {in_words(inner[-1], many=True)}" if origin in (list, dict) and inner[-1] is not Any else words


def _way_out(name: str, value: object, hint: Any) -> str:
    """How to type a number that is meant as text, and how large one may be."""
    if not isinstance(value, int | float):
        return ""
    wanted = (hint, *typing.get_args(hint))
    if str in wanted:
        return f" (to mean the word, type {name}=\"'{shown(value)}'\")"
    return f" of at most {BITS} bits" if int in wanted and abs(value) >= 2**BITS else ""


def shown(value: object) -> str:
    """A value as one would type it, without what a terminal would obey, and not longer than a line."""
    text = str(value) if isinstance(value, str | float) else json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def class_named(target: str) -> type:
    """The class of that dotted name. Raises ConfigError for one that cannot be imported, or is none."""
    from hydra.utils import get_class

    logging.getLogger("hydra.utils").disabled = True  # it would say what the sentence below says
    try:
        return get_class(target)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{target} cannot be imported ({reason}): is its folder given with --config-dir, or installed?") from error


def arguments(name: str, takes: type, given: dict[str, Any], theirs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arguments `given` to a class, each as its annotation wants it; an argument without one is held to the kind of its default.

    `theirs`: names the class is given by others than the user. Raises ConfigError for one of a wrong type, or that the class lacks.
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
    """(hints by name, names of the arguments, whether any other is taken too) of a class."""
    parameters = inspect.signature(takes).parameters
    try:
        hints = typing.get_type_hints(takes.__init__)
    except Exception:  # a name that is there for a type checker alone
        hints = {}
    for key, parameter in parameters.items():
        kind = type(parameter.default)
        if parameter.annotation is parameter.empty and kind in (bool, int, float, str):
            hints[key] = {int: float}.get(kind, kind)  # 4 does not say that 4.5 is wrong
        if parameter.default is None and key in hints:
            hints[key] = hints[key] | None
    named = [key for key, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return hints, named, any(one.kind is one.VAR_KEYWORD for one in parameters.values())
