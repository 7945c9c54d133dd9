"""Loss over length as small multiples: encodings without extensions, then a panel for each encoding's extensions, on shared axes.

Colour shows the encoding (the extension, if a panel has one encoding), dash the extension, marker the scale-attention. Many methods
are spread over several panels, each with all others in grey. Sizes are in points (1/72 inch). The margin beside a panel is as wide as
its longest label.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from posbench.report.figures.annotations import GAP, caption, carets, name, stack, width
from posbench.report.figures.lines import PANEL_WIDTH, behind, beside, height, lines_of
from posbench.report.figures.palette import apart, encoding_look, extension_look, looks
from posbench.report.figures.style import BEND, BROKEN, FEW, FONT, GAIN, GREY, TICKS
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
    cells = set(methods(curve))
    plain = [point for point in curve if point.extension == "none"]
    extended: dict[str, set] = {}
    for encoding, extension, *rest in sorted(cells, key=str):
        if extension != "none":
            extended.setdefault(encoding, set()).add((extension, *rest))
    encodings = sorted(extended, key=lambda name: -len(extended[name]))
    if len(cells) <= FEW and len({point.encoding for point in curve}) > 1 or not extended:
        return _parts("", curve)
    shown = [(f"{name}: extensions", [point for point in curve if point.encoding == name]) for name in encodings]
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
    from matplotlib.figure import Figure

    if curve[0].window:  # the first positions have a high loss in every model and would flatten the rest
        curve = [point for point in curve if 8 * point.length >= point.train_len] or curve
    shown, relative = panels(curve), is_relative(curve)
    known = [value for value in (height(point, relative) for point in curve) if value is not None]
    bottom, top = limits(known or [0.0], relative)
    labels = [[name(next(iter(cell.values())), panel.points) for cell in methods(panel.points).values()] for panel in shown]
    gutters = [LEADER + max(map(width, texts)) for texts in labels]
    columns = min(len(shown), 2 if len(shown) == 4 or max(gutters) > 170 else 3)
    lines = -(-len(shown) // columns)
    tall = max(PANEL_HEIGHT, GAP * max(map(len, labels)))
    beyond = [clipped(panel.points, relative, top) for panel in shown]
    headroom = [max(10 + stack(found) for found in beyond[line * columns : (line + 1) * columns]) for line in range(lines)]
    wide = [max(gutters[column::columns]) for column in range(columns)]

    whole_width = LEFT + columns * PANEL_WIDTH + sum(wide) + (columns - 1) * TICK_LABELS
    titles = textwrap.wrap(title, int(whole_width / 8))
    heading = 18 * bool(shown[0].heading)
    above = 18 * len(titles)
    whole_height = above + sum(headroom) + lines * (heading + tall + BELOW)
    drawn = Figure(figsize=(whole_width / 72, whole_height / 72), layout=None)
    drawn_with = pens(curve, shown)
    lengths = sorted({point.length for point in curve})
    span = math.log2(lengths[-1] / lengths[0]) + 0.5
    shared = [beside(panel.points, span, relative) for panel in shown]
    room = max(found.get(length, 0.0) for found in shared for length in (lengths[0], lengths[-1]))
    scales = list(dict.fromkeys(["none", *(point.scale_attention for point in curve)]))
    for index, panel in enumerate(shown):
        line, column = divmod(index, columns)
        left = LEFT + column * (PANEL_WIDTH + TICK_LABELS) + sum(wide[:column])
        high = above + sum(headroom[: line + 1]) + line * (tall + BELOW) + (line + 1) * heading
        place = [left / whole_width, 1 - (high + tall) / whole_height, PANEL_WIDTH / whole_width, tall / whole_height]
        axes = drawn.add_axes(place)
        frame(axes, curve[0], lengths, relative, (bottom, top), room, first=column == 0, corner=index == 0)
        behind(axes, panel.others, relative)
        lines_of(axes, panel.points, relative, drawn_with[index], scales, top, span)
        by_colour = {length: [(value, drawn_with[index][cell][0]) for value, cell in found] for length, found in beyond[index].items()}
        carets(axes, by_colour, relative)
        axes.set_title(panel.heading, fontsize=10.5, loc="left", pad=headroom[line] - 2, color="#222222")
    drawn.text(0, 1, "\n".join(titles), fontsize=13, fontweight="bold", va="top")
    others = ["Thin grey: the methods of the other panels of that name."] * any(panel.others for panel in shown)
    said = [part for text in caption(curve, relative) + others for part in textwrap.wrap(text, int(whole_width / 3.9))]
    drawn.text(0, 0, "\n".join(said), fontsize=7.8, color=GREY, linespacing=1.35, va="top")
    return drawn


def is_relative(curve: Iterable[Point]) -> bool:
    """True if every finite loss has a floor to be drawn against."""
    return all(point.difference is not None or point.nll is None for point in curve)


def clipped(points: list[Point], relative: bool, top: float) -> dict[int, list[tuple[float, tuple[str, str]]]]:
    """Values beyond the top edge, by length: (value, (encoding, extension))."""
    found: dict[int, list[tuple[float, tuple[str, str]]]] = {}
    for point in points:
        value = height(point, relative)
        if value is not None and value > top and point.length in marked(other.length for other in points):
            found.setdefault(point.length, []).append((value, (point.encoding, point.extension)))
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


def frame(axes, one: Point, lengths: list[int], relative: bool, edges: tuple[float, float], room: float, first: bool, corner: bool) -> None:
    """Set up scales, ticks at `lengths`, the training length and the floor.

    `one` is any point of the section. `room`: octaves that the lines share at the first and the last length. `first`: write the y label.
    `corner`: write the hint in the corner.
    """
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    (bottom, top), train_len, window, ticks = edges, one.train_len, one.window, marked(lengths)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = min(ticks[0], train_len), max(ticks[-1], train_len)
    aside = 2 ** (0.55 * room)
    axes.set_xlim(low / max(1.12, aside), high * max(1.06 if high > low else 1.12, aside))
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
