"""Figures of differences with a row for each method: gains and failures in grids too large for
lines.

A heat map of the difference to the floor by length; and differences with intervals at a few
lengths, to the floor, and to the same trainings without an extension."""

from collections.abc import Callable, Collection, Mapping

from posbench.report.figures.captions import (
    caption,
    extension_name,
    of_intervals,
    sentences,
    shortened,
)
from posbench.report.figures.lines import width
from posbench.report.figures.loss_curves import limits
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import (
    BEND,
    BROKEN,
    ENOUGH,
    FAIL,
    FONT,
    GAIN,
    GREY,
    INKS,
    UNKNOWN,
    Frame,
    draw_cell,
    note,
    ticks,
)
from posbench.report.records import CurvePoint, grouped, methods, tick_lengths
from posbench.report.seed_marks import mark_lines, row_mark, usual_seeds
from posbench.report.table_formats import LEVEL
from posbench.report.tables import heading, verdict

LOW, CELL, SPACE, ABOVE, UNDER = 12.5, 40, 26, 24, 52  # points, of a map
TALL = 45  # rows in one block of a map, unless one encoding has more
ROW, PANEL, BETWEEN, HEAD, BENEATH = 13, 104, 14, 34, 34  # points, of intervals
MOST = 3  # lengths with intervals
UNDECIDED = "#7a7a7a"
Reading = tuple[float | None, float | None]  # a difference and half of its interval
Value = Callable[[CurvePoint], Reading]


def _measured(points: list[CurvePoint]) -> dict[tuple, dict[int, CurvePoint]]:
    """Points by method and length, of the methods that have a difference to the floor at any
    length.
    """
    return {
        method: cell
        for method, cell in methods(points).items()
        if any(point.difference is not None for point in cell.values())
    }


def _row_names(cells: dict[tuple, dict[int, CurvePoint]]) -> dict[tuple, str]:
    """Names of the rows without their encoding, such as `ntk + log_n [seed 0]` where most rows are
    means over other seeds.
    """
    usual = usual_seeds(cells.values())
    return {
        method: extension_name(method, cell.values()) + row_mark(cell, usual)
        for method, cell in cells.items()
    }


