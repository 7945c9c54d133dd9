"""Figures of losses inside windows.

By context: the loss on the left, the gain of each doubling on the right. By position in long
windows: the loss on the left; on the right what each extension costs inside the training length, on
the same tokens. A point stands in the middle of its bin of positions."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from posbench.report.figures.captions import caption, data_line, sentences
from posbench.report.figures.lines import Mark, Panel, draw, short_number, with_interval
from posbench.report.figures.method_lines import groups, lines_of, marks_of
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import EARLY, GREY, note, octaves
from posbench.report.footnotes import contexts_of, interval_of_doubling
from posbench.report.method_words import source_suffix
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    interval_units,
    methods,
    tick_lengths,
    two_seeds,
)
from posbench.report.tables import gain_cell

BESIDE, STEEP = (
    0.5,
    0.3,
    # octaves that the intervals at one c share side by side; fewer for a steep line, which would seem
    # higher
)
Value = Callable[[ContextPoint | CurvePoint], tuple[float | None, float | None]]
ASIDE = 0.14  # octaves over which intervals at one position stand side by side
ROOM = 0.3  # nats/token


@report_figure("context", "context", "Loss by context")
def by_context(section: list[ContextPoint], title: str):
    """Figure of one section of losses by context."""
    panels, cut, train_len = [], False, section[0].train_len

    def panel(
        heading: str,
        known: list[ContextPoint],
        value: Value,
        beside: float,
        limits: tuple[float, float],
    ) -> Panel:
        def scales(axes) -> None:
            contexts = [step.context for step in known]
            octaves(
                axes, tick_lengths(contexts), train_len, "c, tokens of context before every target"
            )
            axes.set(xlim=(min(contexts) / 1.25, max(*contexts, train_len) * 1.25), ylim=limits)
            style = {
                "xycoords": axes.get_xaxis_transform(),
                "ha": "right",
                "va": "top",
                "fontsize": 7.5,
                "color": GREY,
            }
            note(axes, f"trained at {train_len}", (train_len, 1), (-4, -2), **style)
            if limits[0] < 0 < limits[1]:
                axes.axhline(0, color="black", linewidth=0.9, zorder=1)

        lines = lines_of(known, section, lambda step: with_interval(step.context, *value(step)))
        return Panel(heading, lines, scales, dodge=beside)

    for heading, value, beside in (
        ("Loss (nats/token)", lambda step: (step.nll, step.half_width), STEEP),
        (
            "Gain from the doubling to c tokens (nats/token)",
            lambda step: (step.doubling, step.doubling_half_width),
            BESIDE,
        ),
    ):
        known = [step for step in section if value(step)[0] is not None]
        if known:
            *limits, beyond = edges([value(step) for step in known])
            panels.append(panel(heading, known, value, beside, limits))
            cut = cut or beyond
    return draw(title, [panels], _context_caption(section, cut)) if panels else None


def edges(values: Sequence[tuple[float, float | None]]) -> tuple[float, float, bool]:
    """Bottom and top of the y axis, and True if they cut an interval: those of two seeds can be
    wider than everything else.
    """
    means = [mean for mean, _ in values]
    ends = [mean + sign * (half or 0.0) for mean, half in values for sign in (1, -1)]
    span = (max(means) - min(means)) or 0.1
    low, high = max(min(ends), min(means) - span / 3), min(max(ends), max(means) + span / 3)
    return (
        low - 0.05 * span,
        high + 0.05 * span,
        min(ends) < low - 0.05 * span or max(ends) > high + 0.05 * span,
    )


def _context_caption(section: list[ContextPoint], cut: bool) -> list[str]:
    first, over = section[0], interval_of_doubling(section)
    lines = [data_line(section, contexts_of(section))]
    if over:
        lines.append(
            f"Bars: {over}; on the left of the difference to {first.train_len}"
            f" tokens.{' Bars at an edge are cut.' * cut}"
        )
    known = [
        f"{encoding}{source_suffix(source)} {gain_cell(own.get(first.train_len))}"
        for (encoding, *_, source), own in methods(section).items()
    ]
    lines += sentences(two_seeds(section))
    return [
        *lines,
        (
            f"G, the gain from the second half of the window ({first.train_len // 2} ->"
            f" {first.train_len}): {'; '.join(known)}."
        ),
    ]


@report_figure("position", "position", "Loss by position")
def by_position(curve: list[CurvePoint], title: str):
    """Figure of one section of losses by position: a row of panels for each panel of
    loss_curves.
    """
    ends, train_len = sorted({point.length for point in curve}), curve[0].train_len
    at = {end: math.sqrt((start + 1) * end) for start, end in itertools.pairwise([0, *ends])}
    curve = [point for point in curve if EARLY * point.length >= train_len] or curve
    columns = [("loss (nats/token)", lambda point: (point.nll, None), _loss_edges(curve), curve)]
    inside = [point for point in curve if point.change is not None and point.length <= train_len]
    told = caption(curve, relative=False)
    if inside:
        low, high, _ = edges(
            [(0.0, None), *((point.change, point.change_half_width) for point in inside)]
        )
        high = (
            ROOM if high > 2 * ROOM else high
        )  # a method that costs so much would flatten the others; its value follows its name
        heading = f"minus no extension, up to {train_len}"
        columns.append(
            (heading, lambda point: (point.change, point.change_half_width), (low, high), inside)
        )
        over = interval_units(point.over for point in inside if point.change_half_width is not None)
        bars = f" Bars: 95 % t interval, {over}; cut at an edge." if over else ""
        told.append(
            "Right: the loss of each token minus its loss without an extension, up to the training"
            f" length.{bars}"
        )

    def panel(
        group, heading: str, reading: Value, limits: tuple[float, float], points: list[CurvePoint]
    ) -> Panel | None:
        def mark(point: CurvePoint) -> Mark | None:
            value, half = reading(point) if point in points else (None, None)
            return None if value is None else with_interval(at[point.length], value, half)

        def scales(axes) -> None:
            lengths = [point.length for point in points]
            ticked = tick_lengths({n for n in lengths if n & (n - 1) == 0} or lengths)
            octaves(axes, ticked, train_len, f"position in a window of {curve[0].window} tokens")
            axes.set(
                xlim=(min(at[n] for n in lengths) / 1.1, max(*lengths, train_len) * 1.02),
                ylim=limits,
            )
            if points is curve:
                style = {
                    "xycoords": axes.get_xaxis_transform(),
                    "ha": "right",
                    "fontsize": 7.5,
                    "color": GREY,
                }
                note(axes, f"trained at {train_len}", (train_len, 0), (-4, 4), **style)
            else:
                axes.axhline(0, color="black", linewidth=0.9, zorder=1)

        lines = []
        for line in lines_of(
            group.points, curve, mark
        ):  # the last value of one that the axis cuts follows its name
            last = line.marks[-1].y
            lines.append(
                replace(line, name=f"{line.name} {short_number(last, signed=False)}")
                if last > limits[1]
                else line
            )
        own = [point for point in group.points if point in points]
        dodge = ASIDE if any(reading(point)[1] for point in own) else 0.0
        title = ", ".join(filter(None, (group.heading, heading)))
        return (
            Panel(
                title, lines, scales, [marks for *_, marks in marks_of(group.others, mark)], dodge
            )
            if own
            else None
        )

    return draw(
        title, [[panel(group, *column) for column in columns] for group in groups(curve)], told
    )


def _loss_edges(curve: list[CurvePoint]) -> tuple[float, float]:
    """Bottom and top of the axis of losses: those inside the training length, and above them as
    much again, but at least ROOM.
    """
    known = [point.nll for point in curve if point.nll is not None] or [0.0]
    inside = [
        point.nll for point in curve if point.nll is not None and point.length <= point.train_len
    ] or known
    span = max(inside) - min(inside)
    low, high = min(known), min(max(known), max(inside) + max(span, ROOM))
    margin = 0.05 * ((high - low) or 0.1)
    return low - margin, high + margin
