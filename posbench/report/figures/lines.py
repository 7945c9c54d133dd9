"""The drawer: panels of lines with marks, 95 % intervals, and names at the ends of lines.

A figure says which lines stand in which panel and on which scales; sizes and looks are the same in
all. The margin right of a column of panels is as wide as its longest name."""

import functools
import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from posbench.report.figures.palette import Pen
from posbench.report.figures.style import GREY, Frame, note
from posbench.report.records import grouped

WIDTH, HEIGHT, LEFT, LEADER, BETWEEN, ABOVE, BELOW = 250, 240, 50, 14, 46, 24, 40  # points
SMALL, SMALLEST, LABEL, GAP, MOST = 7.2, 5.0, 8.2, 9.6, 4
OTHERS = "#cfcfcf"


@dataclass(frozen=True)
class Mark:
    """Value of a line at `x`, with the ends of its interval. A value of nan breaks the line."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    marker: str | None = None  # None: that of the line; "": none


def with_interval(x: float, value: float, half: float | None) -> Mark:
    """A value with both ends of its interval."""
    return Mark(x, value, value - half, value + half) if half else Mark(x, value)


@dataclass(frozen=True)
class Line:
    """Marks in the order of x, and the name at their end; "" for none."""

    name: str
    marks: Sequence[Mark]
    pen: Pen


@dataclass(frozen=True)
class Panel:
    """Lines in one pair of axes, which `scales` sets up before they are drawn.

    The marks of `others` are joined in grey behind them. `dodge`: octaves, by x or everywhere, over
    which all lines would stand side by side; only marks whose intervals overlap are moved, by that
    share of it. `beyond`: values above the top by x, {x: [(value, colour)]}, printed there, as
    differences if `signed`."""

    title: str
    lines: Sequence[Line]
    scales: Callable = lambda axes: None
    others: Sequence[Sequence[Mark]] = ()
    dodge: Mapping[float, float] | float = 0.0
    beyond: Mapping[float, list[tuple[float, str]]] = field(default_factory=dict)
    signed: bool = False
    trained: Sequence[float] = ()


def draw(
    title: str,
    rows: Sequence[Sequence[Panel | None]],
    caption: Sequence[str],
    wide: float = WIDTH,
    tall: float = HEIGHT,
):
    """Figure of rows of panels; None leaves a place empty."""
    panels = [panel for row in rows for panel in row if panel]
    room = gutters(rows)
    tall = max([tall, *(1.3 * sum(gaps(line.name for line in panel.lines)) for panel in panels)])
    above = [headroom(row) for row in rows]
    across = LEFT + len(room) * (wide + BETWEEN) - BETWEEN + sum(room)
    frame = Frame(title, across, sum(above) + len(rows) * (tall + BELOW))
    for index, row in enumerate(rows):
        for column, panel in enumerate(row):
            if panel is None:
                continue
            left, top = (
                LEFT + column * (wide + BETWEEN) + sum(room[:column]),
                sum(above[: index + 1]) + index * (tall + BELOW),
            )
            axes = frame.axes(left, top, wide, tall)
            panel.scales(axes)
            _fill(axes, panel)
            axes.set_title(
                panel.title, fontsize=9.5, loc="left", pad=6 + stack(panel.beyond), color="#222222"
            )
    frame.caption(caption, up=4)
    return frame.figure


def names_at_the_end(row: Sequence[Panel]) -> list[Panel]:
    """A row of panels whose lines have names in the last one alone, if it has all lines of the
    others.
    """
    *others, last = row
    known = {(line.name, line.pen) for line in last.lines}
    if all((line.name, line.pen) in known for panel in others for line in panel.lines):
        others = [
            replace(panel, lines=[replace(line, name="") for line in panel.lines])
            for panel in others
        ]
    return [*others, last]


def gutters(rows: Sequence[Sequence[Panel | None]]) -> list[float]:
    """Points right of each column of panels for the names of its lines."""
    columns = ([panel for panel in column if panel] for column in itertools.zip_longest(*rows))
    return [
        LEADER + max((width(line.name) for panel in column for line in panel.lines), default=0.0)
        for column in columns
    ]


def headroom(row: Sequence[Panel | None]) -> float:
    """Points above a row of panels, for their titles and the values beyond them."""
    own = [panel for panel in row if panel]
    title = max(ABOVE + 11.5 * panel.title.count("\n") if panel.title else 10 for panel in own)
    return title + max(stack(panel.beyond) for panel in own)


def gaps(names: Iterable[str]) -> list[float]:
    """Height of each name that is written."""
    return [GAP * (name.count("\n") + 1) for name in names if name]


def _fill(axes, panel: Panel) -> None:
    """Draw the lines of a panel. A mark outside the y axis has neither its marker nor its
    interval.
    """
    bottom, top = (-math.inf, math.inf) if axes.get_autoscaley_on() else axes.get_ylim()
    for marks in panel.others:
        axes.plot(
            [mark.x for mark in marks],
            [mark.y for mark in marks],
            color=OTHERS,
            linewidth=0.8,
            zorder=1.5,
        )
    ends = []
    shifts = _shifts(panel)
    for index, line in enumerate(panel.lines):
        pen = line.pen
        at = [mark.x * 2 ** shifts.get((index, mark.x), 0.0) for mark in line.marks]
        inside = [
            (x, mark)
            for x, mark in zip(at, line.marks, strict=True)
            if not (mark.y < bottom or mark.y > top)
        ]
        shapes = [pen.marker if mark.marker is None else mark.marker for _, mark in inside]
        face = {
            "color": pen.colour,
            "markerfacecolor": "white" if pen.hollow else pen.colour,
            "markersize": 4.4,
            "markeredgewidth": 1.1,
        }
        whole = shapes[0] if len(inside) == len(at) and len(set(shapes)) == 1 else ""
        style = {
            "linestyle": pen.dash,
            "linewidth": 0.9 if pen.thin else 1.4,
            "zorder": 3 if pen.marker else 1,
        }
        axes.plot(at, [mark.y for mark in line.marks], marker=whole or "None", **style, **face)
        for shape in dict.fromkeys(shapes) if not whole else ():
            own = [
                (x, mark.y) for (x, mark), one in zip(inside, shapes, strict=True) if one == shape
            ]
            axes.plot(
                *zip(*own, strict=True), marker=shape or "None", linestyle="none", zorder=4, **face
            )
        bars = [
            (x, mark.low, mark.high)
            for x, mark in inside
            if mark.low is not None and mark.high is not None
        ]
        if bars:
            axes.vlines(
                *zip(*bars, strict=True), color=pen.colour, linewidth=2.4, alpha=0.35, zorder=2
            )
        if line.name and (end := _end(axes, at, line.marks)):
            ends.append((end[1], end[0], line.name, pen.colour))
    end_labels(axes, ends)
    carets(axes, panel.beyond, panel.signed)


def _shifts(panel: Panel) -> dict[tuple[int, float], float]:
    """Octaves by which a mark is moved, {(index of its line, x): octaves}, of those whose intervals
    overlap others at their x.
    """
    barred: dict[
        float, list[tuple[float, float, int]]
    ] = {}  # {x: [(low, high, index of the line)]}
    for index, line in enumerate(panel.lines):
        for mark in line.marks:
            if mark.low is not None and mark.high is not None:
                barred.setdefault(mark.x, []).append((mark.low, mark.high, index))
    shifts = {}
    for x, intervals in barred.items():
        octaves = panel.dodge if isinstance(panel.dodge, float) else panel.dodge[x]
        step = octaves / len(panel.lines)
        for indices in _overlapping(intervals):
            for rank, index in enumerate(indices):
                shifts[index, x] = (rank - (len(indices) - 1) / 2) * step
    return shifts


def _overlapping(intervals: Iterable[tuple[float, float, int]]) -> list[list[int]]:
    """Indices of intervals (low, high, index) in groups that overlap, such as [[0, 1], [2]] of (0,
    2, 1), (1, 3, 0), (4, 5, 2).
    """
    groups: list[list[int]] = []
    reach = -math.inf
    for low, high, index in sorted(intervals):
        if low > reach or not groups:
            groups.append([])
        groups[-1].append(index)
        reach = max(reach, high)
    return [sorted(group) for group in groups]


def _end(axes, at: Sequence[float], marks: Sequence[Mark]) -> tuple[float, float] | None:
    """Last place (x, y) of a line within the x axis, None of one that lies beside it."""
    known = [(x, mark.y) for x, mark in zip(at, marks, strict=True) if not math.isnan(mark.y)]
    left, right = axes.get_xlim()
    if known[-1][0] < left or known[0][0] > right:
        return None
    seen = [one for one in known if one[0] <= right]
    if seen == known:
        return known[-1]
    (a, b), (c, d), (edge, _) = axes.transScale.transform(
        [seen[-1], known[len(seen)], (right, 1.0)]
    )
    return tuple(axes.transScale.inverted().transform((edge, b + (d - b) * (edge - a) / (c - a))))


@functools.cache
def width(text: str, size: float = LABEL, weight: str = "normal") -> float:
    """Width of a text, or of its longest line, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    lines = [line for line in text.split("\n") if line.strip()]
    return max(
        (
            TextPath((0, 0), line, size=size, prop=FontProperties(weight=weight)).get_extents().x1
            for line in lines
        ),
        default=0.0,
    )


