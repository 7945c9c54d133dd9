"""Figure of the loss beyond the training length against G of the training, and against its length or its steps.

It is drawn where an encoding was trained at several lengths, or for several numbers of steps. A mark is one method on the trainings of one
length and configuration, all at the same multiple of their training length. Lines join marks of one length against G, and against the
length those of equal steps, so that what only the knob changes is one line. Marks without such a line stand against G alone.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from posbench.report.figures.captions import data_line, line_name, of_intervals
from posbench.report.figures.context_loss import with_interval
from posbench.report.figures.lines import Line, Mark, Panel, Pen, draw
from posbench.report.figures.palette import bases, looks_of_methods
from posbench.report.figures.style import MARKERS, difference_axis, octaves, ruled
from posbench.report.records import CurvePoint, span, two_seeds

NAMES = ("disc", "diamond", "square", "triangle", "triangle that points down", "plus", "cross")  # of MARKERS
GAIN = "Against G (nats/token)"
Method = tuple[str, str, str]  # encoding without what the knob tells apart, extension, scale


@dataclass(frozen=True)
class Knob:
    """Setting in which the trainings of an encoding differ: `of(point)` is its value or None, `line(point)` the encoding's name without it.

    Points with equal `joined` form one line. A line with two points at one value is divided by the encoding's arguments.
    """

    heading: str
    unit: str
    of: Callable[[CurvePoint], int | None]
    line: Callable[[CurvePoint], str]
    joined: Callable[[CurvePoint], object]


def _steps(point: CurvePoint) -> int | None:
    return point.behind.steps


def _length(point: CurvePoint) -> int:
    return point.train_len


def _encoding(point: CurvePoint) -> str:
    return point.behind.encoding


LENGTH = Knob("Against the training length (tokens)", "tokens", _length, _encoding, _steps)
STEPS = Knob("Against the steps of training", "steps", _steps, lambda point: point.behind.line, _length)
KNOBS = (LENGTH, STEPS)  # the first in which the trainings of an encoding differ


def figure(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None if no encoding was trained in several of KNOBS' values and read at a common multiple."""
    found = ((knob, *at_multiple(points, knob)) for knob in KNOBS)
    knob, multiple, cells = next((one for one in found if one[-1]), (LENGTH, 0, {}))
    if not cells:
        return None
    shown = [point for own in cells.values() for point in own]
    values = sorted({knob.of(point) for point in shown})
    marks = {value: MARKERS[number % len(MARKERS)] for number, value in enumerate(values)}
    pens = looks_of_methods(cells, bases(shown))
    places: dict[str, Callable[[CurvePoint], float]] = {GAIN: lambda point: point.gain, knob.heading: knob.of}
    panels = []
    for heading, place in places.items():
        lines = []
        for method, own in cells.items():
            colour, dash = pens[method]
            pen = Pen(colour, dash, hollow=method[2] != "none", thin=True)
            parts = _lines(own, knob) if place is knob.of else _apart(own, _length)
            last = max((point for part in parts for point in part), key=place)
            for part in parts:
                part = sorted(part, key=place)
                drawn = [Mark(place(one), *with_interval(one.difference, one.half_width), marks[knob.of(one)]) for one in part]
                lines.append(Line(line_name(*method) if last in part else "", drawn, pen))
        scales = functools.partial(_scales, shown=shown, values=values if place is knob.of else None)
        panels.append(Panel(heading, lines, scales))
    return draw(title, [panels], _caption(shown, values, knob, multiple))


def at_multiple(points: list[CurvePoint], knob: Knob = LENGTH) -> tuple[int, dict[Method, list[CurvePoint]]]:
    """The largest multiple of the training length that all trainings were read at, and the points there by method, in the order of G.

    Only encodings whose trainings differ in the knob are kept; without any the multiple is 0.
    """
    trained = [point for point in points if not point.source and not point.behind.tuned_from]
    known = [point for point in trained if None not in (point.gain, point.difference, knob.of(point))]
    read = defaultdict(lambda: defaultdict(set))
    for point in known:
        if point.length > point.train_len and point.length % point.train_len == 0:
            read[_encoding(point)][knob.of(point)].add(point.length // point.train_len)
    kept = {encoding: values for encoding, values in read.items() if len(values) > 1}
    multiple = max(set.intersection(*(multiples for values in kept.values() for multiples in values.values())), default=0) if kept else 0
    cells: dict[Method, list[CurvePoint]] = defaultdict(list)
    for point in sorted(known, key=lambda point: point.gain):
        if point.length == multiple * point.train_len and _encoding(point) in kept:
            cells[knob.line(point), point.extension, point.scale_attention].append(point)
    return multiple, cells


def _scales(axes, shown: list[CurvePoint], values: list[int] | None) -> None:
    difference_axis(axes, [point.difference + sign * (point.half_width or 0.0) for point in shown for sign in (1, -1)])
    ruled(axes)
    axes.axhline(0, color="black", linewidth=0.9, zorder=1)
    if values:
        octaves(axes, values)
        axes.set_xlim(values[0] / 1.3, values[-1] * 1.3)


def _lines(own: list[CurvePoint], knob: Knob) -> list[list[CurvePoint]]:
    """Lines of a method against the knob; single points are left out if there are lines of several."""
    found = []
    for line in _apart(sorted(own, key=knob.of), knob.joined):
        crossed = len({knob.of(point) for point in line}) < len(line)
        found += _apart(line, lambda point: point.encoding) if crossed else [line]
    return [line for line in found if len(line) > 1] or found


def _apart(own: list[CurvePoint], by: Callable[[CurvePoint], object]) -> list[list[CurvePoint]]:
    groups = defaultdict(list)
    for point in own:
        groups[by(point)].append(point)
    return list(groups.values())


def _caption(shown: list[CurvePoint], values: list[int], knob: Knob, multiple: int) -> list[str]:
    marks = ", ".join(f"{NAMES[index % len(NAMES)]} {value}" for index, value in enumerate(values))
    what = "which the mark shows" if knob is LENGTH else "after the steps that the mark shows"
    return [
        f"Loss minus the floor (nats/token) at {multiple} times the training length, {what}: {marks} {knob.unit}.",
        data_line(shown, f"{span(point.n_targets for point in shown)} targets"),
        f"G: the gain from the second half of the window. Bars: {of_intervals(shown)}.",
        *(f"{said[0].upper()}{said[1:]}." for said in two_seeds(shown)),
    ]
