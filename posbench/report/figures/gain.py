"""Figure of the loss beyond the training length against G of the training, and against its length or its steps.

It is drawn where an encoding was trained at several lengths, or for several numbers of steps. A mark is one method on the trainings of one
length and configuration, all at the same multiple of their training length. Lines join marks of one length against G, and against the
length those of equal steps, so that what only the knob changes is one line. Marks without such a line stand against G alone.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from posbench.report.figures.annotations import GAP, end_labels, line_name, measured, of_intervals, width
from posbench.report.figures.palette import looks_of_methods, method_of
from posbench.report.figures.style import MARKERS, Frame, differences, octaves, ruled
from posbench.report.points import Point, span, two_seeds

PANEL_WIDTH, PANEL_HEIGHT = 260, 280  # points
LEFT, LEADER, BETWEEN, ABOVE, BELOW = 48, 14, 50, 24, 40
NAMES = ("disc", "diamond", "square", "triangle", "triangle that points down", "plus", "cross")  # of MARKERS
GAIN = "Against G (nats/token)"
TOLD = re.compile(r" (?:train\.)?steps=(\d+)")  # in the name of an encoding that was trained for several numbers of steps
Method = tuple[str, str, str]  # encoding without what the knob tells apart, extension, scale


@dataclass(frozen=True)
class Knob:
    """In what the trainings of an encoding differ: `of` a point its value, or None, and `line` the encoding without it.

    Points with equal `joined` are one line against the knob, those of equal arguments where it would have two at one value.
    """

    heading: str
    unit: str
    of: Callable[[Point], int | None]
    line: Callable[[str], str]
    joined: Callable[[Point], object]


def _steps(point: Point) -> int | None:
    said = TOLD.search(point.encoding)
    return int(said[1]) if said else None


LENGTH = Knob("Against the training length (tokens)", "tokens", lambda point: point.train_len, method_of, _steps)
STEPS = Knob("Against the steps of training", "steps", _steps, lambda label: TOLD.sub("", label), lambda point: point.train_len)
KNOBS = (LENGTH, STEPS)  # the first in which the trainings of an encoding differ


def figure(points: list[Point], title: str):
    """Figure of the points of all sections; None if no encoding was trained in several of KNOBS' values and read at a common multiple."""
    found = ((knob, *at_multiple(points, knob)) for knob in KNOBS)
    knob, multiple, cells = next((one for one in found if one[-1]), (LENGTH, 0, {}))
    if not cells:
        return None
    names = {method: line_name(*method) for method in cells}
    tall, gutter = max(PANEL_HEIGHT, 1.6 * GAP * len(cells)), LEADER + max(map(width, names.values()))
    frame = Frame(title, LEFT + 2 * (PANEL_WIDTH + gutter) + BETWEEN, ABOVE + tall + BELOW)
    shown = [point for own in cells.values() for point in own]
    values = sorted({knob.of(point) for point in shown})
    panels: dict[str, Callable[[Point], float]] = {GAIN: lambda point: point.gain, knob.heading: knob.of}
    for index, (heading, place) in enumerate(panels.items()):
        axes = frame.axes(LEFT + index * (PANEL_WIDTH + gutter + BETWEEN), ABOVE, PANEL_WIDTH, tall)
        axes.set_title(heading, fontsize=9.5, loc="left", pad=6, color="#222222")
        _losses(axes, shown)
        if place is knob.of:
            octaves(axes, values)
            axes.set_xlim(values[0] / 1.3, values[-1] * 1.3)
        _marks(axes, cells, names, {value: MARKERS[number % len(MARKERS)] for number, value in enumerate(values)}, knob, place)
    frame.caption(_said(shown, values, knob, multiple), up=4)
    return frame.figure


def at_multiple(points: list[Point], knob: Knob = LENGTH) -> tuple[int, dict[Method, list[Point]]]:
    """The largest multiple of the training length that all trainings were read at, and the points there by method, in the order of G.

    Only encodings whose trainings differ in the knob are kept; without any the multiple is 0.
    """
    trained = [point for point in points if not point.source and " tuned from " not in point.encoding]
    known = [point for point in trained if None not in (point.gain, point.difference, knob.of(point))]
    read = defaultdict(lambda: defaultdict(set))
    for point in known:
        if point.length > point.train_len and point.length % point.train_len == 0:
            read[method_of(point.encoding)][knob.of(point)].add(point.length // point.train_len)
    kept = {encoding: values for encoding, values in read.items() if len(values) > 1}
    multiple = max(set.intersection(*(multiples for values in kept.values() for multiples in values.values())), default=0) if kept else 0
    cells: dict[Method, list[Point]] = defaultdict(list)
    for point in sorted(known, key=lambda point: point.gain):
        if point.length == multiple * point.train_len and method_of(point.encoding) in kept:
            cells[knob.line(point.encoding), point.extension, point.scale_attention].append(point)
    return multiple, cells


def _losses(axes, shown: list[Point]) -> None:
    known = [point.difference + sign * (point.half_width or 0.0) for point in shown for sign in (1, -1)]
    differences(axes, known)
    ruled(axes)
    axes.axhline(0, color="black", linewidth=0.9, zorder=1)


def _marks(axes, cells: dict[Method, list[Point]], names: dict[Method, str], marks: dict[int, str], knob: Knob, place) -> None:
    ends, pens, thin = [], looks_of_methods(cells), {"linewidth": 0.7, "alpha": 0.6}
    for method, own in cells.items():
        colour, dash = pens[method]
        lines = _lines(own, knob) if place is knob.of else _apart(own, lambda point: point.train_len)
        own = [point for line in lines for point in line]
        for line in lines:
            axes.plot(*zip(*((place(point), point.difference) for point in line), strict=True), **thin, color=colour, linestyle=dash)
        for point in own:
            mark = marks[knob.of(point)]
            face = colour if method[2] == "none" else "white"
            axes.plot([place(point)], [point.difference], color=colour, marker=mark, markersize=4.8, markerfacecolor=face, zorder=3)
            if point.half_width:
                ends_of = (point.difference - point.half_width, point.difference + point.half_width)
                axes.vlines([place(point)], *ends_of, color=colour, linewidth=2.4, alpha=0.3, zorder=2)
        last = max(own, key=place)
        ends.append((last.difference, place(last), names[method], colour))
    end_labels(axes, ends)


def _lines(own: list[Point], knob: Knob) -> list[list[Point]]:
    """Lines of a method against the knob, without the trainings that have none to be compared with, if others have."""
    found = []
    for line in _apart(sorted(own, key=knob.of), knob.joined):
        crossed = len({knob.of(point) for point in line}) < len(line)
        found += _apart(line, lambda point: point.encoding) if crossed else [line]
    return [line for line in found if len(line) > 1] or found


def _apart(own: list[Point], by: Callable[[Point], object]) -> list[list[Point]]:
    groups = defaultdict(list)
    for point in own:
        groups[by(point)].append(point)
    return list(groups.values())


def _said(shown: list[Point], values: list[int], knob: Knob, multiple: int) -> list[str]:
    marks = ", ".join(f"{NAMES[index % len(NAMES)]} {value}" for index, value in enumerate(values))
    what = "which is told by the mark" if knob is LENGTH else "after the steps that the mark tells"
    return [
        f"Loss minus the floor (nats/token) at {multiple} times the training length, {what}: {marks} {knob.unit}.",
        measured(shown, f"{span(point.n_targets for point in shown)} targets"),
        f"G: what the second half of the window brings. Bars: {of_intervals(shown)}.",
        *(f"{said[0].upper()}{said[1:]}." for said in two_seeds(shown)),
    ]
