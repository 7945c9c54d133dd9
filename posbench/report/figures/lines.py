"""The drawer: panels of lines with marks, 95 % intervals, and names at the ends of lines.

A figure says which lines stand in which panel and on which scales; sizes and looks are the same in
all. The margin right of a column of panels is as wide as its longest name."""

import functools
import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from posbench.report.figures.palette import Pen
from posbench.report.figures.style import GREY, Frame, write_note

# points: a panel, and the space around it; LEADER_WIDTH joins the end of a line with its name
PANEL_WIDTH, PANEL_HEIGHT = 250, 240
LEFT_MARGIN, SPACE_ABOVE, SPACE_BELOW = 50, 24, 40
SPACE_BETWEEN = 46
LEADER_WIDTH = 14

# points: fonts of names of lines and of values beyond the axis, and the height of a line of text
NAME_FONT = 8.2
TITLE_FONT = 9.5
CARET_FONT, LEAST_CARET_FONT = 7.2, 5.0
NAME_HEIGHT = 9.6
CARET_LINE_HEIGHT = CARET_FONT + 1.3
TITLE_LINE_HEIGHT = 11.5

MOST_CARET_VALUES = 4  # values beyond the axis that are printed at one place
OTHERS_GREY = "#cfcfcf"
# Bars that overlap stand side by side: points from one to the next, octaves that all of them may
# take (64 stands between 62 and 66), and the share of the way to the next x.
BAR_DISTANCE = 2.2
MOST_OCTAVES_ASIDE = 0.1
GAP_SHARE_FOR_BARS = 0.6
BAR_WIDTH, SEED_LINE_WIDTH = 2.0, 0.6  # points: widths of bars and of lines of seeds
Span = tuple[float, float, int]  # low and high of an interval, and the index of its line


@dataclass(frozen=True)
class Mark:
    """Value of a line at `x`, with the ends of its interval or its `seeds`, {seed: value}.

    A value of nan breaks the line."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    marker: str | None = None  # None: that of the line; "": none
    seeds: Mapping[object, float] = field(default_factory=dict)


def mark_with_interval(x: float, value: float, half: float | None) -> Mark:
    """A value with both ends of its interval."""
    return Mark(x, value, value - half, value + half) if half else Mark(x, value)


@dataclass(frozen=True)
class Line:
    """Marks in the order of x, and the name at their end; "" for none.

    A `band` joins the ends of all intervals, which are then no bars.
    """

    name: str
    marks: Sequence[Mark]
    pen: Pen
    band: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines in one pair of axes, which `set_up_axes` makes ready before they are drawn.

    The marks of `grey_lines` are joined in grey behind them. `beyond_top`: values above the top by
    x, {x: [(value, colour)]}, printed there, as differences if `signed`."""

    title: str
    lines: Sequence[Line]
    set_up_axes: Callable = lambda axes: None
    grey_lines: Sequence[Sequence[Mark]] = ()
    beyond_top: Mapping[float, list[tuple[float, str]]] = field(default_factory=dict)
    signed: bool = False
    train_lens: Sequence[float] = ()


def draw_panels(
    title: str,
    rows: Sequence[Sequence[Panel | None]],
    caption: Sequence[str],
    wide: float = PANEL_WIDTH,
    tall: float = PANEL_HEIGHT,
    room: float = 0.0,
):
    """Figure of rows of panels; None leaves a place empty.

    The caption stands below the figure. `room`: points left free at the lower edge."""
    panels = [panel for row in rows for panel in row if panel]
    names_height = max(sum(name_heights(line.name for line in panel.lines)) for panel in panels)
    tall = max(tall, 1.3 * names_height)  # names stand one below another, and need some distance
    name_widths = name_column_widths(rows)
    # Heights of the titles and values above each row, summed up to it; those of the panels between
    # are added in `top`.
    row_tops = list(itertools.accumulate(height_above_row(row) for row in rows))
    across = (
        LEFT_MARGIN + len(name_widths) * (wide + SPACE_BETWEEN) - SPACE_BETWEEN + sum(name_widths)
    )
    frame = Frame(title, across, row_tops[-1] + len(rows) * (tall + SPACE_BELOW) + room)
    for index, row in enumerate(rows):
        top = row_tops[index] + index * (tall + SPACE_BELOW)
        for column, panel in enumerate(row):
            if panel is None:
                continue
            left = LEFT_MARGIN + column * (wide + SPACE_BETWEEN) + sum(name_widths[:column])
            axes = frame.axes(left, top, wide, tall)
            panel.set_up_axes(axes)
            _draw_lines(axes, panel)
            above = 6 + carets_height(panel.beyond_top)  # points from the axes to the title
            axes.set_title(panel.title, fontsize=TITLE_FONT, loc="left", pad=above, color="#222222")
    frame.caption(caption, up=4)
    return frame.figure


