"""A figure of one's own from a frame: its choices are words of posbench.plot and scripts/plot.py.

A value is read in nats, as a loss or as a difference to a reference, with the ends of its interval;
then all three take the unit."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.quantities import first_of
from posbench.report.figures.captions import (
    as_sentences,
    data_line,
    joined_sentences,
    line_name,
    shortened,
)
from posbench.report.figures.lines import Mark, Panel, without_names
from posbench.report.figures.method_lines import (
    TOKENS,
    Group,
    LineNames,
    Point,
    lines_of_methods,
    marked_lines,
    panel_groups,
    telling_columns,
)
from posbench.report.figures.paper import SIZES, AxesSpec, darken, draw_at_size, y_ends
from posbench.report.figures.style import EARLY_DIVISOR
from posbench.report.figures.uncertainty import (
    BARS,
    BARS_TOO_WIDE,
    COMPARE_PAIRED,
    INTERVAL,
    NO_BARS,
    SEED_LINES,
    TOO_WIDE,
    UNPAIRED_COLUMNS,
    bars_hide_lines,
    bars_line,
    interval_of,
    share_texts,
    value_by_seed,
    value_of_any_seed,
)
from posbench.report.figures.validations import late_loss_range
from posbench.report.footnotes import questions_words, targets_words
from posbench.report.frame import records_of_frame
from posbench.report.method_words import source_suffix
from posbench.report.records import (
    CurvePoint,
    Score,
    StepPoint,
    grouped,
    range_text,
    two_seeds_note,
)
from posbench.report.table_formats import METHOD_COLUMNS
from posbench.statistics.over_seeds import SeedValue, over_seeds

if TYPE_CHECKING:
    import pandas

# {word for y: name of the axis}
Y_NAMES = {
    "nats": "loss (nats/token)",
    "ppl": "perplexity",
    "bpb": "bits/byte",
    "accuracy": "accuracy",
}
# {word for y that is nats minus a reference: that reference}
REFERENCE_OF_Y = {"difference": "floor", "change": "change"}
# {reference: its name}; other references are lines
REFERENCE_NAMES = {"none": "", "floor": "floor", "change": "no extension"}
ANY_SOURCE = object()  # any source
X_NAMES = {
    "length": "length at evaluation (tokens)",
    "multiple": "length / training length",
    "position": "position (tokens)",
    "step": "step of training",
}
STYLES = ("paper", "dark")
MOST_SECTION_LINES = 4  # lines of a caption on what was measured
MOST_LEFT_OUT = 8  # names of lines that state nothing
MOST_LISTED = 20  # words that an error lists
MOST_MARKED_PLACES = 12  # places on x; with more, lines have no markers
HIDDEN_BARS = "hidden"  # intervals that are not drawn, since they would hide the lines
SHARED_SEEDS = "shared seeds"  # basis of a difference to a line of other trainings
MOST_EXPONENT = 500.0  # nats whose perplexity is drawn as it is


@dataclass(frozen=True)
class Options:
    """Choices of a figure, as posbench.plot describes them; None takes what fits the frame."""

    y: str | None = None
    x: str | None = None
    lines: str | Sequence[str] | None = None
    panel: str | Sequence[str] | None = None
    log: str | Sequence[str] | None = None
    size: str = "page"
    style: str = "paper"
    labels: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    reference: str | None = None
    xlim: tuple[float | None, float | None] = (None, None)
    ylim: tuple[float | None, float | None] = (None, None)
    bars: str | None = None


class Quantities(NamedTuple):
    """Drawn values: a unit of Y_NAMES, minus a reference (REFERENCE_NAMES, or a line), by an x of
    X_NAMES.
    """

    unit: str
    reference: str
    x: str

    @property
    def reference_is_line(self) -> bool:
        """True if the reference is the name of a line."""
        return self.reference not in REFERENCE_NAMES

    @property
    def level(self) -> float | None:
        """Value of a line that equals the reference; None without one."""
        if self.reference == "none":
            return None
        return 1.0 if self.unit == "ppl" else 0.0

    @property
    def name(self) -> str:
        """Name of the y axis, such as "loss minus floor (nats/token)"."""
        head, bracket, rest = Y_NAMES[self.unit].partition(" (")
        reference = REFERENCE_NAMES.get(self.reference, shortened(self.reference))
        if reference:
            head += f" / that of {reference}" if self.unit == "ppl" else f" minus {reference}"
        return head + bracket + rest


def draw_figure(
    frame: "pandas.DataFrame", options: Options
) -> tuple[object, Callable[[], list[str]]]:
    """Figure, and the function that gives the lines of its caption."""
    import matplotlib

    checked_choice("size", options.size, SIZES)
    checked_choice("style", options.style, STYLES)
    checked_choice("bars", options.bars or INTERVAL, BARS)
    frame = _complete_frame(frame)
    # Without windows all rows are by length: False for each, since every one has a train_len.
    by_position = frame.window.notna() if "window" in frame else frame.train_len.isna()
    drawn = _drawn_quantities(frame, by_position, options)
    table = frame[by_position if drawn.x == "position" else ~by_position]
    table = table[table.depth.isna()] if "depth" in table else table  # of tasks all depths together
    if table.empty:
        other = "length" if drawn.x == "position" else "position"
        way_out = f": choose x={other}" if len(frame) else ", since the frame is empty"
        raise ConfigError(f"Nothing here was measured by {drawn.x}{way_out}.")
    table = _with_marks(table, drawn, options.bars or INTERVAL)
    table = selected_rows(table, options.lines)
    table = _without_first_positions(table, drawn, options)
    shown = table[table.mark.notna()]
    if shown.empty:
        raise ConfigError(
            f"None of these lines states {drawn.name}: choose another y or reference."
        )
    bars = options.bars or _usual_bars(shown)
    if bars == HIDDEN_BARS:
        table["mark"] = [mark and replace(mark, low=None, high=None) for mark in table.mark]
        shown = table[table.mark.notna()]
    _check_xlim(shown, options.xlim)
    names = LineNames(list(table.point), options.labels)
    for word in options.labels:
        checked_choice("labels", word, names.known())
    columns = split_words(options.panel)
    for name in columns if columns != ["none"] else ():
        checked_choice("panel", name, frame.columns, ", or none")
    panels = _panels(shown, columns, names, drawn.x)
    axes = _axes_spec(shown, drawn, options)
    # The caption has that sentence; a figure has no room for it.
    of_bars = [line.removesuffix(COMPARE_PAIRED).strip() for line in _bars_lines(shown, bars)]
    footnotes = [joined_sentences(axes.scales, *of_bars)]
    # print dollar signs in names as they are
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = draw_at_size(panels, axes, options.size, options.title, footnotes)
    if options.style == "dark":
        darken(figure)
    # The caption names what has no mark, too.
    return figure, functools.partial(_caption_lines, table, drawn, names, axes.scales, bars)


def _complete_frame(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Frame with all columns of METHOD_COLUMNS and an index of its own.

    Raises ConfigError for a frame of rows, or without a needed column.
    """
    if "run_id" in frame:
        raise ConfigError(
            "These are the rows of single trainings, as posbench.rows gives them: plot"
            " posbench.frame(paths), their means."
        )
    for name in ("encoding", "length", "train_len"):
        if name not in frame:
            raise ConfigError(
                f"The frame has no column {name}: posbench.frame(paths) and posbench.frame(paths,"
                " 'accuracy') have all."
            )
    method = {name: frame.get(name, "none") for name in METHOD_COLUMNS}
    return frame.assign(**method).reset_index(drop=True)  # joined frames repeat their index


