"""Checks of configuration values against annotations, of dataclasses and of arguments of classes.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, did_you_mean

LARGEST_BITS = 64  # bits of the largest whole number; counts and seeds need no more
LONGEST_QUOTE = 80  # characters of a value quoted in an error
LONGEST_ADVICE = 40  # characters of the values of a list that an error repeats as words
TYPE_WORDS = {  # (singular, plural)
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    bool: ("true or false", "true and false"),
    str: ("text", "words"),
    type(None): ("null", "nulls"),
    list: ("a list", "lists"),
    dict: ("a mapping", "mappings"),
}
TOKEN_KEYS = frozenset(  # keys whose values are tokens, in whatever group
    "length lengths train_len target target_len max_length max_len scaling_len window targets"
    " stride floor_block key_context tokens_per_step batch_tokens shift chunk local keys"
    " validate_lengths".split()
)
SIZE_SUFFIXES = {"k": 2**10, "m": 2**20}
# words that people type for disabled; YAML reads some of them as false
DISABLED_WORDS = ("off", "false", "False", "no", "none")


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


def expand_sizes(value: Any, key: str = "") -> Any:
    """`value` with 16k written out as 16,384, and 1m as 1,048,576, wherever tokens are meant.

    >>> expand_sizes({"length": "16k", "name": "16k"})
    {'length': 16384, 'name': '16k'}
    """
    if isinstance(value, dict):
        converted = {name: expand_sizes(item, name) for name, item in value.items()}
        return value if converted == value else converted  # parts that stay are shared by cells
    if isinstance(value, list):
        return [expand_sizes(item, key) for item in value]
    if key not in TOKEN_KEYS or not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,9})([kKmM])", value.strip(), re.ASCII)
    return int(match[1]) * SIZE_SUFFIXES[match[2].lower()] if match else value


class _Misfit(Exception):
    """Mismatch of a value with the tried type, or with the words of a Check."""


def convert(name: str, value: object, hint: Any) -> Any:
    """`value` converted to the type `hint`: 64.0 becomes 64 for int, 1 becomes True for bool.

    Raises ConfigError, under `name`, for a value that does not match. Any value matches a hint that
    is a class of posbench or of a library."""
    try:
        return _fit(value, hint)
    except _Misfit as error:
        legal = str(error) or f"{type_words(hint)}{_advice(name, value, hint)}"
        raise ConfigError(f"{name}={shown(value)} must be {legal}.") from None


def _fit(value: Any, hint: Any) -> Any:
    """`value` as `hint` has it. Raises _Misfit."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _fit_annotated(value, *inner)
    if origin in (typing.Union, types.UnionType):
        return _fit_union(value, inner)
    kind = origin or hint
    if kind is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in inner)
        return _if_fits(value, fits)
    if kind is list:
        _if_fits(value, isinstance(value, list | tuple))
        return [_fit(item, inner[0]) for item in value] if inner else value
    if kind is dict:
        _if_fits(value, isinstance(value, Mapping))
        return {key: _fit(item, inner[1]) for key, item in value.items()} if inner else value
    if kind is str:
        return _if_fits(value, isinstance(value, str))
    if kind in (types.NoneType, None):
        return _if_fits(value, value is None)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return int(
            _if_fits(value, is_number and abs(value) < 2**LARGEST_BITS and value == int(value))
        )
    if kind is float:
        return _if_fits(value, is_number and abs(value) <= sys.float_info.max)  # not nan either
    if kind is bool:
        is_truth = isinstance(value, bool) or (is_number and value in (0, 1))
        return bool(_if_fits(value, is_truth))
    return value


def _if_fits(value: Any, fits: bool) -> Any:
    """`value`, for a condition in the middle of an expression. Raises _Misfit unless it `fits`."""
    if not fits:
        raise _Misfit
    return value


def _fit_annotated(value: Any, kind: Any, *notes: Any) -> Any:
    """Convert before, Check after; the note float makes 1 a 1.0."""
    for note in notes:
        if isinstance(note, Convert):
            value = note.convert(value)
    value = _fit(value, kind)
    for note in notes:
        if isinstance(note, Check) and not note.holds(value):
            raise _Misfit(note.words)
    return float(value) if float in notes else value


def _fit_union(value: Any, kinds: Sequence[Any]) -> Any:
    """`value` as the first of `kinds` has it that it fits.

    Raises _Misfit, with the words of a Check if one of them refused the value."""
    misfit = _Misfit()
    for kind in kinds:
        try:
            return _fit(value, kind)
        except _Misfit as error:
            if error.args:
                misfit = error
    raise misfit


