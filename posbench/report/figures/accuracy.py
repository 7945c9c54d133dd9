"""Figures of accuracy in tasks: lines by length, and maps by length and method or depth.

The lines stand in the panels of the losses by length, for each part of a task.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from posbench.report.figures.captions import (
    LINEAR,
    LOG,
    as_sentences,
    extension_name,
    joined_sentences,
    scales_line,
    shortened,
)
from posbench.report.figures.lines import (
    PANEL_WIDTH,
    SPACE_BETWEEN,
    Line,
    Mark,
    Panel,
    draw_panels,
    in_rows,
    name_column_widths,
    text_width,
)
from posbench.report.figures.method_lines import (
    Group,
    LineNames,
    lines_of_methods,
    marked_lines,
    panel_groups,
)
from posbench.report.figures.palette import Pen
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import (
    GAIN_COLOUR,
    GREY,
    INKS,
    NO_VALUE_COLOUR,
    Frame,
    draw_cell,
    draw_unmeasured,
    set_up_octaves_x,
    write_note,
)
from posbench.report.figures.uncertainty import INTERVAL, bars_line, mark_with_bar
from posbench.report.footnotes import questions_words, unlearned_lines
from posbench.report.records import Score, grouped, range_text, tick_lengths
from posbench.report.scores import GUESS_WORDS

HEADING_FONT = 8.4  # points of the name of a map
CELL_WIDTH, ROW_HEIGHT = 34, 15  # points: width and height of a cell of a map
WIDEST_ROW = 900  # points of a row of maps or panels
# points of a row with panels of one task, which belong together; curve.svg becomes about as wide
WIDEST_ROW_OF_A_TASK = 1350
Cells = Mapping[tuple[int, int], Score]  # by row and length


@report_figure("accuracy", "accuracy", "Accuracy by length")
def figure(section: list[Score], title: str, bars: str = INTERVAL):
    """Figure of one section: a panel for each part of a task and group of methods."""
    mark = functools.partial(_mark, bars=bars)
    scores = [score for score in section if score.depth is None]
    shown = panel_groups(scores)
    lengths = tick_lengths((score.length for score in section), section[0].train_len)
    set_up_axes = functools.partial(_set_up, lengths=lengths, train_len=section[0].train_len)
    panels_by_task = []
    for task, of_task in grouped(scores, lambda score: score.task).items():
        panels = []
        for group in shown:
            lines = _guess_lines(of_task) + _task_lines(group, task, scores, mark)
            others = [score for score in group.others if score.task == task]
            grey = [line.marks for line in marked_lines(others, mark)]
            heading = f"{task}: {group.heading}" if group.heading else task
            panels.append(Panel(heading, lines, set_up_axes, grey))
        panels_by_task.append(panels)
    rows = _rows_of_tasks(panels_by_task)
    question, *unlearned = question_lines(section)
    of_bars = bars_line([score for score in scores if score.shown], "accuracy", bars)
    return draw_panels(
        title, rows, [question, joined_sentences(scales_line(LOG, LINEAR), of_bars), *unlearned]
    )


def _rows_of_tasks(panels_by_task: list[list[Panel]]) -> list[list[Panel]]:
    """Rows of panels: several tasks beside each other where there is room, or a task in several
    rows where it is too wide. The first panel of a task in a row has the label of the axis.
    """
    n_panels = len(panels_by_task[0])  # of each task
    task_width = n_panels * (PANEL_WIDTH + SPACE_BETWEEN) + sum(name_column_widths(panels_by_task))
    tasks_in_row = max(1, int(WIDEST_ROW // task_width))
    rows_of_task = math.ceil(task_width / WIDEST_ROW_OF_A_TASK)
    panels_in_row = math.ceil(n_panels / rows_of_task)
    parts = []  # a task, or the part of one that fits a row
    for panels in panels_by_task:
        for first, *others in in_rows(panels, panels_in_row):
            set_up_axes = functools.partial(first.set_up_axes, label="accuracy")
            parts.append([replace(first, set_up_axes=set_up_axes), *others])
    return [list(itertools.chain(*of_row)) for of_row in in_rows(parts, tasks_in_row)]


def _mark(score: Score, bars: str) -> Mark | None:
    return mark_with_bar(score, score.length, "accuracy", bars) if score.shown else None


def _set_up(axes, lengths: Sequence[int], train_len: int, label: str = "") -> None:
    """Set up the axes of a panel, with a label of the vertical one."""
    set_up_octaves_x(axes, lengths, train_len, "length (tokens)")
    axes.set(
        xlim=(min(lengths) / 1.2, max(lengths) * 1.2),
        ylim=(-0.03, 1.04),  # around all shares
        ylabel=label,
    )


def _task_lines(
    group: Group, task: str, scores: list[Score], mark: Callable[[Score], Mark | None]
) -> list[Line]:
    """Lines of a task, broken at lengths where only others of the group were asked."""
    of_task = [score for score in group.points if score.task == task]
    lengths = sorted({score.length for score in of_task})
    lines = []
    for line in lines_of_methods(of_task, scores, mark):
        marks = {measured.x: measured for measured in line.marks}
        marks_and_gaps = [marks.get(length) or Mark(length, math.nan) for length in lengths]
        lines.append(replace(line, marks=marks_and_gaps))
    return lines


def _guess_lines(of_task: list[Score]) -> list[Line]:
    """Lines of the shares that guesses get right, which are the same for all methods."""
    by_length = {score.length: score for score in of_task}
    lines = []
    for column in GUESS_WORDS:
        marks = []
        for length, score in sorted(by_length.items()):
            share = getattr(score, column)
            if share is not None:
                marks.append(Mark(length, share))
        if marks:
            lines.append(Line(f"guess {column.replace('_', ' ')}", marks, Pen(GREY, ":", "")))
    return lines


@report_figure("accuracy", "map", "Accuracy by method and length", place=2)
def methods_map(section: list[Score], title: str):
    """Maps of accuracy by method and length, one for each part of a task.

    None for fewer than three methods or two lengths.
    """
    scores = [score for score in section if score.depth is None]
    lengths = tick_lengths((score.length for score in section), section[0].train_len)
    first: dict[tuple, Score] = {}  # {method: its first score}
    for score in scores:
        first.setdefault(score.method, score)
    if len(first) < 3 or len(lengths) < 2:
        return None
    names = LineNames(section)
    row_names = [names.line(score, section) for score in first.values()]
    methods = list(first)
    maps: dict[str, Cells] = {}
    for task, of_task in grouped(scores, lambda score: score.task).items():
        maps[task] = {(methods.index(score.method), score.length): score for score in of_task}
    text = f"Rows: methods; columns: length in tokens, trained at {section[0].train_len}."
    if not all(score.shown for score in section):
        text += " Grey: never learned."
    return _draw_maps(title, maps, row_names, lengths, [text, *question_lines(section)])


@report_figure("accuracy", "depth", "Accuracy by length and depth", place=3)
def depth_maps(section: list[Score], title: str):
    """Maps of accuracy by length and depth, one for each method and part of a task.

    None without depths.
    """
    scores = [score for score in section if score.depth is not None]
    if not scores:
        return None
    lengths = tick_lengths((score.length for score in scores), scores[0].train_len)
    depths = sorted({score.depth for score in scores})
    maps: dict[str, Cells] = {}
    for (task, *method), of_method in grouped(
        scores, lambda score: (score.task, *score.method)
    ).items():
        heading = f"{task}\n{shortened(method[0])}, {extension_name(method, of_method)}"
        maps[heading] = {(depths.index(score.depth), score.length): score for score in of_method}
    texts = range_text(score.n_texts for score in scores)
    noun = "text" if texts == "1" else "texts"
    text = (
        "Rows: depth of what is asked for, 0 at the start of the text; columns: length in tokens."
        f" {texts} {noun} a cell."
    )
    row_names = [f"{depth:.2g}" for depth in depths]
    return _draw_maps(title, maps, row_names, lengths, [text, *question_lines(section)])


def _draw_maps(
    title: str, maps: Mapping[str, Cells], rows: list[str], lengths: list[int], caption: list[str]
):
    """Figure of maps beside one another, whose rows are named left of the first."""
    # All sizes are in points: rows of headings above a map, and its ticks below.
    above = 22 + 11 * max(heading.count("\n") for heading in maps)
    names_width = 14 + max(map(text_width, rows))
    map_width = CELL_WIDTH * len(lengths)
    map_height = ROW_HEIGHT * len(rows)
    headings_width = max(text_width(heading, HEADING_FONT, "bold") for heading in maps)
    step = max(map_width, headings_width) + 20
    row_height = above + map_height + 34
    columns = max(1, min(len(maps), int(WIDEST_ROW // step)))
    frame = Frame(title, names_width + columns * step, math.ceil(len(maps) / columns) * row_height)
    for index, (heading, scores) in enumerate(maps.items()):
        line, column = divmod(index, columns)
        left = names_width + column * step
        axes = frame.axes(left, line * row_height + above, map_width, map_height)
        _set_up_map(axes, lengths, rows, with_names=column == 0)
        write_note(axes, heading, (0, 0), (0, 5), fontsize=HEADING_FONT, fontweight="bold")
        for row, length in itertools.product(range(len(rows)), lengths):
            if (row, length) not in scores:
                draw_unmeasured(axes, lengths.index(length), row)
        _fill_map(axes, scores, lengths)
    caption = [*caption, "Colours: linear, from white at 0 to green at 1."]
    if any(len(scores) < len(rows) * len(lengths) for scores in maps.values()):
        caption.append("Hatched: not measured.")
    frame.caption(caption)
    return frame.figure


def _set_up_map(axes, lengths: list[int], rows: list[str], with_names: bool) -> None:
    """Set up the axes of an empty map."""
    axes.set(xlim=(0, len(lengths)), ylim=(len(rows), 0), yticks=[])
    axes.set_xticks([place + 0.5 for place in range(len(lengths))], map(str, lengths))
    if with_names:
        axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.tick_params(labelsize=7, color=GREY, length=2)
    axes.spines[:].set_color(GREY)


def _fill_map(axes, scores: Cells, lengths: list[int]) -> None:
    """Draw the cells of a map that has a column for each of `lengths`."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("accuracy", ["#ffffff", GAIN_COLOUR])
    for (row, length), score in scores.items():
        if length not in lengths:  # of many lengths only some have a column
            continue
        text = ""
        ground = NO_VALUE_COLOUR
        if score.shown:
            text = f"{score.accuracy:.2f}"
            ground = colours(score.accuracy)
        inks = INKS[1:]  # without the one for undecided differences
        draw_cell(axes, lengths.index(length), row, ground, text, inks, size=7)


def question_lines(section: list[Score]) -> list[str]:
    """Lines on the questions, and on the trainings that have not learned them."""
    first = section[0]
    questions = questions_words(section)
    line = f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {questions}."
    return [line, *as_sentences(unlearned_lines(section))]