def _with_marks(table: "pandas.DataFrame", drawn: Quantities, bars: str) -> "pandas.DataFrame":
    """Table with columns point, x, other (the reference line's point that is subtracted, or None),
    basis and mark (None for no value).

    The basis is the column that a bar is the interval of, or SHARED_SEEDS for the difference of two
    points over the seeds that both have."""
    points = records_of_frame(table)
    table = table.assign(point=points, x=_x_places(points, drawn.x), other=None)
    if drawn.reference_is_line:
        table["other"] = _reference_points(table, drawn.reference)
    table["basis"] = [
        _basis_column(point, drawn, other)
        for point, other in zip(table.point, table.other, strict=True)
    ]
    rows = zip(table.point, table.x, table.basis, table.other, strict=True)
    table["mark"] = [
        _mark_of_point(point, x, drawn, basis, other, bars) for point, x, basis, other in rows
    ]
    return table


def _without_first_positions(
    table: "pandas.DataFrame", drawn: Quantities, options: Options
) -> "pandas.DataFrame":
    """Rows but those of the first positions, which would flatten the rest, unless xlim is given."""
    if drawn.x != "position" or options.xlim != (None, None):
        return table
    # The length of a point by position is its position. Where all are early, all are drawn.
    late = [EARLY_DIVISOR * point.length >= point.train_len for point in table.point]
    return table[late] if any(late) else table


