"""Figures of trainings of one encoding that differ in their length or their number of steps.

`gain`: the loss beyond the training length against G of the training, and against its length or its steps. A mark is one method on the
trainings of one length and configuration, all at the same multiple of their training length. Lines join marks of one length against G, and
against the length those of equal steps, so that what only the knob changes is one line. Marks without such a line stand against G alone.

`frontier`: the loss at one length against the length of training: how well short sequences, extended, take the place of long ones. It is
drawn where all trainings of an encoding were scored on the same targets at one length, which is at least the longest training length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from posbench.report.figures.captions import data_line, line_name, of_intervals
from posbench.report.figures.lines import Line, Mark, Panel, draw, with_interval
from posbench.report.figures.palette import Pen, bases, looks
from posbench.report.figures.style import FONT, GREY, MARKERS, difference_axis, octaves, ruled
from posbench.report.records import CurvePoint, grouped, span, two_seeds

NAMES = ("disc", "diamond", "square", "triangle", "triangle that points down", "plus", "cross")  # of MARKERS
FLOOR = ("", "its last tokens alone", "none")
Method = tuple[str, str, str]  # encoding without what tells its trainings apart, extension, scale


@dataclass(frozen=True)
class Knob:
    """Setting in which the trainings of an encoding differ: `of(point)` is its value or None, `line(point)` the encoding's name without it.

    Points with equal `joined` form one line. A line with two points at one value is divided by the encoding's arguments.
    """

    heading: str
    unit: str
    mark: str  # what the mark shows
    of: Callable[[CurvePoint], int | None]
    line: Callable[[CurvePoint], str]
    joined: Callable[[CurvePoint], object]


def _steps(point: CurvePoint) -> int | None:
    return point.behind.steps


def _length(point: CurvePoint) -> int:
    return point.train_len


def _encoding(point: CurvePoint) -> str:
    return point.behind.encoding


LENGTH = Knob("Against the training length (tokens)", "tokens", "which the mark shows", _length, _encoding, _steps)
STEPS = Knob("Against the steps of training", "steps", "after the steps that the mark shows", _steps, lambda one: one.behind.line, _length)


def gain(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None if no encoding was trained in several values of a knob and read at a common multiple."""
    for knob in (LENGTH, STEPS):  # the first in which the trainings of an encoding differ
        multiple, cells = at_multiple(points, knob)
        if cells:
            break
    else:
        return None
    shown = [point for own in cells.values() for point in own]
    values = sorted({knob.of(point) for point in shown})
    marks = {value: MARKERS[number % len(MARKERS)] for number, value in enumerate(values)}
    pens = looks(cells, bases(shown), by_extension=True)

    def mark(place: float, point: CurvePoint) -> Mark:
        return replace(with_interval(place, point.difference, point.half_width), marker=marks[knob.of(point)])

    def lines(place: Callable[[CurvePoint], float], parts: Callable[[list[CurvePoint]], list[list[CurvePoint]]]) -> list[Line]:
        found = []
        for method, own in cells.items():
            pen = replace(pens[method], hollow=method[2] != "none", thin=True)
            divided = [sorted(part, key=place) for part in parts(own)]
            last = max((point for part in divided for point in part), key=place)
            for part in divided:
                found.append(Line(line_name(*method) if last in part else "", [mark(place(one), one) for one in part], pen))
        return found

    def scales(axes) -> None:
        difference_axis(axes, [point.difference + sign * (point.half_width or 0.0) for point in shown for sign in (1, -1)])
        ruled(axes)
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    def with_knob(axes) -> None:
        scales(axes)
        octaves(axes, values)
        axes.set_xlim(values[0] / 1.3, values[-1] * 1.3)

    by_gain = lines(lambda point: point.gain, lambda own: list(grouped(own, _length).values()))
    by_knob = lines(knob.of, lambda own: joined_by(knob, own))
    shapes = ", ".join(f"{NAMES[index % len(NAMES)]} {value}" for index, value in enumerate(values))
    said = [
        f"Loss minus the floor (nats/token) at {multiple} times the training length, {knob.mark}: {shapes} {knob.unit}.",
        data_line(shown, f"{span(point.n_targets for point in shown)} targets"),
        f"G: the gain from the second half of the window. Bars: {of_intervals(shown)}.",
        *(f"{said[0].upper()}{said[1:]}." for said in two_seeds(shown)),
    ]
    return draw(title, [[Panel("Against G (nats/token)", by_gain, scales), Panel(knob.heading, by_knob, with_knob)]], said)


