"""Expressions of page templates, taken apart; readme_numbers.py lists their forms."""

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from statistics import fmean
from typing import Any, NamedTuple

from posbench.common.errors import ConfigError
from posbench.report.table_formats import METHOD_COLUMNS

AGGREGATES = {"lowest": min, "highest": max, "mean": fmean, "total": sum}  # of several values
END_FIELDS = {"low": 1, "high": 2}  # {word: field of Value}
FACTORS = {"negated": -1, "percent": 100, "hours": 1 / 3600}
WORDS = {*AGGREGATES, *END_FIELDS, *FACTORS, "+-", "[]", "count", "distinct", "seeds", "nats"}


class Value(NamedTuple):
    """Number with both ends of its interval, if it has one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def times(self, factor: float) -> "Value":
        """The same in another unit, or of the other sign.

        >>> Value(2.0, 1.0, 4.0).times(-1)
        Value(value=-2.0, low=-4.0, high=-1.0)
        """
        return Value(self.value * factor, *sorted((self.low * factor, self.high * factor)))


class Key(NamedTuple):
    """Conditions on lines: a task or claim, methods at multiples of the training length, cells."""

    name: str
    methods: list[list[str]]  # [encoding, extension, scale]
    multiples: list[Fraction]
    cells: list[tuple[str, str, str]]  # column, = or !=, text

    @classmethod
    def read(cls, text: str, columns: Iterable[str]) -> "Key":
        """The parts of a text, with ", " between them, which may also stand in a name.

        >>> Key.read("mqar 8 pairs, fox & rope|ntk @16x, depth=", ["depth"])  # doctest: +ELLIPSIS
        Key(name='mqar 8 pairs', methods=[['fox', 'none', 'none'], ['rope', 'ntk', 'none']], ...
        """
        names, methods, multiples, cells = [], [], [], []
        for part in text.split(", "):
            cell = re.fullmatch(r"(\w+)(!?=)(.*)", part)
            if cell and cell[1] in columns:
                cells.append(cell.groups())
            elif " @" in part:
                method_names, _, times = part.rpartition(" @")
                for method in method_names.split(" & "):
                    # [encoding, extension, scale], "none" for what is not named
                    methods.append([*method.split("|"), "none", "none"][:3])
                multiples = [Fraction(multiple.rstrip("x")) for multiple in times.split(",")]
            elif part:
                names.append(part)
        return cls(", ".join(names), methods, multiples, cells)

    def fits_cells(self, row: Mapping) -> bool:
        """True if a line has the cells that the key names."""
        return all((str(row[column]) == text) == (sign == "=") for column, sign, text in self.cells)

    def fits_method(self, row: Mapping[str, str]) -> bool:
        """True if a line of a CSV is of a method and a length of the key, over all depths."""
        if [row[column] for column in METHOD_COLUMNS] not in self.methods:
            return False
        multiple = Fraction(int(row["length"]), int(row["train_len"]))
        return multiple in self.multiples and not row.get("depth")


class Expression(NamedTuple):
    """Parts of an expression."""

    terms: list[tuple[float, str]]  # weight in a sum, key
    words: list[str]  # of WORDS
    column: str  # "" where none is named
    form: str

    @classmethod
    def read(cls, text: str, columns: Iterable[str], is_sum: bool = True) -> "Expression":
        """The parts of a text, whose last words may name one of `columns`.

        >>> Expression.read("rope minus alibi @2x nll negated .1f", ["nll"])  # doctest: +ELLIPSIS
        Expression(terms=[(1.0, 'rope @2x'), (-1.0, 'alibi @2x')], words=['negated'], ...
        """
        *rest, form = text.split()
        words, column = [], ""
        while rest and (rest[-1] in WORDS or rest[-1] in columns):
            word = rest.pop()
            if word in WORDS:
                words.append(word)
            else:
                column = column or word  # of several the one that stands last counts
        key = " ".join(rest)
        return cls(_weighted_keys(key) if is_sum else [(1.0, key)], words, column, form)

    @property
    def factor(self) -> float:
        """Product of the words that change unit or sign."""
        return math.prod(FACTORS.get(word, 1) for word in self.words)

    def text(self, values: list[Value]) -> str:
        """Text of values, such as "0.50 [0.25, 0.75]", or "0.5, 0.6 and 0.7" of seeds."""
        # Index in Value: 0, the number itself, unless a word asks for an end of its interval.
        field = next((END_FIELDS[word] for word in self.words if word in END_FIELDS), 0)
        numbers = [value[field] for value in values]
        for word in self.words:
            if word in AGGREGATES:
                return format(AGGREGATES[word](numbers), self.form)
        if "seeds" in self.words:
            *others, last = [format(number, self.form) for number in numbers]
            return f"{', '.join(others)} and {last}"
        _, low, high = only_element(values)
        # ".2f/.3f" has a format for the number and one for the ends of its interval.
        number_form, _, end_form = self.form.partition("/")
        end_form = end_form or number_form
        if math.isnan(low) and {"+-", "[]"} & {*self.words}:
            raise ConfigError("it has no interval")
        number = format(numbers[0], number_form)
        if "+-" in self.words:
            half_form = end_form.lstrip("+")  # half an interval has no sign
            return f"{number} +- {(high - low) / 2:{half_form}}"
        if "[]" in self.words:
            return f"{number} [{low:{end_form}}, {high:{end_form}}]"
        return number


def _weighted_keys(text: str) -> list[tuple[float, str]]:
    """Weights and keys of a sum. A key without a multiple of the training length has the last's.

    >>> _weighted_keys("rope minus alibi @2x")
    [(1.0, 'rope @2x'), (-1.0, 'alibi @2x')]
    """
    first, *rest = re.split(r" (minus|plus) ", text)  # rest: sign, key, sign, key, ...
    terms = [(1.0, first)]
    for sign, key in zip(rest[::2], rest[1::2], strict=True):
        terms.append((-1.0 if sign == "minus" else 1.0, key))
    _, last_key = terms[-1]
    if " @" not in last_key:
        return terms
    multiple = last_key.rpartition(" @")[2]
    return [(weight, key if " @" in key else f"{key} @{multiple}") for weight, key in terms]


def only_element(elements: list[Any]) -> Any:
    """The only element. Raises ConfigError for none or several."""
    if len(elements) != 1:
        raise ConfigError(f"{len(elements) or 'no'} lines fit, and it takes one")
    return elements[0]