def _check_xlim(shown: "pandas.DataFrame", xlim: tuple[float | None, float | None]) -> None:
    """Raise ConfigError if no value lies within both ends."""
    low = -math.inf if xlim[0] is None else xlim[0]
    high = math.inf if xlim[1] is None else xlim[1]
    if not shown.x.between(low, high).any():
        raise ConfigError(
            f"xlim={low:g},{high:g} holds no value of those at {shown.x.min():g} to"
            f" {shown.x.max():g}: choose other ends."
        )


def checked_choice(name: str, value: object, choices: Iterable[str], more: str = "") -> str:
    """The value. Raises ConfigError, which lists the choices, for one that is not among them."""
    choices = list(dict.fromkeys(choices))
    if value not in choices:
        near = did_you_mean(value, choices)
        listed_choices = first_of(choices, MOST_LISTED)
        raise ConfigError(
            f"{name}={value} is unknown here{near}: choose from {listed_choices}{more}."
        )
    return str(value)


def split_words(words: str | Sequence[str] | None) -> list[str]:
    """Words between commas, but not at those within brackets.

    >>> split_words("rope, longrope short=[1,2]")
    ['rope', 'longrope short=[1,2]']
    """
    # A comma within brackets has a closing one behind it, and no opening one before that.
    parts = re.split(r",(?![^\[{(]*[\]})])", words) if isinstance(words, str) else words or ()
    return [part.strip() for part in parts if part.strip()]


def _drawn_quantities(
    frame: "pandas.DataFrame", by_position: "pandas.Series", options: Options
) -> Quantities:
    """Unit, reference and x of a figure of a frame; `by_position`: True for rows by position."""
    by_step = "step" in frame
    usual_x = "position" if len(frame) and by_position.all() else "length"
    if by_step:
        usual_x = "step"
    x = checked_choice("x", options.x or usual_x, X_NAMES)
    if by_step != (x == "step"):
        raise ConfigError(
            f"x={x} does not fit this frame: x=step needs posbench.frame(paths, 'validation'), and"
            " that needs x=step."
        )
    usual_y = _usual_y(frame, by_position, x, options.reference)
    y = checked_choice("y", options.y or usual_y, [*Y_NAMES, *REFERENCE_OF_Y])
    unit = y
    reference = options.reference or "none"
    if y in REFERENCE_OF_Y:
        unit = "nats"
        reference = REFERENCE_OF_Y[y]
        if options.reference not in (None, reference):
            raise ConfigError(
                f"y={y} has the reference {reference}: type y=nats reference={options.reference}."
            )
    if "task" in frame and unit != "accuracy":
        raise ConfigError(f"y={y} is not measured in tasks: choose y=accuracy.")
    if unit == "accuracy" and reference in ("floor", "change"):
        raise ConfigError(
            f"reference={reference} is a loss, and y is an accuracy: name a line, such as"
            " reference=rope."
        )
    return Quantities(unit, reference, x)


