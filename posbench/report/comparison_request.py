"""A request for comparisons, and the comparisons that answer it, of each section apart."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.common.quantities import first_of
from posbench.report.comparison import (
    ACCURACY,
    CORRECTIONS,
    LOSS,
    MEASURES,
    Comparison,
    Line,
    SectionName,
    compare_all_pairs,
    compare_lines,
    name_of_line,
)
from posbench.report.comparison_tables import section_words
from posbench.report.records import grouped
from posbench.report.report import Report

BY_CHOICES = ("length", "train_len", "data")
EACH = "each"  # value of against=: each line with each other one
MOST_LISTED = 20  # names in an error
MOST_COMPARABLE = 6  # lines of a section that an error says can be compared
MOST_LINES_OF_EACH = 30  # lines of a table of each with each
BETWEEN_WORDS = re.compile(r"[|\s+]+")

Lengths = dict[int, list[Line]]  # {length: lines}
Sections = dict[SectionName, Lengths]


@dataclass(frozen=True)
class Request:
    """Choice of what is compared: see `posbench compare --help`.

    Raises ConfigError for a value that it does not know.
    """

    lines: tuple[str, ...] = ()  # names; () for all
    length: str | None = None  # "8x" or "512"; None for the longest, or for all with `by` length
    against: str | None = None  # a line, EACH, or None for the best
    measure: str | None = None  # of MEASURES; None: losses, of a task its accuracy
    by: str | None = None  # of BY_CHOICES
    correction: str = "holm"

    def __post_init__(self) -> None:
        _check_choice("measure", self.measure, MEASURES)
        _check_choice("by", self.by, BY_CHOICES)
        _check_choice("correction", self.correction, CORRECTIONS)
        if self.length is not None:
            token_length(self.length, train_len=1)  # raises for a text that is no length
        if self.against == EACH and self.by is not None:
            raise ConfigError(
                f"against={EACH} fills the columns of a table with lines, and by={self.by} with"
                f" {self.by}: leave one out."
            )

    def completed(self) -> "Request":
        """Request with what is usual for several named lines: the first is the one that the others
        are compared with, at each length.
        """
        if len(self.lines) < 2 or self.length is not None or self.against == EACH:
            return self
        return replace(self, against=self.against or self.lines[0], by=self.by or "length")


def _check_choice(key: str, value: str | None, choices: Sequence[str]) -> None:
    if value is None and key != "correction":  # which has no choice that is left open
        return
    if value not in choices:
        near = did_you_mean(str(value), choices)
        raise ConfigError(f"{key}={value} must be one of {', '.join(choices)}{near}.")


def lines_by_section(reports: Mapping[str, Report]) -> Sections:
    """{section: {length: its lines}} of reports. Several reports give their names to the lines."""
    sections: Sections = {}
    for report_name, report in reports.items():
        records = [point for section in report.sections for point in section]
        records += [score for section in report.scores for score in section]
        for record in records:
            is_bin = getattr(record, "window", None) is not None
            is_part_of_task = getattr(record, "depth", None) is not None
            if is_bin or is_part_of_task:
                continue
            name = name_of_line(record)
            if len(reports) > 1:
                name = f"{report_name}: {name}"
            section = SectionName(*record.section, getattr(record, "task", None))
            lengths = sections.setdefault(section, {})
            lengths.setdefault(record.length, []).append(Line(name, record))
    return sections


class RequestedComparisons(NamedTuple):
    """Comparisons that a request asks for, and sentences on sections and lengths left out."""

    comparisons: list[Comparison]
    left_out: list[str]


def requested_comparisons(reports: Mapping[str, Report], request: Request) -> RequestedComparisons:
    """Comparisons that a request asks for, of each section apart.

    Raises ConfigError for lines and lengths that the reports do not have, and where nothing can be
    compared.
    """
    sections = lines_by_section(reports)
    if not sections:
        by_position = any(report.sections for report in reports.values())
        others = "; posbench explore compares losses by position" if by_position else ""
        raise ConfigError(
            "There is nothing to compare, since these results hold no losses by length and no"
            f" answers to tasks: evaluate at several lengths{others}."
        )
    chosen = _sections_of_named_lines(sections, request)
    result = []
    errors = []
    skipped = []
    for section, lengths in chosen.items():
        of_section, errors_of_section = _comparisons_of_section(section, lengths, request)
        result += of_section
        errors += errors_of_section
        is_narrowed = request.against is not None or request.length is not None
        if is_narrowed and not of_section and not errors_of_section:
            skipped.append(_why_section_is_left_out(section, lengths, request))
    if not result:
        raise ConfigError(
            errors[0] if errors else _why_nothing_is_compared(sections, chosen, request)
        )
    return RequestedComparisons(result, [*errors, *skipped])


def _comparisons_of_section(
    section: SectionName, lengths: Lengths, request: Request
) -> RequestedComparisons:
    """Comparisons of a section at its lengths, and the reasons why there is none at some."""
    comparisons = []
    errors = []
    for length in _lengths_to_compare(section, lengths, request):
        try:
            comparisons += _comparisons_at(section, lengths, length, request)
        except RunError as error:
            errors.append(str(error))
    return RequestedComparisons(comparisons, errors)


def _comparisons_at(
    section: SectionName, lengths: Lengths, length: int, request: Request
) -> list[Comparison]:
    """Comparisons of a section at a length. Raises RunError if two lines do not have the measure
    there, ConfigError for an ambiguous `against`.
    """
    lines = lengths[length]
    measure = request.measure or (ACCURACY if section.task else LOSS)
    if request.against == EACH:
        if len(lines) > MOST_LINES_OF_EACH:
            raise ConfigError(
                f"against={EACH} compares at most {MOST_LINES_OF_EACH} lines with each other, and"
                f" there are {len(lines)}: name some of them."
            )
        compared = compare_all_pairs(section, length, lines, measure, request.correction)
    else:
        names = _line_names(lengths)
        against = _reference_name(request.against, names)
        if request.against is not None and against is None:
            return []  # a section without that line
        compared = [compare_lines(section, length, lines, measure, against, request.correction)]
    elsewhere = [name for name in _line_names(lengths) if name not in {line.name for line in lines}]
    return [replace(comparison, absent=(*comparison.absent, *elsewhere)) for comparison in compared]


def _reference_name(name: str | None, names: Sequence[str]) -> str | None:
    """The one of `names` that a name stands for, None for none. Raises ConfigError for several."""
    if name is None:
        return None
    matches = matching_names(name, names)
    if len(matches) > 1:
        raise ConfigError(
            f"{name} names {len(matches)} lines, and all are compared with one: choose against="
            f" from {first_of(matches, MOST_LISTED)}."
        )
    return matches[0] if matches else None


def _sections_of_named_lines(sections: Sections, request: Request) -> Sections:
    """Sections with the lines that are named, in the order of the names.

    Raises ConfigError for a name that no section has, and for a single line.
    """
    reference = None if request.against == EACH else request.against
    every = list(
        dict.fromkeys(name for lengths in sections.values() for name in _line_names(lengths))
    )
    names: dict[str, None] = {}  # of the lines to compare
    for name in dict.fromkeys((*request.lines, *([reference] if reference else []))):
        matches = matching_names(name, every)
        if not matches:
            raise ConfigError(
                f"{name} is no line of these results{did_you_mean(name, every)}: choose from"
                f" {first_of(every, MOST_LISTED)}."
            )
        names |= dict.fromkeys(matches)
    if not request.lines:  # all lines; the reference was only checked
        return sections
    if len(names) < 2:
        others = [name for name in every if name not in names]
        more = f"name a second one, such as {others[0]}" if others else "name more results"
        raise ConfigError(f"{next(iter(names))} is one line, and a comparison needs two: {more}.")
    chosen = {}
    for section, lengths in sections.items():
        of_section = {}
        for length, lines in lengths.items():
            by_name = {line.name: line for line in lines}
            of_section[length] = [by_name[name] for name in names if name in by_name]
        chosen[section] = {length: lines for length, lines in of_section.items() if lines}
    return {section: lengths for section, lengths in chosen.items() if lengths}


def _line_names(lengths: Lengths) -> list[str]:
    return list(dict.fromkeys(line.name for lines in lengths.values() for line in lines))


def matching_names(name: str, names: Iterable[str]) -> list[str]:
    """Those of the names of lines that a name stands for: with "|", " + " or spaces between its
    parts, with or without the source in front, and without the settings that tell lines apart
    where no line has that name itself.

    >>> matching_names("rope yarn", ["rope", "rope|yarn"])
    ['rope|yarn']
    >>> matching_names("rope", ["rope steps=500", "rope steps=900", "rope steps=500|pi"])
    ['rope steps=500', 'rope steps=900']
    """
    names = list(names)
    exact = [other for other in names if other == name]
    words = _words_of_name(name)
    exact = exact or [other for other in names if _words_of_name(other) == words]
    if not exact:
        exact = [other for other in names if _words_of_name(other.rpartition(": ")[2]) == words]
    if exact:
        return exact
    return [
        other
        for other in names
        if [word for word in _words_of_name(other.rpartition(": ")[2]) if "=" not in word] == words
    ]


def _words_of_name(name: str) -> list[str]:
    """Words of a name without those of parts that do nothing: ["rope", "log_n"] of
    "rope|none|log_n".
    """
    words = BETWEEN_WORDS.split(name.replace("no extension", "none").strip())
    return words[:1] + [word for word in words[1:] if word not in ("none", "")]


def _lengths_to_compare(section: SectionName, lengths: Lengths, request: Request) -> list[int]:
    """Lengths of a section at which a request compares."""
    several = sorted(length for length, lines in lengths.items() if len(lines) > 1)
    if request.length is None:
        return several if request.by == "length" else several[-1:]
    length = token_length(request.length, section.train_len)
    return [length] if length in several else []


def token_length(text: str, train_len: int) -> int:
    """Tokens of "8x" or "512". Raises ConfigError for another text.

    >>> token_length("8x", 64), token_length("512", 64)
    (512, 512)
    """
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)x", text)
    number = float(match[1] or match[2]) if match else 0.0
    if number <= 0:
        raise ConfigError(
            f"length={text} must be tokens or a multiple of the training length, such as"
            " length=512 or length=8x."
        )
    return round(number * train_len) if match[2] else round(number)


def _why_nothing_is_compared(sections: Sections, chosen: Sections, request: Request) -> str:
    """Sentence on what can be compared where a request gives nothing."""
    measured = [
        (length / section.train_len, length)
        for section, lengths in chosen.items()
        for length, lines in lengths.items()
        if len(lines) > 1
    ]
    if measured and request.length is not None:
        lengths = ", ".join(f"{multiple:g}x ({length})" for multiple, length in sorted({*measured}))
        return (
            f"length={request.length} was not measured for two of these lines: choose from"
            f" {lengths}."
        )
    if measured:
        return f"No section of these results has {request.against}: choose another against=."
    return _why_never_measured_alike(sections, chosen)


def _why_section_is_left_out(section: SectionName, lengths: Lengths, request: Request) -> str:
    """Sentence on a section without the length or the line that a request names."""
    beginning = f"Left out: {section_words(section)}, without"
    if request.length is not None and not _lengths_to_compare(section, lengths, request):
        return f"{beginning} two of these lines at length={request.length}."
    return f"{beginning} the line {request.against}."


def _why_never_measured_alike(sections: Sections, chosen: Sections) -> str:
    """Sentence on lines that are never measured alike, and on those that are."""
    comparable = []
    for lengths in sections.values():
        lines = max(lengths.values(), key=len)
        if len(lines) > 1:
            names = dict.fromkeys(line.name for line in lines)
            comparable.append(first_of(list(names), MOST_COMPARABLE))
    rest = "evaluate another one in the same setting"
    if comparable:
        rest = f"with each other can be compared {'; '.join(dict.fromkeys(comparable))}"
    return f"Nothing can be compared, since {_obstacle(chosen)}: {rest}."


def _obstacle(chosen: Sections) -> str:
    """Reason why no two of the chosen lines can be compared."""
    first, *others = chosen
    name = _line_names(chosen[first])[0]
    for other in others:
        for other_name in _line_names(chosen[other]):
            if other_name != name:  # a line and itself in another section are no pair
                return f"{name} and {other_name} differ in {_differing_columns(first, other)}"
    lengths_of: dict[str, list[str]] = {}
    for length, lines in sorted(chosen[first].items()):
        for line in lines:
            lengths_of.setdefault(line.name, []).append(str(length))
    if len(lengths_of) == 1:
        return f"{name} is the only line"
    parts = [f"{line} at {', '.join(lengths)}" for line, lengths in lengths_of.items()]
    return f"no length was measured for two of them ({'; '.join(parts[:MOST_LISTED])})"


def _differing_columns(section: SectionName, other: SectionName) -> str:
    """Columns in which two sections differ: "train_len (64 and 128)"."""
    parts = []
    for column in SectionName._fields:
        value = getattr(section, column)
        other_value = getattr(other, column)
        if value == other_value:
            continue
        if column == "setting":
            value = _parts_not_shared(value, other_value)
            other_value = _parts_not_shared(other_value, getattr(section, column))
        parts.append(f"{column} ({value} and {other_value})")
    return ", ".join(parts)


def _parts_not_shared(setting: str | None, other: str | None) -> str:
    """Parts of a setting in words that another one does not have.

    >>> _parts_not_shared("512 windows, 8 targets each", "64 windows, 8 targets each")
    '512 windows'
    """
    shared = (other or "").split(", ")
    not_shared = [part for part in (setting or "").split(", ") if part not in shared]
    return ", ".join(not_shared) or "none"


def by_section(comparisons: Iterable[Comparison]) -> dict[SectionName, list[Comparison]]:
    """{section: its comparisons}, in their order."""
    return grouped(comparisons, lambda comparison: comparison.section)


def groups_by_column(comparisons: Iterable[Comparison], column: str) -> list[list[Comparison]]:
    """Comparisons whose sections differ in a column, and in nothing else but what comes with it.

    No two of a group have one value of the column: those stand in tables of their own."""
    follows = {"train_len": ("setting",), "data": ("setting", "tokenizer")}[column]
    groups: list[list[Comparison]] = []
    for comparison in comparisons:
        fixed = _other_columns(comparison.section, (column, *follows))
        for group in groups:
            same = _other_columns(group[0].section, (column, *follows)) == fixed
            values = {getattr(other.section, column) for other in group}
            if same and getattr(comparison.section, column) not in values:
                group.append(comparison)
                break
        else:
            groups.append([comparison])
    return [
        sorted(group, key=lambda comparison: getattr(comparison.section, column))
        for group in groups
    ]


def _other_columns(section: SectionName, columns: Sequence[str]) -> dict:
    return {name: value for name, value in section._asdict().items() if name not in columns}
