"""Figures of trainings of one encoding that differ in their length or their number of steps.

`gain`: the loss beyond the training length against G of the training, and against its length
or its steps. A mark is one method on the trainings of one length and configuration, all at the same
multiple of their training length. Lines join marks of one length against G, and against the length
those of equal steps, so that what only the knob changes is one line. Marks without such a line
stand against G alone.

`floors`: the loss at that multiple, and the floor, against the steps of trainings of one
length, a panel for each method: how much of a difference to the floor is a higher loss, and how
much a lower floor.

`frontier`: the loss at one length against the length of training: how well short sequences,
extended, take the place of long ones. It is drawn where all trainings of an encoding were scored on
the same targets at one length, which is at least the longest training length. If that is the
longest training length, the loss is drawn minus that of the models trained on it, with paired
intervals.

`steps` and `accuracy_steps`: loss and accuracy against the steps of a fine-tuning,
where children of one training have several numbers of steps: panels for the shortest length, that
of the fine-tuning (or a middle one) and the longest. A loss is drawn minus that of the model
before, at its own length, with paired intervals."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from posbench.report.curves import mean_with_interval
from posbench.report.figures.accuracy import question_lines
from posbench.report.figures.captions import (
    LINEAR,
    LINEAR_THEN_LOG,
    LOG,
    as_sentences,
    data_line,
    joined_sentences,
    line_name,
    scales_line,
)
from posbench.report.figures.lines import (
    SPACE_BETWEEN,
    TITLE_FONT,
    Line,
    Mark,
    Panel,
    draw_panels,
    in_rows,
    mark_with_interval,
    text_width,
    with_names_in_last_panel,
)
from posbench.report.figures.palette import Pen, pens_of_methods, yaml_names
from posbench.report.figures.registry import OVERALL_KIND, report_figure
from posbench.report.figures.style import (
    FONT_SIZE,
    GREY,
    MARKERS,
    OKABE_ITO,
    draw_rules,
    set_up_difference_y,
    set_up_octaves_x,
)
from posbench.report.figures.uncertainty import (
    INTERVAL,
    NO_BARS,
    ONE_SEED,
    SEED_LINES,
    bars_line,
    mark_with_bar,
    units_with_numbers,
)
from posbench.report.learned import LEAST_LEARNED_SHARE
from posbench.report.records import CurvePoint, Score, grouped, range_text, two_seeds_note
from posbench.report.references import Paired, Seed, paired_difference
from posbench.statistics.clustered import student_interval

# of MARKERS
MARKER_NAMES = (
    "disc",
    "diamond",
    "square",
    "triangle",
    "triangle that points down",
    "plus",
    "cross",
)
FLOOR_LINE = ("", "its last tokens alone", "none")
SEEDS_SENTENCE = "Thin lines: the seeds of each mean."
# points: width of a panel by steps, and height of one of fine-tuning
NARROW_PANEL, LOW_PANEL = 170, 260
Record = CurvePoint | Score
Method = tuple[str, str, str]  # encoding without what tells its trainings apart, extension, scale

steps_of = attrgetter("label_facts.steps")
train_len_of = attrgetter("train_len")
encoding_of = attrgetter("label_facts.encoding")
# the encoding without its steps
method_of = attrgetter("label_facts.encoding_label", "extension", "scale_attention")


class Knob(NamedTuple):
    """Setting in which the trainings of an encoding differ.

    `value_of(point)` is its value or None, `name_of(point)` the encoding's name without it. Points
    with equal `line_of(point)` form one line. A line with two points at one value is divided by the
    encoding's arguments."""

    heading: str
    meaning: str  # of the mark
    value_of: Callable[[CurvePoint], int | None]
    name_of: Callable[[CurvePoint], str]
    line_of: Callable[[CurvePoint], object]


LENGTH_KNOB = Knob(
    "Against the training length (tokens)",
    "which the mark shows: {} tokens",
    train_len_of,
    encoding_of,
    steps_of,
)
STEPS_KNOB = Knob(
    "Against the steps of training",
    "after the steps that the mark shows: {} steps",
    steps_of,
    attrgetter("label_facts.encoding_label"),
    train_len_of,
)


class AtMultiple(NamedTuple):
    """Points at a multiple of their training length, {method: points in the order of G}."""

    multiple: int
    cells: dict[Method, list[CurvePoint]]


