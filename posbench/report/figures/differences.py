"""Figures of differences with a row for each method, for grids too large for lines.

A heat map of the difference to the floor by length; and differences with intervals at a few
lengths, to the floor, and to the same trainings without an extension."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from posbench.report.figures.captions import (
    as_sentences,
    curve_caption,
    extension_name,
    shortened,
)
from posbench.report.figures.lines import text_width
from posbench.report.figures.loss_curves import axis_limits
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import (
    BROKEN_FROM,
    FAIL_COLOUR,
    FONT_SIZE,
    GAIN_COLOUR,
    GREY,
    INKS,
    LEAST_METHODS,
    LINEAR_UP_TO,
    NO_VALUE_COLOUR,
    Frame,
    difference_ticks,
    draw_cell,
    draw_unmeasured,
    write_note,
)
from posbench.report.figures.uncertainty import interval_words
from posbench.report.records import CurvePoint, grouped, records_by_method, tick_lengths
from posbench.report.seed_marks import mark_lines, row_mark, usual_seeds
from posbench.report.table_formats import LEVEL_MARK
from posbench.report.tables import length_heading, mark_of_difference

# points, of a map: height and width of a cell, space between blocks, above and below them
CELL_HEIGHT, CELL_WIDTH = 12.5, 40
BLOCK_DISTANCE, SPACE_ABOVE_MAP, SPACE_UNDER_MAP = 26, 24, 52
SCALE_WIDTH, LEGEND_HEIGHT = 220, 8  # of the colour scale
SWATCH_WIDTH = 16  # of the legend of a cell that was not measured, beside the colour scale
LEGEND_UP = 34  # lower edge of both above that of the figure; numbers and caption stand below
NAME_PADDING = 12  # between names and what stands right of them
LEAST_CAPTION = 80  # characters in a line of the caption: narrow maps would have a tall one
MOST_ROWS = 45  # rows in one block of a map, unless one encoding has more
COLOUR_STEPS = 80  # of a colour scale

# points, of intervals: height of a row and least width of a panel, space between panels, above
# and below them
ROW_HEIGHT, LEAST_PANEL_WIDTH = 13, 104
PANEL_DISTANCE, BLOCK_GAP = 14, 16
SPACE_ABOVE_PANELS, SPACE_UNDER_PANELS = 34, 34
MOST_LENGTHS = 3  # lengths with intervals
UNDECIDED_COLOUR = "#7a7a7a"
Reading = tuple[float | None, float | None]  # a difference and half of its interval
Value = Callable[[CurvePoint], Reading]
Cells = dict[tuple, dict[int, CurvePoint]]  # {method: {length: point}}


def _cells_with_a_difference(points: list[CurvePoint]) -> Cells:
    """Points of the methods that have a difference to the floor at any length."""
    return {
        method: cell
        for method, cell in records_by_method(points).items()
        if any(point.difference is not None for point in cell.values())
    }


def _row_names(cells: Cells) -> dict[tuple, str]:
    """{method: name without its encoding}, such as `ntk + log_n [seed 0]`.

    A row's seeds are named if most rows are means over other seeds than it.
    """
    usual = usual_seeds(cells.values())
    return {
        method: extension_name(method, cell.values()) + row_mark(cell, usual)
        for method, cell in cells.items()
    }


@dataclass(frozen=True)
class Colours:
    """Colours of differences up to `edge` nats/token."""

    edge: float
    norm: Callable
    map: Callable

    def __call__(self, difference: float):
        return self.map(self.norm(difference))


def _colours(cells: Cells) -> Colours:
    """Colours that tell all but the largest twentieth of the differences apart."""
    from matplotlib.colors import LinearSegmentedColormap, SymLogNorm

    sizes = sorted(
        abs(point.difference)
        for cell in cells.values()
        for point in cell.values()
        if point.difference is not None
    )
    # No wider than to where a loss counts as broken, and no narrower than the linear part.
    edge = min(BROKEN_FROM, max(LINEAR_UP_TO, sizes[(len(sizes) - 1) * 95 // 100]))
    # The linear part takes as much of the colours as 1.3 decades on either side of zero.
    norm = SymLogNorm(LINEAR_UP_TO, linscale=1.3, vmin=-edge, vmax=edge, base=10)
    return Colours(
        edge,
        norm,
        LinearSegmentedColormap.from_list("floor", [GAIN_COLOUR, "#ffffff", FAIL_COLOUR]),
    )


@report_figure("curve", "heatmap", "Methods and lengths", place=2)
def heatmap(curve: list[CurvePoint], title: str):
    """Heat map of the difference to the floor by method and length.

    None if fewer than LEAST_METHODS methods have a difference.
    """
    cells = _cells_with_a_difference(curve)
    if len(cells) < LEAST_METHODS:
        return None
    lengths = tick_lengths((point.length for point in curve), curve[0].train_len)
    shown = blocks_of_rows(methods_best_first(cells))
    colours = _colours(cells)
    names = _row_names(cells)
    names_width = max(text_width(name, FONT_SIZE) for name in names.values()) + NAME_PADDING
    encodings_width = NAME_PADDING + max(
        text_width(shortened(method[0]), FONT_SIZE, "bold") for method in cells
    )
    labels_width = encodings_width + names_width
    grid_width = CELL_WIDTH * len(lengths)
    block_width = labels_width + grid_width
    height = SPACE_ABOVE_MAP + CELL_HEIGHT * max(map(len, shown)) + SPACE_UNDER_MAP
    frame = Frame(title, len(shown) * block_width + (len(shown) - 1) * BLOCK_DISTANCE, height)
    for index, rows in enumerate(shown):
        left = index * (block_width + BLOCK_DISTANCE) + labels_width
        axes = frame.axes(left, SPACE_ABOVE_MAP, grid_width, CELL_HEIGHT * len(rows))
        axes.set(xlim=(0, len(lengths)), ylim=(len(rows), 0), xticks=[], yticks=[])
        for line, method in enumerate(rows):
            for place, length in enumerate(lengths):
                _draw_difference(axes, place, line, cells[method].get(length), colours)
            style = {"va": "center", "fontsize": FONT_SIZE}
            write_note(axes, names[method], (0, line + 0.5), (4 - names_width, 0), **style)
            if line > 0 and rows[line - 1][0] == method[0]:  # its encoding is named above
                continue
            name = shortened(method[0])
            write_note(axes, name, (0, line + 0.5), (-labels_width, 0), fontweight="bold", **style)
            if line > 0:
                style = {"color": GREY, "linewidth": 0.8, "clip_on": False}
                axes.axhline(line, xmin=-labels_width / grid_width, **style)
        for place, length in enumerate(lengths):
            text = length_heading(length, curve[0].train_len).replace(" ", "\n")
            write_note(
                axes, text, (place + 0.5, 0), (0, 3), ha="center", fontsize=7.5, color="#222222"
            )
        axes.spines[:].set_color(GREY)
    scale_width = min(SCALE_WIDTH, frame.width)
    size = scale_width / frame.width, LEGEND_HEIGHT / frame.height
    scale = frame.figure.add_axes([0, LEGEND_UP / frame.height, *size])
    _draw_colour_scale(scale, colours)
    if _has_unmeasured_cell(cells, lengths):
        _draw_swatch(frame, left=scale_width + BLOCK_DISTANCE)
    frame.caption(_map_caption(curve, cells, colours.edge), up=12, least=LEAST_CAPTION)
    return frame.figure


def _has_unmeasured_cell(cells: Cells, lengths: Sequence[int]) -> bool:
    """True if a cell of the map is empty, for another reason than a loss that is not finite (whose
    nll is None).
    """
    for cell in cells.values():
        for length in lengths:
            point = cell.get(length)
            if point is None or (point.difference is None and point.nll is not None):
                return True
    return False


def _draw_swatch(frame: Frame, left: float) -> None:
    """Draw the legend of cells that were not measured, `left` points from the left edge."""
    size = SWATCH_WIDTH / frame.width, LEGEND_HEIGHT / frame.height
    axes = frame.figure.add_axes([left / frame.width, LEGEND_UP / frame.height, *size])
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    draw_unmeasured(axes, 0, 0)
    axes.spines[:].set_color(GREY)
    write_note(axes, "not evaluated", (1, 0), (4, 1), fontsize=7.5, color=GREY)


def _draw_difference(
    axes, place: int, line: int, point: CurvePoint | None, colours: Colours
) -> None:
    """Draw the cell of a point, such as "^+4.20~": beyond the colours, and undecided."""
    if point is not None and point.nll is None:
        draw_cell(axes, place, line, NO_VALUE_COLOUR, "nan", INKS[1:], border=1.5)
        return
    if point is None or point.difference is None:
        draw_unmeasured(axes, place, line, border=1.5)
        return
    difference = point.difference
    text = _in_few_digits(difference)
    if abs(difference) > colours.edge:
        text = f"^{text}"
    inks = INKS[1:]  # without the one for undecided differences
    if mark_of_difference(difference, point.half_width) == LEVEL_MARK:
        text += "~"
        inks = INKS
    draw_cell(axes, place, line, colours(difference), text, inks)


def _in_few_digits(difference: float) -> str:
    """Text of a difference.

    >>> _in_few_digits(0.12345), _in_few_digits(-12.345), _in_few_digits(345.6)
    ('+0.123', '-12.35', '+346')
    """
    size = abs(difference)
    if size < 1:
        return f"{difference:+.3f}"
    return f"{difference:+.2f}" if size < 100 else f"{difference:+.0f}"


def methods_best_first(cells: Cells) -> list[tuple]:
    """Methods by encoding in the given order, and within an encoding the best first.

    That is by mean difference beyond the training length, or at all lengths where none is beyond;
    a method that lacks one of these differences comes last in its encoding.
    """
    encodings = list(dict.fromkeys(method[0] for method in cells))

    def mean(method: tuple) -> float:
        points = list(cells[method].values())
        beyond = [point for point in points if point.length > point.train_len] or points
        differences = [point.difference for point in beyond]
        # None: the loss is not finite, or has no floor. Means over fewer lengths would not compare.
        if None in differences:
            return math.inf
        return sum(differences) / len(differences)

    return sorted(cells, key=lambda method: (encodings.index(method[0]), mean(method)))


def blocks_of_rows(rows: list[tuple]) -> list[list[tuple]]:
    """Blocks of rows to draw side by side, of about equal height; several for more than MOST_ROWS
    rows.

    Each has all rows of its encodings."""
    count = math.ceil(len(rows) / MOST_ROWS)
    height = math.ceil(len(rows) / count)
    result: list[list[tuple]] = [[]]
    for of_encoding in grouped(rows, lambda row: row[0]).values():
        block = result[-1]
        too_tall = len(block) + len(of_encoding) > MOST_ROWS
        if block and (len(block) >= height or too_tall):
            result.append([])
        result[-1].extend(of_encoding)
    return result


def _draw_colour_scale(axes, colours: Colours) -> None:
    """Draw the colour scale as vectors; an image could not be in a page that loads nothing."""
    for step in range(COLOUR_STEPS):
        colour = colours.map((step + 0.5) / COLOUR_STEPS)
        ends = step / COLOUR_STEPS, (step + 1) / COLOUR_STEPS
        axes.axvspan(*ends, color=colour, linewidth=0.2)  # a thin edge, against seams between steps
    places, labels = difference_ticks(-colours.edge, colours.edge, (0, 0.1, 1, 4))
    xticks = [float(colours.norm(place)) for place in places]
    axes.set(xlim=(0, 1), ylim=(0, 1), yticks=[], xticks=xticks, xticklabels=labels)
    axes.tick_params(labelsize=7.5, color=GREY)
    axes.spines[:].set_color(GREY)


def _map_caption(curve: list[CurvePoint], cells: Cells, edge: float) -> list[str]:
    """Lines of the heat map's caption; its colours end at differences of `edge`."""
    points = [point for cell in cells.values() for point in cell.values()]
    measured = [point for point in points if point.difference is not None]
    lines = [
        f"Loss minus the loss with exactly {curve[0].train_len} tokens of context (nats/token), by"
        " method and length: green gains from the longer context, orange fails. Colours: linear to"
        " 0.1, logarithmic beyond."
    ]
    interval = _interval_words(points)  # "" if no point has one
    some_without = any(point.half_width is None for point in measured)
    if interval:
        lines.append(f"~ zero lies inside the {interval}.")
    if some_without and interval:
        lines.append("Numbers of files without the loss of every target have no interval.")
    elif some_without:
        lines.append("There are no intervals.")
    if any(abs(point.difference) > edge for point in measured):
        lines.append(f"^ beyond the colours, which end at {edge:.2g}.")
    lengths = tick_lengths((point.length for point in curve), curve[0].train_len)
    if _has_unmeasured_cell(cells, lengths):
        lines.append("Hatched: not evaluated there (refused, without effect, or missing).")
    if any(point.nll is None for point in points):
        lines.append("nan: the loss is not finite.")
    lines += as_sentences(mark_lines(points))
    return lines + curve_caption(points, relative=False)


