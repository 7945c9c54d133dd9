"""Figure of differences with intervals at a few lengths: to the floor, and to the same trainings without an extension."""

from collections.abc import Callable, Collection

from posbench.report.figures.captions import caption, extension_name, of_intervals, shortened
from posbench.report.figures.heatmap import ordered
from posbench.report.figures.lines import width
from posbench.report.figures.loss_curves import limits
from posbench.report.figures.style import BEND, ENOUGH, FAIL, FONT, GAIN, GREY, Frame, note, ticks
from posbench.report.records import CurvePoint, methods
from posbench.report.tables import heading

ROW, PANEL, BETWEEN, HEAD, BELOW = 13, 104, 14, 34, 34  # points
MOST = 3  # lengths
LEVEL = "#7a7a7a"
Value = Callable[[CurvePoint], tuple[float | None, float | None]]


def figure(curve: list[CurvePoint], title: str):
    """Figure of one section, or None if fewer than ENOUGH methods have a difference beyond the training length."""
    own = [point for point in curve if not point.foreign and point.length > point.train_len]
    cells = {method: cell for method, cell in methods(own).items() if any(point.difference is not None for point in cell.values())}
    if len(cells) < ENOUGH:
        return None
    lengths = chosen(sorted({length for cell in cells.values() for length in cell}))
    kinds: list[tuple[str, Value]] = [("minus the floor", lambda point: (point.difference, point.half_width))]
    if any(point.change is not None for point in own if point.length in lengths):
        kinds.append(("minus no extension", lambda point: (point.change, point.change_half_width)))
    rows = _row_names(cells, lengths[-1])
    weights = {method: "normal" if method in cells else "bold" for method in rows}
    labels = 24 + max(width(text, FONT, weights[method]) for method, text in rows.items())
    wide = max(PANEL, 210 / len(lengths))
    panels = [(text, value, length) for text, value in kinds for length in lengths]
    gaps = [BETWEEN + 16 * (index == len(lengths)) for index in range(len(panels))]
    frame = Frame(title, labels + len(panels) * wide + sum(gaps), HEAD + ROW * len(rows) + BELOW)
    edges = {value: _edges([value(point) for cell in cells.values() for at, point in cell.items() if at in lengths]) for _, value in kinds}
    for index, (text, value, length) in enumerate(panels):
        axes = frame.axes(labels + index * wide + sum(gaps[1 : index + 1]), HEAD, wide, ROW * len(rows))
        _panel(axes, rows, cells, value, length, edges[value])
        axes.set_title(heading(length, curve[0].train_len), fontsize=FONT, pad=4)
        if index % len(lengths) == 0:
            note(axes, f"{text} (nats/token)", (0, 1), (0, 18), xycoords="axes fraction", fontsize=9.5, fontweight="bold")
        if index == 0:
            for line, (method, text) in enumerate(rows.items()):
                style = {"xycoords": axes.get_yaxis_transform(), "va": "center", "fontsize": FONT, "fontweight": weights[method]}
                note(axes, text, (0, line), (-labels + 4 + 8 * (method in cells), 0), **style)
    frame.caption(_caption(own, len(kinds) > 1), up=12)
    return frame.figure


def chosen(lengths: list[int]) -> list[int]:
    """Lengths that are shown: all if there are at most MOST, else the first, the middle and the last."""
    return lengths if len(lengths) <= MOST else [lengths[0], lengths[len(lengths) // 2], lengths[-1]]


def _row_names(cells: dict[tuple, dict[int, CurvePoint]], longest: int) -> dict[tuple, str]:
    """{method: name} by encoding, the best at the longest length first. Before them {(encoding,): name} for a heading."""
    at_last = {method: {longest: cell[longest]} if longest in cell else cell for method, cell in cells.items()}
    rows: dict[tuple, str] = {}
    for method in ordered(at_last):
        rows.setdefault(method[:1], shortened(method[0]))
        rows[method] = extension_name(method, cells[method].values())
    return rows


def _edges(values: list[tuple[float | None, float | None]]) -> tuple[float, float]:
    """Left and right end of the axes, with room for every interval except exploding ones."""
    ends = [mean + sign * (half or 0.0) for mean, half in values if mean is not None for sign in (1, -1)]
    low, high = limits(ends, relative=True)
    return min(low, -BEND / 2), high


def _panel(axes, rows: Collection[tuple], cells: dict, value: Value, length: int, edges: tuple[float, float]) -> None:
    axes.set_xscale("symlog", linthresh=BEND, linscale=1.3)
    axes.set(xlim=edges, ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.axvspan(edges[0], 0, color=GAIN, alpha=0.07, linewidth=0, zorder=0)
    for line, method in enumerate(rows):
        if method not in cells:
            continue
        axes.axhline(line, color="#ececec", linewidth=0.6, zorder=0)
        point = cells[method].get(length)
        mean, half = value(point) if point else (None, None)
        if mean is None:
            continue
        colour = LEVEL if half is None or abs(mean) <= half else GAIN if mean < 0 else FAIL
        if half is not None:
            axes.plot([mean - half, mean + half], [line, line], color=colour, linewidth=1.6, solid_capstyle="butt", zorder=3)
        marker = ">" if mean > edges[1] else "<" if mean < edges[0] else "o"
        axes.plot([min(max(mean, edges[0]), edges[1])], [line], marker=marker, markersize=4.4, color=colour, clip_on=False, zorder=4,
                  markerfacecolor="white" if half is None else colour)  # fmt: skip
    axes.set_xticks(*ticks(*edges, (0, BEND, 1) if max(-edges[0], edges[1]) >= BEND else (0, BEND / 2)))
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize=7.5, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _caption(own: list[CurvePoint], changed: bool) -> list[str]:
    bars = of_intervals(own)
    lines = [
        f"Bars: {bars}; grey where zero lies inside." if bars else "No intervals: these take the loss of every target, or several seeds."
    ]
    if bars and any(point.half_width is None for point in own):
        lines[0] += " Hollow: no interval."
    lines.append("Left of 0 is better. Scale: linear to 0.1, logarithmic beyond.")
    if changed:
        lines.append("No extension: the same trainings, targets and length, with no scale but the one of the training.")
    return lines + caption(own, relative=False)
