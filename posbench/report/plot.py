"""A figure of one's own from a frame of results: each of its choices is a word of posbench.plot and
scripts/plot.py.

A value is read in nats, as a loss or as a difference to a reference, with the ends of its interval;
then all three take the unit."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, did_you_mean
from posbench.report.figures.captions import data_line, of_intervals, sentences, shortened
from posbench.report.figures.lines import Mark, Panel
from posbench.report.figures.loss_curves import bar
from posbench.report.figures.method_lines import (
    Group,
    Names,
    Point,
    groups,
    lines_of,
    marks_of,
    telling_columns,
)
from posbench.report.figures.paper import SIZES, AxesSpec, darken, lay_out, y_ends
from posbench.report.figures.style import EARLY
from posbench.report.footnotes import questions_of, targets_of
from posbench.report.frame import records
from posbench.report.method_words import source_suffix
from posbench.report.records import CurvePoint, Score, grouped, two_seeds
from posbench.report.table_formats import METHOD

if TYPE_CHECKING:
    import pandas

UNITS = {
    "nats": "loss (nats/token)",
    "ppl": "perplexity",
    "bpb": "bits/byte",
    "accuracy": "accuracy",
}
DIFFERENCES = {
    "difference": "floor",
    "change": "change",
}  # word for y that is nats minus this reference
REFERENCES = {"none": "", "floor": "floor", "change": "no extension"}  # other references are lines
ANY = object()  # any source
XS = {
    "length": "length at evaluation (tokens)",
    "multiple": "length / training length",
    "position": "position (tokens)",
}
STYLES = ("paper", "dark")
SECTIONS, LOST = 4, 8  # lines of a caption on what was measured; names of lines that state nothing
MANY = 12  # places on x; with more, lines have no markers


@dataclass(frozen=True)
class Options:
    """Choices of a figure, as posbench.plot describes them; None takes what fits the frame."""

    y: str | None = None
    x: str | None = None
    lines: str | Sequence[str] | None = None
    panel: str | Sequence[str] | None = None
    log: str | Sequence[str] | None = None
    size: str = "page"
    style: str = "paper"
    labels: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    reference: str | None = None
    xlim: tuple[float | None, float | None] = (None, None)
    ylim: tuple[float | None, float | None] = (None, None)


def draw_figure(
    frame: "pandas.DataFrame", options: Options
) -> tuple[object, Callable[[], list[str]]]:
    """Figure, and the function that gives the lines of its caption."""
    import matplotlib

    for name, known in (("size", SIZES), ("style", STYLES)):
        one_of(name, getattr(options, name), known)
    if "run_id" in frame:
        raise ConfigError(
            "These are the rows of single trainings, as posbench.rows gives them: plot"
            " posbench.frame(paths), their means."
        )
    for name in ("encoding", "length", "train_len"):
        if name not in frame:
            raise ConfigError(
                f"The frame has no column {name}: posbench.frame(paths) and posbench.frame(paths,"
                " 'accuracy') have all."
            )
    frame = frame.assign(**{name: frame.get(name, "none") for name in METHOD}).reset_index(
        drop=True
    )  # joined frames repeat their index
    wide = frame.window.notna() if "window" in frame else frame.train_len.isna()
    unit, reference, x = _quantities(frame, wide, options)
    table = frame[wide if x == "position" else ~wide]
    table = table[table.depth.isna()] if "depth" in table else table  # of tasks all depths together
    if table.empty:
        ways = (
            f": choose x={'length' if x == 'position' else 'position'}"
            if len(frame)
            else ", since the frame is empty"
        )
        raise ConfigError(f"Nothing here was measured by {x}{ways}.")
    points = records(table)
    table = table.assign(point=points, x=_places(points, x), other=None)
    if reference not in REFERENCES:
        table["other"] = _of_line(table, reference)
    table["mark"] = [
        _mark(point, x, unit, reference, other)
        for point, x, other in zip(table.point, table.x, table.other, strict=True)
    ]
    table = selected(table, options.lines)
    late = [
        x != "position" or options.xlim != (None, None) or EARLY * point.length >= point.train_len
        for point in table.point
    ]
    table = table[late] if any(late) else table
    shown = table[table.mark.notna()]
    if shown.empty:
        raise ConfigError(
            f"None of these lines states {_named(unit, reference)}: choose another y or reference."
        )
    low, high = (
        far if end is None else end
        for end, far in zip(options.xlim, (-math.inf, math.inf), strict=True)
    )
    if not shown.x.between(low, high).any():
        raise ConfigError(
            f"xlim={low:g},{high:g} holds no value of those at {shown.x.min():g} to"
            f" {shown.x.max():g}: choose other ends."
        )
    names = Names(list(table.point), options.labels)
    for word in options.labels:
        one_of("labels", word, names.known())
    columns = listed(options.panel)
    for name in columns if columns != ["none"] else ():
        one_of("panel", name, frame.columns, ", or none")
    panels = _panels(shown, columns, names, x == "multiple")
    axes = _axes(shown, unit, reference, x, options)
    with matplotlib.rc_context(
        {"text.parse_math": False}
    ):  # print dollar signs in names as they are
        made = lay_out(panels, axes, options.size, options.title)
    if options.style == "dark":
        darken(made)
    return made, functools.partial(_caption, table, reference, names)


def one_of(name: str, value: object, known: Iterable[str], more: str = "") -> str:
    """The value. Raises ConfigError with what exists for another than those known."""
    if value not in (known := list(dict.fromkeys(known))):
        some = ", ".join(known[:20]) + f" and {len(known) - 20} more" * (len(known) > 20)
        raise ConfigError(
            f"{name}={value} is unknown here{did_you_mean(value, known)}: choose from {some}{more}."
        )
    return str(value)


def listed(words: str | Sequence[str] | None) -> list[str]:
    """Words between commas, but not at those within brackets."""
    parts = re.split(r",(?![^\[{(]*[\]})])", words) if isinstance(words, str) else words or ()
    return [one.strip() for one in parts if one.strip()]


def _quantities(
    frame: "pandas.DataFrame", wide: "pandas.Series", options: Options
) -> tuple[str, str, str]:
    """Unit, reference and x of a figure of a frame, whose rows by position are `wide`."""
    x = one_of("x", options.x or ("position" if len(frame) and wide.all() else "length"), XS)
    relative = x != "position" and options.reference is None and "difference" in frame
    relative = relative and (frame.difference.notna() | frame.nll.isna())[~wide].all()
    y = one_of(
        "y",
        options.y or ("accuracy" if "task" in frame else "difference" if relative else "nats"),
        [*UNITS, *DIFFERENCES],
    )
    if y in DIFFERENCES and options.reference not in (None, DIFFERENCES[y]):
        raise ConfigError(
            f"y={y} has the reference {DIFFERENCES[y]}: type y=nats reference={options.reference}."
        )
    unit, reference = (
        ("nats", DIFFERENCES[y]) if y in DIFFERENCES else (y, options.reference or "none")
    )
    if "task" in frame and unit != "accuracy":
        raise ConfigError(f"y={y} is not measured in tasks: choose y=accuracy.")
    if unit == "accuracy" and reference in ("floor", "change"):
        raise ConfigError(
            f"reference={reference} is a loss, and y is an accuracy: name a line, such as"
            " reference=rope."
        )
    return unit, reference, x


def _places(points: Sequence[Point], x: str) -> list[float]:
    """Places of points on x. A bin of positions stands in its middle."""
    if x != "position":
        return [point.length / (point.train_len if x == "multiple" else 1) for point in points]
    ends: dict[tuple, set[int]] = {}
    for point in points:
        ends.setdefault((point.section, point.window), {0}).add(point.length)
    starts = [
        max(end for end in ends[point.section, point.window] if end < point.length)
        for point in points
    ]
    return [
        math.sqrt((start + 1) * point.length) for start, point in zip(starts, points, strict=True)
    ]


def selected(table: "pandas.DataFrame", lines: str | Sequence[str] | None) -> "pandas.DataFrame":
    """Rows of the lines that are named, in the order of the names: A|B|C for encoding, extension
    and scale; what is left out is any.
    """
    import pandas

    if not (wanted := listed(lines)):
        return table
    rows = [table[_matching(table, one)] for one in wanted]
    for one, own in zip(wanted, rows, strict=True):
        if own.empty:
            keys = dict.fromkeys(zip(*(table[name] for name in METHOD), strict=True))
            one_of("lines", one, ["|".join(key[:count]) for count in (1, 2, 3) for key in keys])
    found = pandas.concat(rows)
    return found[~found.index.duplicated()]


def _matching(table: "pandas.DataFrame", line: str, rest: str = "*") -> "pandas.Series":
    """True for the rows of a line; `rest` stands for the parts that its name leaves out."""
    words = [
        "none" if word.strip() == "no extension" else word.strip()
        for word in re.split(r"\||\s\+\s", line)
    ]
    mask = table.encoding.notna() & (len(words) <= len(METHOD))
    for name, word in zip(METHOD, words + [rest] * len(METHOD), strict=False):
        mask &= (table[name] == word) | (word == "*")
    return mask


def _of_line(table: "pandas.DataFrame", line: str) -> list[Point | None]:
    """For each row the point of a line at its place, of its section and task, from its source if
    the line is there.
    """

    def where(row, source: object) -> tuple:
        return row.point.section, getattr(row.point, "task", None), row.x, source

    own = table[_matching(table, line, "none")]
    if own.empty:
        one_of(
            "reference",
            line,
            ("|".join(point.method[:3]) for point in table.point),
            ", or floor, change, none",
        )
    found = {
        where(row, source): row.point
        for row in reversed(list(own.itertuples()))
        for source in (row.point.source, ANY)
    }
    return [
        found.get(where(row, row.point.source), found.get(where(row, ANY)))
        for row in table.itertuples()
    ]


def _mark(point: Point, x: float, unit: str, reference: str, other: Point | None) -> Mark | None:
    """Value of a point in a unit at its place, with its interval, None where it states none.
    `other`: what is subtracted.
    """
    values: tuple[float | None, float | None, float | None]
    if unit == "accuracy":
        values = (
            (point.accuracy, point.low, point.high)
            if isinstance(point, Score) and point.shown
            else (None,) * 3
        )
        values = values if isinstance(point, Score) else (point.accuracy, None, None)
    elif reference == "floor":
        values = point.difference, *(bar(point, relative=True) or (None, None))
    else:
        values = point.nll, point.low, point.high
    paired = (
        other is not None
        and other.method == (point.encoding, "none", "none", point.source)
        and unit != "accuracy"
    )
    if (
        reference == "change" or paired and point.change is not None
    ):  # the same trainings on the same targets
        half = point.change_half_width
        values = (
            point.change,
            *((None, None) if half is None else (point.change - half, point.change + half)),
        )
    elif reference not in REFERENCES:
        mine, theirs = values[0], other and (other.accuracy if unit == "accuracy" else other.nll)
        values = None if None in (mine, theirs) else mine - theirs, None, None
    if values[0] is None or unit == "bpb" and not (point.bpb and point.nll):
        return None
    to_unit = {
        "ppl": lambda nats: math.exp(min(nats, 500.0)),
        "bpb": lambda nats: nats * point.bpb / point.nll,
    }.get(unit, float)
    value, low, high = (None if one is None else to_unit(one) for one in values)
    return Mark(x, value, *((low, high) if None not in (low, high) else (None, None)))


def _panels(
    table: "pandas.DataFrame", columns: Sequence[str], names: Names, multiples: bool
) -> list[Panel]:
    """Panels of the rows of a table: one for each value of `columns`, or as in a report's figures
    for each part of what was measured.
    """
    points = list(table.point)
    marks = {id(point): mark for point, mark in zip(points, table["mark"], strict=True)}

    def mark(point: Point, shape: str | None = None) -> Mark:
        return replace(marks[id(point)], marker=shape)

    wanted = (
        []
        if columns == ["none"]
        else list(columns) or telling_columns(points, lambda point: point.source)
    )
    found = []
    for key, rows in table.groupby(wanted, sort=False, dropna=False) if wanted else [((), table)]:
        own = list(rows.point)
        for group in [Group("", own)] if columns else groups(own):
            heading = ", ".join(filter(None, [*map(names.value, wanted, key), group.heading]))
            few = len({marks[id(point)].x for point in group.points}) <= MANY
            lines = lines_of(
                group.points, points, functools.partial(mark, shape=None if few else ""), names
            )
            lines = (
                [replace(line, name="") for line in lines]
                if [line.name for line in lines] == [heading]
                else lines
            )
            others = [line.marks for line in marks_of(group.others, mark)]
            trained = (
                [1.0] if multiples else sorted({float(point.train_len) for point in group.points})
            )
            found.append(Panel(heading, lines, others=others, trained=trained))
    return found


def _named(unit: str, reference: str) -> str:
    """Name of the y axis."""
    head, bracket, units = UNITS[unit].partition(" (")
    other = REFERENCES.get(reference, shortened(reference))
    return (
        head
        + f"{' / that of ' if unit == 'ppl' else ' minus '}{other}" * bool(other)
        + bracket
        + units
    )


def _axes(
    table: "pandas.DataFrame", unit: str, reference: str, x: str, options: Options
) -> AxesSpec:
    level = None if reference == "none" else 1.0 if unit == "ppl" else 0.0
    bent = level == 0 and unit != "accuracy"
    wanted = [one_of("log", one, "xy") for one in listed(options.log) if one != "none"]
    log = set(wanted) if options.log is not None else {"x", "y"} if bent else {"x"}
    usual = (
        (-0.03, 1.04)
        if unit == "accuracy" and level is None
        else y_ends([mark.y for mark in table.mark], level, bent, "y" in log)
    )
    low, high = (
        end if wanted is None else wanted for wanted, end in zip(options.ylim, usual, strict=True)
    )
    for name, end in (("x", options.xlim[0]), ("y", None if bent else low)):
        if name in log and end is not None and end <= 0:
            raise ConfigError(
                f"log={name} cannot show {end:g}: choose {name}lim above 0, or leave {name} out of"
                " log."
            )
    windows = {getattr(point, "window", None) for point in table.point}
    name = (
        XS[x]
        if x != "position" or len(windows) > 1
        else f"position in a window of {windows.pop()} tokens"
    )
    return AxesSpec(
        name,
        _named(unit, reference),
        frozenset(log),
        (low, high),
        level,
        bent,
        options.xlim,
        x == "multiple",
    )


def _caption(table: "pandas.DataFrame", reference: str, names: Names) -> list[str]:
    """Lines below a figure: what was measured, what bars are, and which lines do not state what is
    drawn.
    """
    sections = grouped(table.point, lambda point: (point.source, point.section))
    lines = []
    for (source, _), own in sections.items():
        what = questions_of(own) if isinstance(own[0], Score) else targets_of(own[0])
        lines.append(f"{names.source(source)}: " * bool(source) + data_line(own, what) + ".")
    lines = list(dict.fromkeys(lines))
    lines = lines[:SECTIONS] + [
        f"And {len(lines) - SECTIONS} more of other data, lengths or settings."
    ] * (len(lines) > SECTIONS)
    if reference == "floor":
        lengths = " or ".join(
            str(length) for length in sorted({point.train_len for point in table.point})
        )
        lines.append(
            f"Floor: the loss of the same targets with exactly {lengths} tokens of context."
        )
    elif reference not in REFERENCES:
        lines.append(
            f"Minus {reference}: differences of means, paired where that is the same trainings"
            " without an extension."
        )
    barred = [
        point
        for point, mark in zip(table.point, table["mark"], strict=True)
        if mark and mark.low is not None
    ]
    theirs = sorted(
        {
            names.source(point.source) or "the file"
            for point in barred
            if getattr(point, "foreign", False)
        }
    )
    own = [point for point in barred if not getattr(point, "foreign", False)]
    paired = "" if not own else "95 % intervals" if isinstance(own[0], Score) else of_intervals(own)
    bars = "; ".join(
        filter(None, [paired, f"as {' and '.join(theirs)} states them" * bool(theirs)])
    )
    lines.append(f"Bars: {bars}." if bars else "No bars: no interval of this is known.")
    if lost := list(
        dict.fromkeys(
            "|".join(point.method[:3]) + source_suffix(point.source)
            for point in table[table.mark.isna()].point
        )
    ):
        lines.append(
            "Left out where it is not known:"
            f" {', '.join(lost[:LOST])}{f' and {len(lost) - LOST} more' * (len(lost) > LOST)}."
        )
    lines += sentences(two_seeds(own) if own and isinstance(own[0], CurvePoint) else [])
    return lines + ["* a pair its authors have not tested."] * any(
        point.untested for point in table.point
    )