def _kinds(hint: Any) -> list[Any]:
    """The types that a hint allows, without notes."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _kinds(inner[0])
    if origin in (typing.Union, types.UnionType):
        return [kind for member in inner for kind in _kinds(member)]
    return [hint]


def type_words(hint: Any, many: bool = False) -> str:
    """Words for a type behind "must be"; with `many` the plural, behind "a list of".

    >>> type_words(list[int] | None)
    'a list of whole numbers or null'
    """
    words = []
    for kind in _kinds(hint):
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        singular, plural = TYPE_WORDS.get(origin or kind, ("anything", "anything"))
        text = plural if many else singular
        if origin is Literal:
            choices = ", ".join(map(shown, inner))
            text = f"of {choices}" if many else f"one of {choices}"
        elif origin in (list, dict) and inner[-1] is not Any:
            text += f" of {type_words(inner[-1], many=True)}"
        words.append(text)
    return " or ".join(words)


def allows_container(hint: Any, *containers: type) -> bool:
    """True if a hint allows a list, or another of these containers.

    >>> allows_container(int | list[int], list), allows_container(dict[str, int] | None, list)
    (True, False)
    """
    return any((typing.get_origin(kind) or kind) in containers for kind in _kinds(hint))


def _advice(name: str, value: object, hint: Any) -> str:
    """Suffix of an error: the choice that was meant, how to type a number as text, or its limit;
    "" without advice.
    """
    kinds = _kinds(hint)
    choices = []
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            choices.extend(typing.get_args(kind))
    if choices:
        # off, no and the like mean disabled; yaml reads some of them as False.
        return did_you_mean("disabled" if str(value) in DISABLED_WORDS else value, choices)
    if isinstance(value, list) and value and not allows_container(hint, list, dict):
        words = ",".join(map(shown, value))
        is_flat = not any(isinstance(item, list | dict) for item in value)
        if is_flat and len(words) <= LONGEST_ADVICE:
            return f" (for a job with each, type -m {name}={words})"
    # A number in quotes.
    if isinstance(value, str) and str not in kinds and re.fullmatch(r"[\d.e+-]+", value):
        return ", not text"
    if not isinstance(value, int | float):
        return ""
    if str in kinds:
        return f" (to mean the word, type {name}=\"'{shown(value)}'\")"
    return (
        f" of at most {LARGEST_BITS} bits" if int in kinds and abs(value) >= 2**LARGEST_BITS else ""
    )


def shown(value: object) -> str:
    """Value as a user would type it: control characters replaced, cut to one line.

    >>> shown([64, "yarn"])
    '[64, yarn]'
    """
    # str writes nan and inf as they are typed, and JSON NaN and Infinity.
    if isinstance(value, str | float):
        text = str(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
    text = printable(text)
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def typed_arguments(
    name: str, class_: type, values: dict[str, Any], filled_in: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Arguments of a class, each converted to its annotation or the type of its default.

    `filled_in` are parameters that posbench gives itself. Raises ConfigError for a wrong type or an
    unknown argument."""
    signature = _signature(class_)
    legal = [key for key in signature.names if key not in filled_in]
    unknown = [key for key in values if key not in legal]
    if unknown and not signature.takes_any:
        near = did_you_mean(unknown[0], legal)
        raise ConfigError(
            f"{name}.{unknown[0]} is not an argument of {class_.__module__}.{class_.__qualname__}"
            f"{near}: it takes {', '.join(legal) or 'nothing'}."
        )
    return {
        key: convert(f"{name}.{key}", value, signature.types.get(key, Any))
        for key, value in values.items()
    }


class _Signature(typing.NamedTuple):
    """Arguments of a class."""

    types: dict[str, Any]  # {argument: annotation}
    names: list[str]  # of all arguments
    takes_any: bool  # **kwargs


@functools.cache
def _signature(class_: type) -> _Signature:
    """Arguments of a class, with the type of the default for one without an annotation."""
    parameters = inspect.signature(class_).parameters
    try:
        hints = typing.get_type_hints(class_.__init__, include_extras=True)
    except Exception:  # an annotation that only a type checker can resolve
        hints = {}
    for key, parameter in parameters.items():
        kind = type(parameter.default)
        if parameter.annotation is parameter.empty and kind in (bool, int, float, str):
            hints[key] = float if kind is int else kind  # a default of 4 does not forbid 4.5
        if parameter.default is None and key in hints:  # `size: int = None` takes None
            hints[key] = hints[key] | None
    kinds = {key: parameter.kind for key, parameter in parameters.items()}
    collected = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [key for key, kind in kinds.items() if kind not in collected]
    return _Signature(hints, names, inspect.Parameter.VAR_KEYWORD in kinds.values())


def class_named(target: str) -> type:
    """Class with the dotted name `target`. Raises ConfigError if it cannot be imported, whatever
    its code raises, or is not a class.
    """
    try:
        value = pkgutil.resolve_name(target)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{shown(target)} cannot be imported ({reason}): name MODULE.CLASS, give its folder"
            " with --config-dir, or install what it needs."
        ) from error
    if not isinstance(value, type):
        raise ConfigError(
            f"{target} is of type {type(value).__name__} and is not a class: name one, such as"
            " posbench.extensions.ntk.Ntk."
        )
    return value