@report_figure(OVERALL_KIND, "gain", "Loss by G and training length")
def gain_figure(points: list[CurvePoint], title: str, bars: str = INTERVAL):
    """Figure of the points of all sections.

    None if no encoding was trained in several values of a knob and read at a common multiple.
    """
    # the first knob in which the trainings of an encoding differ
    knob = LENGTH_KNOB
    multiple, cells = at_common_multiple(points, LENGTH_KNOB)
    if not cells:
        knob = STEPS_KNOB
        multiple, cells = at_common_multiple(points, STEPS_KNOB)
    if not cells:
        return None
    shown = [point for of_method in cells.values() for point in of_method]
    values = sorted({knob.value_of(point) for point in shown})
    shapes = {value: MARKERS[index % len(MARKERS)] for index, value in enumerate(values)}
    pens = pens_of_methods(cells, yaml_names(shown), by_extension=True)

    def mark(x: float, point: CurvePoint) -> Mark:
        return mark_with_bar(point, x, "difference", bars, shapes[knob.value_of(point)])

    by_gain: list[Line] = []
    by_knob: list[Line] = []
    for method, of_method in cells.items():
        pen = replace(pens[method], hollow=method[2] != "none", thin=True)
        lengths = list(grouped(of_method, train_len_of).values())
        by_gain += _lines_of_parts(method, lengths, attrgetter("gain"), mark, pen)
        by_knob += _lines_of_parts(method, lines_by_knob(knob, of_method), knob.value_of, mark, pen)

    def set_up_axes(axes) -> None:
        measured = [(point.difference, point.half_width or 0.0) for point in shown]
        set_up_difference_y(
            axes, [mean + sign * half for mean, half in measured for sign in (1, -1)]
        )
        draw_rules(axes)
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    def set_up_knob_axes(axes) -> None:
        set_up_axes(axes)
        set_up_octaves_x(axes, values)
        axes.set_xlim(values[0] / 1.3, values[-1] * 1.3)

    meanings = [
        f"{MARKER_NAMES[index % len(MARKER_NAMES)]} {value}" for index, value in enumerate(values)
    ]
    caption = [
        (
            f"Loss minus the floor (nats/token) at {multiple} times the training length,"
            f" {knob.meaning.format(', '.join(meanings))}."
        ),
        _data_line(shown),
        joined_sentences(
            "G: the gain from the second half of the window.",
            f"Scales: y {LINEAR_THEN_LOG}; G {LINEAR}; the x on the right {LOG}.",
            bars_line(shown, "difference", bars),
        ),
        *as_sentences(two_seeds_note(shown)),
    ]
    panels = [
        Panel("Against G (nats/token)", by_gain, set_up_axes),
        Panel(knob.heading, by_knob, set_up_knob_axes),
    ]
    return draw_panels(title, [panels], caption)


def _lines_of_parts(
    method: Method,
    parts: list[list[CurvePoint]],
    x_of: Callable[[CurvePoint], float],
    mark: Callable[[float, CurvePoint], Mark],
    pen: Pen,
) -> list[Line]:
    """Lines of the parts of a method; the one that ends last has the method's name."""
    parts = [sorted(part, key=x_of) for part in parts]
    last = max((point for part in parts for point in part), key=x_of)
    lines = []
    for part in parts:
        marks = [mark(x_of(point), point) for point in part]
        lines.append(Line(line_name(*method) if last in part else "", marks, pen))
    return lines


def _data_line(points: Sequence[CurvePoint], more: str = "") -> str:
    targets = f"{range_text(point.n_targets for point in points)} targets"
    return data_line(points, targets + more)


