"""Loss over length as small multiples: encodings as they are, then a panel for each encoding's extensions, on shared axes.

Colour tells encodings apart (extensions, where a panel shows one encoding), dash the extension, marker the scale-attention.
Sizes are in points (1/72 inch); what stands beside a panel is as wide as its longest label.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from posbench.marks import GAP, caption, carets, end_labels, name, stack, width
from posbench.points import Point, marked, methods
from posbench.style import BEND, BLACK, BROKEN, DASHES, FEW, FONT, GAIN, GREY, MARKERS, OKABE_ITO, TICKS

PANEL_WIDTH, PANEL_HEIGHT = 240, 232
LEFT, LEADER, TICK_LABELS, BELOW = 62, 12, 44, 44


def panels(curve: list[Point]) -> list[tuple[str, list[Point]]]:
    """(heading, points) of each panel: one for few curves, else encodings as they are, then each encoding's extensions, the most first."""
    cells = set(methods(curve))
    plain = [point for point in curve if point.extension == "none"]
    extended: dict[str, set] = {}
    for encoding, extension, *rest in sorted(cells, key=str):
        if extension != "none":
            extended.setdefault(encoding, set()).add((extension, *rest))
    encodings = sorted(extended, key=lambda name: -len(extended[name]))
    if len(cells) <= FEW and len({point.encoding for point in curve}) > 1 or not extended:
        return [("", curve)]
    shown = [(f"{name}: extensions", [point for point in curve if point.encoding == name]) for name in encodings]
    return ([("Encodings, nothing extended", plain)] if len({point.encoding for point in plain}) > 1 else []) + shown


