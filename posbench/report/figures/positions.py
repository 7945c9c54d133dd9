"""Loss by position in long windows, on the left; on the right what each extension costs inside the training length, on the same tokens.

A row of panels for each panel of loss_curves. A point stands in the middle of its bin of positions.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from posbench.report.figures.annotations import GAP, caption, end_labels, name, number, width
from posbench.report.figures.context_loss import edges
from posbench.report.figures.lines import OTHERS
from posbench.report.figures.loss_curves import BELOW, LEADER, PANEL_HEIGHT, panels, pens
from posbench.report.figures.style import FONT, GREY, MARKERS, Frame, note, octaves
from posbench.report.points import Point, marked, methods, over_words

PANEL_WIDTH, LEFT, BETWEEN, ABOVE = 270, 48, 52, 26  # points
ASIDE = 0.14  # octaves over which intervals at one position stand side by side
ROOM = 0.3  # nats/token


@dataclass(frozen=True)
class Column:
    """Content of a column of panels: the number and half interval of a point, bottom and top of its axis, and its points."""

    heading: str
    value: Callable[[Point], float | None]
    half: Callable[[Point], float | None]
    edges: tuple[float, float]
    points: list[Point]


def figure(curve: list[Point], title: str):
    """Figure of one section."""
    ends, train_len = sorted({point.length for point in curve}), curve[0].train_len
    at = {end: math.sqrt((start + 1) * end) for start, end in itertools.pairwise([0, *ends])}
    # The first positions have a high loss in every model and would flatten the rest.
    curve = [point for point in curve if 8 * point.length >= train_len] or curve
    rows, columns = panels(curve), _columns(curve)
    labels = [name(next(iter(cell.values())), row.points) for row in rows for cell in methods(row.points).values()]
    gutter = LEADER + max(width(f"{text} 00.00") for text in labels)
    tall = max([PANEL_HEIGHT, *(1.3 * GAP * len(methods(row.points)) for row in rows)])
    across, down = PANEL_WIDTH + gutter + BETWEEN, ABOVE + tall + BELOW
    frame = Frame(title, LEFT + len(columns) * across - BETWEEN, len(rows) * down)
    for (line, row), (place, column) in itertools.product(enumerate(rows), enumerate(columns)):
        own, others = ([point for point in part if point in column.points] for part in (row.points, row.others))
        if not own:
            continue
        axes = frame.axes(LEFT + place * across, ABOVE + line * down, PANEL_WIDTH, tall)
        lengths = [point.length for point in column.points]
        octaves(axes, marked({n for n in lengths if n & (n - 1) == 0} or lengths), train_len)
        axes.set(xlim=(min(at[n] for n in lengths) / 1.1, max(*lengths, train_len) * 1.02), ylim=column.edges)
        axes.set_xlabel(f"position in a window of {curve[0].window} tokens", fontsize=FONT)
        axes.set_title(", ".join(filter(None, (row.heading, column.heading))), fontsize=9.5, loc="left", pad=7, color="#222222")
        if place == 0:
            style = {"xycoords": axes.get_xaxis_transform(), "ha": "right", "fontsize": 7.5, "color": GREY}
            note(axes, f"trained at {train_len}", (train_len, 0), (-4, 4), **style)
        else:
            axes.axhline(0, color="black", linewidth=0.9, zorder=1)
        for cell in methods(others).values():
            known = [(at[end], column.value(point)) for end, point in sorted(cell.items()) if column.value(point) is not None]
            axes.plot(*zip(*known, strict=True) if known else ([], []), color=OTHERS, linewidth=0.8, zorder=1.5)
        _lines(axes, own, row.points, column, pens(curve, rows)[line], at)
    frame.caption([*caption(curve, relative=False), *_said(columns)], up=4)
    return frame.figure


def _columns(curve: list[Point]) -> list[Column]:
    found = [Column("loss (nats/token)", lambda point: point.nll, lambda point: None, _edges(curve), curve)]
    inside = [point for point in curve if point.change is not None and point.length <= point.train_len]
    if inside:
        low, high, _ = edges([(0.0, None), *((point.change, point.change_half_width) for point in inside)])
        high = ROOM if high > 2 * ROOM else high  # a method that costs so much would flatten the others; its value follows its name
        heading = f"minus no extension, up to {curve[0].train_len}"
        found.append(Column(heading, lambda point: point.change, lambda point: point.change_half_width, (low, high), inside))
    return found


def _edges(curve: list[Point]) -> tuple[float, float]:
    """Bottom and top of the axis of losses: those inside the training length, and above them as much again, but at least ROOM."""
    known = [point.nll for point in curve if point.nll is not None] or [0.0]
    inside = [point.nll for point in curve if point.nll is not None and point.length <= point.train_len] or known
    span = max(inside) - min(inside)
    low, high = min(known), min(max(known), max(inside) + max(span, ROOM))
    margin = 0.05 * ((high - low) or 0.1)
    return low - margin, high + margin


def _lines(axes, own: list[Point], panel: list[Point], column: Column, drawn_with: dict, at: dict[int, float]) -> None:
    """Draw each method's line with its intervals, and its name at the end; behind the name a last value that the axis cuts."""
    ends, cells, (_, top) = [], methods(own), column.edges
    scales = list(dict.fromkeys(["none", *(point.scale_attention for point in panel)]))
    for index, ((encoding, extension, scale, _), cell) in enumerate(cells.items()):
        aside = 2 ** (ASIDE * ((index + 0.5) / len(cells) - 0.5)) if any(map(column.half, own)) else 1.0
        known = [(at[end] * aside, column.value(point), point) for end, point in sorted(cell.items()) if column.value(point) is not None]
        if not known:
            continue
        colour, dash = drawn_with[encoding, extension]
        marker = MARKERS[scales.index(scale) % len(MARKERS)]
        style = {"linestyle": dash, "marker": marker, "markersize": 3.2, "linewidth": 1.4, "color": colour, "zorder": 3}
        axes.plot([x for x, *_ in known], [value for _, value, _ in known], **style)
        bars = [(x, value - half, value + half) for x, value, point in known if (half := column.half(point))]
        if bars:
            axes.vlines(*zip(*bars, strict=True), color=colour, linewidth=1.8, alpha=0.35, zorder=2)
        x, last, point = known[-1]
        ends.append((last, x, name(point, panel) + (f" {number(last, signed=False)}" if last > top else ""), colour))
    end_labels(axes, ends)


def _said(columns: list[Column]) -> list[str]:
    """Lines on the right panel: what is subtracted, and the units of its intervals."""
    if len(columns) == 1:
        return []
    over = sorted({point.over for point in columns[1].points if point.change_half_width is not None})
    bars = f" Bars: 95 % t interval, {' or '.join(map(over_words, over))}; at an edge they may go on." if over else ""
    return [f"Right: the loss of each token minus its loss without an extension, up to the training length.{bars}"]