def _usual_y(
    frame: "pandas.DataFrame", by_position: "pandas.Series", x: str, reference: str | None
) -> str:
    """Word for y where none is chosen: differences if every finite loss by length has one."""
    if "task" in frame:
        return "accuracy"
    if x == "position" or reference is not None or "difference" not in frame:
        return "nats"
    by_length = frame[~by_position]
    all_have = (by_length.difference.notna() | by_length.nll.isna()).all()
    return "difference" if all_have else "nats"


def _x_places(points: Sequence[Point], x: str) -> list[float]:
    """Places of points on x. A bin of positions stands in its middle."""
    if x == "length":
        return [float(point.length) for point in points]
    if x == "step":
        return [float(point.step) for point in points]
    if x == "multiple":
        return [point.length / point.train_len for point in points]
    ends: dict[tuple, set[int]] = {}  # {(section, window): ends of its bins, and 0}
    for point in points:
        ends.setdefault((point.section, point.window), {0}).add(point.length)
    middles = []
    for point in points:
        start = max(end for end in ends[point.section, point.window] if end < point.length)
        middles.append(math.sqrt((start + 1) * point.length))
    return middles


def selected_rows(
    table: "pandas.DataFrame", lines: str | Sequence[str] | None
) -> "pandas.DataFrame":
    """Rows of the lines that are named, in the order of the names.

    A name is A|B|C for encoding, extension and scale; parts that it leaves out are any. Raises
    ConfigError for a name that no line has.
    """
    import pandas

    line_names = split_words(lines)
    if not line_names:
        return table
    parts = []
    for name in line_names:
        rows = table[_matching_rows(table, name)]
        if rows.empty:
            keys = dict.fromkeys(zip(*(table[column] for column in METHOD_COLUMNS), strict=True))
            # raises, since a name among these has rows
            checked_choice(
                "lines", name, ["|".join(key[:count]) for count in (1, 2, 3) for key in keys]
            )
        parts.append(rows)
    rows = pandas.concat(parts)
    return rows[~rows.index.duplicated()]


def _matching_rows(table: "pandas.DataFrame", line: str, rest: str = "*") -> "pandas.Series":
    """True for the rows of a line; `rest` stands for the parts that its name leaves out."""
    words = [word.strip() for word in re.split(r"\||\s\+\s", line)]
    words = ["none" if word == "no extension" else word for word in words]
    # A name of more parts than a method has fits no row.
    mask = table.encoding.notna() & (len(words) <= len(METHOD_COLUMNS))
    for name, word in zip(METHOD_COLUMNS, words + [rest] * len(METHOD_COLUMNS), strict=False):
        mask &= (table[name] == word) | (word == "*")
    return mask


def _reference_points(table: "pandas.DataFrame", line: str) -> list[Point | None]:
    """For each row the point of a line at its place, of its section and task.

    It is from the row's source if the line is there, else from any.
    """

    def place(row, source: object) -> tuple:
        return row.point.section, getattr(row.point, "task", None), row.x, source

    rows = table[_matching_rows(table, line, rest="none")]
    if rows.empty:  # an unknown name raises, with those that there are
        methods = (point.typed_method for point in table.point)
        checked_choice("reference", line, methods, ", or floor, change, none")
    points: dict[tuple, Point] = {}  # the first of each place
    for row in rows.itertuples():
        points.setdefault(place(row, row.point.source), row.point)
        points.setdefault(place(row, ANY_SOURCE), row.point)
    return [
        points.get(place(row, row.point.source), points.get(place(row, ANY_SOURCE)))
        for row in table.itertuples()
    ]


class Reading(NamedTuple):
    """Value of a point, the ends of its interval and {seed: value}; None or {} for unknown ones."""

    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: Mapping[object, float] = {}


