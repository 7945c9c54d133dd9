"""Figures of trainings of one encoding that differ in their length or their number of steps.

`gain`: the loss beyond the training length against G of the training, and against its length or its
steps. A mark is one method on the trainings of one length and configuration, all at the same
multiple of their training length. Lines join marks of one length against G, and against the length
those of equal steps, so that what only the knob changes is one line. Marks without such a line
stand against G alone.

`floors`: the loss at that multiple, and the floor, against the steps of trainings of one length, a
panel for each method: how much of a difference to the floor is a higher loss, and how much a lower
floor.

`frontier`: the loss at one length against the length of training: how well short sequences,
extended, take the place of long ones. It is drawn where all trainings of an encoding were scored on
the same targets at one length, which is at least the longest training length. If that is the
longest training length, the loss is drawn minus that of the models trained on it, with paired
intervals.

`steps` and `accuracy_steps`: loss and accuracy against the steps of a fine-tuning, where children
of one training have several numbers of steps: panels for the shortest length, that of the
fine-tuning (or a middle one) and the longest. A loss is drawn minus that of the model before, at
its own length, with paired intervals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from posbench.report.curves import interval
from posbench.report.figures.accuracy import caption_lines
from posbench.report.figures.captions import data_line, line_name, of_intervals, sentences
from posbench.report.figures.lines import Line, Mark, Panel, draw, names_at_the_end, with_interval
from posbench.report.figures.palette import Pen, bases, looks
from posbench.report.figures.registry import OVERALL, report_figure
from posbench.report.figures.style import (
    FONT,
    GREY,
    MARKERS,
    OKABE_ITO,
    difference_axis,
    octaves,
    ruled,
)
from posbench.report.learned import LEARNED
from posbench.report.records import CurvePoint, Score, grouped, span, two_seeds
from posbench.report.references import Paired, Seed, compare
from posbench.statistics.clustered import student_interval

NAMES = (
    "disc",
    "diamond",
    "square",
    "triangle",
    "triangle that points down",
    "plus",
    "cross",
)  # of MARKERS
FLOOR = ("", "its last tokens alone", "none")
BARS = "Bars: 95 % t interval of the paired difference, over seeds crossed with documents."
ASIDE, NARROW = 0.2, 170  # octaves over which marks stand side by side; points of a panel by steps
Record = CurvePoint | Score
Method = tuple[str, str, str]  # encoding without what tells its trainings apart, extension, scale


steps_of, length_of, encoding_of = (
    attrgetter("behind.steps"),
    attrgetter("train_len"),
    attrgetter("behind.encoding"),
)
method_of = attrgetter(
    "behind.line", "extension", "scale_attention"
)  # the encoding without its steps


class Knob(NamedTuple):
    """Setting in which the trainings of an encoding differ: `of(point)` is its value or None,
    `line(point)` the encoding's name without it.

    Points with equal `joined` form one line. A line with two points at one value is divided by the
    encoding's arguments."""

    heading: str
    told: str  # what the mark shows
    of: Callable[[CurvePoint], int | None]
    line: Callable[[CurvePoint], str]
    joined: Callable[[CurvePoint], object]


LENGTH = Knob(
    "Against the training length (tokens)",
    "which the mark shows: {} tokens",
    length_of,
    encoding_of,
    steps_of,
)
STEPS = Knob(
    "Against the steps of training",
    "after the steps that the mark shows: {} steps",
    steps_of,
    attrgetter("behind.line"),
    length_of,
)


