"""Loss over length in small panels on shared axes: encodings, then each encoding's extensions."""

import functools
import math
from collections.abc import Sequence

from posbench.report.figures.captions import (
    LINEAR,
    LINEAR_THEN_LOG,
    LOG,
    curve_caption,
    scales_line,
)
from posbench.report.figures.lines import (
    Line,
    Mark,
    Panel,
    draw_panels,
    in_rows,
    text_width,
    values_beyond_top,
)
from posbench.report.figures.method_lines import lines_of_methods, marked_lines, panel_groups
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import (
    BROKEN_FROM,
    FONT_SIZE,
    GREY,
    set_up_floor_y,
    set_up_octaves_x,
    write_note,
)
from posbench.report.figures.uncertainty import (
    BARS_TOO_WIDE,
    INTERVAL,
    NO_BARS,
    bars_hide_lines,
    mark_with_bar,
)
from posbench.report.records import CurvePoint, tick_lengths

MOST_MARKED_LENGTHS = 12  # lengths from which only those with a tick have a marker
FREE_SHARE_OF_EDGE = 0.2  # of the lower edge of a panel
LONG_NAME = 160  # points of a name from which two panels stand beside one another, not three


@report_figure("curve", "curve", "Loss by length")
def figure(curve: list[CurvePoint], title: str, bars: str = INTERVAL):
    """Figure of one section: differences if every finite loss has a floor, else losses."""
    relative = all(point.difference is not None or point.nll is None for point in curve)
    column = "difference" if relative else "nll"
    values = [getattr(point, column) for point in curve]
    edges = axis_limits([value for value in values if value is not None] or [0.0], relative)
    too_wide = bars == INTERVAL and bars_hide_lines(curve, column, edges[1] - edges[0])
    if too_wide:
        bars = NO_BARS
    lengths = sorted({point.length for point in curve})
    ticked = tick_lengths(lengths, curve[0].train_len)

    def mark(point: CurvePoint) -> Mark | None:
        with_marker = len(lengths) <= MOST_MARKED_LENGTHS or point.length in ticked
        marker = None if with_marker else ""  # None: that of the line; "": none
        return mark_with_bar(point, point.length, column, bars, marker)

    shown = panel_groups(curve)
    lines = [lines_of_methods(group.points, curve, mark) for group in shown]
    columns = _n_columns(lines)
    panels = []
    for group, lines_here in zip(shown, lines, strict=True):
        set_up_axes = functools.partial(
            _set_up,
            ticked=ticked,
            train_len=curve[0].train_len,
            edges=edges,
            relative=relative,
            first=not panels,
            left=len(panels) % columns == 0,
        )
        panels.append(
            Panel(
                group.heading,
                lines_here,
                set_up_axes,
                grey_lines=[line.marks for line in marked_lines(group.others, mark)],
                beyond_top=values_beyond_top(lines_here, edges[1], ticked),
                signed=relative,
            )
        )
    notes = curve_caption(
        curve, relative, scales_line(LOG, LINEAR_THEN_LOG if relative else LINEAR), bars
    )
    if too_wide:
        notes.append(BARS_TOO_WIDE)
    if any(group.others for group in shown):
        notes.append("Thin grey: the methods of the other panels of that name.")
    return draw_panels(title, in_rows(panels, columns), notes)


def _n_columns(lines: Sequence[Sequence[Line]]) -> int:
    """Panels beside one another, of panels with these lines."""
    widest = max((text_width(line.name) for of_panel in lines for line in of_panel), default=0)
    # Four panels stand two by two; long names beside panels leave no room for a third.
    if len(lines) == 4 or widest > LONG_NAME:
        return min(len(lines), 2)
    return min(len(lines), 3)


def _set_up(
    axes,
    ticked: Sequence[int],
    train_len: int,
    edges: tuple[float, float],
    relative: bool,
    first: bool,
    left: bool,
) -> None:
    """Set up the axes of a panel."""
    set_up_octaves_x(axes, ticked, train_len, "length at evaluation (tokens)")
    low = min(ticked[0], train_len)
    high = max(ticked[-1], train_len)
    margin = 1.06 if high > low else 1.12  # a single length stands in the middle
    axes.set_xlim(low / 1.12, high * margin)
    bottom, top = edges
    # The note on what lies below 0 leaves this part of the lower edge to the training length, which
    # is written above that note where it stands further right.
    is_left_of_note = high == low or (
        math.log(train_len / low) < FREE_SHARE_OF_EDGE * math.log(high / low)
    )
    up = 4 if is_left_of_note or not relative else 16
    style = {"fontsize": 7.5, "color": GREY}
    write_note(axes, f"trained at {train_len}", (train_len, bottom), (4, up), **style)
    if relative:
        set_up_floor_y(axes, bottom, top)
    axes.set_ylim(bottom, top)
    if left:
        name = "loss (nats/token)"
        if relative:
            name = f"loss minus the loss with exactly\n{train_len} tokens of context (nats/token)"
        axes.set_ylabel(name, fontsize=FONT_SIZE)
    if first and relative:
        style = {
            "xycoords": "axes fraction",
            "ha": "right",
            "fontsize": 7.5,
            "style": "italic",
            "color": "#00724f",
        }
        write_note(axes, "below 0: the longer context helps", (1, 0), (-3, 4), **style)


def axis_limits(values: list[float], relative: bool) -> tuple[float, float]:
    """Bottom and top of the y axis; cut if a few exploding values would flatten all the rest.

    A difference to the floor is drawn on a scale that is logarithmic beyond LINEAR_UP_TO and can
    show more. It is cut at BROKEN_FROM or at twice the upper quartile, whichever is higher. A plain
    loss is cut at twice the spread of the lower half."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if relative:
        # Zero has some room on both sides, whatever the values are.
        low = min(low, -0.02)
        high = max(high, 0.05)
        upper_quartile = ordered[len(ordered) * 3 // 4]
        # 1.6 and 1.25: the scale is logarithmic, so its margins are factors. 0.02: near zero it is
        # linear, so a factor is too little.
        return 1.6 * low - 0.02, min(1.25 * high, max(BROKEN_FROM, 2 * upper_quartile))
    median = ordered[(len(ordered) - 1) // 2]
    top = low + 2.0 * (median - low)
    if high <= low + 1.7 * (top - low):  # a cut saves less than 0.7 times what it would leave
        top = high
    margin = 0.07 * ((top - low) or 0.1)
    return low - margin, top + margin