@report_figure("curve", "differences", "Intervals", place=3)
def intervals(curve: list[CurvePoint], title: str):
    """Forest plot: a row for each method, a panel for each of at most MOST_LENGTHS lengths beyond
    training.

    One block of panels shows the loss minus the floor, a second one the loss minus that without an
    extension. None if fewer than LEAST_METHODS methods have a difference.
    """
    points = [point for point in curve if not point.foreign and point.length > point.train_len]
    cells = _cells_with_a_difference(points)
    if len(cells) < LEAST_METHODS:
        return None
    lengths = sorted({length for cell in cells.values() for length in cell})
    if len(lengths) > MOST_LENGTHS:
        lengths = [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    values: dict[str, Value] = {"minus the floor": _difference}
    if any(point.change is not None for point in points if point.length in lengths):
        values["minus no extension"] = _change
    measured = [point for cell in cells.values() for point in cell.values()]
    shown = [point for point in measured if point.length in lengths]
    rows = _interval_rows(cells, lengths[-1])
    names_width = 24 + max(  # 12 left of a name, as it is indented, and 12 right of it
        text_width(name, FONT_SIZE, _font_weight(row)) for row, name in rows.items()
    )
    panel_width = max(LEAST_PANEL_WIDTH, 210 / len(lengths))  # 210 points for a block
    panels = len(values) * len(lengths)
    across = (
        names_width + panels * panel_width + panels * PANEL_DISTANCE + BLOCK_GAP * (len(values) - 1)
    )
    frame = Frame(title, across, SPACE_ABOVE_PANELS + ROW_HEIGHT * len(rows) + SPACE_UNDER_PANELS)
    for block, (name, value) in enumerate(values.items()):
        edges = _x_ends([value(point) for point in shown])
        for column, length in enumerate(lengths):
            index = block * len(lengths) + column
            left = names_width + index * panel_width + index * PANEL_DISTANCE + BLOCK_GAP * block
            axes = frame.axes(left, SPACE_ABOVE_PANELS, panel_width, ROW_HEIGHT * len(rows))
            readings = {
                method: value(cell[length]) for method, cell in cells.items() if length in cell
            }
            _draw_panel(axes, rows, readings, edges)
            axes.set_title(length_heading(length, curve[0].train_len), fontsize=FONT_SIZE, pad=4)
            if column == 0:
                style = {"xycoords": "axes fraction", "fontsize": 9.5, "fontweight": "bold"}
                write_note(axes, f"{name} (nats/token)", (0, 1), (0, 18), **style)
            if column == 0 and block == 0:
                _write_row_names(axes, rows, names_width)
    # Of all points, as in the captions of other figures, and not of the lengths drawn alone.
    frame.caption(_interval_caption(points, changed=len(values) > 1), up=12)
    return frame.figure


def _interval_words(points: list[CurvePoint]) -> str:
    return interval_words([point for point in points if not point.foreign], "difference")


def _difference(point: CurvePoint) -> Reading:
    return point.difference, point.half_width


def _change(point: CurvePoint) -> Reading:
    return point.change, point.change_half_width


def _interval_rows(cells: Cells, longest: int) -> dict[tuple, str]:
    """{method: name}, by encoding, and within one the best at the longest length first.

    Above the methods of an encoding stands its heading, {(encoding,): name}.
    """
    at_longest = {}
    for method, cell in cells.items():
        # A method that lacks the longest length is ordered by the lengths that it has.
        at_longest[method] = {longest: cell[longest]} if longest in cell else cell
    names = _row_names(cells)
    rows: dict[tuple, str] = {}
    for method in methods_best_first(at_longest):
        encoding = method[0]
        heading = (encoding,)
        if heading not in rows:
            rows[heading] = shortened(encoding)
        rows[method] = names[method]
    return rows


def _is_heading(row: tuple) -> bool:
    return len(row) == 1


def _font_weight(row: tuple) -> str:
    return "bold" if _is_heading(row) else "normal"


def _x_ends(readings: list[Reading]) -> tuple[float, float]:
    """Ends of x, with the intervals between them, but for far ends that `axis_limits` cuts, and
    with some room left of zero.
    """
    measured = [(mean, half or 0.0) for mean, half in readings if mean is not None]
    interval_ends = [mean + sign * half for mean, half in measured for sign in (1, -1)]
    low, high = axis_limits(interval_ends, relative=True)
    return min(low, -LINEAR_UP_TO / 2), high


def _write_row_names(axes, rows: dict[tuple, str], names_width: float) -> None:
    style = {"xycoords": axes.get_yaxis_transform(), "va": "center", "fontsize": FONT_SIZE}
    for line, (row, name) in enumerate(rows.items()):
        indent = 4 if _is_heading(row) else 12
        write_note(
            axes, name, (0, line), (indent - names_width, 0), fontweight=_font_weight(row), **style
        )


def _draw_panel(
    axes, rows: Collection[tuple], values: Mapping[tuple, Reading], edges: tuple[float, float]
) -> None:
    """Draw the values of the methods among `rows` with their intervals."""
    low, high = edges
    axes.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=1.3)
    axes.set(xlim=edges, ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.axvspan(low, 0, color=GAIN_COLOUR, alpha=0.07, linewidth=0, zorder=0)
    for line, row in enumerate(rows):
        if _is_heading(row):
            continue
        axes.axhline(line, color="#ececec", linewidth=0.6, zorder=0)
        mean, half = values.get(row, (None, None))
        if mean is not None:
            _draw_interval(axes, line, mean, half, edges)
    sizes = (0, LINEAR_UP_TO, 1) if max(-low, high) >= LINEAR_UP_TO else (0, LINEAR_UP_TO / 2)
    axes.set_xticks(*difference_ticks(low, high, sizes))
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize=7.5, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_interval(
    axes, line: int, mean: float, half: float | None, edges: tuple[float, float]
) -> None:
    """Draw a mean and its interval; an arrow at an edge for a mean beyond it."""
    low, high = edges
    colour = GAIN_COLOUR if mean < 0 else FAIL_COLOUR
    if half is None or abs(mean) <= half:
        colour = UNDECIDED_COLOUR
    if half is not None:
        style = {"linewidth": 1.6, "solid_capstyle": "butt", "zorder": 3}
        axes.plot([mean - half, mean + half], [line, line], color=colour, **style)
    marker = "o"
    if mean > high:
        marker = ">"
    elif mean < low:
        marker = "<"
    face = "white" if half is None else colour
    style = {"markersize": 4.4, "clip_on": False, "zorder": 4}
    at = min(max(mean, low), high)
    axes.plot([at], [line], marker=marker, color=colour, markerfacecolor=face, **style)


def _interval_caption(points: list[CurvePoint], changed: bool) -> list[str]:
    """Lines of the caption; `changed`: a block of panels shows the loss minus no extension."""
    bars = _interval_words(points)
    lines = ["No intervals: these take the loss of every target, or several seeds."]
    if bars:
        lines = [f"Bars: {bars}; grey where zero lies inside."]
        if any(point.half_width is None for point in points):
            lines[0] += " Hollow: no interval."
    lines.append("Left of 0 is better. Scale: linear to 0.1, logarithmic beyond.")
    if changed:
        lines.append(
            "No extension: the same trainings, targets and length, with no scale but the one of the"
            " training."
        )
    lines += as_sentences(mark_lines(points))
    return lines + curve_caption(points, relative=False)
