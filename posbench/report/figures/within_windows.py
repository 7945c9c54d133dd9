"""Figures of losses inside windows.

By context: the loss on the left, the gain of each doubling on the right. By position in long
windows: the loss on the left; on the right what each extension costs inside the training length, on
the same tokens. A point stands in the middle of its bin of positions."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from posbench.report.figures.captions import (
    LINEAR,
    LOG,
    as_sentences,
    curve_caption,
    data_line,
    joined_sentences,
    scales_line,
)
from posbench.report.figures.lines import Mark, Panel, draw_panels, mark_with_interval, short_number
from posbench.report.figures.method_lines import Group, lines_of_methods, marked_lines, panel_groups
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import EARLY_DIVISOR, GREY, set_up_octaves_x, write_note
from posbench.report.figures.uncertainty import (
    BARS_TOO_WIDE,
    INTERVAL,
    NO_BARS,
    SEED_LINES,
    bars_hide_lines,
    bars_line,
    interval_of,
    interval_words,
    mark_with_bar,
    value_by_seed,
)
from posbench.report.footnotes import contexts_words
from posbench.report.method_words import source_suffix
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    records_by_method,
    tick_lengths,
    two_seeds_note,
)
from posbench.report.tables import gain_cell

Reading = tuple[float | None, float | None]  # a value and half of its interval
Value = Callable[[ContextPoint | CurvePoint], Reading]
ROOM_ABOVE = 0.3  # nats/token


@report_figure("context", "context", "Loss by context")
def by_context(section: list[ContextPoint], title: str, bars: str = INTERVAL):
    """Figure of one section of losses by context."""
    panels = []
    cut = False
    # value(step): its mean, and half of its interval
    for heading, column, value in (
        ("Loss (nats/token)", "nll", _loss_reading),
        ("Gain from the doubling to c tokens (nats/token)", "doubling", _doubling_reading),
    ):
        points = [step for step in section if value(step)[0] is not None]
        if points:
            ends = edges_around([value(step) for step in points])
            mark = functools.partial(_context_mark, column=column, value=value, bars=bars)
            panels.append(_context_panel(heading, points, section, mark, ends))
            cut = cut or ends.cut
    return draw_panels(title, [panels], _context_caption(section, cut, bars)) if panels else None


def _context_mark(step: ContextPoint, column: str, value: Value, bars: str) -> Mark:
    """Mark of a step; bars of its loss are those of the difference to the training length."""
    loss, half = value(step)
    if bars == SEED_LINES:
        return Mark(step.context, loss, seeds=value_by_seed(step, column))
    return mark_with_interval(step.context, loss, half if bars == INTERVAL else None)


def _loss_reading(step: ContextPoint) -> Reading:
    return step.nll, step.half_width


def _doubling_reading(step: ContextPoint) -> Reading:
    return step.doubling, step.doubling_half_width


def _context_panel(
    heading: str,
    points: list[ContextPoint],
    section: list[ContextPoint],
    mark: Callable[[ContextPoint], Mark],
    ends: "Edges",
) -> Panel:
    """Panel of the steps of some methods; looks are those of the whole section."""
    train_len = section[0].train_len
    contexts = [step.context for step in points]

    def set_up_axes(axes) -> None:
        label = "c, tokens of context before every target"
        set_up_octaves_x(axes, tick_lengths(contexts, train_len), train_len, label)
        right = max(*contexts, train_len) * 1.25
        axes.set(xlim=(min(contexts) / 1.25, right), ylim=(ends.low, ends.high))
        style = {
            "xycoords": axes.get_xaxis_transform(),
            "ha": "right",
            "va": "top",
            "fontsize": 7.5,
            "color": GREY,
        }
        write_note(axes, f"trained at {train_len}", (train_len, 1), (-4, -2), **style)
        if ends.low < 0 < ends.high:
            axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    return Panel(heading, lines_of_methods(points, section, mark), set_up_axes)


class Edges(NamedTuple):
    """Bottom and top of a y axis, and True if they cut an interval."""

    low: float
    high: float
    cut: bool = False


def edges_around(values: Sequence[Reading]) -> Edges:
    """Edges around values with intervals; those of two seeds can be wider than everything else."""
    means = [mean for mean, _ in values]
    ends = [mean + sign * (half or 0.0) for mean, half in values for sign in (1, -1)]
    span = (max(means) - min(means)) or 0.1  # equal means have room around them
    # Bars widen the axis by at most a third of the means' span on either side.
    low = max(min(ends), min(means) - span / 3) - 0.05 * span
    high = min(max(ends), max(means) + span / 3) + 0.05 * span
    return Edges(low, high, cut=min(ends) < low or max(ends) > high)


def _context_caption(section: list[ContextPoint], cut: bool, bars: str) -> list[str]:
    """Lines of the caption; `cut`: an axis cuts some bars."""
    train_len = section[0].train_len
    lines = [data_line(section, contexts_words(section))]
    of_bars = bars_line(section, "doubling", bars)
    notes = [scales_line(LOG, LINEAR), of_bars]
    if bars == INTERVAL and interval_words(section, "doubling"):
        notes.append(f"On the left they are those of the difference to {train_len} tokens.")
        if cut:
            notes.append("Bars at an edge are cut.")
    lines.append(joined_sentences(*notes))
    gains = []
    for (encoding, *_, source), by_context in records_by_method(section).items():
        gains.append(f"{encoding}{source_suffix(source)} {gain_cell(by_context.get(train_len))}")
    lines += as_sentences(two_seeds_note(section))
    lines.append(
        f"G, the gain from the second half of the window ({train_len // 2} -> {train_len}):"
        f" {'; '.join(gains)}."
    )
    return lines


@dataclass(frozen=True)
class Column:
    """Column of panels: what of these points is drawn, between which edges."""

    heading: str
    name: str  # of the column of a CSV
    edges: Edges
    points: list[CurvePoint]
    notes_train_len: bool  # False: a line at zero instead


@report_figure("position", "position", "Loss by position")
def by_position(curve: list[CurvePoint], title: str, bars: str = INTERVAL):
    """Figure of a section of losses by position: a row for each of panel_groups, of the losses and
    of their change without an extension, if any is known."""
    ends = sorted({point.length for point in curve})
    train_len = curve[0].train_len
    # {end of a bin: its middle}
    middles = {end: math.sqrt((start + 1) * end) for start, end in itertools.pairwise([0, *ends])}
    # The steep fall at the first positions would flatten all the rest.
    curve = [point for point in curve if EARLY_DIVISOR * point.length >= train_len] or curve
    loss = Column("loss (nats/token)", "nll", _loss_edges(curve), curve, notes_train_len=True)
    columns = [loss]
    loss_bars = bars
    height = loss.edges.high - loss.edges.low
    if bars == INTERVAL and bars_hide_lines(loss.points, "nll", height):
        loss_bars = NO_BARS
    notes = curve_caption(curve, relative=False, scales=scales_line(LOG, LINEAR), bars=loss_bars)
    if loss_bars != bars:
        notes.append(BARS_TOO_WIDE)
    inside = [point for point in curve if point.change is not None and point.length <= train_len]
    if inside:
        columns.append(_change_column(inside, train_len))
        right = (
            "Right: the loss of each token minus its loss without an extension, up to the training"
            " length."
        )
        notes.append(joined_sentences(right, bars_line(inside, "change", bars)))
    bars_of_columns = {column.name: bars for column in columns} | {loss.name: loss_bars}
    if any(_has_intervals(column, bars_of_columns[column.name]) for column in columns):
        notes.append("Bars are cut at an edge.")
    rows = [
        [
            _position_panel(group, column, curve, middles, bars_of_columns[column.name])
            for column in columns
        ]
        for group in panel_groups(curve)
    ]
    return draw_panels(title, rows, notes)


def _has_intervals(column: Column, bars: str) -> bool:
    return bars == INTERVAL and any(interval_of(point, column.name) for point in column.points)


def _change_reading(point: CurvePoint) -> Reading:
    return point.change, point.change_half_width


def _change_column(points: list[CurvePoint], train_len: int) -> Column:
    ends = edges_around([(0.0, None), *map(_change_reading, points)])
    # a method that costs so much would flatten the others; its value follows its name
    if ends.high > 2 * ROOM_ABOVE:
        ends = ends._replace(high=ROOM_ABOVE)
    heading = f"minus no extension, up to {train_len}"
    return Column(heading, "change", ends, points, notes_train_len=False)


def _position_panel(
    group: Group,
    column: Column,
    curve: list[CurvePoint],
    middles: dict[int, float],
    bars: str,
) -> Panel | None:
    """Panel of the points of a group and a column; None if there is no such point."""
    points = [point for point in group.points if point in column.points]
    if not points:
        return None

    def mark(point: CurvePoint) -> Mark | None:
        if point not in column.points:
            return None
        return mark_with_bar(point, middles[point.length], column.name, bars)

    def set_up_axes(axes) -> None:
        """Octaves of positions; where the training ended in the column of losses, else zero."""
        train_len = curve[0].train_len
        lengths = [point.length for point in column.points]
        powers_of_two = {length for length in lengths if length & (length - 1) == 0}
        label = f"position in a window of {curve[0].window} tokens"
        ticked = tick_lengths(powers_of_two or lengths, train_len)
        set_up_octaves_x(axes, ticked, train_len, label)
        # Marks stand in the middles of bins, ticks at their ends, which are the lengths.
        left = min(middles[length] for length in lengths) / 1.1
        right = max(*lengths, train_len) * 1.02
        axes.set(xlim=(left, right), ylim=(column.edges.low, column.edges.high))
        if column.notes_train_len:
            style = {
                "xycoords": axes.get_xaxis_transform(),
                "ha": "right",
                "fontsize": 7.5,
                "color": GREY,
            }
            write_note(axes, f"trained at {train_len}", (train_len, 0), (-4, 4), **style)
        else:  # a column of differences
            axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    lines = []
    for line in lines_of_methods(group.points, curve, mark):
        # the last value of one that the axis cuts follows its name
        last = line.marks[-1].y
        if last > column.edges.high:
            line = replace(line, name=f"{line.name} {short_number(last, signed=False)}")
        lines.append(line)
    heading = f"{group.heading}, {column.heading}" if group.heading else column.heading
    others = [line.marks for line in marked_lines(group.others, mark)]
    return Panel(heading, lines, set_up_axes, others)


def _loss_edges(curve: list[CurvePoint]) -> Edges:
    """Edges of the axis of losses: those inside the training length, and above as much again.

    Above there is room for at least ROOM_ABOVE.
    """
    finite = [point for point in curve if point.nll is not None]
    losses = [point.nll for point in finite] or [0.0]
    inside = [point.nll for point in finite if point.length <= point.train_len] or losses
    span = max(inside) - min(inside)
    low = min(losses)
    high = min(max(losses), max(inside) + max(span, ROOM_ABOVE))
    margin = 0.05 * ((high - low) or 0.1)
    return Edges(low - margin, high + margin)
