"""Lines of one panel of loss over length: marks, intervals side by side, names at the ends, and other panels' lines in grey."""

import itertools
import math

from posbench.report.figures.annotations import end_labels, name
from posbench.report.figures.style import MARKERS
from posbench.report.points import Point, marked, methods

PANEL_WIDTH = 240  # points
BAR, BESIDE = 3.4, 0.5  # points for each interval at one length; octaves at most for all of them
OTHERS = "#cfcfcf"


def height(point: Point, relative: bool) -> float | None:
    """Value that is drawn for a point: the difference to the floor if `relative`, else the loss."""
    return point.difference if relative else point.nll


def beside(points: list[Point], span: float, relative: bool) -> dict[int, float]:
    """Octaves, by length, over which the lines of a panel spread their intervals side by side; `span`: octaves of the x axis."""
    lines = len(methods(points)) * any(bar(point, relative) for point in points)
    lengths = sorted({point.length for point in points})
    gaps = [math.log2(after / before) for before, after in itertools.pairwise(lengths)]
    free = [min(pair) for pair in zip([math.inf, *gaps], [*gaps, math.inf], strict=True)]
    return {length: min(BESIDE, 0.6 * gap, lines * BAR * span / PANEL_WIDTH) for length, gap in zip(lengths, free, strict=True)}


def behind(axes, points: list[Point], relative: bool) -> None:
    """Draw in grey the lines of methods that other panels show."""
    for cell in methods(points).values():
        known = [(point.length, height(point, relative)) for _, point in sorted(cell.items()) if height(point, relative) is not None]
        axes.plot(*zip(*known, strict=True) if known else ([], []), color=OTHERS, linewidth=0.8, zorder=1.5)


def lines_of(axes, points: list[Point], relative: bool, pens: dict, scales: list[str], top: float, wide: dict) -> None:
    """Draw each method's line with marks, bars and its name at the end; a line from a CSV is thin. `wide` is from `beside`."""
    ends, ticks, cells = [], marked(point.length for point in points), methods(points)
    for index, ((encoding, extension, scale, source), cell) in enumerate(cells.items()):
        at = {length: length * 2 ** (wide[length] * ((index + 0.5) / len(cells) - 0.5)) for length in cell}
        known = [(point, height(point, relative)) for _, point in sorted(cell.items())]
        known = [(point, value) for point, value in known if value is not None]
        if not known:
            continue
        (colour, dash), marker = pens[encoding, extension], "x" if source else MARKERS[scales.index(scale) % len(MARKERS)]
        style = {"linestyle": dash, "linewidth": 0.9 if source else 1.5}
        axes.plot([at[point.length] for point, _ in known], [value for _, value in known], color=colour, zorder=3, **style)
        inside = [(at[point.length], value) for point, value in known if value <= top and (len(known) <= 12 or point.length in ticks)]
        face = colour if scale == "none" or source else "white"
        marks = {"marker": marker, "markersize": 4.6, "markeredgewidth": 1.1, "markeredgecolor": colour, "markerfacecolor": face}
        axes.plot(*zip(*inside, strict=True) if inside else ([], []), linestyle="none", zorder=4, **marks)
        bars = [(at[point.length], *bounds) for point, value in known if value <= top and (bounds := bar(point, relative))]
        if bars:
            axes.vlines(*zip(*bars, strict=True), color=colour, linewidth=2.4, alpha=0.35, zorder=2)
        ends.append((known[-1][1], at[known[-1][0].length], name(known[-1][0], points), colour))
    end_labels(axes, ends)


def bar(point: Point, relative: bool) -> tuple[float, float] | None:
    """Ends of the interval of the value that is drawn; None without one."""
    if None not in (point.low, point.high) and (not relative or point.floor is not None):
        return point.low - (point.floor if relative else 0), point.high - (point.floor if relative else 0)
    known = relative and None not in (point.difference, point.half_width)
    return (point.difference - point.half_width, point.difference + point.half_width) if known else None
