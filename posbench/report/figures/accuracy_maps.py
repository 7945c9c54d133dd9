"""Maps of accuracy: by method and length, one for each part of a task, and by length and depth, one for each method."""

from collections.abc import Sequence

from posbench.report.figures.captions import extension_name, shortened
from posbench.report.figures.heatmap import INKS, UNKNOWN, draw_cell
from posbench.report.figures.lines import width
from posbench.report.figures.method_lines import Names
from posbench.report.figures.style import GAIN, GREY, Frame, note
from posbench.report.footnotes import questions_of, unlearned
from posbench.report.records import Score, by_task, grouped, tick_lengths

CELL, WIDE_CELL, ROW, WIDEST = 28, 34, 15, 900  # points: a cell of a map of depths, of methods, its height, and the widest row
Map = tuple[list[str], dict[tuple[int, int], Score]]  # lines of a heading, scores by row and length


def methods_map(section: list[Score], title: str):
    """Maps of accuracy by method and length, one for each part of a task; None for fewer than three methods or two lengths."""
    found, lengths = by_task(section), tick_lengths(score.length for score in section)
    methods = list(dict.fromkeys(method for cells in found.values() for method in cells))
    if len(methods) < 3 or len(lengths) < 2:
        return None
    first, said = {score.method: score for score in reversed(section)}, Names(section)
    names = [said.line(first[method], section) for method in methods]
    maps = [
        ([task], {(methods.index(score.method), score.length): score for cell in cells.values() for score in cell.values()})
        for task, cells in found.items()
    ]
    grey = "" if all(score.shown for score in section) else " Grey: never learned."
    lines = [f"Rows: methods; columns: length in tokens, trained at {section[0].train_len}.{grey}", *caption_lines(section)]
    return _draw_maps(title, maps, names, lengths, WIDE_CELL, 14 + max(map(width, names)), WIDE_CELL * len(lengths) + 20, lines)


def maps(section: list[Score], title: str):
    """Maps of accuracy by length and depth, one for each method and part of a task; None without depths."""
    deep = [score for score in section if score.depth is not None]
    if not deep:
        return None
    lengths, depths = tick_lengths(score.length for score in deep), sorted({score.depth for score in deep})
    found = [
        ([task, f"{shortened(method[0])}, {extension_name(method, own)}"], {(depths.index(one.depth), one.length): one for one in own})
        for (task, *method), own in grouped(deep, lambda score: (score.task, *score.method)).items()
    ]
    step = max(CELL * len(lengths), *(width(text) for texts, _ in found for text in texts)) + 34
    lines = ["Rows: depth of what is asked for, 0 at the start of the text; columns: length in tokens.", *caption_lines(section)]
    return _draw_maps(title, found, [f"{depth:.2g}" for depth in depths], lengths, CELL, 0, step, lines)


def _draw_maps(
    title: str, found: Sequence[Map], rows: list[str], lengths: list[int], cell: float, margin: float, step: float, caption: list[str]
):
    """Figure of maps beside one another, each `step` points wide; rows are named once, in a margin, or else in each map."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("accuracy", ["#ffffff", GAIN])
    heads = len(found[0][0])
    above, below = (22, 34) if heads == 1 else (40, 26)
    tall, across = ROW * len(rows), max(1, min(len(found), int(WIDEST // step)))
    frame = Frame(title, margin + across * step, -(-len(found) // across) * (above + tall + below) + 14 * (heads - 1))
    for index, (heading, scores) in enumerate(found):
        left, top = (margin or 30) + index % across * step, index // across * (above + tall + below) + above
        axes = frame.axes(left, top, cell * len(lengths), tall)
        axes.set(xlim=(0, len(lengths)), ylim=(len(rows), 0), yticks=[])
        axes.set_xticks([place + 0.5 for place in range(len(lengths))], map(str, lengths))
        if not margin or index % across == 0:
            axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
        axes.tick_params(labelsize=7, color=GREY, length=2)
        axes.spines[:].set_color(GREY)
        for line, text in enumerate(heading):
            note(axes, text, (0, 0), (0, 5 + 11 * (heads - 1 - line)), fontsize=8.4, fontweight="bold" if line == heads - 1 else "normal")
        for (row, length), score in scores.items():
            if length in lengths:
                text, ground = (f"{score.accuracy:.2f}", colours(score.accuracy)) if score.shown else ("", UNKNOWN)
                draw_cell(axes, lengths.index(length), row, ground, text, INKS[1:], size=7)
    frame.caption(caption)
    return frame.figure


def caption_lines(section: list[Score]) -> list[str]:
    """Lines on the questions, and on the trainings that have not learned them."""
    first = section[0]
    lines = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {questions_of(section)}."]
    return lines + [f"{said[0].upper()}{said[1:]}." for said in unlearned(section)]