def with_names_in_last_panel(row: Sequence[Panel]) -> list[Panel]:
    """Row of panels with names in the last one alone, if that has all lines of the others."""
    *others, last = row
    last_lines = {(line.name, line.pen) for line in last.lines}
    if all((line.name, line.pen) in last_lines for panel in others for line in panel.lines):
        others = [without_names(panel) for panel in others]
    return [*others, last]


def without_names(panel: Panel) -> Panel:
    """Panel whose lines have no names at their ends."""
    return replace(panel, lines=[replace(line, name="") for line in panel.lines])


def in_rows(panels: Sequence[Panel], columns: int) -> list[list[Panel]]:
    """Panels in rows of so many columns; the last row may be shorter."""
    return [list(panels[start : start + columns]) for start in range(0, len(panels), columns)]


def name_column_widths(rows: Sequence[Sequence[Panel | None]]) -> list[float]:
    """Points right of each column of panels for the names of its lines."""
    columns = itertools.zip_longest(*rows)
    names = [[line.name for panel in column if panel for line in panel.lines] for column in columns]
    return [LEADER_WIDTH + max(map(text_width, of_column), default=0.0) for of_column in names]


def height_above_row(row: Sequence[Panel | None]) -> float:
    """Points above a row of panels, for their titles and the values beyond them."""
    panels = [panel for panel in row if panel]
    titles = max(_title_height(panel.title) for panel in panels)
    return titles + max(carets_height(panel.beyond_top) for panel in panels)


def _title_height(title: str) -> float:
    if not title:
        return 10
    return SPACE_ABOVE + TITLE_LINE_HEIGHT * title.count("\n")


def name_heights(names: Iterable[str]) -> list[float]:
    """Height of each name that is written."""
    return [NAME_HEIGHT * (name.count("\n") + 1) for name in names if name]


def _draw_lines(axes, panel: Panel) -> None:
    """Draw a panel's lines. Marks outside the y axis have neither marker nor interval."""
    bottom, top = (-math.inf, math.inf) if axes.get_autoscaley_on() else axes.get_ylim()
    for marks in panel.grey_lines:
        xs = [mark.x for mark in marks]
        axes.plot(xs, [mark.y for mark in marks], color=OTHERS_GREY, linewidth=0.8, zorder=1.5)
    ends = []
    shifts = _shifts_of_bars(axes, panel)
    for index, line in enumerate(panel.lines):
        xs = [mark.x * 2 ** shifts.get((index, mark.x), 0.0) for mark in line.marks]
        inside = [
            (x, mark)
            for x, mark in zip(xs, line.marks, strict=True)
            if not (mark.y < bottom or mark.y > top)  # nan too: a gap of the line
        ]
        _draw_seeds(axes, line)
        _draw_line(axes, line, xs, inside)
        draw_spans = _draw_band if line.band else _draw_intervals
        draw_spans(axes, line.pen.colour, inside)
        end = _visible_end(axes, xs, line.marks) if line.name else None
        if end:
            x, y = end
            ends.append((y, x, line.name, line.pen.colour))
    write_names_at_ends(axes, ends)
    draw_carets(axes, panel.beyond_top, panel.signed)