@report_figure(OVERALL, "gain", "Loss by G and training length")
def gain(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None if no encoding was trained in several values of a
    knob and read at a common multiple.
    """
    found = [(knob, *at_multiple(points, knob)) for knob in (LENGTH, STEPS)]
    knob, multiple, cells = next(
        (one for one in found if one[2]), found[0]
    )  # the first in which the trainings of an encoding differ
    if not cells:
        return None
    shown = [point for own in cells.values() for point in own]
    values = sorted({knob.of(point) for point in shown})
    marks = {value: MARKERS[number % len(MARKERS)] for number, value in enumerate(values)}
    pens = looks(cells, bases(shown), by_extension=True)

    def mark(place: float, point: CurvePoint) -> Mark:
        return replace(
            with_interval(place, point.difference, point.half_width), marker=marks[knob.of(point)]
        )

    def lines(
        place: Callable[[CurvePoint], float],
        parts: Callable[[list[CurvePoint]], list[list[CurvePoint]]],
    ) -> list[Line]:
        found = []
        for method, own in cells.items():
            pen = replace(pens[method], hollow=method[2] != "none", thin=True)
            divided = [sorted(part, key=place) for part in parts(own)]
            last = max((point for part in divided for point in part), key=place)
            for part in divided:
                found.append(
                    Line(
                        line_name(*method) if last in part else "",
                        [mark(place(one), one) for one in part],
                        pen,
                    )
                )
        return found

    def scales(axes) -> None:
        difference_axis(
            axes,
            [
                point.difference + sign * (point.half_width or 0.0)
                for point in shown
                for sign in (1, -1)
            ],
        )
        ruled(axes)
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    def with_knob(axes) -> None:
        scales(axes)
        octaves(axes, values)
        axes.set_xlim(values[0] / 1.3, values[-1] * 1.3)

    by_gain = lines(lambda point: point.gain, lambda own: list(grouped(own, length_of).values()))
    by_knob = lines(knob.of, lambda own: joined_by(knob, own))
    shapes = ", ".join(f"{NAMES[index % len(NAMES)]} {value}" for index, value in enumerate(values))
    said = [
        (
            f"Loss minus the floor (nats/token) at {multiple} times the training length,"
            f" {knob.told.format(shapes)}."
        ),
        data_line(shown, f"{span(point.n_targets for point in shown)} targets"),
        f"G: the gain from the second half of the window. Bars: {of_intervals(shown)}.",
        *sentences(two_seeds(shown)),
    ]
    return draw(
        title,
        [
            [
                Panel("Against G (nats/token)", by_gain, scales),
                Panel(knob.heading, by_knob, with_knob),
            ]
        ],
        said,
    )


@report_figure(OVERALL, "floors", "Loss and floor by steps of training", place=2)
def floors(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None unless trainings of one length differ in their
    steps.
    """
    multiple, cells = at_multiple(points, STEPS)
    by_length = grouped((point for own in cells.values() for point in own), length_of)
    several = {length: own for length, own in by_length.items() if len({*map(steps_of, own)}) > 1}
    if not several:
        return None
    shown = max(several.values(), key=lambda own: len({*map(steps_of, own)}))
    values = sorted({*map(steps_of, shown)})
    panels = []
    for method, own in grouped(shown, method_of).items():
        ordered = sorted(own, key=steps_of)
        marks = [
            _over_seeds(point, [seed.row["nll"] for seed in point.seeds or ()], point.nll)
            for point in ordered
        ]
        floor = [_over_seeds(point, _floor_losses(point), point.floor) for point in ordered]
        lines = [
            Line(f"at {multiple}x", marks, Pen(OKABE_ITO[0], marker=MARKERS[0])),
            Line("floor", floor, Pen(GREY, marker=MARKERS[2])),
        ]
        panels.append((line_name(*method), lines))
    ends = [
        end
        for _, lines in panels
        for line in lines
        for mark in line.marks
        for end in (mark.y, mark.low, mark.high)
        if end is not None
    ]
    margin = 0.06 * (max(ends) - min(ends))

    def scales(axes) -> None:
        octaves(axes, values, label="steps of training")
        axes.set_xlim(values[0] / 1.2, values[-1] * 1.2)
        axes.set_ylim(min(ends) - margin, max(ends) + margin)

    row_length = min(3, len(panels))
    made = [Panel(name, lines, scales) for name, lines in panels]
    rows = [made[start : start + row_length] for start in range(0, len(made), row_length)]
    caption = [
        (
            f"Loss (nats/token) at {multiple} times the training length of {shown[0].train_len}"
            " tokens, and the floor: the loss with exactly that context."
        ),
        data_line(shown, f"{span(point.n_targets for point in shown)} targets"),
        "Bars: 95 % t interval over seeds.",
    ]
    return draw(title, rows, caption, NARROW, NARROW)


def _floor_losses(point: CurvePoint) -> list[float]:
    return [seed.against_floor.base for seed in point.seeds or () if seed.against_floor]


def _over_seeds(point: CurvePoint, losses: Sequence[float], mean: float) -> Mark:
    """Mean loss at the steps of a point, with its interval over two seeds or more."""
    if len(losses) < 2:
        return Mark(point.behind.steps, mean)
    value, half_width, _ = student_interval(losses)
    return with_interval(point.behind.steps, value, half_width)


def at_multiple(
    points: list[CurvePoint], knob: Knob = LENGTH
) -> tuple[int, dict[Method, list[CurvePoint]]]:
    """The largest multiple of the training length that all trainings were read at, and the points
    there by method, in the order of G.

    Only encodings whose trainings differ in the knob are kept; without any the multiple is 0.
    """
    known = [one for one in trained(points) if None not in (one.gain, one.difference, knob.of(one))]
    beyond = [
        point
        for point in known
        if point.length > point.train_len and point.length % point.train_len == 0
    ]
    read = {
        encoding: grouped(own, knob.of) for encoding, own in grouped(beyond, encoding_of).items()
    }
    kept = {encoding: values.values() for encoding, values in read.items() if len(values) > 1}
    multiples = [
        {point.length // point.train_len for point in own}
        for values in kept.values()
        for own in values
    ]
    multiple = max(set.intersection(*multiples), default=0) if multiples else 0
    there = [
        point
        for point in beyond
        if point.length == multiple * point.train_len and encoding_of(point) in kept
    ]
    ordered = sorted(there, key=lambda point: point.gain)
    return multiple, grouped(
        ordered, lambda point: (knob.line(point), point.extension, point.scale_attention)
    )


def trained(points: list[CurvePoint]) -> list[CurvePoint]:
    """Points of trainings from scratch."""
    return [point for point in points if not point.source and not point.behind.tuned_from]


def joined_by(knob: Knob, own: list[CurvePoint]) -> list[list[CurvePoint]]:
    """Lines of a method against the knob; single points are left out if there are lines of
    several.
    """
    found = []
    for line in grouped(sorted(own, key=knob.of), knob.joined).values():
        crossed = len({knob.of(point) for point in line}) < len(line)
        found += grouped(line, lambda point: point.encoding).values() if crossed else [line]
    return [line for line in found if len(line) > 1] or found


@report_figure(OVERALL, "frontier", "Loss at one length by training length", place=3)
def frontier(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None unless an encoding was trained at several lengths
    and read at one of the same targets.
    """
    length, cells = at_length(points)
    if not cells:
        return None
    pens = looks(
        (method for method in cells if method != FLOOR), bases(points), by_extension=True
    ) | {FLOOR: Pen(GREY)}
    shown = [point for own in cells.values() for point in own.values()]
    lengths = sorted({point.train_len for point in shown})
    base = _trained_on(length, cells)

    def mark(method: Method, train_len: int, point: CurvePoint) -> Mark:
        at_floor = method == FLOOR
        if base is None:
            return Mark(train_len, point.floor if at_floor else point.nll)
        return with_interval(train_len, *_minus(point, base, at_floor))

    lines = []
    for method, own in cells.items():
        marks = [mark(method, train_len, point) for train_len, point in sorted(own.items())]
        lines.append(Line(line_name(*method), marks, pens[method]))

    def scales(axes) -> None:
        octaves(axes, lengths, label="training length (tokens)")
        axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
        if base is not None:
            axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    heading = f"Loss at {length} tokens (nats/token)"
    caption = [
        data_line(
            shown, f"{span(point.n_targets for point in shown)} targets, the same of every training"
        )
    ]
    if base is not None:
        heading = f"Loss at {length} tokens minus that of models trained on {length} (nats/token)"
        caption.append(BARS)
    return draw(title, [[Panel(heading, lines, scales, dodge=ASIDE)]], caption, wide=320)


def _trained_on(length: int, cells: dict[Method, dict[int, CurvePoint]]) -> CurvePoint | None:
    """Point without an extension of the models trained on that length; None if there is none, or
    several encodings have one.
    """
    bases = []
    for method, own in cells.items():
        if method != FLOOR and method[1:] == ("none", "none") and length in own:
            bases.append(own[length])
    return bases[0] if len(bases) == 1 else None


def _minus(
    point: CurvePoint, base: CurvePoint, at_floor: bool = False
) -> tuple[float, float | None]:
    """(loss of a point, or its floor, minus that of another, half of the 95 % interval) on the same
    targets.

    The interval is over the seeds that both have, crossed with documents; None where these sums are
    unknown."""
    bases = {seed.row["seed"]: seed for seed in base.seeds or ()}
    pairs = []
    for seed in point.seeds or ():
        measured = _floor_of(seed) if at_floor else seed
        pairs.append(_paired(measured, bases.get(seed.row["seed"])))
    if not pairs or any(pair is None or pair.sums is None for pair in pairs):
        return (point.floor if at_floor else point.nll) - base.nll, None
    difference, half_width, _ = interval(pairs, point.sem_unit)
    return difference, half_width


def _floor_of(seed: Seed) -> Seed | None:
    paired = seed.against_floor
    return Seed(paired.other, paired.row) if paired else None


def _paired(seed: Seed | None, base: Seed | None) -> Paired | None:
    """Loss of a seed minus that of another; None where one is unknown, or their targets differ."""
    if seed is None or base is None or not seed.evaluation.same_targets(base.evaluation):
        return None
    return compare(seed.evaluation, seed.row, base.evaluation, base.row)


def at_length(points: list[CurvePoint]) -> tuple[int, dict[Method, dict[int, CurvePoint]]]:
    """(longest length that all trainings of an encoding were read at, points there by method and
    training length); (0, {}) for none.
    """
    best: tuple[int, dict[Method, dict[int, CurvePoint]]] = (0, {})
    known = [point for point in trained(points) if point.nll is not None and not point.window]
    for own in grouped(
        known, lambda one: (*one.section[:3], one.setting, encoding_of(one))
    ).values():
        read = {
            train_len: {point.length for point in same}
            for train_len, same in grouped(own, length_of).items()
        }
        length = max(
            (one for one in set.intersection(*read.values()) if one >= max(read)), default=0
        )
        if len(read) < 2 or length <= best[0]:
            continue
        cells: dict[Method, dict[int, CurvePoint]] = {}
        for point in own:
            if point.length == length:
                cells.setdefault((encoding_of(point), point.extension, point.scale_attention), {})[
                    point.train_len
                ] = point
                if point.floor is not None:
                    cells.setdefault(FLOOR, {}).setdefault(point.train_len, point)
        best = length, cells
    return best


@report_figure("curve", "steps", "Loss by steps of fine-tuning", place=4)
def steps(points: list[CurvePoint], title: str):
    """Figure of the losses of a section; None if no method was fine-tuned by several numbers of
    steps.
    """
    shown = tuned([point for point in points if point.nll is not None])
    told = data_line(shown, f"{span(point.n_targets for point in shown)} targets") if shown else ""
    return _by_steps({"Loss": shown}, "nll", "nats/token", title, [told])


@report_figure("accuracy", "accuracy_steps", "Accuracy by steps of fine-tuning", place=4)
def accuracy_steps(section: list[Score], title: str):
    """The same of the accuracies of a section, a row of panels for each part of a task; None as
    `steps`.
    """
    found = {
        task: tuned(own)
        for task, own in grouped(
            (one for one in section if one.depth is None), lambda one: one.task
        ).items()
    }
    told = [f"{caption_lines(section)[0]} Bars: 95 % intervals."]
    if any(one.n_seeds < one.n_trained for own in found.values() for one in own):
        told.append(
            f"Means leave out seeds right in less than {LEARNED:g} of their answers at the longest"
            " length inside the window."
        )
    return _by_steps(
        {f"{task}: accuracy": own for task, own in found.items()},
        "accuracy",
        "share of answers",
        title,
        told,
    )


def tuned(records: Sequence[Record]) -> list[Record]:
    """Records of the methods that were fine-tuned by several numbers of steps."""
    children = [
        one
        for one in records
        if one.behind.steps is not None and one.behind.tuned_from and not one.source
    ]
    return [
        one
        for own in grouped(children, method_of).values()
        if len({one.behind.steps for one in own}) > 1
        for one in own
    ]


def _by_steps(
    parts: dict[str, list[Record]], value: str, unit: str, title: str, told: Sequence[str]
):
    parts = {name: own for name, own in parts.items() if own}
    shown = [record for own in parts.values() for record in own]
    if not shown:
        return None
    lengths = sorted({record.length for record in shown})
    middle = lengths[len(lengths) // 2] if shown[0].train_len == lengths[0] else shown[0].train_len
    lengths = sorted({lengths[0], lengths[-1], *({middle} & set(lengths))})
    parents = [
        one
        for one in shown
        if one.length == lengths[0] and one.behind.steps == 0 and one.behind.keeps_encoding
    ]
    parents = [
        one for one in parents if one.extension == one.scale_attention == "none"
    ]  # the models that were fine-tuned
    before = {one.behind.tuned_from: one for one in parents} if value == "nll" else {}
    relative = bool(before) and all(one.behind.tuned_from in before for one in shown)
    short = _short_names(shown)

    def mark(record: Record) -> Mark:
        if relative:
            return with_interval(
                record.behind.steps, *_minus(record, before[record.behind.tuned_from])
            )
        return Mark(record.behind.steps, getattr(record, value), record.low, record.high)

    def panel(name: str, own: list[Record], length: int) -> Panel:
        pens, numbers = (
            looks(grouped(own, method_of), bases(own), by_extension=True),
            sorted({one.behind.steps for one in own}),
        )
        lines = []
        for method, records in grouped(
            (one for one in own if one.length == length), method_of
        ).items():
            marks = [mark(one) for one in sorted(records, key=steps_of)]
            lines.append(Line(short[method], marks, pens[method]))

        def scales(axes) -> None:
            if value == "accuracy":
                axes.set_ylim(-0.03, 1.04)
            first = next((one for one in numbers if one), 1)
            axes.set_xscale("symlog", linthresh=first, linscale=0.6)
            axes.set_xticks(numbers, map(str, numbers))
            axes.set_xticks([], minor=True)
            axes.set_xlim(-0.1 * first, numbers[-1] * 1.25)
            axes.set_xlabel("steps of fine-tuning", fontsize=FONT)
            ruled(axes)
            levels = [getattr(one, value) for one in parents if one in own and length == lengths[0]]
            for level in [0.0] if relative else levels:
                axes.axhline(level, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)

        where = f"{length} tokens" if relative else f"{length} tokens ({unit})"
        return Panel(f"{name} at {where}", lines, scales)

    if relative:
        parts = {f"{name} minus before": own for name, own in parts.items()}
    rows = [[panel(name, own, length) for length in lengths] for name, own in parts.items()]
    line = "Dashed line: the model before, at its own length. " if parents else ""
    if relative:
        line = (
            "Losses are in nats/token, minus that of the model before at its own length"
            f" ({lengths[0]} tokens; dashed). {BARS}"
        )
    zero = (
        "; 0 steps is the same method without fine-tuning"
        if any(one.behind.steps == 0 for one in shown)
        else ""
    )
    said = f"Fine-tuned at {shown[0].train_len} tokens{zero}. {line}".rstrip()
    return draw(title, [names_at_the_end(row) for row in rows], [said, *told], NARROW, 260)


def _short_names(shown: Sequence[Record]) -> dict[Method, str]:
    """Names of lines by method, without words that all share: "yarn" for "rope tuned from rope-64 +
    yarn (trained in)".
    """
    encodings = {record.behind.line for record in shown}
    parents = {record.behind.tuned_from for record in shown}
    extended = [record for record in shown if record.extension != "none"]
    trained_in = all(record.behind.trained_in for record in extended)
    names = {}
    for record in shown:
        method = method_of(record)
        encoding = method[0] if len(encodings) > 1 else ""
        parent = record.behind.tuned_from
        if len(parents) == 1 or record.behind.keeps_encoding:
            encoding = encoding.replace(f" tuned from {parent}", "")
        name = line_name(encoding, *method[1:]) or "no extension"
        names[method] = name.replace(" (trained in)", "") if trained_in else name
    return names