def _basis_column(point: Point, drawn: Quantities, other: Point | None) -> str:
    """Column of a point that is drawn, or SHARED_SEEDS for its difference to a line of other
    trainings; `other` is subtracted.
    """
    if drawn.reference == "change":
        return "change"
    if drawn.reference == "floor":
        return "difference"
    column = "accuracy" if drawn.unit == "accuracy" else "nll"
    if not drawn.reference_is_line:
        return column
    # the same trainings on the same targets
    is_paired = (
        column == "nll"
        and other is not None
        and other.method == (point.encoding, "none", "none", point.source)
        and point.change is not None
    )
    return "change" if is_paired else SHARED_SEEDS


def _mark_of_point(
    point: Point, x: float, drawn: Quantities, basis: str, other: Point | None, bars: str
) -> Mark | None:
    """Mark of a point at its place, None where it states no value; `other` is subtracted."""
    reading = (
        _difference_reading(point, drawn, other)
        if basis == SHARED_SEEDS
        else _reading(point, basis)
    )
    if reading.value is None:
        return None
    if drawn.unit == "bpb" and not (point.bpb and point.nll):  # its bytes are not known
        return None
    value = _in_unit(reading.value, drawn, point)
    if bars == SEED_LINES:
        seeds = {seed: _in_unit(nats, drawn, point) for seed, nats in reading.seeds.items()}
        return Mark(x, value, seeds=seeds)
    if bars == NO_BARS or reading.low is None or reading.high is None:
        return Mark(x, value)
    low = _in_unit(reading.low, drawn, point)
    high = _in_unit(reading.high, drawn, point)
    return Mark(x, value, low, high)


def _in_unit(nats: float, drawn: Quantities, point: Point) -> float:
    """Value in the unit that is drawn, of one in nats; an accuracy is as it is."""
    if drawn.unit == "ppl":
        return math.exp(min(nats, MOST_EXPONENT))
    if drawn.unit == "bpb":
        return nats * point.bpb / point.nll
    return float(nats)


def _reading(point: Point, column: str) -> Reading:
    """Column of a point: an accuracy, or a loss or difference in nats."""
    value = getattr(point, column)
    if value is None or (isinstance(point, Score) and not point.shown):
        return Reading(None)
    ends = interval_of(point, column) or (None, None)
    return Reading(value, *ends, value_by_seed(point, column))


def _difference_reading(point: Point, drawn: Quantities, other: Point | None) -> Reading:
    """Accuracy or loss of a point minus that of another line, over the seeds that both have.

    One such seed gives no interval. Without any it is the difference of means."""
    column = "accuracy" if drawn.unit == "accuracy" else "nll"
    if other is None:
        return Reading(None)
    value = _reading(point, column).value
    subtracted = _reading(other, column).value
    if value is None or subtracted is None:
        return Reading(None)
    of_point = value_of_any_seed(point, column)
    of_other = value_of_any_seed(other, column)
    seeds = {seed: of_point[seed] - of_other[seed] for seed in of_point if seed in of_other}
    if not seeds:
        return Reading(value - subtracted)
    if len(seeds) == 1:
        (difference,) = seeds.values()
        return Reading(difference)
    # terms=None: a frame has no sums over documents.
    result = over_seeds([SeedValue(difference, terms=None) for difference in seeds.values()])
    return Reading(result.estimate.value, *result.interval(), seeds)


