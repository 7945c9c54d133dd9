"""Figures of accuracy in tasks: lines by length, maps by method and length, and maps by length and
depth.

The lines stand in the panels of the losses by length, for each part of a task.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from posbench.report.figures.captions import extension_name, sentences, shortened
from posbench.report.figures.lines import BETWEEN, WIDTH, Line, Mark, Panel, draw, gutters, width
from posbench.report.figures.method_lines import Names, groups, lines_of, marks_of
from posbench.report.figures.palette import Pen
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import GAIN, GREY, INKS, UNKNOWN, Frame, draw_cell, note, octaves
from posbench.report.footnotes import questions_of, unlearned
from posbench.report.records import Score, grouped, span, tick_lengths
from posbench.report.scores import GUESSES

HATCH = "#d8d8d8"
CELL, ROW, WIDEST = (
    34,
    15,
    900,
)  # points: a cell of a map, its height, and the widest row of maps or panels
Cells = Mapping[tuple[int, int], Score]  # by row and length


@report_figure("accuracy", "accuracy", "Accuracy by length")
def figure(section: list[Score], title: str):
    """Figure of one section."""
    known = [score for score in section if score.depth is None]
    tasks, shown = grouped(known, lambda score: score.task), groups(known)
    lengths, train_len = tick_lengths(score.length for score in section), section[0].train_len

    def scales(axes, first: bool) -> None:
        octaves(axes, lengths, train_len, "length (tokens)")
        axes.set(
            xlim=(min(lengths) / 1.2, max(lengths) * 1.2),
            ylim=(-0.03, 1.04),
            ylabel="accuracy" if first else "",
        )

    def mark(score: Score) -> Mark | None:
        return Mark(score.length, score.accuracy, score.low, score.high) if score.shown else None

    rows = []
    for task, asked in tasks.items():
        row = []
        for group in shown:
            own, others = (
                [score for score in scores if score.task == task]
                for scores in (group.points, group.others)
            )
            grey = [marks for *_, marks in marks_of(others, mark)]
            lines, asked_at = _guess_lines(asked), sorted({score.length for score in own})
            for line in lines_of(own, known, mark):  # broken where only others were asked
                found = {one.x: one for one in line.marks}
                lines.append(
                    replace(line, marks=[found.get(at) or Mark(at, math.nan) for at in asked_at])
                )
            heading = ": ".join(filter(None, (task, group.heading)))
            row.append(Panel(heading, lines, functools.partial(scales, first=not row), grey))
        rows.append(row)
    part = len(shown) * (WIDTH + BETWEEN) + sum(gutters(rows))
    beside = max(1, int(WIDEST // part))
    rows = [
        list(itertools.chain(*rows[start : start + beside]))
        for start in range(0, len(rows), beside)
    ]
    first, *others = caption_lines(section)
    return draw(title, rows, [f"{first} Bars: 95 % intervals.", *others])


def _guess_lines(asked: list[Score]) -> list[Line]:
    """Lines of the shares that guesses get right, which are the same for all methods."""
    scores = {score.length: score for score in asked}
    lines = []
    for column in GUESSES:
        marks = [
            Mark(length, share)
            for length, score in sorted(scores.items())
            if (share := getattr(score, column)) is not None
        ]
        if marks:
            lines.append(Line(f"guess {column.replace('_', ' ')}", marks, Pen(GREY, ":", "")))
    return lines


@report_figure("accuracy", "map", "Accuracy by method and length", place=2)
def methods_map(section: list[Score], title: str):
    """Maps of accuracy by method and length, one for each part of a task; None for fewer than three
    methods or two lengths.
    """
    known, lengths = (
        [score for score in section if score.depth is None],
        tick_lengths(score.length for score in section),
    )
    first = {score.method: score for score in reversed(known)}
    methods = list(dict.fromkeys(score.method for score in known))
    if len(methods) < 3 or len(lengths) < 2:
        return None
    said, tasks = Names(section), grouped(known, lambda score: score.task)
    names = [said.line(first[method], section) for method in methods]
    maps = {
        task: {(methods.index(score.method), score.length): score for score in own}
        for task, own in tasks.items()
    }
    grey = "" if all(score.shown for score in section) else " Grey: never learned."
    what = f"Rows: methods; columns: length in tokens, trained at {section[0].train_len}.{grey}"
    return _draw_maps(title, maps, names, lengths, [what, *caption_lines(section)])


@report_figure("accuracy", "depth", "Accuracy by length and depth", place=3)
def maps(section: list[Score], title: str):
    """Maps of accuracy by length and depth, one for each method and part of a task; None without
    depths.
    """
    deep = [score for score in section if score.depth is not None]
    if not deep:
        return None
    lengths, depths = (
        tick_lengths(score.length for score in deep),
        sorted({score.depth for score in deep}),
    )
    found = {
        f"{task}\n{shortened(method[0])}, {extension_name(method, own)}": {
            (depths.index(one.depth), one.length): one for one in own
        }
        for (task, *method), own in grouped(deep, lambda score: (score.task, *score.method)).items()
    }
    texts = span(score.n_texts for score in deep)
    what = (
        "Rows: depth of what is asked for, 0 at the start of the text; columns: length in tokens. "
    )
    what += f"{texts} text{'' if texts == '1' else 's'} a cell."
    return _draw_maps(
        title, found, [f"{depth:.2g}" for depth in depths], lengths, [what, *caption_lines(section)]
    )


def _draw_maps(
    title: str, found: Mapping[str, Cells], rows: list[str], lengths: list[int], caption: list[str]
):
    """Figure of maps beside one another, whose rows are named left of the first."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("accuracy", ["#ffffff", GAIN])
    above = 22 + 11 * max(heading.count("\n") for heading in found)
    margin, tall = 14 + max(map(width, rows)), ROW * len(rows)
    step, high = max(CELL * len(lengths), *map(width, found)) + 20, above + tall + 34
    across = max(1, min(len(found), int(WIDEST // step)))
    frame = Frame(title, margin + across * step, -(-len(found) // across) * high)
    for index, (heading, scores) in enumerate(found.items()):
        axes = frame.axes(
            margin + index % across * step,
            index // across * high + above,
            CELL * len(lengths),
            tall,
        )
        axes.set(xlim=(0, len(lengths)), ylim=(len(rows), 0), yticks=[])
        axes.set_xticks([place + 0.5 for place in range(len(lengths))], map(str, lengths))
        if index % across == 0:
            axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
        axes.tick_params(labelsize=7, color=GREY, length=2)
        axes.spines[:].set_color(GREY)
        axes.patch.set(hatch="////", edgecolor=HATCH)  # shows where no cell is drawn
        note(axes, heading, (0, 0), (0, 5), fontsize=8.4, fontweight="bold")
        for (row, length), score in scores.items():
            if length in lengths:
                text, ground = (
                    (f"{score.accuracy:.2f}", colours(score.accuracy))
                    if score.shown
                    else ("", UNKNOWN)
                )
                draw_cell(axes, lengths.index(length), row, ground, text, INKS[1:], size=7)
    missing = any(len(scores) < len(rows) * len(lengths) for scores in found.values())
    frame.caption([*caption, *["Hatched: not measured."] * missing])
    return frame.figure


def caption_lines(section: list[Score]) -> list[str]:
    """Lines on the questions, and on the trainings that have not learned them."""
    first = section[0]
    lines = [
        f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {questions_of(section)}."
    ]
    return lines + sentences(unlearned(section))
