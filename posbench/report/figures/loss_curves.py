"""Loss over length as small multiples: encodings without extensions, then a panel for each encoding's extensions, on shared axes.

Colour shows the encoding (the extension, if a panel has one encoding), dash the extension, marker the scale-attention. Many methods
are spread over several panels, each with all others in grey. The margin beside a panel is as wide as its longest label.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from posbench.report.figures.annotations import GAP, caption, carets, name, stack, width
from posbench.report.figures.lines import PANEL_WIDTH, behind, beside, height, lines_of
from posbench.report.figures.palette import apart, encoding_look, extension_look, looks
from posbench.report.figures.style import BEND, BROKEN, FEW, FONT, GAIN, GREY, Frame, note, octaves, ticks
from posbench.report.points import Point, marked, methods

PANEL_HEIGHT = 232
LEFT, LEADER, TICK_LABELS, BELOW = 62, 12, 44, 44


@dataclass(frozen=True)
class Panel:
    """One panel: its heading, the points that are drawn, and `others`, drawn in grey behind them."""

    heading: str
    points: list[Point]
    others: list[Point] = field(default_factory=list)


def panels(curve: list[Point]) -> list[Panel]:
    """One panel for few curves; else encodings alone, then each encoding's extensions, the most first. Crowded panels are divided."""
    cells = sorted(methods(curve), key=str)
    extended = Counter(encoding for encoding, extension, *_ in cells if extension != "none")
    if len(cells) <= FEW and len({point.encoding for point in curve}) > 1 or not extended:
        return _parts("", curve)
    plain = [point for point in curve if point.extension == "none"]
    shown = [(f"{name}: extensions", [point for point in curve if point.encoding == name]) for name, _ in extended.most_common()]
    shown = [("Encodings, nothing extended", plain)] * (len({point.encoding for point in plain}) > 1) + shown
    return [part for heading, points in shown for part in _parts(heading, points)]


def _parts(heading: str, points: list[Point]) -> list[Panel]:
    """One panel, or several if it had too many lines: each with some of the methods, and all others in grey."""
    alone = len({point.encoding for point in points}) == 1
    name, look = ("extension", extension_look) if alone else ("encoding", encoding_look)
    reference = {"none"} if alone else set()  # the line without an extension is in each panel
    groups = apart([one for one in dict.fromkeys(getattr(point, name) for point in points) if one not in reference], look)
    if len(groups) == 1:
        return [Panel(heading, points)]
    parts = []
    for index, group in enumerate(groups, start=1):
        inside = {*group, *reference}
        own, others = ([point for point in points if (getattr(point, name) in inside) == wanted] for wanted in (True, False))
        parts.append(Panel(f"{heading or 'Methods'} ({index} of {len(groups)})", own, others))
    return parts


def pens(curve: list[Point], shown: list[Panel]) -> list[dict[tuple[str, str], tuple[str, object]]]:
    """Colour and dash of each (encoding, extension), for each panel."""
    extensions = list(dict.fromkeys(point.extension for point in curve))
    return [looks(dict.fromkeys((point.encoding, point.extension) for point in panel.points), extensions) for panel in shown]