def _panels(
    table: "pandas.DataFrame", columns: Sequence[str], names: LineNames, x: str
) -> list[Panel]:
    """Panels of the rows of a table: one for each value of `columns`.

    Without columns, they are as in a report's figures for each part of what was measured: by step
    of training one for each method, whose lines are lengths.
    """
    points = list(table.point)
    marks = {id(point): mark for point, mark in zip(points, table["mark"], strict=True)}

    def mark(point: Point, shape: str | None = None) -> Mark:
        return replace(marks[id(point)], marker=shape)

    dividing = list(columns) or telling_columns(points, lambda point: point.source)
    by_method = x == "step" and not columns
    if by_method:
        # TOKENS tells the lines of such a panel apart, which are lengths.
        dividing = [*(name for name in dividing if name != TOKENS), *METHOD_COLUMNS]
    if columns == ["none"]:  # one panel for all
        dividing = []
    is_divided = by_method or bool(columns)  # into parts that are a panel each
    parts = table.groupby(dividing, sort=False, dropna=False) if dividing else [((), table)]
    panels = []
    for key, rows in parts:
        part = list(rows.point)
        headings = list(map(names.value, dividing, key))
        if by_method:  # the last columns are those of the method, which has one name
            headings = [*headings[: -len(METHOD_COLUMNS)], line_name(*key[-len(METHOD_COLUMNS) :])]
        for group in [Group("", part)] if is_divided else panel_groups(part):
            heading = ", ".join(text for text in (*headings, group.heading) if text)
            # None is the marker of the line's pen, "" none: many would cover the line.
            few = len({marks[id(point)].x for point in group.points}) <= MOST_MARKED_PLACES
            marked = functools.partial(mark, shape=None if few else "")
            lines = lines_of_methods(group.points, points, marked, names)
            others = [line.marks for line in marked_lines(group.others, mark)]
            train_lens = sorted({float(point.train_len) for point in group.points})
            if x == "multiple":
                train_lens = [1.0]
            elif x == "step":
                train_lens = []
            panel = Panel(heading, lines, grey_lines=others, train_lens=train_lens)
            if [line.name for line in lines] == [heading]:  # the heading names the one line
                panel = without_names(panel)
            panels.append(panel)
    return panels


def _axes_spec(table: "pandas.DataFrame", drawn: Quantities, options: Options) -> AxesSpec:
    """Axes of all panels. Raises ConfigError for a logarithmic one that ends at 0 or below."""
    level = drawn.level  # 0 for differences, 1 for ratios, None without a reference
    both_signs = level == 0 and drawn.unit != "accuracy"
    log = {"x", "y"} if both_signs else {"x"}
    if drawn.x == "step":  # steps of training lie evenly
        log -= {"x"}
    if options.log is not None:
        log = {
            checked_choice("log", word, "xy") for word in split_words(options.log) if word != "none"
        }
    if drawn.unit == "accuracy" and level is None:
        low, high = -0.03, 1.04  # around all shares, with room for their markers
    else:
        symlog = both_signs and "y" in log
        low, high = y_ends(list(table.mark), level, symlog, log="y" in log)
        if drawn.x == "step" and level is None and "y" not in log:
            low, high = late_loss_range((mark.x, mark.y) for mark in table.mark)
    if options.ylim[0] is not None:
        low = options.ylim[0]
    if options.ylim[1] is not None:
        high = options.ylim[1]
    # An axis of both signs is linear around zero, and may end below it.
    for name, end in (("x", options.xlim[0]), ("y", None if both_signs else low)):
        if name in log and end is not None and end <= 0:
            raise ConfigError(
                f"log={name} cannot show {end:g}: choose {name}lim above 0, or leave {name} out of"
                " log."
            )
    x_name = X_NAMES[drawn.x]
    windows = {getattr(point, "window", None) for point in table.point}
    if drawn.x == "position" and len(windows) == 1:
        x_name = f"position in a window of {windows.pop()} tokens"
    return AxesSpec(
        x=x_name,
        y=drawn.name,
        log=frozenset(log),
        ylim=(low, high),
        level=level,
        both_signs=both_signs,
        xlim=options.xlim,
        multiple=drawn.x == "multiple",
    )


def _caption_lines(
    table: "pandas.DataFrame", drawn: Quantities, names: LineNames, scales: str, bars: str
) -> list[str]:
    """Lines below a figure: what was measured, what bars are, and lines that do not state it."""
    lines = _section_lines(table, names)
    if drawn.reference == "floor":
        train_lens = sorted({point.train_len for point in table.point})
        lengths = " or ".join(map(str, train_lens))
        lines.append(
            f"Floor: the loss of the same targets with exactly {lengths} tokens of context."
        )
    elif drawn.reference_is_line:
        lines.append(
            f"Minus {drawn.reference}: paired on the same targets where that is the same trainings"
            " without an extension, else over the seeds that both lines have, or of their means"
            " where they share none."
        )
    shown = table[table.mark.notna()]
    lines.append(joined_sentences(scales, *_bars_lines(shown, bars)))
    lost = _left_out_line(table)
    if lost:
        lines.append(lost)
    barred = []
    for point, mark in zip(shown.point, shown["mark"], strict=True):
        if mark.low is not None:  # an interval may end at 0
            barred.append(point)
    measured = [point for point in barred if isinstance(point, CurvePoint) and not point.foreign]
    lines += as_sentences(two_seeds_note(measured))
    if any(point.untested for point in table.point):
        lines.append("* a pair its authors have not tested.")
    return lines