def at_multiple(points: list[CurvePoint], knob: Knob = LENGTH) -> tuple[int, dict[Method, list[CurvePoint]]]:
    """The largest multiple of the training length that all trainings were read at, and the points there by method, in the order of G.

    Only encodings whose trainings differ in the knob are kept; without any the multiple is 0.
    """
    known = [one for one in trained(points) if None not in (one.gain, one.difference, knob.of(one))]
    beyond = [point for point in known if point.length > point.train_len and point.length % point.train_len == 0]
    read = {encoding: grouped(own, knob.of) for encoding, own in grouped(beyond, _encoding).items()}
    kept = {encoding: values.values() for encoding, values in read.items() if len(values) > 1}
    multiples = [{point.length // point.train_len for point in own} for values in kept.values() for own in values]
    multiple = max(set.intersection(*multiples), default=0) if multiples else 0
    there = [point for point in beyond if point.length == multiple * point.train_len and _encoding(point) in kept]
    ordered = sorted(there, key=lambda point: point.gain)
    return multiple, grouped(ordered, lambda point: (knob.line(point), point.extension, point.scale_attention))


def trained(points: list[CurvePoint]) -> list[CurvePoint]:
    """Points of trainings from scratch."""
    return [point for point in points if not point.source and not point.behind.tuned_from]


def joined_by(knob: Knob, own: list[CurvePoint]) -> list[list[CurvePoint]]:
    """Lines of a method against the knob; single points are left out if there are lines of several."""
    found = []
    for line in grouped(sorted(own, key=knob.of), knob.joined).values():
        crossed = len({knob.of(point) for point in line}) < len(line)
        found += grouped(line, lambda point: point.encoding).values() if crossed else [line]
    return [line for line in found if len(line) > 1] or found


def frontier(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None unless an encoding was trained at several lengths and read at one of the same targets."""
    length, cells = at_length(points)
    if not cells:
        return None
    pens = looks((method for method in cells if method != FLOOR), bases(points), by_extension=True) | {FLOOR: Pen(GREY)}
    lines = []
    for method, own in cells.items():
        marks = [Mark(train_len, point.floor if method == FLOOR else point.nll) for train_len, point in sorted(own.items())]
        lines.append(Line(line_name(*method), marks, pens[method]))
    shown = [point for own in cells.values() for point in own.values()]
    lengths = sorted({point.train_len for point in shown})

    def scales(axes) -> None:
        octaves(axes, lengths)
        axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
        axes.set_xlabel("training length (tokens)", fontsize=FONT)

    said = data_line(shown, f"{span(point.n_targets for point in shown)} targets, the same of every training")
    return draw(title, [[Panel(f"Loss at {length} tokens (nats/token)", lines, scales)]], [said], wide=320)


def at_length(points: list[CurvePoint]) -> tuple[int, dict[Method, dict[int, CurvePoint]]]:
    """(longest length that all trainings of an encoding were read at, points there by method and training length); (0, {}) for none."""
    best: tuple[int, dict[Method, dict[int, CurvePoint]]] = (0, {})
    known = [point for point in trained(points) if point.nll is not None and not point.window]
    for own in grouped(known, lambda one: (*one.section[:3], one.setting, _encoding(one))).values():
        read = {train_len: {point.length for point in same} for train_len, same in grouped(own, _length).items()}
        length = max((one for one in set.intersection(*read.values()) if one >= max(read)), default=0)
        if len(read) < 2 or length <= best[0]:
            continue
        cells: dict[Method, dict[int, CurvePoint]] = {}
        for point in own:
            if point.length == length:
                cells.setdefault((_encoding(point), point.extension, point.scale_attention), {})[point.train_len] = point
                if point.floor is not None:
                    cells.setdefault(FLOOR, {}).setdefault(point.train_len, point)
        best = length, cells
    return best