@report_figure("curve", "heatmap", "Methods and lengths", place=2)
def heatmap(curve: list[CurvePoint], title: str):
    """Heat map of the difference to the floor by method and length, or None if fewer than ENOUGH
    methods have a difference.
    """
    from matplotlib.colors import LinearSegmentedColormap, SymLogNorm

    cells = _measured(curve)
    if len(cells) < ENOUGH:
        return None
    lengths, shown = tick_lengths(point.length for point in curve), blocks(ordered(cells))
    sizes = sorted(
        abs(point.difference)
        for cell in cells.values()
        for point in cell.values()
        if point.difference is not None
    )
    edge = min(BROKEN, max(BEND, sizes[(len(sizes) - 1) * 95 // 100]))  # of the colours
    norm = SymLogNorm(BEND, linscale=1.3, vmin=-edge, vmax=edge, base=10)
    colours = LinearSegmentedColormap.from_list("floor", [GAIN, "#ffffff", FAIL])
    names = _row_names(cells)
    beside = max(width(name, FONT) for name in names.values()) + 12
    labels = max(width(shortened(method[0]), FONT, "bold") for method in cells) + 12 + beside
    grid_width = CELL * len(lengths)
    block, tall = labels + grid_width, LOW * max(map(len, shown))
    frame = Frame(title, len(shown) * block + (len(shown) - 1) * SPACE, ABOVE + tall + UNDER)
    for index, rows in enumerate(shown):
        axes = frame.axes(index * (block + SPACE) + labels, ABOVE, grid_width, LOW * len(rows))
        axes.set(xlim=(0, len(lengths)), ylim=(len(rows), 0), xticks=[], yticks=[])
        for line, method in enumerate(rows):
            first = line == 0 or rows[line - 1][0] != method[0]
            for place, length in enumerate(lengths):
                point = cells[method].get(length)
                if point is None or point.difference is None:
                    text = "nan" if point is not None and point.nll is None else ""
                    draw_cell(axes, place, line, UNKNOWN, text, INKS[1:], border=1.5)
                    continue
                undecided = verdict(point.difference, point.half_width) == LEVEL
                text = f"{point.difference:+.{3 if abs(point.difference) < 1 else 2 if abs(point.difference) < 100 else 0}f}"
                text = "^" * (abs(point.difference) > edge) + text + "~" * undecided
                draw_cell(
                    axes,
                    place,
                    line,
                    colours(norm(point.difference)),
                    text,
                    INKS if undecided else INKS[1:],
                )
            note(axes, names[method], (0, line + 0.5), (-beside + 4, 0), va="center", fontsize=FONT)
            if first:
                note(
                    axes,
                    shortened(method[0]),
                    (0, line + 0.5),
                    (-labels, 0),
                    va="center",
                    fontsize=FONT,
                    fontweight="bold",
                )
            if first and line:
                axes.axhline(
                    line, xmin=-labels / grid_width, color=GREY, linewidth=0.8, clip_on=False
                )
        for place, length in enumerate(lengths):
            text = heading(length, curve[0].train_len).replace(" ", "\n")
            note(axes, text, (place + 0.5, 0), (0, 3), ha="center", fontsize=7.5, color="#222222")
        axes.spines[:].set_color(GREY)
    scale = frame.figure.add_axes(
        [0, 34 / frame.height, min(220, frame.width) / frame.width, 8 / frame.height]
    )
    _scale(scale, norm, colours, edge)
    frame.caption(_map_caption(curve, cells, edge), up=12, least=80)
    return frame.figure


def ordered(cells: dict[tuple, dict[int, CurvePoint]]) -> list[tuple]:
    """Methods by encoding in the given order, and within an encoding by mean difference beyond the
    training length, the best first.
    """
    encodings = list(dict.fromkeys(method[0] for method in cells))

    def mean(cell: dict[int, CurvePoint]) -> float:
        beyond = [point for point in cell.values() if point.length > point.train_len] or list(
            cell.values()
        )
        return sum(
            float("inf") if point.difference is None else point.difference for point in beyond
        ) / len(beyond)

    return sorted(cells, key=lambda method: (encodings.index(method[0]), mean(cells[method])))


def blocks(rows: list[tuple]) -> list[list[tuple]]:
    """Blocks of rows to draw side by side, of about equal height, each with all rows of its
    encodings; several for more than TALL rows.
    """
    wanted = -(-len(rows) // -(-len(rows) // TALL))
    result: list[list[tuple]] = [[]]
    for own in grouped(rows, lambda row: row[0]).values():
        if len(result[-1]) >= wanted or len(result[-1]) + len(own) > TALL and result[-1]:
            result.append([])
        result[-1].extend(own)
    return result


def _scale(axes, norm, colours, edge: float) -> None:
    """Draw the colour scale as vectors, because an image could not be part of a page that loads
    nothing.
    """
    steps = 80
    for step in range(steps):
        axes.axvspan(
            step / steps, (step + 1) / steps, color=colours((step + 0.5) / steps), linewidth=0.2
        )
    places, labels = ticks(-edge, edge, (0, 0.1, 1, 4))
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        yticks=[],
        xticks=[float(norm(place)) for place in places],
        xticklabels=labels,
    )
    axes.tick_params(labelsize=7.5, color=GREY)
    axes.spines[:].set_color(GREY)


def _map_caption(
    curve: list[CurvePoint], cells: dict[tuple, dict[int, CurvePoint]], edge: float
) -> list[str]:
    points = [point for cell in cells.values() for point in cell.values()]
    lengths = tick_lengths(point.length for point in curve)
    what = (
        f"Loss minus the loss with exactly {curve[0].train_len} tokens of context (nats/token), by"
        " method and length"
    )
    lines = [f"{what}: green gains from the longer context, orange fails."]
    bars = of_intervals(points)
    if bars:
        lines.append(f"~ zero lies inside the {bars}.")
    if any(point.difference is not None and point.half_width is None for point in points):
        lines.append(
            "Numbers of files without the loss of every target have no interval."
            if bars
            else "There are no intervals."
        )
    if any(point.difference is not None and abs(point.difference) > edge for point in points):
        lines.append(f"^ beyond the colours, which end at {edge:.2g}.")
    if any(
        length not in cell or cell[length].difference is None
        for cell in cells.values()
        for length in lengths
    ):
        lines.append(
            "Grey: not evaluated there (refused, without effect, or missing); nan: the loss is not"
            " finite."
        )
    lines += sentences(mark_lines(points))
    return lines + caption(points, relative=False)


@report_figure("curve", "differences", "Intervals", place=3)
def intervals(curve: list[CurvePoint], title: str):
    """Figure of differences with intervals; None if fewer than ENOUGH methods have a difference
    beyond the training length.
    """
    own = [point for point in curve if not point.foreign and point.length > point.train_len]
    cells = _measured(own)
    if len(cells) < ENOUGH:
        return None
    lengths = sorted({length for cell in cells.values() for length in cell})
    lengths = (
        lengths if len(lengths) <= MOST else [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    )
    kinds: dict[str, Value] = {
        "minus the floor": lambda point: (point.difference, point.half_width)
    }
    if any(point.change is not None for point in own if point.length in lengths):
        kinds["minus no extension"] = lambda point: (point.change, point.change_half_width)
    at_last = {
        method: {lengths[-1]: cell[lengths[-1]]} if lengths[-1] in cell else cell
        for method, cell in cells.items()
    }
    rows: dict[
        tuple,
        str,
        # names by method, the best at the longest length first; before them that of an encoding by
        # (encoding,)
    ] = {}
    names = _row_names(cells)
    for method in ordered(at_last):
        rows.setdefault(method[:1], shortened(method[0]))
        rows[method] = names[method]
    weights = {method: "normal" if method in cells else "bold" for method in rows}
    labels = 24 + max(width(text, FONT, weights[method]) for method, text in rows.items())
    wide, count = max(PANEL, 210 / len(lengths)), len(kinds) * len(lengths)
    frame = Frame(
        title,
        labels + count * wide + count * BETWEEN + 16 * (len(kinds) - 1),
        HEAD + ROW * len(rows) + BENEATH,
    )
    for number, (text, value) in enumerate(kinds.items()):
        seen = [
            value(cell[length]) for cell in cells.values() for length in lengths if length in cell
        ]
        low, high = limits(
            [
                mean + sign * (half or 0.0)
                for mean, half in seen
                if mean is not None
                for sign in (1, -1)
            ],
            relative=True,
        )
        for index, length in enumerate(lengths, start=number * len(lengths)):
            axes = frame.axes(
                labels + index * wide + index * BETWEEN + 16 * number, HEAD, wide, ROW * len(rows)
            )
            values = {
                method: value(cell[length]) for method, cell in cells.items() if length in cell
            }
            _panel(axes, rows, values, (min(low, -BEND / 2), high))
            axes.set_title(heading(length, curve[0].train_len), fontsize=FONT, pad=4)
            if length == lengths[0]:
                note(
                    axes,
                    f"{text} (nats/token)",
                    (0, 1),
                    (0, 18),
                    xycoords="axes fraction",
                    fontsize=9.5,
                    fontweight="bold",
                )
            for line, (method, name) in enumerate(rows.items() if index == 0 else ()):
                style = {
                    "xycoords": axes.get_yaxis_transform(),
                    "va": "center",
                    "fontsize": FONT,
                    "fontweight": weights[method],
                }
                note(axes, name, (0, line), (-labels + 4 + 8 * (method in cells), 0), **style)
    frame.caption(_interval_caption(own, len(kinds) > 1), up=12)
    return frame.figure


def _panel(
    axes, rows: Collection[tuple], values: Mapping[tuple, Reading], edges: tuple[float, float]
) -> None:
    """Draw the values of the methods among `rows` with their intervals."""
    axes.set_xscale("symlog", linthresh=BEND, linscale=1.3)
    axes.set(xlim=edges, ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.axvspan(edges[0], 0, color=GAIN, alpha=0.07, linewidth=0, zorder=0)
    for line, method in enumerate(rows):
        if len(method) == 1:  # a heading
            continue
        axes.axhline(line, color="#ececec", linewidth=0.6, zorder=0)
        mean, half = values.get(method, (None, None))
        if mean is None:
            continue
        colour = UNDECIDED if half is None or abs(mean) <= half else GAIN if mean < 0 else FAIL
        if half is not None:
            axes.plot(
                [mean - half, mean + half],
                [line, line],
                color=colour,
                linewidth=1.6,
                solid_capstyle="butt",
                zorder=3,
            )
        marker = ">" if mean > edges[1] else "<" if mean < edges[0] else "o"
        axes.plot([min(max(mean, edges[0]), edges[1])], [line], marker=marker, markersize=4.4, color=colour, clip_on=False, zorder=4,
                  markerfacecolor="white" if half is None else colour)  # fmt: skip
    axes.set_xticks(
        *ticks(*edges, (0, BEND, 1) if max(-edges[0], edges[1]) >= BEND else (0, BEND / 2))
    )
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize=7.5, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _interval_caption(own: list[CurvePoint], changed: bool) -> list[str]:
    bars = of_intervals(own)
    lines = ["No intervals: these take the loss of every target, or several seeds."]
    if bars:
        hollow = any(point.half_width is None for point in own)
        lines = [f"Bars: {bars}; grey where zero lies inside.{' Hollow: no interval.' * hollow}"]
    lines.append("Left of 0 is better. Scale: linear to 0.1, logarithmic beyond.")
    if changed:
        lines.append(
            "No extension: the same trainings, targets and length, with no scale but the one of the"
            " training."
        )
    lines += sentences(mark_lines(own))
    return lines + caption(own, relative=False)
