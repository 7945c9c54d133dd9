"""Heat map of the difference to the floor by method and length: gains and failures in grids too large for lines."""

import itertools
from collections import Counter
from collections.abc import Sequence

from posbench.report.figures.captions import caption, extension_name, of_intervals, shortened
from posbench.report.figures.lines import width
from posbench.report.figures.style import BEND, BROKEN, ENOUGH, FAIL, FONT, GAIN, GREY, Frame, note, ticks
from posbench.report.records import CurvePoint, methods, tick_lengths
from posbench.report.tables import LEVEL, heading, verdict

ROW, CELL, SPACE, ABOVE, BELOW = 12.5, 40, 26, 24, 52  # points
TALL = 45  # rows in one block
UNKNOWN = "#ececec"
INKS, CONTRAST = ("#484848", "#1a1a1a", "#000000"), 4.5  # the first ink is for undecided differences


def figure(curve: list[CurvePoint], title: str):
    """Heat map of one section, or None if fewer than ENOUGH methods have a difference."""
    from matplotlib.colors import LinearSegmentedColormap, SymLogNorm

    cells = {method: cell for method, cell in methods(curve).items() if any(point.difference is not None for point in cell.values())}
    if len(cells) < ENOUGH:
        return None
    lengths = tick_lengths(point.length for point in curve)
    shown = blocks(ordered(cells))
    edge = limit([point.difference for cell in cells.values() for point in cell.values() if point.difference is not None])
    norm = SymLogNorm(BEND, linscale=1.3, vmin=-edge, vmax=edge, base=10)
    colours = LinearSegmentedColormap.from_list("floor", [GAIN, "#ffffff", FAIL])
    names = {method: extension_name(method, cell.values()) for method, cell in cells.items()}
    beside = max(width(name, FONT) for name in names.values()) + 12
    labels = max(width(shortened(method[0]), FONT, "bold") for method in cells) + 12 + beside
    grid_width = CELL * len(lengths)
    block, tall = labels + grid_width, ROW * max(map(len, shown))
    frame = Frame(title, len(shown) * block + (len(shown) - 1) * SPACE, ABOVE + tall + BELOW)
    for index, rows in enumerate(shown):
        axes = frame.axes(index * (block + SPACE) + labels, ABOVE, grid_width, ROW * len(rows))
        axes.set(xlim=(0, len(lengths)), ylim=(len(rows), 0), xticks=[], yticks=[])
        for line, method in enumerate(rows):
            first = line == 0 or rows[line - 1][0] != method[0]
            _draw_row(axes, line, [cells[method].get(length) for length in lengths], norm, colours, edge)
            note(axes, names[method], (0, line + 0.5), (-beside + 4, 0), va="center", fontsize=FONT)
            if first:
                note(axes, shortened(method[0]), (0, line + 0.5), (-labels, 0), va="center", fontsize=FONT, fontweight="bold")
            if first and line:
                axes.axhline(line, xmin=-labels / grid_width, color=GREY, linewidth=0.8, clip_on=False)
        for place, length in enumerate(lengths):
            text = heading(length, curve[0].train_len).replace(" ", "\n")
            note(axes, text, (place + 0.5, 0), (0, 3), ha="center", fontsize=7.5, color="#222222")
        axes.spines[:].set_color(GREY)
    scale = frame.figure.add_axes([0, 34 / frame.height, min(220, frame.width) / frame.width, 8 / frame.height])
    _scale(scale, norm, colours, edge)
    frame.caption(_caption(curve, cells, edge), up=12, least=80)
    return frame.figure


def ordered(cells: dict[tuple, dict[int, CurvePoint]]) -> list[tuple]:
    """Methods by encoding in the given order, and within an encoding by mean difference beyond the training length, the best first."""
    encodings = list(dict.fromkeys(method[0] for method in cells))

    def mean(cell: dict[int, CurvePoint]) -> float:
        beyond = [point for point in cell.values() if point.length > point.train_len] or list(cell.values())
        return sum(float("inf") if point.difference is None else point.difference for point in beyond) / len(beyond)

    return sorted(cells, key=lambda method: (encodings.index(method[0]), mean(cells[method])))