@report_figure(OVERALL_KIND, "floors", "Loss and floor by steps of training", place=2)
def floors_figure(points: list[CurvePoint], title: str, bars: str = INTERVAL):
    """Figure of the points of all sections; None unless trainings of one length differ in steps."""
    multiple, cells = at_common_multiple(points, STEPS_KNOB)
    by_train_len = grouped((point for part in cells.values() for point in part), train_len_of)
    n_steps = {length: len({*map(steps_of, part)}) for length, part in by_train_len.items()}
    train_len = max(n_steps, key=lambda length: n_steps[length], default=None)
    if train_len is None or n_steps[train_len] < 2:  # no length has trainings of several steps
        return None
    shown = by_train_len[train_len]
    values = sorted({*map(steps_of, shown)})
    lines_of: dict[Method, list[Line]] = {}
    for method, of_method in grouped(shown, method_of).items():
        in_order = sorted(of_method, key=steps_of)
        losses = [
            _seed_mean_mark(point, _loss_by_seed(point), point.nll, bars) for point in in_order
        ]
        floor = [
            _seed_mean_mark(point, _floor_by_seed(point), point.floor, bars) for point in in_order
        ]
        lines_of[method] = [
            Line(f"at {multiple}x", losses, Pen(OKABE_ITO[0], marker=MARKERS[0])),
            Line("floor", floor, Pen(GREY, marker=MARKERS[2])),
        ]
    marks = [mark for lines in lines_of.values() for line in lines for mark in line.marks]
    ends = [end for mark in marks for end in (mark.y, mark.low, mark.high) if end is not None]
    margin = 0.06 * (max(ends) - min(ends))

    def set_up_axes(axes) -> None:
        set_up_octaves_x(axes, values, label="steps of training")
        axes.set_xlim(values[0] / 1.2, values[-1] * 1.2)
        axes.set_ylim(min(ends) - margin, max(ends) + margin)

    panels = [Panel(line_name(*method), lines, set_up_axes) for method, lines in lines_of.items()]
    caption = [
        (
            f"Loss (nats/token) at {multiple} times the training length of {shown[0].train_len}"
            " tokens, and the floor: the loss with exactly that context."
        ),
        _data_line(shown),
        joined_sentences(scales_line(LOG, LINEAR), _seed_bars_line(shown, bars)),
    ]
    return draw_panels(title, in_rows(panels, columns=3), caption, NARROW_PANEL, NARROW_PANEL)


def _seed_bars_line(points: Sequence[CurvePoint], bars: str) -> str:
    """Sentence on the bars of losses and floors, which are over seeds alone; "" if none are asked
    for.
    """
    several = [point for point in points if point.n_seeds > 1]
    if bars == NO_BARS:
        return ""
    if not several:
        return f"No bars: {ONE_SEED}."
    if bars == SEED_LINES:
        return SEEDS_SENTENCE
    return f"Bars: 95 % t interval over {units_with_numbers('seeds', several)}."


def _loss_by_seed(point: CurvePoint) -> dict[int, float]:
    return {seed.row["seed"]: seed.row["nll"] for seed in point.seeds or ()}


def _floor_by_seed(point: CurvePoint) -> dict[int, float]:
    """{seed: loss of its floor}."""
    return {
        seed.row["seed"]: seed.against_floor.base
        for seed in point.seeds or ()
        if seed.against_floor
    }


def _seed_mean_mark(point: CurvePoint, losses: dict[int, float], mean: float, bars: str) -> Mark:
    """Mean loss at the steps of a point, with its seeds, or its interval over two or more."""
    if len(losses) < 2 or bars == NO_BARS:
        return Mark(point.label_facts.steps, mean)
    if bars == SEED_LINES:
        return Mark(point.label_facts.steps, mean, seeds=losses)
    _, half_width, _ = student_interval(list(losses.values()))
    return mark_with_interval(point.label_facts.steps, mean, half_width)