def spread(
    wanted: list[float], gap: float | Sequence[float], low: float, high: float
) -> list[float]:
    """Positions within [low, high], each as near to the wanted one as the others allow (least
    squares).

    They are at least `gap` apart, or half of the gaps of both neighbours. Neighbours that would
    overlap are pooled and centred on their mean. If `high - low` is too small, the gaps shrink."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    own = [gap] * len(wanted) if isinstance(gap, float) else [gap[index] for index in order]
    offsets = [
        0.0,
        *itertools.accumulate((below + above) / 2 for below, above in itertools.pairwise(own)),
    ]
    shrunk = min(1.0, (high - low) / (offsets[-1] or 1.0))
    offsets = [offset * shrunk for offset in offsets]
    blocks: list[tuple[float, int]] = []  # sum of (wanted - offset), members
    for offset, index in zip(offsets, order, strict=False):
        total, members = wanted[index] - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / members:
            before, others = blocks.pop()
            total, members = before + total, others + members
        blocks.append((total, members))
    last = high - offsets[-1]
    starts = [
        min(max(total / members, low), last) for total, members in blocks for _ in range(members)
    ]
    placed = {
        index: start + offset for index, start, offset in zip(order, starts, offsets, strict=False)
    }
    return [placed[index] for index in range(len(wanted))]


def beyond_top(
    lines: Sequence[Line], top: float, places: Container[float]
) -> dict[float, list[tuple[float, str]]]:
    """Values above the top of an axis at these places, as `Panel.beyond` has them."""
    above = [
        (mark.x, (mark.y, line.pen.colour))
        for line in lines
        for mark in line.marks
        if mark.y > top and mark.x in places
    ]
    return {x: [value for _, value in own] for x, own in grouped(above, lambda one: one[0]).items()}


def stack(clipped: dict[int, list]) -> float:
    """Height in points that `carets` takes above the axes."""
    tallest = max(
        (len(values) if len(values) <= MOST else 2 for values in clipped.values()), default=0
    )
    return 5 * (tallest > 0) + (SMALL + 1.3) * tallest


def carets(axes, clipped: dict[float, list[tuple[float, str]]], signed: bool) -> None:
    """Mark values beyond the top edge, {x: [(value, colour)]}, and print them above; of more than
    MOST the number and the largest.

    Texts that would touch their neighbours' are smaller, and where SMALLEST does not do, only every
    second or third x has some."""
    texts, over = {}, axes.get_xaxis_transform()
    for x, values in clipped.items():
        values = sorted(values)
        few = len(values) <= MOST
        axes.plot(
            [x],
            [1.0],
            marker=6,
            markersize=6,
            color=values[0][1] if few else GREY,
            clip_on=False,
            zorder=5,
            transform=over,
        )
        above = [(short_number(value, signed), colour) for value, colour in values]
        texts[x] = above if few else [(f"to {above[-1][0]}", GREY), (f"{len(values)} here", GREY)]
    wide = axes.get_position().width * axes.figure.get_figwidth() * 72
    at = [wide * (axes.transScale + axes.transLimits).transform((x, 1.0))[0] for x in sorted(texts)]
    room = min((b - a for a, b in itertools.pairwise(at)), default=wide)
    across = max(
        (width(text, SMALL) + 2 for above in texts.values() for text, _ in above), default=1.0
    )
    size = min(SMALL, max(SMALLEST, SMALL * room / across))
    kept = sorted(texts)[:: -math.ceil(across * size / SMALL / room)]
    for x, above in texts.items():
        for rank, (text, colour) in enumerate(above if x in kept else ()):
            style = {
                "xycoords": over,
                "ha": "center",
                "va": "bottom",
                "fontsize": size,
                "color": colour,
            }
            note(axes, text, (x, 1.0), (0, 8 + rank * (SMALL + 1.3)), **style)


def short_number(value: float, signed: bool) -> str:
    """Text of a loss or a difference in few digits."""
    return f"{value:{'+' if signed else ''}.{2 if abs(value) < 10 else 0}f}"


def end_labels(axes, ends: list[tuple[float, int, str, str]]) -> None:
    """Write each line's text right of the axes, for (value, length, text, colour), in the order of
    the values and without overlap.
    """
    place, figure = axes.get_position(), axes.figure
    tall, wide = (
        place.height * figure.get_figheight() * 72,
        place.width * figure.get_figwidth() * 72,
    )
    bottom, top = axes.get_ylim()
    to_axes = (axes.transScale + axes.transLimits).transform
    starts = [to_axes((length, min(max(value, bottom), top))) for value, length, *_ in ends]
    nudged = [y * tall + 1e-3 * value for (_, y), (value, *_) in zip(starts, ends, strict=True)]
    places = spread(nudged, gaps(text for *_, text, _ in ends), 2.0, tall)
    for (x, y), put, (*_, text, colour) in zip(starts, places, ends, strict=True):
        line = {
            "color": colour,
            "linewidth": 0.7,
            "linestyle": (0, (1, 2)),
            "transform": axes.transAxes,
            "clip_on": False,
            "zorder": 2,
        }
        axes.plot([x, 1, 1 + 7 / wide], [y, y, put / tall], **line)
        style = {"xycoords": "axes fraction", "va": "center", "fontsize": LABEL, "color": colour}
        note(axes, text, (1 + 7 / wide, put / tall), (3, 0), **style)