def figure(curve: list[Point], title: str):
    """The figure of one section."""
    from matplotlib.figure import Figure

    if curve[0].window:  # the first positions have a high loss in every model and would flatten the rest
        curve = [point for point in curve if 8 * point.length >= point.train_len] or curve
    shown, relative = panels(curve), is_relative(curve)
    known = [value for value in (height(point, relative) for point in curve) if value is not None]
    bottom, top = limits(known or [0.0], relative)
    labels = [[name(next(iter(cell.values())), points) for cell in methods(points).values()] for _, points in shown]
    gutters = [LEADER + max(map(width, texts)) for texts in labels]
    columns = min(len(shown), 2 if len(shown) == 4 or max(gutters) > 170 else 3)
    lines = -(-len(shown) // columns)
    tall = max(PANEL_HEIGHT, GAP * max(map(len, labels)))
    beyond = [clipped(points, relative, top) for _, points in shown]
    headroom = [max(10 + stack(found) for found in beyond[line * columns : (line + 1) * columns]) for line in range(lines)]
    wide = [max(gutters[column::columns]) for column in range(columns)]

    whole_width = LEFT + columns * PANEL_WIDTH + sum(wide) + (columns - 1) * TICK_LABELS
    titles = textwrap.wrap(title, int(whole_width / 8))
    heading = 18 * bool(shown[0][0])
    above = 18 * len(titles)
    whole_height = above + sum(headroom) + lines * (heading + tall + BELOW)
    drawn = Figure(figsize=(whole_width / 72, whole_height / 72), layout=None)
    palette, extensions = colours(curve, shown), list(dict.fromkeys(["none", *(point.extension for point in curve)]))
    scales = list(dict.fromkeys(["none", *(point.scale_attention for point in curve)]))
    for index, (text, points) in enumerate(shown):
        line, column = divmod(index, columns)
        left = LEFT + column * (PANEL_WIDTH + TICK_LABELS) + sum(wide[:column])
        high = above + sum(headroom[: line + 1]) + line * (tall + BELOW) + (line + 1) * heading
        place = [left / whole_width, 1 - (high + tall) / whole_height, PANEL_WIDTH / whole_width, tall / whole_height]
        axes = drawn.add_axes(place)
        frame(axes, points, {point.length for point in curve}, relative, (bottom, top), first=column == 0, corner=index == 0)
        lines_of(axes, points, relative, palette[index], extensions, scales, top)
        by_colour = {length: [(value, palette[index][cell]) for value, cell in found] for length, found in beyond[index].items()}
        carets(axes, by_colour, relative)
        axes.set_title(text, fontsize=10.5, loc="left", pad=headroom[line] - 2, color="#222222")
    drawn.text(0, 1, "\n".join(titles), fontsize=13, fontweight="bold", va="top")
    said = [part for text in caption(curve, relative) for part in textwrap.wrap(text, int(whole_width / 3.9))]
    drawn.text(0, 0, "\n".join(said), fontsize=7.8, color=GREY, linespacing=1.35, va="top")
    return drawn


def is_relative(curve: Iterable[Point]) -> bool:
    """Whether every loss has a floor to be drawn against."""
    return all(point.difference is not None or point.nll is None for point in curve)


def height(point: Point, relative: bool) -> float | None:
    """What is drawn of a point: the difference to the floor, or the loss."""
    return point.difference if relative else point.nll


def clipped(points: list[Point], relative: bool, top: float) -> dict[int, list[tuple[float, tuple[str, str]]]]:
    """Length -> (value, (encoding, extension)) of what lies beyond the top edge there."""
    found: dict[int, list[tuple[float, tuple[str, str]]]] = {}
    for point in points:
        value = height(point, relative)
        if value is not None and value > top and point.length in marked(other.length for other in points):
            found.setdefault(point.length, []).append((value, (point.encoding, point.extension)))
    return found


def colours(curve: list[Point], shown: list[tuple[str, list[Point]]]) -> list[dict[tuple[str, str], str]]:
    """For each panel (encoding, extension) -> colour. An encoding keeps its colour; in a panel of one encoding extensions take others.

    Where several panels show extensions, an extension keeps its colour through them and what is not extended is black.
    """
    own = {name: OKABE_ITO[index % len(OKABE_ITO)] for index, name in enumerate(dict.fromkeys(point.encoding for point in curve))}
    extensions = [name for name in dict.fromkeys(point.extension for point in curve) if name != "none"]
    several = sum(any(point.extension != "none" for point in points) for _, points in shown) > 1
    result = []
    for _, points in shown:
        cells = {(point.encoding, point.extension) for point in points}
        if len({encoding for encoding, _ in cells}) > 1 or all(extension == "none" for _, extension in cells):
            result.append({cell: own[cell[0]] for cell in cells})
            continue
        plain = BLACK if several else own[points[0].encoding]
        taken = {BLACK} if several else {plain}
        spare = sorted((colour for colour in OKABE_ITO if colour not in taken), key=lambda colour: not several and colour in own.values())
        result.append({cell: plain if cell[1] == "none" else spare[extensions.index(cell[1]) % len(spare)] for cell in cells})
    return result


def limits(values: list[float], relative: bool) -> tuple[float, float]:
    """Bottom and top of the y axis. The top is cut where few exploding values would flatten all the rest.

    A difference to the floor is drawn on a scale that is logarithmic beyond BEND and can show more: it is cut at BROKEN or at
    twice the upper quartile, whichever is higher. A plain loss is cut at twice the spread of the lower half.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if relative:
        low, high = min(low, -0.02), max(high, 0.05)
        return 1.6 * low - 0.02, min(1.25 * high, max(BROKEN, 2 * ordered[len(ordered) * 3 // 4]))
    top = low + 2.0 * (ordered[(len(ordered) - 1) // 2] - low)
    top = high if high <= low + 1.7 * (top - low) else top
    margin = 0.07 * ((top - low) or 0.1)
    return low - margin, top + margin


def frame(axes, points: list[Point], lengths: Iterable[int], relative: bool, edges: tuple[float, float], first: bool, corner: bool) -> None:
    """Scales, ticks at `lengths`, the training length and the floor; words at the left of the first of a line, a hint in the corner."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    (bottom, top), train_len, window, ticks = edges, points[0].train_len, points[0].window, marked(lengths)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = min(ticks[0], train_len), max(ticks[-1], train_len)
    axes.set_xlim(low / 1.12, high * (1.06 if high > low else 1.12))
    axes.axvline(train_len, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(f"trained at {train_len}", (train_len, bottom), xytext=(4, 4), textcoords="offset points", fontsize=7.5, color=GREY)
    if relative:
        axes.set_yscale("symlog", linthresh=BEND, linscale=1.3)
        both = [sign * tick for tick in TICKS for sign in (1, -1)]
        axes.yaxis.set_major_locator(FixedLocator([tick for tick in sorted(set(both)) if bottom <= tick <= top]))
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:+g}" if y else "0")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.axhspan(bottom, 0, color=GAIN, alpha=0.07, linewidth=0, zorder=0)
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)
    axes.set_ylim(bottom, top)
    axes.set_xlabel(f"position in a window of {window} tokens" if window else "length at evaluation (tokens)", fontsize=FONT)
    if first:
        reference = f"loss minus the loss with exactly\n{train_len} tokens of context (nats/token)"
        axes.set_ylabel(reference if relative else "loss (nats/token)", fontsize=FONT)
    if corner and relative:
        where = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right", "fontsize": 7.5, "style": "italic"}
        axes.annotate("below 0: the longer context helps", (1, 0), xytext=(-3, 4), color="#00724f", **where)
    axes.tick_params(labelsize=FONT, labelleft=True, color=GREY)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def lines_of(axes, points: list[Point], relative: bool, palette: dict, extensions: list[str], scales: list[str], top: float) -> None:
    """Every method's line with marks, bars and its name at the end; thin where a CSV states it."""
    ends, ticks = [], marked(point.length for point in points)
    for (encoding, extension, scale, source), cell in methods(points).items():
        known = [(point, height(point, relative)) for _, point in sorted(cell.items())]
        known = [(point, value) for point, value in known if value is not None]
        if not known:
            continue
        colour, marker = palette[encoding, extension], "x" if source else MARKERS[scales.index(scale) % len(MARKERS)]
        style = {"linestyle": DASHES[extensions.index(extension) % len(DASHES)], "linewidth": 0.9 if source else 1.5}
        axes.plot([point.length for point, _ in known], [value for _, value in known], color=colour, zorder=3, **style)
        inside = [(point.length, value) for point, value in known if value <= top and (len(known) <= 12 or point.length in ticks)]
        face = colour if scale == "none" or source else "white"
        marks = {"marker": marker, "markersize": 4.6, "markeredgewidth": 1.1, "markeredgecolor": colour, "markerfacecolor": face}
        axes.plot(*zip(*inside, strict=True) if inside else ([], []), linestyle="none", zorder=4, **marks)
        bars = [(point.length, *bounds) for point, value in known if value <= top and (bounds := bar(point, relative))]
        if bars:
            axes.vlines(*zip(*bars, strict=True), color=colour, linewidth=2.4, alpha=0.35, zorder=2)
        ends.append((known[-1][1], known[-1][0].length, name(known[-1][0], points), colour))
    end_labels(axes, ends)


def bar(point: Point, relative: bool) -> tuple[float, float] | None:
    """The ends of the interval of what is drawn, where there is one."""
    if None not in (point.low, point.high) and (not relative or point.floor is not None):
        return point.low - (point.floor if relative else 0), point.high - (point.floor if relative else 0)
    known = relative and None not in (point.difference, point.half_width)
    return (point.difference - point.half_width, point.difference + point.half_width) if known else None
