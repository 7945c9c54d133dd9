"""Loss over length as small multiples: encodings without extensions, then a panel for each
encoding's extensions, on shared axes.
"""

import functools
import itertools
import math
from collections.abc import Iterable

from posbench.report.figures.captions import caption
from posbench.report.figures.lines import WIDTH, Mark, Panel, beyond_top, draw, width
from posbench.report.figures.method_lines import groups, lines_of, marks_of
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import BROKEN, FONT, GREY, floor_axis, note, octaves
from posbench.report.records import CurvePoint, methods, tick_lengths

BAR, BESIDE = 2.6, 0.2  # points for each interval at one length; octaves at most for all of them


@report_figure("curve", "curve", "Loss by length")
def figure(curve: list[CurvePoint], title: str):
    """Figure of one section."""
    shown = groups(curve)
    relative = all(
        point.difference is not None or point.nll is None for point in curve
    )  # every finite loss has a floor
    known = [
        value
        for value in (point.difference if relative else point.nll for point in curve)
        if value is not None
    ]
    edges = limits(known or [0.0], relative)
    lengths, ticked = (
        sorted({point.length for point in curve}),
        tick_lengths(point.length for point in curve),
    )
    span = math.log2(lengths[-1] / lengths[0]) + 0.5
    barred = [
        len(methods(group.points)) * any(bar(point, relative) for point in group.points)
        for group in shown
    ]
    spread = [
        dodge((point.length for point in group.points), n, span)
        for group, n in zip(shown, barred, strict=True)
    ]
    room = max(found.get(length, 0.0) for found in spread for length in (lengths[0], lengths[-1]))

    def mark(point: CurvePoint) -> Mark | None:
        value = point.difference if relative else point.nll
        shape = None if len(lengths) <= 12 or point.length in ticked else ""
        return (
            None
            if value is None
            else Mark(point.length, value, *(bar(point, relative) or (None, None)), shape)
        )

    drawn = [lines_of(group.points, curve, mark) for group in shown]
    widest = max((width(line.name) for lines in drawn for line in lines), default=0)
    columns = min(len(shown), 2 if len(shown) == 4 or widest > 160 else 3)
    (bottom, top), train_len = edges, curve[0].train_len

    def scales(axes, first: bool, left: bool) -> None:
        octaves(axes, ticked, train_len, "length at evaluation (tokens)")
        low, high = min(ticked[0], train_len), max(ticked[-1], train_len)
        aside = 2 ** (0.55 * room)
        axes.set_xlim(low / max(1.12, aside), high * max(1.06 if high > low else 1.12, aside))
        up = (
            4 if train_len**2 < low * high or not relative else 16
        )  # the right half has a line on what lies below 0
        note(
            axes, f"trained at {train_len}", (train_len, bottom), (4, up), fontsize=7.5, color=GREY
        )
        if relative:
            floor_axis(axes, bottom, top)
        axes.set_ylim(bottom, top)
        if left:
            reference = (
                f"loss minus the loss with exactly\n{train_len} tokens of context (nats/token)"
            )
            axes.set_ylabel(reference if relative else "loss (nats/token)", fontsize=FONT)
        if first and relative:
            style = {
                "xycoords": "axes fraction",
                "ha": "right",
                "fontsize": 7.5,
                "style": "italic",
                "color": "#00724f",
            }
            note(axes, "below 0: the longer context helps", (1, 0), (-3, 4), **style)

    panels = []
    for group, wide, lines in zip(shown, spread, drawn, strict=True):
        placed = functools.partial(scales, first=not panels, left=len(panels) % columns == 0)
        others = [marks for *_, marks in marks_of(group.others, mark)]
        panels.append(
            Panel(
                group.heading, lines, placed, others, wide, beyond_top(lines, top, ticked), relative
            )
        )
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    grey = ["Thin grey: the methods of the other panels of that name."] * any(
        group.others for group in shown
    )
    return draw(title, rows, caption(curve, relative) + grey)


def dodge(
    lengths: Iterable[float], lines: int, span: float, wide: float = WIDTH
) -> dict[float, float]:
    """Octaves, by length, over which so many lines with intervals stand side by side; `span`:
    octaves of an x axis `wide` points wide.
    """
    lengths = sorted({*lengths})
    gaps = [math.log2(after / before) for before, after in itertools.pairwise(lengths)]
    free = [min(pair) for pair in zip([math.inf, *gaps], [*gaps, math.inf], strict=True)]
    return {
        length: min(BESIDE, 0.6 * gap, lines * BAR * span / wide)
        for length, gap in zip(lengths, free, strict=True)
    }


def bar(point: CurvePoint, relative: bool) -> tuple[float, float] | None:
    """Ends of the interval of the value that is drawn; None without one."""
    if None not in (point.low, point.high) and (not relative or point.floor is not None):
        return point.low - (point.floor if relative else 0), point.high - (
            point.floor if relative else 0
        )
    known = relative and None not in (point.difference, point.half_width)
    return (
        (point.difference - point.half_width, point.difference + point.half_width)
        if known
        else None
    )


def limits(values: list[float], relative: bool) -> tuple[float, float]:
    """Bottom and top of the y axis. The top is cut if a few exploding values would flatten all the
    rest.

    A difference to the floor is drawn on a scale that is logarithmic beyond BEND and can show more.
    It is cut at BROKEN or at twice the upper quartile, whichever is higher. A plain loss is cut at
    twice the spread of the lower half."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if relative:
        low, high = min(low, -0.02), max(high, 0.05)
        return 1.6 * low - 0.02, min(1.25 * high, max(BROKEN, 2 * ordered[len(ordered) * 3 // 4]))
    top = low + 2.0 * (ordered[(len(ordered) - 1) // 2] - low)
    top = high if high <= low + 1.7 * (top - low) else top
    margin = 0.07 * ((top - low) or 0.1)
    return low - margin, top + margin
