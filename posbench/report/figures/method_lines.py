"""Lines of methods, in a report's figures and in one's own: the panel in which each stands, its
name and its look.

Colour shows the encoding (the extension, if a panel has one encoding), dash and marker the
extension, a hollow marker the scale-attention. With several sources or scales the marker shows
these. Many methods are spread over several panels, each with all
others in grey."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from posbench.common.errors import ConfigError
from posbench.report.figures.captions import shortened
from posbench.report.figures.lines import Line, Mark
from posbench.report.figures.palette import (
    encoding_look,
    extension_look,
    foreign_pens,
    groups_of_distinct_colours,
    pens_by_length,
    pens_of_methods,
    yaml_names,
)
from posbench.report.figures.style import DASHES, MARKERS, MOST_CURVES_IN_PANEL
from posbench.report.records import CurvePoint, Score, StepPoint, records_by_method

# columns that may tell lines of one method apart
# of lines by step of training, the tokens that were read
TOKENS = "tokens"
TELLING_COLUMNS = ("train_len", "data", "task", "protocol", "tokenizer", "setting", TOKENS)
Point = CurvePoint | Score | StepPoint


@dataclass(frozen=True)
class Group:
    """Points of one panel, with its heading, and `others`, drawn in grey behind them."""

    heading: str
    points: list[Point]
    others: list[Point] = field(default_factory=list)


def panel_groups(points: list[Point]) -> list[Group]:
    """Groups of lines, a panel for each: one group for few lines of several encodings.

    Else unextended encodings stand together, then each encoding with its extensions, that with the
    most first. Crowded groups are divided.
    """
    # Encodings with equally many extensions keep this order.
    cells = sorted(records_by_method(points), key=_reading_order)
    n_extended = Counter(encoding for encoding, extension, *_ in cells if extension != "none")
    is_small = len(cells) <= MOST_CURVES_IN_PANEL and has_several(points, "encoding")
    if not n_extended or is_small:
        return _divided_group("", points)
    headed = {}  # {heading: points}
    unextended = [point for point in points if point.extension == "none"]
    never_extended = {point.encoding for point in unextended} - set(n_extended)
    if never_extended or has_several(unextended, "encoding"):
        headed["Encodings, nothing extended"] = unextended
    for encoding, _ in n_extended.most_common():
        of_encoding = [point for point in points if point.encoding == encoding]
        headed[f"{encoding}: extensions"] = of_encoding
    panels = []
    for heading, members in headed.items():
        panels += _divided_group(heading, members)
    return panels


def _reading_order(cell: Hashable) -> str:
    """Key that sorts cells by their text, since a source may be None, and numbers in it by value:
    `steps=30` before `steps=100`.
    """
    return re.sub(r"\d+(\.\d+)?", lambda number: f"{float(number[0]):020.6f}", str(cell))


def has_several(points: Iterable[Point], column: str) -> bool:
    """True if points have several values in a column."""
    return len({getattr(point, column) for point in points}) > 1


def _divided_group(heading: str, points: list[Point]) -> list[Group]:
    """One group, or several if it had too many lines.

    Each then has some of the methods, and all others in grey.
    """
    column = "encoding"
    look = encoding_look
    in_all_panels: set[str] = set()
    if not has_several(points, "encoding"):
        column = "extension"
        look = extension_look
        in_all_panels = {"none"}  # the line without an extension
    names = dict.fromkeys(getattr(point, column) for point in points)
    divided = groups_of_distinct_colours(
        [name for name in names if name not in in_all_panels], look, yaml_names(points)
    )
    if len(divided) == 1:
        return [Group(heading, points)]
    parts = []
    for index, group in enumerate(divided, start=1):
        shown = {*group, *in_all_panels}
        members = [point for point in points if getattr(point, column) in shown]
        others = [point for point in points if getattr(point, column) not in shown]
        title = f"{heading or 'Methods'} ({index} of {len(divided)})"
        parts.append(Group(title, members, others))
    return parts


class LineNames:
    """Names of lines and panels. `labels` may rename a whole line as A|B|C or A|B, a part of it,
    its source, and a value of TELLING_COLUMNS.
    """

    def __init__(self, points: Sequence[Point], labels: Mapping[str, str] | None = None):
        self.points = points
        self.labels = labels or {}
        settings = [set(str(point.setting).split(", ")) for point in points]
        self.common_setting = set.intersection(*settings) if settings else set()

    def known(self) -> list[str]:
        """Words that `labels` may rename."""
        words: set[str] = set()
        for point in self.points:
            source = point.source or ""
            words.update(_whole_names(point))
            words.update([point.encoding, point.extension, point.scale_attention])
            words.update([source, source.removesuffix(".csv")])
            # A setting is a sentence, which nobody types.
            words.update(
                str(getattr(point, name, "")) for name in TELLING_COLUMNS if name != "setting"
            )
        # An error lists the first of these, so "none", which names nothing, comes last.
        return ["no extension", *sorted(words - {"", "none"}), "none"]

    def line(self, point: Point, panel: Sequence[Point], telling: Sequence[str] = ()) -> str:
        """Legend text of a line, such as "rope + yarn* (trained at 512)".

        It is what of the method differs in the panel, * for an untested pair, and in brackets what
        else tells the line apart.
        """
        renamed = [self.labels[name] for name in _whole_names(point) if name in self.labels]
        if renamed:
            text = renamed[0]
        else:
            text = " + ".join(self.labels.get(part, part) for part in self._parts(point, panel))
        if point.untested:
            text += "*"
        same_method = [other for other in panel if other.method == point.method]
        has_other_methods = len(same_method) < len(panel)
        details = [
            self.value(column, getattr(point, column))
            for column in telling
            if has_several(same_method, column)
        ]
        if point.source and has_several(panel, "source"):
            details.append(self.source(point.source))
        lines_are_lengths = list(telling) == [TOKENS] and not has_other_methods
        # The heading of such a panel names the one method.
        if not renamed and len(details) == 1 and lines_are_lengths:
            return details[0]
        if details:
            text += f" ({', '.join(details)})"
        return shortened(text)

    def _parts(self, point: Point, panel: Sequence[Point]) -> list[str]:
        """Parts of a method worth naming; not the encoding where all lines extend the same one."""
        # a figure of one encoding names its lines alike in all panels
        lines = panel if has_several(self.points, "encoding") else self.points
        extended = any(line.extension != "none" for line in lines)
        one_encoding = extended and not has_several(lines, "encoding")
        parts = [] if one_encoding else [point.encoding]
        if point.extension != "none":
            parts.append(point.extension)
        elif one_encoding:
            parts.append("no extension")
        if point.scale_attention != "none":
            parts.append(point.scale_attention)
        return parts

    def source(self, source: str | None) -> str | None:
        stem = (source or "").removesuffix(".csv")
        return self.labels.get(source, self.labels.get(stem, source))

    def value(self, name: str, value: Any) -> str:
        """Value of a column as it stands in headings and in names, such as "trained at 512"."""
        is_missing = value is None or value != value  # nan is not itself
        text = "none" if is_missing else str(value)
        if name == "source":
            return self.source(text)
        if name == "setting":
            # Settings are long, and the first part that differs names one.
            parts = text.split(", ")
            text = next((part for part in parts if part not in self.common_setting), text)
        if text in self.labels:
            return self.labels[text]
        if name == "train_len":
            return f"trained at {text}"
        if name == TOKENS:
            return f"{text} tokens"
        if name == "extension" and text == "none":
            return "no extension"
        # A number says nothing without the name of its column.
        return text if name == "extension" or isinstance(value, str) else f"{name} {text}"


def _whole_names(point: Point) -> list[str]:
    """Names of a whole line: A|B|C, and A|B for one without a scale."""
    names = [point.typed_method]
    if point.scale_attention == "none":
        names.append(f"{point.encoding}|{point.extension}")
    return names


def telling_columns(points: Sequence[Point], group: Callable[[Point], Hashable]) -> list[str]:
    """Columns of TELLING_COLUMNS that tell points of one group apart, each more than those before
    it.
    """
    columns: list[str] = []

    def count(names: Iterable[str]) -> int:
        keys = {(group(point), *(getattr(point, name, None) for name in names)) for point in points}
        return len(keys)

    for name in TELLING_COLUMNS:
        if count([*columns, name]) > count(columns):
            columns.append(name)
    return columns


class LineKey(NamedTuple):
    """Key that tells a line of a panel from the others; `telling`: values of some of
    TELLING_COLUMNS.
    """

    encoding: str
    extension: str
    source: str | None
    scale: str
    telling: tuple

    @property
    def look(self) -> tuple:
        """Part of the key that colour and dash show, for `pens_of_methods`; a marker shows the
        scale.
        """
        return (self.encoding, self.extension, self.source, *self.telling)


class MarkedLine(NamedTuple):
    """Marks of a line in the order of x, and its first point."""

    key: LineKey
    point: Point
    marks: list[Mark]


def marked_lines(points: Sequence[Point], mark: Callable[[Point], Mark | None]) -> list[MarkedLine]:
    """Lines of points; `mark` gives None for no value.

    Raises ConfigError for two values of a line at one place.
    """
    first: dict[LineKey, Point] = {}
    marks: dict[LineKey, dict[float, Mark]] = {}  # {line: {x: mark}}
    telling = telling_columns(points, lambda point: point.method)
    for point in points:
        values = tuple(getattr(point, name) for name in telling)
        key = LineKey(point.encoding, point.extension, point.source, point.scale_attention, values)
        first.setdefault(key, point)
        of_line = marks.setdefault(key, {})
        new = mark(point)
        if not new:
            continue
        if new.x in of_line:
            raise ConfigError(
                f"{point.typed_method} has several values at {new.x:g}: tell them apart by"
                " a column source, or choose among them."
            )
        of_line[new.x] = new
    return [
        MarkedLine(key, first[key], [by_x[x] for x in sorted(by_x)]) for key, by_x in marks.items()
    ]


def lines_of_methods(
    panel: Sequence[Point],
    figure: Sequence[Point],
    mark: Callable[[Point], Mark | None],
    names: LineNames | None = None,
) -> list[Line]:
    """Line of each method of a panel; looks are the same in all panels of the figure's points."""
    names = names or LineNames(figure)
    telling = telling_columns(panel, lambda point: point.method)  # what lines of a method differ in
    scales = list(dict.fromkeys(["none", *(point.scale_attention for point in figure)]))
    sources = list(dict.fromkeys(point.source for point in figure if not _is_foreign(point)))
    marked = marked_lines(panel, mark)
    measured = [point for point in figure if not _is_foreign(point)]
    drawn = dict.fromkeys(line.key.look for line in marked if not _is_foreign(line.point))
    pens = pens_of_methods(
        drawn, yaml_names(measured), dict.fromkeys(point.extension for point in measured)
    )
    pens_of_others = foreign_pens(
        dict.fromkeys(point.method for point in figure if _is_foreign(point))
    )
    # Where a hollow marker tells the scales apart, the marker's shape is that of the dash.
    markers_of_dashes = len(sources) == 1 and len(scales) <= 2
    # Only points by step of training have TOKENS.
    pens_of_lengths = pens_by_length(getattr(point, TOKENS, 0) for point in figure)
    drawn_methods = list(dict.fromkeys(line.point.method for line in marked))
    lines = []
    for key, point, marks in marked:
        if not marks:
            continue
        if _is_foreign(point):
            pen = pens_of_others[point.method]
        elif TOKENS in telling:  # lines are lengths, each with its colour
            tokens = key.telling[telling.index(TOKENS)]
            method = drawn_methods.index(point.method)
            pen = replace(pens_of_lengths[tokens], dash=DASHES[method % len(DASHES)])
        else:
            pen = replace(pens[key.look], hollow=key.scale != "none")
            if not markers_of_dashes:  # the marker tells scales and sources apart
                # The sum may repeat: colour or dash tell sources apart too, as part of the look.
                number = scales.index(key.scale) + sources.index(key.source)
                pen = replace(pen, marker=MARKERS[number % len(MARKERS)])
        name = names.line(point, panel, telling)
        lines.append(Line(name, marks, pen, band=isinstance(point, StepPoint)))
    return lines


def _is_foreign(point: Point) -> bool:
    """True for a loss of somebody else's CSV; scores of tasks are never."""
    return getattr(point, "foreign", False)
