"""Figures of accuracy: by length, panels for each part of a task; by method and length, a map for each part; and by length and
depth, a map for each method."""

import functools
import math

from posbench.report.figures.annotations import GAP, end_labels, extension_name, name, shortened, width
from posbench.report.figures.heatmap import INKS, legible
from posbench.report.figures.palette import looks
from posbench.report.figures.style import DASHES, GAIN, GREY, MARKERS, Frame, note, octaves
from posbench.report.points import marked
from posbench.report.score_tables import asked, by_task, unlearned
from posbench.report.scores import GUESSES, Score

PANEL_WIDTH, PANEL_HEIGHT = 230, 200  # points
LEFT, LEADER, BETWEEN, ABOVE, BELOW = 40, 14, 46, 30, 44
CELL, WIDE_CELL, ROW, WIDEST = 28, 34, 15, 900  # points: a cell of a map of depths, of methods, its height, and the widest row


def curves(section: list[Score], title: str):
    """Figure of accuracy by length: on the left all encodings without an extension, then the extensions of each encoding."""
    found = by_task(section)
    groups = panels([method for cells in found.values() for method in cells])
    names = [_name(method, heading) for heading, methods in groups.items() for method in methods]
    names += [_guess(column) for column in GUESSES if any(getattr(score, column) is not None for score in section)]
    gutter = LEADER + max(map(width, names))
    tall = max(PANEL_HEIGHT, 1.3 * GAP * max(map(len, groups.values())))
    wide = len(groups) * (PANEL_WIDTH + gutter + BETWEEN)  # of the panels of one part of a task
    across, down = _flow(len(found), wide)
    frame = Frame(title, LEFT + across * wide - BETWEEN, down * (ABOVE + tall + BELOW))
    lengths, train_len = marked(score.length for score in section), section[0].train_len
    for index, (task, cells) in enumerate(found.items()):
        for number, (heading, methods) in enumerate(groups.items()):
            place, top = index % across * len(groups) + number, index // across * (ABOVE + tall + BELOW) + ABOVE
            axes = frame.axes(LEFT + place * (PANEL_WIDTH + gutter + BETWEEN), top, PANEL_WIDTH, tall)
            axes.set_title(f"{task}: {heading}", fontsize=9.5, loc="left", pad=6, color="#222222")
            octaves(axes, lengths, train_len)
            axes.set(xlim=(min(lengths) / 1.2, max(lengths) * 1.2), ylim=(-0.03, 1.04), ylabel="accuracy" if place == 0 else "")
            _lines(axes, {method: cells[method] for method in methods if method in cells}, heading)
            axes.set_xlabel("length (tokens)", fontsize=8.5)
    first, *others = _said(section)
    frame.caption([f"{first} Bars: 95 % intervals.", *others], up=2)
    return frame.figure


def panels(methods: list[tuple]) -> dict[str, list[tuple]]:
    """Methods of each panel by its heading: those without extension and scale, then those of each encoding that has others."""
    distinct = list(dict.fromkeys(methods))
    bare = [method for method in distinct if method[1:3] == ("none", "none")]
    groups = {"no extension": bare} if bare else {}
    for encoding in dict.fromkeys(method[0] for method in distinct):
        own = [method for method in distinct if method[0] == encoding]
        if len(own) > 1 or own[0] not in bare:
            groups[encoding] = own
    if len(groups) == 2 and len(bare) == 1:
        groups.pop("no extension")  # the other panel shows it too
    return groups