def figure(curve: list[Point], title: str):
    """Figure of one section."""
    shown = panels(curve)
    relative = all(point.difference is not None or point.nll is None for point in curve)  # every finite loss has a floor
    known = [value for value in (height(point, relative) for point in curve) if value is not None]
    bottom, top = limits(known or [0.0], relative)
    labels = [[name(next(iter(cell.values())), panel.points) for cell in methods(panel.points).values()] for panel in shown]
    gutters = [LEADER + max(map(width, texts)) for texts in labels]
    columns = min(len(shown), 2 if len(shown) == 4 or max(gutters) > 170 else 3)
    lines = -(-len(shown) // columns)
    tall = max(PANEL_HEIGHT, GAP * max(map(len, labels)))
    drawn_with = pens(curve, shown)
    beyond = [clipped(panel.points, relative, top, own) for panel, own in zip(shown, drawn_with, strict=True)]
    headroom = [max(10 + stack(found) for found in beyond[line * columns : (line + 1) * columns]) for line in range(lines)]
    wide = [max(gutters[column::columns]) for column in range(columns)]
    heading = 18 * bool(shown[0].heading)

    whole_width = LEFT + columns * PANEL_WIDTH + sum(wide) + (columns - 1) * TICK_LABELS
    frame = Frame(title, whole_width, sum(headroom) + lines * (heading + tall + BELOW))
    lengths = sorted({point.length for point in curve})
    span = math.log2(lengths[-1] / lengths[0]) + 0.5
    spread = [beside(panel.points, span, relative) for panel in shown]
    room = max(found.get(length, 0.0) for found in spread for length in (lengths[0], lengths[-1]))
    scales = list(dict.fromkeys(["none", *(point.scale_attention for point in curve)]))
    for index, panel in enumerate(shown):
        line, column = divmod(index, columns)
        left = LEFT + column * (PANEL_WIDTH + TICK_LABELS) + sum(wide[:column])
        high = sum(headroom[: line + 1]) + line * (tall + BELOW) + (line + 1) * heading
        axes = frame.axes(left, high, PANEL_WIDTH, tall)
        _scales(axes, curve[0], lengths, relative, (bottom, top), room)
        if column == 0:
            reference = f"loss minus the loss with exactly\n{curve[0].train_len} tokens of context (nats/token)"
            axes.set_ylabel(reference if relative else "loss (nats/token)", fontsize=FONT)
        if index == 0 and relative:
            style = {"xycoords": "axes fraction", "ha": "right", "fontsize": 7.5, "style": "italic", "color": "#00724f"}
            note(axes, "below 0: the longer context helps", (1, 0), (-3, 4), **style)
        behind(axes, panel.others, relative)
        lines_of(axes, panel.points, relative, drawn_with[index], scales, top, spread[index])
        carets(axes, beyond[index], relative)
        axes.set_title(panel.heading, fontsize=10.5, loc="left", pad=headroom[line] - 2, color="#222222")
    others = ["Thin grey: the methods of the other panels of that name."] * any(panel.others for panel in shown)
    frame.caption(caption(curve, relative) + others)
    return frame.figure


def clipped(points: list[Point], relative: bool, top: float, pens: dict) -> dict[int, list[tuple[float, str]]]:
    """Values beyond the top edge, by length: (value, colour)."""
    found: dict[int, list[tuple[float, str]]] = {}
    shown = marked(point.length for point in points)
    for point in points:
        value = height(point, relative)
        if value is not None and value > top and point.length in shown:
            found.setdefault(point.length, []).append((value, pens[point.encoding, point.extension][0]))
    return found


def limits(values: list[float], relative: bool) -> tuple[float, float]:
    """Bottom and top of the y axis. The top is cut if a few exploding values would flatten all the rest.

    A difference to the floor is drawn on a scale that is logarithmic beyond BEND and can show more. It is cut at BROKEN or at
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


def _scales(axes, one: Point, lengths: list[int], relative: bool, edges: tuple[float, float], room: float) -> None:
    """Set up scales, ticks at `lengths`, the training length and the floor.

    `one` is any point of the section. `room`: octaves that the lines share at the first and the last length.
    """
    (bottom, top), train_len, shown = edges, one.train_len, marked(lengths)
    octaves(axes, shown, train_len)
    low, high = min(shown[0], train_len), max(shown[-1], train_len)
    aside = 2 ** (0.55 * room)
    axes.set_xlim(low / max(1.12, aside), high * max(1.06 if high > low else 1.12, aside))
    up = 4 if train_len**2 < low * high or not relative else 16  # the right half has a line on what lies below 0
    note(axes, f"trained at {train_len}", (train_len, bottom), (4, up), fontsize=7.5, color=GREY)
    if relative:
        axes.set_yscale("symlog", linthresh=BEND, linscale=1.3)
        axes.set_yticks(*ticks(bottom, top))
        axes.set_yticks([], minor=True)
        axes.axhspan(bottom, 0, color=GAIN, alpha=0.07, linewidth=0, zorder=0)
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)
    axes.set_ylim(bottom, top)
    axes.set_xlabel("length at evaluation (tokens)", fontsize=FONT)
