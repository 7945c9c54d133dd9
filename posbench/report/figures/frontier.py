"""Figure of the loss at one length against the length of training: how well short sequences, extended, take the place of long ones.

It is drawn where one encoding was trained at several lengths and all of these trainings were scored on the same targets at one length,
which is at least the longest that they were trained at.
"""

import functools
from collections import defaultdict

from posbench.report.figures.captions import data_line, line_name
from posbench.report.figures.lines import Line, Mark, Panel, Pen, draw
from posbench.report.figures.palette import bases, looks_of_methods
from posbench.report.figures.style import DASHES, FONT, GREY, MARKERS, octaves
from posbench.report.records import CurvePoint, span

FLOOR = ("", "its last tokens alone", "none")
Method = tuple[str, str, str]  # encoding without what tells its trainings apart, extension, scale


def figure(points: list[CurvePoint], title: str):
    """Figure of the points of all sections; None unless an encoding was trained at several lengths and read at one of the same targets."""
    length, cells = at_length(points)
    if not cells:
        return None
    pens = {**looks_of_methods((method for method in cells if method != FLOOR), bases(points)), FLOOR: (GREY, DASHES[0])}
    lines = []
    for method, own in cells.items():
        marks = [Mark(train_len, point.floor if method == FLOOR else point.nll) for train_len, point in sorted(own.items())]
        colour, dash = pens[method]
        lines.append(Line(line_name(*method), marks, Pen(colour, dash, MARKERS[DASHES.index(dash)])))
    shown = [point for own in cells.values() for point in own.values()]
    scales = functools.partial(_scales, lengths=sorted({train_len for own in cells.values() for train_len in own}))
    said = data_line(shown, f"{span(point.n_targets for point in shown)} targets, the same of every training")
    return draw(title, [[Panel(f"Loss at {length} tokens (nats/token)", lines, scales)]], [said], wide=320)


def at_length(points: list[CurvePoint]) -> tuple[int, dict[Method, dict[int, CurvePoint]]]:
    """(longest length that all trainings of an encoding were read at, points there by method and training length); (0, {}) for none."""
    known = [point for point in points if point.nll is not None and not point.source and not point.behind.tuned_from]
    groups: dict[tuple, list[CurvePoint]] = defaultdict(list)
    for point in known:
        if not point.window:
            groups[(*point.section[:3], point.setting, point.behind.encoding)].append(point)
    best: tuple[int, dict[Method, dict[int, CurvePoint]]] = (0, {})
    for (*_, encoding), own in groups.items():
        read = defaultdict(set)
        for point in own:
            read[point.train_len].add(point.length)
        length = max((one for one in set.intersection(*read.values()) if one >= max(read)), default=0)
        if len(read) < 2 or not length or length <= best[0]:
            continue
        cells: dict[Method, dict[int, CurvePoint]] = defaultdict(dict)
        for point in own:
            if point.length == length:
                cells[encoding, point.extension, point.scale_attention][point.train_len] = point
                if point.floor is not None:
                    cells[FLOOR].setdefault(point.train_len, point)
        best = length, cells
    return best


def _scales(axes, lengths: list[int]) -> None:
    octaves(axes, lengths)
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    axes.set_xlabel("training length (tokens)", fontsize=FONT)