def _flow(number: int, wide: float) -> tuple[int, int]:
    """Columns and rows of so many parts of a figure, each so wide."""
    across = max(1, min(number, int(WIDEST // wide)))
    return across, -(-number // across)


def _name(method: tuple, heading: str) -> str:
    return shortened(method[0]) if heading == "no extension" else extension_name(method, ())


def _lines(axes, cells: dict[tuple, dict[int, Score]], heading: str) -> None:
    pens = looks([method[:2] for method in cells], dict.fromkeys(method[1] for method in cells))
    ends, scales = _guess_lines(axes, cells), list(dict.fromkeys(method[2] for method in cells))
    asked_at = sorted({length for cell in cells.values() for length in cell})
    for method, cell in cells.items():
        known = [score for _, score in sorted(cell.items()) if score.shown]
        if not known:
            continue
        colour, dash = pens[method[:2]]
        marker = MARKERS[(scales.index(method[2]) if len(scales) > 1 else DASHES.index(dash)) % len(MARKERS)]
        found = {score.length: score.accuracy for score in known}
        y = [found.get(length, math.nan) for length in asked_at]  # the line is broken where only others were asked
        axes.plot(asked_at, y, color=colour, linestyle=dash, marker=marker, markersize=3.8, linewidth=1.3, zorder=3)
        axes.vlines(
            list(found), [score.low for score in known], [score.high for score in known], color=colour, linewidth=2.2, alpha=0.3, zorder=2
        )
        ends.append((known[-1].accuracy, known[-1].length, _name(method, heading), colour))
    end_labels(axes, ends)


def _guess(column: str) -> str:
    return f"guess {column.replace('_', ' ')}"


def _guess_lines(axes, cells: dict[tuple, dict[int, Score]]) -> list[tuple]:
    """Draw the shares that guesses get right, which are the same for all methods; the ends to be labelled."""
    scores = {score.length: score for cell in cells.values() for score in cell.values()}
    ends = []
    for column in GUESSES:
        known = [(length, share) for length, score in sorted(scores.items()) if (share := getattr(score, column)) is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=GREY, linestyle=":", linewidth=1.1, zorder=1)
            ends.append((known[-1][1], known[-1][0], _guess(column), GREY))
    return ends


def methods_map(section: list[Score], title: str):
    """Maps of accuracy by method and length, one for each part of a task; None for fewer than three methods or two lengths."""
    found, lengths = by_task(section), marked(score.length for score in section)
    methods = list(dict.fromkeys(method for cells in found.values() for method in cells))
    if len(methods) < 3 or len(lengths) < 2:
        return None
    first = {score.method: score for score in reversed(section)}
    names = [name(first[method], section) for method in methods]
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
                    _cell(axes, lengths.index(score.length), row, score)
    grey = "" if all(score.shown for score in section) else " Grey: never learned."
    frame.caption([f"Rows: methods; columns: length in tokens, trained at {section[0].train_len}.{grey}", *_said(section)])
    return frame.figure


def maps(section: list[Score], title: str):
    """Maps of accuracy by length and depth, one for each method and part of a task; None without depths."""
    deep = [score for score in section if score.depth is not None]
    if not deep:
        return None
    apart: dict[tuple, list[Score]] = {}
    for score in deep:
        apart.setdefault((score.task, *score.method), []).append(score)
    lengths, depths = marked(score.length for score in deep), sorted({score.depth for score in deep})
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
                _cell(axes, lengths.index(score.length), depths.index(score.depth), score)
    frame.caption(["Rows: depth of what is asked for, 0 at the start of the text; columns: length in tokens.", *_said(section)])
    return frame.figure


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


def _cell(axes, place: int, line: int, score: Score) -> None:
    from matplotlib.patches import Rectangle

    ground = _colours()(score.accuracy) if score.shown else (0.925, 0.925, 0.925, 1.0)
    axes.add_patch(Rectangle((place, line), 1, 1, facecolor=ground, edgecolor="white", linewidth=0.5))
    text, ink = (f"{score.accuracy:.2f}" if score.shown else "", legible(ground, INKS[1:]))
    axes.text(place + 0.5, line + 0.52, text, ha="center", va="center", fontsize=7, color=ink)


def _said(section: list[Score]) -> list[str]:
    first = section[0]
    lines = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {asked(section)}."]
    return lines + [f"{said[0].upper()}{said[1:]}." for said in unlearned(section)]
