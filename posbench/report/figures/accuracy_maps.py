"""Maps of accuracy: by method and length, one for each part of a task, and by length and depth, one for each method."""

import functools

from posbench.report.figures.captions import extension_name, shortened
from posbench.report.figures.heatmap import INKS, legible
from posbench.report.figures.lines import width
from posbench.report.figures.method_lines import Names
from posbench.report.figures.style import GAIN, GREY, Frame, note
from posbench.report.footnotes import questions_of, unlearned
from posbench.report.records import Score, tick_lengths
from posbench.report.score_tables import by_task

CELL, WIDE_CELL, ROW, WIDEST = 28, 34, 15, 900  # points: a cell of a map of depths, of methods, its height, and the widest row


def methods_map(section: list[Score], title: str):
    """Maps of accuracy by method and length, one for each part of a task; None for fewer than three methods or two lengths."""
    found, lengths = by_task(section), tick_lengths(score.length for score in section)
    methods = list(dict.fromkeys(method for cells in found.values() for method in cells))
    if len(methods) < 3 or len(lengths) < 2:
        return None
    first = {score.method: score for score in reversed(section)}
    said = Names(section)
    names = [said.line(first[method], section) for method in methods]
    margin, wide, tall = 14 + max(map(width, names)), WIDE_CELL * len(lengths), ROW * len(methods)
    across, down = _flow(len(found), wide + 20)
    frame = Frame(title, margin + across * (wide + 20), down * (26 + tall + 30))
    for index, (task, cells) in enumerate(found.items()):
        left, top = margin + index % across * (wide + 20), index // across * (26 + tall + 30) + 22
        axes = _grid(frame, left, top, WIDE_CELL, lengths, names if index % across == 0 else [], len(methods))
        note(axes, task, (0, 0), (0, 5), fontsize=8.6, fontweight="bold")
        for row, method in enumerate(methods):
            for score in cells.get(method, {}).values():
                if score.length in lengths:
                    _draw_cell(axes, lengths.index(score.length), row, score)
    grey = "" if all(score.shown for score in section) else " Grey: never learned."
    frame.caption([f"Rows: methods; columns: length in tokens, trained at {section[0].train_len}.{grey}", *caption_lines(section)])
    return frame.figure


def maps(section: list[Score], title: str):
    """Maps of accuracy by length and depth, one for each method and part of a task; None without depths."""
    deep = [score for score in section if score.depth is not None]
    if not deep:
        return None
    apart: dict[tuple, list[Score]] = {}
    for score in deep:
        apart.setdefault((score.task, *score.method), []).append(score)
    lengths, depths = tick_lengths(score.length for score in deep), sorted({score.depth for score in deep})
    wide, tall = CELL * len(lengths), ROW * len(depths)
    names = {key: [key[0], f"{shortened(key[1])}, {extension_name(key[1:], apart[key])}"] for key in apart}
    step = max(wide, *(width(text) for lines in names.values() for text in lines)) + 34
    across, down = _flow(len(apart), step)
    frame = Frame(title, across * step, down * (44 + tall + 22) + 14)
    for index, (key, own) in enumerate(apart.items()):
        left, top = index % across * step + 30, index // across * (44 + tall + 22) + 40
        axes = _grid(frame, left, top, CELL, lengths, [f"{depth:.2g}" for depth in depths], len(depths))
        for line, text in enumerate(names[key]):
            note(axes, text, (0, 0), (0, 16 - 11 * line), fontsize=8.2, fontweight="bold" if line else "normal")
        for score in own:
            if score.length in lengths:
                _draw_cell(axes, lengths.index(score.length), depths.index(score.depth), score)
    frame.caption(["Rows: depth of what is asked for, 0 at the start of the text; columns: length in tokens.", *caption_lines(section)])
    return frame.figure


def _flow(number: int, wide: float) -> tuple[int, int]:
    """Columns and rows of so many parts of a figure, each so wide."""
    across = max(1, min(number, int(WIDEST // wide)))
    return across, -(-number // across)


def _grid(frame: Frame, left: float, top: float, cell: float, lengths: list[int], rows: list[str], n_rows: int):
    """Empty axes of a map: a column for each length, and `n_rows` rows, named if there are names."""
    axes = frame.axes(left, top, cell * len(lengths), ROW * n_rows)
    axes.set(xlim=(0, len(lengths)), ylim=(n_rows, 0))
    axes.set_xticks([place + 0.5 for place in range(len(lengths))], map(str, lengths))
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.tick_params(labelsize=7, color=GREY, length=2)
    axes.spines[:].set_color(GREY)
    return axes


@functools.cache
def _colours():
    """Colours of the cells, from 0 to 1."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("accuracy", ["#ffffff", GAIN])


def _draw_cell(axes, place: int, line: int, score: Score) -> None:
    from matplotlib.patches import Rectangle

    ground = _colours()(score.accuracy) if score.shown else (0.925, 0.925, 0.925, 1.0)
    axes.add_patch(Rectangle((place, line), 1, 1, facecolor=ground, edgecolor="white", linewidth=0.5))
    text, ink = (f"{score.accuracy:.2f}" if score.shown else "", legible(ground, INKS[1:]))
    axes.text(place + 0.5, line + 0.52, text, ha="center", va="center", fontsize=7, color=ink)


def caption_lines(section: list[Score]) -> list[str]:
    """Lines on the questions, and on the trainings that have not learned them."""
    first = section[0]
    lines = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {questions_of(section)}."]
    return lines + [f"{said[0].upper()}{said[1:]}." for said in unlearned(section)]