def _draw_line(axes, line: Line, xs: Sequence[float], inside: Sequence[tuple[float, Mark]]) -> None:
    """Draw a line through all its marks, and markers on those inside the axes.

    `xs`: places of all marks, some moved aside; `inside`: (place, mark) of those with a marker."""
    pen = line.pen
    face = {
        "color": pen.colour,
        "markerfacecolor": "white" if pen.hollow else pen.colour,
        "markersize": 4.4,
        "markeredgewidth": 1.1,
    }
    style = {
        "linestyle": pen.dash,
        "linewidth": 0.9 if pen.thin else 1.4,
        "zorder": 3 if pen.marker else 1,  # lines without markers lie behind the others
    }
    ys = [mark.y for mark in line.marks]
    shapes = [pen.marker if mark.marker is None else mark.marker for _, mark in inside]
    # The one marker of all marks, if all are inside: then the line is drawn with it.
    common = shapes[0] if len(inside) == len(xs) and len(set(shapes)) == 1 else ""
    axes.plot(xs, ys, marker=common or "None", **style, **face)
    if common:
        return
    for shape in dict.fromkeys(shapes):
        places = [
            (x, mark.y)
            for (x, mark), mark_shape in zip(inside, shapes, strict=True)
            if mark_shape == shape
        ]
        marker = shape or "None"
        axes.plot(*zip(*places, strict=True), marker=marker, linestyle="none", zorder=4, **face)


def _draw_intervals(axes, colour: str, marks: Sequence[tuple[float, Mark]]) -> None:
    """Draw the intervals of (x, mark), of marks that have one."""
    bars = [
        (x, mark.low, mark.high)
        for x, mark in marks
        if mark.low is not None and mark.high is not None
    ]
    if bars:
        axes.vlines(
            *zip(*bars, strict=True), color=colour, linewidth=BAR_WIDTH, alpha=0.4, zorder=2
        )


def _draw_band(axes, colour: str, marks: Sequence[tuple[float, Mark]]) -> None:
    spans = [(x, mark.low, mark.high) for x, mark in marks if None not in (mark.low, mark.high)]
    if spans:
        style = {"color": colour, "alpha": 0.18, "linewidth": 0, "zorder": 2}
        axes.fill_between(*zip(*spans, strict=True), **style)


def _draw_seeds(axes, line: Line) -> None:
    """Draw a thin line for each seed of a line, through the marks that have it."""
    seeds = dict.fromkeys(seed for mark in line.marks for seed in mark.seeds)
    for seed in seeds:
        places = [(mark.x, mark.seeds[seed]) for mark in line.marks if seed in mark.seeds]
        style = {
            "color": line.pen.colour,
            "linewidth": SEED_LINE_WIDTH,
            "alpha": 0.5,
            "zorder": 1.8,
        }
        alone = {"marker": "_", "markersize": 5} if len(places) == 1 else {}
        axes.plot(*zip(*places, strict=True), **style, **alone)


def _shifts_of_bars(axes, panel: Panel) -> dict[tuple[int, float], float]:
    """{(index of a line, x): octaves by which its mark moves} where intervals overlap.

    Marks keep their places on an axis that is not logarithmic."""
    if axes.get_xscale() != "log":
        return {}
    spans: dict[float, list[Span]] = {}  # {x: intervals there}
    for index, line in enumerate(panel.lines):
        for mark in line.marks:
            if mark.low is not None and mark.high is not None and not line.band:
                spans.setdefault(mark.x, []).append((mark.low, mark.high, index))
    low, high = axes.get_xlim()
    octaves_of_point = math.log2(high / low) / size_in_points(axes)[0]
    rooms = _octaves_for_bars({mark.x for line in panel.lines for mark in line.marks})
    shifts = {}
    for x, intervals in spans.items():
        for indices in _overlapping_groups(intervals):
            step = min(BAR_DISTANCE * octaves_of_point, rooms[x] / max(1, len(indices) - 1))
            for rank, index in enumerate(indices):
                shifts[index, x] = (rank - (len(indices) - 1) / 2) * step
    return shifts


def _octaves_for_bars(xs: Iterable[float]) -> dict[float, float]:
    """{x: octaves that the marks there may take side by side}."""
    places = sorted(xs)
    gaps = [math.log2(after / before) for before, after in itertools.pairwise(places)]
    octaves = {}
    # The first place has no gap on its left, the last none on its right.
    for x, left, right in zip(places, [math.inf, *gaps], [*gaps, math.inf], strict=True):
        octaves[x] = min(MOST_OCTAVES_ASIDE, GAP_SHARE_FOR_BARS * min(left, right))
    return octaves


def _overlapping_groups(intervals: Iterable[Span]) -> list[list[int]]:
    """Indices of intervals, in groups that overlap.

    >>> _overlapping_groups([(0, 2, 1), (1, 3, 0), (4, 5, 2)])
    [[0, 1], [2]]
    """
    groups: list[list[int]] = []
    reach = -math.inf
    for low, high, index in sorted(intervals):
        if low > reach or not groups:
            groups.append([])
        groups[-1].append(index)
        reach = max(reach, high)
    return [sorted(group) for group in groups]