def blocks(rows: list[tuple]) -> list[list[tuple]]:
    """Blocks of rows to draw side by side, of about equal height and at most TALL rows. An encoding is divided only if it must be."""
    wanted = -(-len(rows) // -(-len(rows) // TALL))
    tall = TALL if max(Counter(row[0] for row in rows).values()) <= TALL else wanted
    result: list[list[tuple]] = [[]]
    for _, found in itertools.groupby(rows, key=lambda row: row[0]):
        group = list(found)
        if result[-1] and (len(result[-1]) >= wanted or tall - len(result[-1]) < len(group) <= tall):
            result.append([])
        for row in group:
            if len(result[-1]) == tall:
                result.append([])
            result[-1].append(row)
    return result


def limit(values: list[float]) -> float:
    """End of the colour scale: the 95th percentile of the sizes, at least BEND, at most BROKEN."""
    sizes = sorted(map(abs, values))
    return min(BROKEN, max(BEND, sizes[(len(sizes) - 1) * 95 // 100]))


def _draw_row(axes, line: int, points: list[CurvePoint | None], norm, colours, edge: float) -> None:
    for place, point in enumerate(points):
        if point is None or point.difference is None:
            draw_cell(axes, place, line, UNKNOWN, "nan" if point is not None and point.nll is None else "", INKS[1:], border=1.5)
            continue
        undecided = verdict(point.difference, point.half_width) == LEVEL
        text = f"{point.difference:+.{3 if abs(point.difference) < 1 else 2 if abs(point.difference) < 100 else 0}f}"
        text = ("^" if abs(point.difference) > edge else "") + text + "~" * undecided
        draw_cell(axes, place, line, colours(norm(point.difference)), text, INKS if undecided else INKS[1:])


def draw_cell(axes, place: int, line: int, ground: object, text: str, inks: Sequence[str], border: float = 0.5, size: float = 7.4) -> None:
    """Draw a cell of a map, with a text that can be read on its ground."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((place, line), 1, 1, facecolor=ground, edgecolor="white", linewidth=border))
    style = {"ha": "center", "va": "center", "fontsize": size, "color": legible(to_rgb(ground), inks)}
    axes.text(place + 0.5, line + 0.52, text, **style)


def legible(ground: Sequence[float], inks: Sequence[str]) -> str:
    """First ink with contrast CONTRAST (4.5 to 1, as in WCAG 2) to a ground (red, green, blue in 0 to 1, ...), else the best ink."""
    from matplotlib.colors import to_rgb

    def luminance(rgb: Sequence[float]) -> float:
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in rgb[:3]]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(ink: str) -> float:
        low, high = sorted((luminance(ground), luminance(to_rgb(ink))))
        return (high + 0.05) / (low + 0.05)

    return next((ink for ink in inks if contrast(ink) >= CONTRAST), max(inks, key=contrast))


def _scale(axes, norm, colours, edge: float) -> None:
    """Draw the colour scale as vectors, because an image could not be part of a page that loads nothing."""
    steps = 80
    for step in range(steps):
        axes.axvspan(step / steps, (step + 1) / steps, color=colours((step + 0.5) / steps), linewidth=0.2)
    places, labels = ticks(-edge, edge, (0, 0.1, 1, 4))
    axes.set(xlim=(0, 1), ylim=(0, 1), yticks=[], xticks=[float(norm(place)) for place in places], xticklabels=labels)
    axes.tick_params(labelsize=7.5, color=GREY)
    axes.spines[:].set_color(GREY)


def _caption(curve: list[CurvePoint], cells: dict[tuple, dict[int, CurvePoint]], edge: float) -> list[str]:
    points = [point for cell in cells.values() for point in cell.values()]
    lengths = tick_lengths(point.length for point in curve)
    what = f"Loss minus the loss with exactly {curve[0].train_len} tokens of context (nats/token), by method and length"
    lines = [f"{what}: green gains from the longer context, orange fails."]
    bars = of_intervals(points)
    if bars:
        lines.append(f"~ zero lies inside the {bars}.")
    if any(point.difference is not None and point.half_width is None for point in points):
        lines.append("Numbers of files without the loss of every target have no interval." if bars else "There are no intervals.")
    if any(point.difference is not None and abs(point.difference) > edge for point in points):
        lines.append(f"^ beyond the colours, which end at {edge:.2g}.")
    if any(length not in cell or cell[length].difference is None for cell in cells.values() for length in lengths):
        lines.append("Grey: not evaluated there (refused, without effect, or missing); nan: the loss is not finite.")
    return lines + caption(points, relative=False)
