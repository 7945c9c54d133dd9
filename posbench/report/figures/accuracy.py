"""Figure of accuracy by length: for each part of a task all encodings without an extension, then the extensions of each encoding."""

import functools
import math
from dataclasses import replace

from posbench.report.figures.accuracy_maps import WIDEST, caption_lines
from posbench.report.figures.captions import extension_name, shortened
from posbench.report.figures.lines import BETWEEN, LEADER, WIDTH, Line, Mark, Panel, draw, width
from posbench.report.figures.palette import Pen, bases, looks
from posbench.report.figures.style import FONT, GREY, MARKERS, octaves
from posbench.report.records import Score, by_task, tick_lengths
from posbench.report.scores import GUESSES


def figure(section: list[Score], title: str):
    """Figure of one section."""
    found = by_task(section)
    groups = panels([method for cells in found.values() for method in cells])
    lengths, train_len, shown = tick_lengths(score.length for score in section), section[0].train_len, []

    def scales(axes, first: bool) -> None:
        octaves(axes, lengths, train_len)
        axes.set(xlim=(min(lengths) / 1.2, max(lengths) * 1.2), ylim=(-0.03, 1.04), ylabel="accuracy" if first else "")
        axes.set_xlabel("length (tokens)", fontsize=FONT)

    for task, cells in found.items():
        for heading, methods in groups.items():
            own = {method: cells[method] for method in methods if method in cells}
            shown.append(
                Panel(
                    f"{task}: {heading}",
                    _guess_lines(own) + _lines(own, heading),
                    functools.partial(scales, first=heading == next(iter(groups))),
                )
            )
    part = len(groups) * (WIDTH + BETWEEN) + sum(LEADER + max(width(line.name) for line in panel.lines) for panel in shown[: len(groups)])
    across = len(groups) * max(1, min(len(found), int(WIDEST // part)))
    first, *others = caption_lines(section)
    rows = [shown[start : start + across] for start in range(0, len(shown), across)]
    return draw(title, rows, [f"{first} Bars: 95 % intervals.", *others])


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


def _lines(cells: dict[tuple, dict[int, Score]], heading: str) -> list[Line]:
    scores = [score for cell in cells.values() for score in cell.values()]
    pens = looks([method[:2] for method in cells], bases(scores), dict.fromkeys(method[1] for method in cells))
    scales, asked_at, lines = list(dict.fromkeys(method[2] for method in cells)), sorted({score.length for score in scores}), []
    for method, cell in cells.items():
        known = {score.length: score for score in cell.values() if score.shown}
        if not known:
            continue
        pen = pens[method[:2]]
        pen = replace(pen, marker=MARKERS[scales.index(method[2]) % len(MARKERS)]) if len(scales) > 1 else pen
        # The line is broken where only others were asked.
        marks = [Mark(at, one.accuracy, one.low, one.high) if (one := known.get(at)) else Mark(at, math.nan) for at in asked_at]
        name = shortened(method[0]) if heading == "no extension" else extension_name(method, ())
        lines.append(Line(name, marks, pen))
    return lines


def _guess_lines(cells: dict[tuple, dict[int, Score]]) -> list[Line]:
    """Lines of the shares that guesses get right, which are the same for all methods."""
    scores = {score.length: score for cell in cells.values() for score in cell.values()}
    lines = []
    for column in GUESSES:
        marks = [Mark(length, share) for length, score in sorted(scores.items()) if (share := getattr(score, column)) is not None]
        if marks:
            lines.append(Line(f"guess {column.replace('_', ' ')}", marks, Pen(GREY, ":", "")))
    return lines