def at_common_multiple(points: list[CurvePoint], knob: Knob = LENGTH_KNOB) -> AtMultiple:
    """Points at the largest multiple of the training length that all trainings were read at.

    Only encodings whose trainings differ in the knob are kept; without any the multiple is 0.
    """
    measured = [
        point
        for point in trained_from_scratch(points)
        if None not in (point.gain, point.difference, knob.value_of(point))
        and point.length > point.train_len
        and point.length % point.train_len == 0
    ]
    different = {}  # {encoding: {value of the knob: points}}
    for encoding, of_encoding in grouped(measured, encoding_of).items():
        by_value = grouped(of_encoding, knob.value_of)
        if len(by_value) > 1:
            different[encoding] = by_value
    multiples = [
        {point.length // point.train_len for point in same_value}
        for by_value in different.values()
        for same_value in by_value.values()
    ]
    multiple = max(set.intersection(*multiples), default=0) if multiples else 0
    shown = [
        point
        for point in measured
        if point.length == multiple * point.train_len and encoding_of(point) in different
    ]
    shown.sort(key=lambda point: point.gain)  # methods in the order of their smallest G
    cells = grouped(
        shown, lambda point: (knob.name_of(point), point.extension, point.scale_attention)
    )
    return AtMultiple(multiple, cells)


def trained_from_scratch(points: list[CurvePoint]) -> list[CurvePoint]:
    """Points of trainings from scratch."""
    return [point for point in points if not point.source and not point.label_facts.tuned_from]


def lines_by_knob(knob: Knob, points: list[CurvePoint]) -> list[list[CurvePoint]]:
    """Lines of a method against the knob; single points are left out if others form lines."""
    lines = []
    for line in grouped(sorted(points, key=knob.value_of), knob.line_of).values():
        # A line has one point at each value, so encodings that share a value are lines apart.
        several_at_one_value = len({knob.value_of(point) for point in line}) < len(line)
        if several_at_one_value:
            lines += grouped(line, lambda point: point.encoding).values()
        else:
            lines.append(line)
    return [line for line in lines if len(line) > 1] or lines


class AtLength(NamedTuple):
    """Points at one length, {method: {training length: point}}."""

    length: int
    cells: dict[Method, dict[int, CurvePoint]]


@report_figure(OVERALL_KIND, "frontier", "Loss at one length by training length", place=3)
def frontier_figure(points: list[CurvePoint], title: str, bars: str = INTERVAL):
    """Figure of the points of all sections.

    None unless an encoding was trained at several lengths, and all these models were read at one
    length, on the same targets.
    """
    length, cells = at_common_length(points)
    if not cells:
        return None
    methods = [method for method in cells if method != FLOOR_LINE]
    pens = pens_of_methods(methods, yaml_names(points), by_extension=True) | {FLOOR_LINE: Pen(GREY)}
    shown = [point for by_train_len in cells.values() for point in by_train_len.values()]
    lengths = sorted({point.train_len for point in shown})
    base = _point_trained_at(length, cells)

    def mark(method: Method, train_len: int, point: CurvePoint) -> Mark:
        """Mark of a point or its floor: minus `base`, or itself without a base."""
        at_floor = method == FLOOR_LINE
        if base is None and at_floor:  # a point states no interval of its floor
            return Mark(train_len, point.floor)
        if base is None:
            return mark_with_bar(point, train_len, "nll", bars)
        return _difference_mark(train_len, point, base, bars, at_floor)

    lines = []
    for method, by_train_len in cells.items():
        marks = [
            mark(method, train_len, point) for train_len, point in sorted(by_train_len.items())
        ]
        lines.append(Line(line_name(*method), marks, pens[method]))

    def set_up_axes(axes) -> None:
        set_up_octaves_x(axes, lengths, label="training length (tokens)")
        axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
        if base is not None:
            axes.axhline(0, color="black", linewidth=0.9, zorder=1)

    heading = f"Loss at {length} tokens (nats/token)"
    caption = [_data_line(shown, ", the same of every training")]
    if base is not None:
        heading = f"Loss at {length} tokens minus that of models trained on {length} (nats/token)"
        of_bars = _difference_bars_line(shown, bars)
    else:
        of_bars = bars_line(shown, "nll", bars)
    caption.append(joined_sentences(scales_line(LOG, LINEAR), of_bars))
    panel = Panel(heading, lines, set_up_axes)
    # wider than usual, in points, as the longer heading is
    return draw_panels(title, [[panel]], caption, wide=320)


def _difference_bars_line(points: Sequence[CurvePoint], bars: str) -> str:
    """Sentence on the bars of differences between trainings, paired by seed; "" if none are asked
    for.
    """
    if bars == NO_BARS:
        return ""
    if bars == SEED_LINES:
        return SEEDS_SENTENCE
    by_units = {}
    for point in points:
        unit = point.sem_unit or "document"
        over = f"seeds x {unit}s" if point.n_seeds > 1 else unit
        by_units.setdefault(over, []).append(point)
    units = [units_with_numbers(over, of_units) for over, of_units in by_units.items()]
    return f"Bars: 95 % t interval of the paired difference, over {' or over '.join(units)}."


def _difference_mark(
    x: float, point: CurvePoint, base: CurvePoint, bars: str, at_floor: bool = False
) -> Mark:
    """Mark of the loss of a point, or its floor, minus that of another, with its bar."""
    difference = _paired_difference(point, base, at_floor)
    if bars == SEED_LINES:
        return Mark(x, difference.value, seeds=difference.by_seed)
    return mark_with_interval(x, difference.value, difference.half if bars == INTERVAL else None)


def _point_trained_at(length: int, cells: dict[Method, dict[int, CurvePoint]]) -> CurvePoint | None:
    """Point without an extension of the models trained on that length; None if there is none, or
    several encodings have one.
    """
    bases = []
    for method, by_train_len in cells.items():
        # A method is its encoding, extension and scale.
        if method != FLOOR_LINE and method[1:] == ("none", "none") and length in by_train_len:
            bases.append(by_train_len[length])
    return bases[0] if len(bases) == 1 else None


class PairedDifference(NamedTuple):
    """Difference of two losses, half of its 95 % interval or None, and {seed: its difference}."""

    value: float
    half: float | None
    by_seed: dict[int, float]


def _paired_difference(
    point: CurvePoint, base: CurvePoint, at_floor: bool = False
) -> PairedDifference:
    """Loss of a point, or its floor, minus that of another on the same targets.

    If every seed of the point has its pair with sums, the mean is over these pairs, and the
    interval over seeds crossed with documents. Else it is the difference of both means, without an
    interval."""
    bases = {seed.row["seed"]: seed for seed in base.seeds or ()}
    pairs = {}
    for seed in point.seeds or ():
        measured = _floor_as_seed(seed) if at_floor else seed
        number = seed.row["seed"]
        pairs[number] = _pair_or_none(measured, bases.get(number))
    by_seed = {number: pair.difference for number, pair in pairs.items() if pair is not None}
    all_have_sums = all(pair is not None and pair.sums is not None for pair in pairs.values())
    if not pairs or not all_have_sums:
        return PairedDifference((point.floor if at_floor else point.nll) - base.nll, None, by_seed)
    difference, half_width, _ = mean_with_interval(list(pairs.values()), point.sem_unit)
    return PairedDifference(difference, half_width, by_seed)


def _floor_as_seed(seed: Seed) -> Seed | None:
    paired = seed.against_floor
    return Seed(paired.other, paired.row) if paired else None


def _pair_or_none(seed: Seed | None, base: Seed | None) -> Paired | None:
    """Loss of a seed minus that of another; None where one is unknown, or their targets differ."""
    if seed is None or base is None or not seed.evaluation.same_targets(base.evaluation):
        return None
    return paired_difference(seed.evaluation, seed.row, base.evaluation, base.row)


def at_common_length(points: list[CurvePoint]) -> AtLength:
    """Points at the longest length that all trainings of an encoding were read at.

    It is at least the longest training length. Of several encodings and texts the one with the
    longest such length counts. 0, without points, if there is none.
    """
    best = AtLength(0, {})
    # The length of a point with a window is a position in it, not that of a text.
    measured = [
        point
        for point in trained_from_scratch(points)
        if point.nll is not None and not point.window
    ]
    for same_texts in grouped(measured, _text_and_encoding).values():
        by_train_len = grouped(same_texts, train_len_of)
        lengths_read = [{point.length for point in part} for part in by_train_len.values()]
        common = set.intersection(*lengths_read)
        length = max((length for length in common if length >= max(by_train_len)), default=0)
        # One training length alone shows no trend.
        if len(by_train_len) > 1 and length > best.length:
            best = AtLength(
                length,
                _by_method_and_train_len([point for point in same_texts if point.length == length]),
            )
    return best


def _text_and_encoding(point: CurvePoint) -> tuple:
    """Key of the points of an encoding that were scored on the same texts."""
    return (*point.section[:3], point.setting, encoding_of(point))


def _by_method_and_train_len(points: list[CurvePoint]) -> dict[Method, dict[int, CurvePoint]]:
    """{method: {training length: point}}; that of FLOOR_LINE has the first with a floor."""
    cells: dict[Method, dict[int, CurvePoint]] = {}
    for point in points:
        method = (encoding_of(point), point.extension, point.scale_attention)
        cells.setdefault(method, {})[point.train_len] = point
        if point.floor is not None:
            cells.setdefault(FLOOR_LINE, {}).setdefault(point.train_len, point)
    return cells


@report_figure("curve", "steps", "Loss by steps of fine-tuning", place=4)
def steps_figure(points: list[CurvePoint], title: str, bars: str = INTERVAL):
    """Figure of a section's losses; None if no method was fine-tuned by several step counts."""
    shown = fine_tuned_by_steps([point for point in points if point.nll is not None])
    if not shown:
        return None
    return _draw_by_steps({"Loss": shown}, "nll", "nats/token", title, [_data_line(shown)], bars)


@report_figure("accuracy", "accuracy_steps", "Accuracy by steps of fine-tuning", place=4)
def accuracy_steps_figure(section: list[Score], title: str, bars: str = INTERVAL):
    """Figure of a section's accuracies, a row for each task; None if no method was fine-tuned by
    several step counts.
    """
    scores = [score for score in section if score.depth is None]
    parts = {}  # {heading: scores}
    for task, of_task in grouped(scores, lambda score: score.task).items():
        by_steps = fine_tuned_by_steps(of_task)
        if by_steps:
            parts[f"{task}: accuracy"] = by_steps
    if not parts:
        return None
    question, *_ = question_lines(section)  # the rest is on trainings that have not learned it
    notes = [question]
    if any(score.n_seeds < score.n_trained for part in parts.values() for score in part):
        notes.append(
            f"Means leave out seeds right in less than {LEAST_LEARNED_SHARE:g} of their answers"
            " at the longest length inside the window."
        )
    return _draw_by_steps(parts, "accuracy", "share of answers", title, notes, bars)


def fine_tuned_by_steps(records: Sequence[Record]) -> list[Record]:
    """Records of the methods that were fine-tuned by several numbers of steps, but for those of a
    CSV beside other results.
    """
    # A source, the CSV's name, is no part of method_of: its records would join the lines of others.
    children = [
        record
        for record in records
        if steps_of(record) is not None and record.label_facts.tuned_from and not record.source
    ]
    several = []
    for of_method in grouped(children, method_of).values():
        if len({*map(steps_of, of_method)}) > 1:
            several += of_method
    return several


def _draw_by_steps(
    parts: dict[str, list[Record]],
    column: str,
    unit: str,
    title: str,
    notes: Sequence[str],
    bars: str,
):
    """Figure with a row of panels for each part {heading: records}, of a column."""
    drawing = _StepsDrawing(parts, column, unit, bars)
    rows = []
    for heading, part in parts.items():
        panels = [drawing.panel(heading, part, length) for length in drawing.lengths]
        rows.append(with_names_in_last_panel(panels))
    return draw_panels(title, rows, [*drawing.caption(), *notes], NARROW_PANEL, LOW_PANEL)


class _StepsDrawing:
    """Panels and caption of a column by steps of fine-tuning.

    Losses are drawn minus those of the models before, if every record has such a model.
    """

    def __init__(self, parts: dict[str, list[Record]], column: str, unit: str, bars: str) -> None:
        self.column = column
        self.unit = unit
        self.bars = bars
        self.records = [record for part in parts.values() for record in part]
        self.lengths = _three_lengths(self.records)
        self.names = _short_names(self.records)
        # the models before fine-tuning, at their own length
        self.parents = [
            record
            for record in self.records
            if _is_parent(record) and record.length == self.lengths[0]
        ]
        self.parent_of = {record.label_facts.tuned_from: record for record in self.parents}
        self.is_relative = column == "nll" and all(
            record.label_facts.tuned_from in self.parent_of for record in self.records
        )

    def panel(self, heading: str, part: list[Record], length: int) -> Panel:
        """Panel of the records of a part at a length."""
        pens = pens_of_methods(grouped(part, method_of), yaml_names(part), by_extension=True)
        of_length = [record for record in part if record.length == length]
        lines = []
        for method, records in grouped(of_length, method_of).items():
            marks = [self._mark(record) for record in sorted(records, key=steps_of)]
            lines.append(Line(self.names[method], marks, pens[method]))
        set_up_axes = functools.partial(
            _set_up_steps_axes,
            numbers=sorted({*map(steps_of, part)}),
            levels=self._levels(part, length),
            is_share=self.column == "accuracy",
        )
        return Panel(self._panel_title(heading, length), lines, set_up_axes)

    def _mark(self, record: Record) -> Mark:
        """Mark of a record at its steps."""
        if self.is_relative:
            parent = self.parent_of[record.label_facts.tuned_from]
            return _difference_mark(steps_of(record), record, parent, self.bars)
        return mark_with_bar(record, steps_of(record), self.column, self.bars)

    def _levels(self, part: list[Record], length: int) -> list[float]:
        """Heights of dashed lines, the models before fine-tuning."""
        if self.is_relative:
            return [0.0]
        # `parents` are of the first length alone.
        parents = [record for record in self.parents if record in part and record.length == length]
        return [getattr(record, self.column) for record in parents]

    def _panel_title(self, heading: str, length: int) -> str:
        """Title of a panel, in two lines where it is too wide for one."""
        if self.is_relative:
            return f"{heading} minus before at {length} tokens"
        title = f"{heading} at {length} tokens ({self.unit})"
        if text_width(title, TITLE_FONT) > NARROW_PANEL + SPACE_BETWEEN:
            return f"{heading}\nat {length} tokens ({self.unit})"
        return title

    def caption(self) -> list[str]:
        """Lines on what is drawn, and on scales and bars."""
        first_line = f"Fine-tuned at {self.records[0].train_len} tokens"
        if any(steps_of(record) == 0 for record in self.records):
            first_line += "; 0 steps is the same method without fine-tuning"
        first_line += "."
        if self.is_relative:
            first_line += (
                " Losses are in nats/token, minus that of the model before at its own length"
                f" ({self.lengths[0]} tokens; dashed)."
            )
            of_bars = _difference_bars_line(self.records, self.bars)
        else:
            of_bars = bars_line(self.records, self.column, self.bars)
            if self.parents:
                first_line += " Dashed line: the model before, at its own length."
        scales = "Scales: steps logarithmic, but linear up to the first number; y linear."
        return [first_line, joined_sentences(scales, of_bars)]


def _three_lengths(records: Sequence[Record]) -> list[int]:
    """The shortest length, that of the fine-tuning or a middle one, and the longest."""
    lengths = sorted({record.length for record in records})
    middle = records[0].train_len
    if middle == lengths[0]:
        middle = lengths[len(lengths) // 2]
    return [length for length in lengths if length in (lengths[0], middle, lengths[-1])]


def _is_parent(record: Record) -> bool:
    """True for a model before its fine-tuning, with nothing added."""
    # Another encoding than the parent's changes a model even without a step.
    return (
        steps_of(record) == 0
        and record.label_facts.keeps_encoding
        and record.extension == "none"
        and record.scale_attention == "none"
    )


def _set_up_steps_axes(
    axes, numbers: Sequence[int], levels: Sequence[float], is_share: bool
) -> None:
    """Set up axes of numbers of steps, 0 included, and dashed lines at `levels`."""
    if is_share:
        axes.set_ylim(-0.03, 1.04)  # around all shares, with room for their markers
    first = next((number for number in numbers if number), 1)
    # Linear up to the first number, so that 0 has a place: 0.6 decades left of it.
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xticks(numbers, map(str, numbers))
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.1 * first, numbers[-1] * 1.25)  # with room for markers at both ends
    axes.set_xlabel("steps of fine-tuning", fontsize=FONT_SIZE)
    draw_rules(axes)
    for level in levels:
        axes.axhline(level, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def _short_names(shown: Sequence[Record]) -> dict[Method, str]:
    """Names of lines by method, without words that all share: "yarn" for "rope tuned from rope-64 +
    yarn (trained in)".
    """
    encodings = {record.label_facts.encoding_label for record in shown}
    parents = {record.label_facts.tuned_from for record in shown}
    extended = [record for record in shown if record.extension != "none"]
    trained_in = all(record.label_facts.trained_in for record in extended)
    names = {}
    for record in shown:
        method = method_of(record)
        encoding = method[0] if len(encodings) > 1 else ""
        parent = record.label_facts.tuned_from
        # An encoding that is kept has its parent's name already.
        if len(parents) == 1 or record.label_facts.keeps_encoding:
            encoding = encoding.replace(f" tuned from {parent}", "")
        name = line_name(encoding, *method[1:]) or "no extension"
        names[method] = name.replace(" (trained in)", "") if trained_in else name
    return names