def _visible_end(axes, xs: Sequence[float], marks: Sequence[Mark]) -> tuple[float, float] | None:
    """Last place (x, y) of a line within the x axis, None of one that lies beside it."""
    places = [(x, mark.y) for x, mark in zip(xs, marks, strict=True) if not math.isnan(mark.y)]
    low, high = axes.get_xlim()
    if places[-1][0] < low or places[0][0] > high:
        return None
    inside = [place for place in places if place[0] <= high]
    if inside == places:
        return places[-1]
    # The line ends where it crosses the right edge; the edge's y is not used.
    corners = [inside[-1], places[len(inside)], (high, 1.0)]
    (x, y), (next_x, next_y), (edge, _) = axes.transScale.transform(corners)
    at_edge = y + (next_y - y) * (edge - x) / (next_x - x)
    return tuple(axes.transScale.inverted().transform((edge, at_edge)))


@functools.cache
def text_width(text: str, size: float = NAME_FONT, weight: str = "normal") -> float:
    """Width of a text, or of its longest line, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(weight=weight)
    lines = [line for line in text.split("\n") if line.strip()]  # a blank path has no extents
    paths = [TextPath((0, 0), line, size=size, prop=font) for line in lines]
    # The right end, from the origin on, has the space left of the first letter too.
    return max((path.get_extents().x1 for path in paths), default=0.0)


def spread_apart(
    targets: list[float], gap: float | Sequence[float], low: float, high: float
) -> list[float]:
    """Positions in [low, high], each as near to its target as the others allow (least squares).

    They are at least `gap` apart, or half of the gaps of both neighbours. Neighbours that would
    overlap are pooled and centred on their mean. If `high - low` is too small, the gaps shrink.

    >>> spread_apart([5.0, 1.0, 5.0], 2.0, 0.0, 10.0)
    [4.0, 1.0, 6.0]
    """
    if not targets:
        return []
    order = sorted(range(len(targets)), key=lambda index: targets[index])
    if isinstance(gap, float):  # one gap for all, else the height of each
        heights = [gap] * len(targets)
    else:
        heights = [gap[index] for index in order]
    steps = [(below + above) / 2 for below, above in itertools.pairwise(heights)]
    offsets = [0.0, *itertools.accumulate(steps)]
    shrunk = min(1.0, (high - low) / (offsets[-1] or 1.0))  # 1.0: a single target has no gap
    offsets = [offset * shrunk for offset in offsets]
    blocks: list[tuple[float, int]] = []  # sum of (target - offset), members
    for offset, index in zip(offsets, order, strict=True):
        total = targets[index] - offset
        members = 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / members:
            total_before, members_before = blocks.pop()
            total = total_before + total
            members += members_before
        blocks.append((total, members))
    last = high - offsets[-1]
    starts: list[float] = []
    for total, members in blocks:
        starts += [min(max(total / members, low), last)] * members
    positions = [0.0] * len(targets)
    for index, start, offset in zip(order, starts, offsets, strict=True):
        positions[index] = start + offset
    return positions


def values_beyond_top(
    lines: Sequence[Line], top: float, places: Container[float]
) -> dict[float, list[tuple[float, str]]]:
    """Values above the top of an axis at these places, as `Panel.beyond_top` has them."""
    beyond: dict[float, list[tuple[float, str]]] = {}
    for line in lines:
        for mark in line.marks:
            if mark.y > top and mark.x in places:
                beyond.setdefault(mark.x, []).append((mark.y, line.pen.colour))
    return beyond


def carets_height(beyond: Mapping[float, list]) -> float:
    """Height in points that `draw_carets` takes above the axes."""
    heights = [len(values) if len(values) <= MOST_CARET_VALUES else 2 for values in beyond.values()]
    tallest = max(heights, default=0)
    return 5 + CARET_LINE_HEIGHT * tallest if tallest else 0.0


def draw_carets(axes, beyond: Mapping[float, list[tuple[float, str]]], signed: bool) -> None:
    """Mark values beyond the top edge, {x: [(value, colour)]}, and print them above.

    Of more than MOST_CARET_VALUES the number and the largest are printed. Texts that would touch
    their neighbours' are smaller, and where LEAST_CARET_FONT does not do, only every second or
    third x has some.
    """
    texts = {}  # {x: [(text, colour)]}
    over = axes.get_xaxis_transform()
    shape = 6  # matplotlib's CARETUP
    caret = {"marker": shape, "markersize": 6, "clip_on": False, "zorder": 5, "transform": over}
    for x, unsorted in beyond.items():
        values = sorted(unsorted)
        texts[x] = [(short_number(value, signed), colour) for value, colour in values]
        colour = values[0][1]  # one caret for all has that of the lowest, whose text is next to it
        if len(values) > MOST_CARET_VALUES:
            largest = texts[x][-1][0]
            texts[x] = [(f"to {largest}", GREY), (f"{len(values)} here", GREY)]
            colour = GREY
        axes.plot([x], [1.0], color=colour, **caret)
    size, written = _caret_texts(axes, texts)
    style = {"xycoords": over, "ha": "center", "va": "bottom", "fontsize": size}
    for x in written:
        for rank, (text, colour) in enumerate(texts[x]):
            write_note(
                axes, text, (x, 1.0), (0, 8 + rank * CARET_LINE_HEIGHT), color=colour, **style
            )


def _caret_texts(axes, texts: Mapping[float, list[tuple[str, str]]]) -> tuple[float, list[float]]:
    """(font size, places with texts) where texts {x: [(text, colour)]} do not touch."""
    axes_width, _ = size_in_points(axes)
    to_axes = (axes.transScale + axes.transLimits).transform
    places = [axes_width * to_axes((x, 1.0))[0] for x in sorted(texts)]
    room = min((right - left for left, right in itertools.pairwise(places)), default=axes_width)
    # 2 points keep neighbours apart
    widths = [text_width(text, CARET_FONT) + 2 for lines in texts.values() for text, _ in lines]
    widest = max(widths, default=1.0)
    size = min(CARET_FONT, max(LEAST_CARET_FONT, CARET_FONT * room / widest))
    width = widest * size / CARET_FONT  # of the widest text at that size
    step = math.ceil(width / room)  # every step-th x has texts
    from_right = sorted(texts)[::-step]  # the last x always has its text
    return size, [x for x in texts if x in from_right]


def short_number(value: float, signed: bool) -> str:
    """Text of a loss or a difference in few digits.

    >>> short_number(0.1234, signed=True), short_number(12.34, signed=False)
    ('+0.12', '12')
    """
    sign = "+" if signed else ""
    digits = 2 if abs(value) < 10 else 0
    return f"{value:{sign}.{digits}f}"


def size_in_points(axes) -> tuple[float, float]:
    """Width and height of axes in points."""
    place = axes.get_position()
    figure = axes.figure
    return place.width * figure.get_figwidth() * 72, place.height * figure.get_figheight() * 72


def write_names_at_ends(axes, ends: list[tuple[float, int, str, str]]) -> None:
    """Write the names of lines (y at the end, x there, name, colour) right of the axes.

    They are in the order of the values and do not overlap.
    """
    axes_width, axes_height = size_in_points(axes)
    bottom, top = axes.get_ylim()
    to_axes = (axes.transScale + axes.transLimits).transform
    starts = [to_axes((x, min(max(value, bottom), top))) for value, x, *_ in ends]
    # of equal heights, the larger value is above
    targets = [
        y * axes_height + 1e-3 * value for (_, y), (value, *_) in zip(starts, ends, strict=True)
    ]
    gaps = name_heights(name for *_, name, _ in ends)
    heights = spread_apart(targets, gaps, low=2.0, high=axes_height)  # in points
    leader = {
        "linewidth": 0.7,
        "linestyle": (0, (1, 2)),
        "transform": axes.transAxes,
        "clip_on": False,
        "zorder": 2,
    }
    right = 1 + LEADER_WIDTH / 2 / axes_width
    for (x, y), height, (*_, name, colour) in zip(starts, heights, ends, strict=True):
        at_name = height / axes_height
        axes.plot([x, 1, right], [y, y, at_name], color=colour, **leader)
        style = {
            "xycoords": "axes fraction",
            "va": "center",
            "fontsize": NAME_FONT,
            "color": colour,
        }
        write_note(axes, name, (right, at_name), (3, 0), **style)
