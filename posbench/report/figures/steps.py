"""Figure of the loss against the steps of a fine-tuning: a panel for the shortest length, the length of the fine-tuning, and the longest.

It is drawn where children of one training have several numbers of steps, from the points of a section alone: their names hold the steps.
"""

import re
from collections import defaultdict

from posbench.report.figures.annotations import GAP, end_labels, measured, shortened, width
from posbench.report.figures.palette import looks_of_methods
from posbench.report.figures.style import DASHES, FONT, MARKERS, Frame, ruled
from posbench.report.points import Point, span

PANEL_WIDTH, PANEL_HEIGHT = 230, 260  # points
LEFT, LEADER, BETWEEN, ABOVE, BELOW = 48, 14, 44, 24, 40
STEPS = re.compile(r" (?:train\.)?steps=(\d+)")
Method = tuple[str, str, str]  # encoding without its steps, extension, scale


def figure(points: list[Point], title: str):
    """Figure of a section; None if no method was fine-tuned by several numbers of steps."""
    cells = by_steps(points)
    if not cells:
        return None
    shown = [point for own in cells.values() for at in own.values() for point in at.values()]
    lengths = sorted({point.length for point in shown})
    lengths = sorted({lengths[0], lengths[-1], *({points[0].train_len} & set(lengths))})
    names = _names(cells)
    tall, gutter = max(PANEL_HEIGHT, 1.6 * GAP * len(cells)), LEADER + max(map(width, names.values()))
    frame = Frame(title, LEFT + len(lengths) * (PANEL_WIDTH + gutter) + (len(lengths) - 1) * BETWEEN, ABOVE + tall + BELOW)
    for index, length in enumerate(lengths):
        axes = frame.axes(LEFT + index * (PANEL_WIDTH + gutter + BETWEEN), ABOVE, PANEL_WIDTH, tall)
        axes.set_title(f"Loss at {length} tokens (nats/token)", fontsize=9.5, loc="left", pad=6, color="#222222")
        _scales(axes, sorted({steps for own in cells.values() for steps in own}))
        _lines(axes, cells, names, length)
    frame.caption(
        [
            f"Fine-tuned at {points[0].train_len} tokens; 0 steps is the same method without fine-tuning.",
            measured(shown, f"{span(point.n_targets for point in shown)} targets"),
        ],
        up=4,
    )
    return frame.figure


def by_steps(points: list[Point]) -> dict[Method, dict[int, dict[int, Point]]]:
    """{method: {steps: {length: point}}} of the methods that were fine-tuned by several numbers of steps."""
    cells: dict[Method, dict[int, dict[int, Point]]] = defaultdict(lambda: defaultdict(dict))
    for point in points:
        found = STEPS.search(point.encoding)
        if found and " tuned from " in point.encoding and point.nll is not None and not point.source:
            method = STEPS.sub("", point.encoding), point.extension, point.scale_attention
            cells[method][int(found[1])][point.length] = point
    return {method: own for method, own in cells.items() if len(own) > 1}


def _names(cells: dict[Method, dict]) -> dict[Method, str]:
    """Name of each line: the encoding where there are several, then extension and scale."""
    several = len({encoding for encoding, *_ in cells}) > 1
    found = {}
    for method in cells:
        parts = [method[0]] * several + [part for part in method[1:] if part != "none"]
        found[method] = shortened(" + ".join(parts) or "no extension")
    return found


def _scales(axes, steps: list[int]) -> None:
    first = next((one for one in steps if one), 1)
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xticks(steps, map(str, steps))
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.1 * first, steps[-1] * 1.25)
    axes.set_xlabel("steps of fine-tuning", fontsize=FONT)
    ruled(axes)


def _lines(axes, cells: dict[Method, dict[int, dict[int, Point]]], names: dict[Method, str], length: int) -> None:
    ends, pens = [], looks_of_methods(cells)
    for method, own in cells.items():
        known = [(steps, at[length].nll) for steps, at in sorted(own.items()) if length in at]
        if not known:
            continue
        colour, dash = pens[method]
        style = {"linestyle": dash, "marker": MARKERS[DASHES.index(dash)], "markersize": 4, "linewidth": 1.4}
        axes.plot(*zip(*known, strict=True), color=colour, zorder=3, **style)
        ends.append((known[-1][1], known[-1][0], names[method], colour))
    end_labels(axes, ends)