def _usual_bars(shown: "pandas.DataFrame") -> str:
    """Bars of a figure without a choice: HIDDEN_BARS for intervals that would hide the lines."""
    for basis, rows in shown.groupby("basis", sort=False):
        if basis not in UNPAIRED_COLUMNS:  # intervals of paired differences hide no lines
            continue
        points = list(rows.point)
        values = [getattr(point, basis) for point in points]
        if bars_hide_lines(points, basis, max(values) - min(values)):
            return HIDDEN_BARS
    return INTERVAL


def _bars_lines(shown: "pandas.DataFrame", bars: str) -> list[str]:
    """Sentences on the bars of drawn points, one for each basis."""
    if bars == HIDDEN_BARS:
        return [BARS_TOO_WIDE if share_texts(shown.point) else TOO_WIDE]
    lines = []
    for basis, rows in shown.groupby("basis", sort=False):
        points = list(rows.point)
        if basis == SHARED_SEEDS:
            lines.append(_shared_seeds_line(points, list(rows["other"]), bars))
        else:
            lines.append(bars_line(points, basis, bars))
    return [line for line in lines if line]


def _shared_seeds_line(points: Sequence[Point], others: Sequence[Point], bars: str) -> str:
    """Sentence on the bars of differences to a line of other trainings; "" for NO_BARS."""
    column = "accuracy" if isinstance(points[0], Score) else "nll"
    counts = []
    for point, other in zip(points, others, strict=True):
        of_other = value_by_seed(other, column)
        n_shared = len([seed for seed in value_by_seed(point, column) if seed in of_other])
        # the reference itself has no interval
        if n_shared > 1 and point is not other:
            counts.append(n_shared)
    if bars == NO_BARS:
        return ""
    if not counts:
        return "No bars: the lines have fewer than two seeds in common."
    if bars == SEED_LINES:
        return f"Thin lines: the {range_text(counts)} seeds that both lines have."
    return (
        f"Bars: 95 % t interval of the difference over the {range_text(counts)} seeds that both"
        " lines have; compare.py has it over documents as well."
    )


def _section_lines(table: "pandas.DataFrame", names: LineNames) -> list[str]:
    """Line of each source and section on what was measured; of more than MOST_SECTION_LINES the
    number.
    """
    lines: dict[str, None] = {}
    sections = grouped(table.point, lambda point: (point.source, point.section))
    for (source, _), points in sections.items():
        line = data_line(points, _measured_words(points)) + "."
        lines[f"{names.source(source)}: {line}" if source else line] = None
    shown = list(lines)[:MOST_SECTION_LINES]
    if len(lines) > MOST_SECTION_LINES:
        shown.append(
            f"And {len(lines) - MOST_SECTION_LINES} more of other data, lengths or settings."
        )
    return shown


def _measured_words(points: Sequence[Point]) -> str:
    """Words for what the points of a section are means over."""
    first = points[0]
    if isinstance(first, StepPoint):
        return f"the same {first.n_targets} targets at every length and step"
    return questions_words(points) if isinstance(first, Score) else targets_words(first)


def _left_out_line(table: "pandas.DataFrame") -> str:
    """Line on the methods that have no mark; "" if all have one."""
    points = table[table.mark.isna()].point
    lost = list(dict.fromkeys(point.typed_method + source_suffix(point.source) for point in points))
    if not lost:
        return ""
    return f"Left out where it is not known: {first_of(lost, MOST_LEFT_OUT)}."
