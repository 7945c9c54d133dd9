"""Figure of the loss at one length against the length of training: how well short sequences, extended, take the place of long ones.

It is drawn where one encoding was trained at several lengths and all of these trainings were scored on the same targets at one length,
which is at least the longest that they were trained at.
"""

from collections import defaultdict

from posbench.report.figures.annotations import GAP, end_labels, line_name, measured, width
from posbench.report.figures.palette import looks_of_methods, method_of
from posbench.report.figures.style import DASHES, FONT, GREY, MARKERS, Frame, octaves
from posbench.report.points import Point, span

PANEL_WIDTH, PANEL_HEIGHT = 320, 270  # points
LEFT, LEADER, ABOVE, BELOW = 48, 14, 24, 52
FLOOR = ("", "its last tokens alone", "none")
Method = tuple[str, str, str]  # encoding without what tells its trainings apart, extension, scale


def figure(points: list[Point], title: str):
    """Figure of the points of all sections; None unless an encoding was trained at several lengths and read at one of the same targets."""
    length, cells = at_length(points)
    if not cells:
        return None
    names = {method: line_name(*method) for method in cells}
    tall, gutter = max(PANEL_HEIGHT, 1.6 * GAP * len(cells)), LEADER + max(map(width, names.values()))
    frame = Frame(title, LEFT + PANEL_WIDTH + gutter, ABOVE + tall + BELOW)
    axes = frame.axes(LEFT, ABOVE, PANEL_WIDTH, tall)
    axes.set_title(f"Loss at {length} tokens (nats/token)", fontsize=9.5, loc="left", pad=6, color="#222222")
    lengths = sorted({train_len for own in cells.values() for train_len in own})
    octaves(axes, lengths)
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    axes.set_xlabel("training length (tokens)", fontsize=FONT)
    _lines(axes, cells, names)
    shown = [point for own in cells.values() for point in own.values()]
    frame.caption([measured(shown, f"{span(point.n_targets for point in shown)} targets, the same of every training")], up=4)
    return frame.figure


def at_length(points: list[Point]) -> tuple[int, dict[Method, dict[int, Point]]]:
    """(longest length that all trainings of an encoding were read at, points there by method and training length); (0, {}) for none."""
    known = [point for point in points if point.nll is not None and not point.source and " tuned from " not in point.encoding]
    groups: dict[tuple, list[Point]] = defaultdict(list)
    for point in known:
        if not point.window:
            groups[(*point.section[:3], point.setting, method_of(point.encoding))].append(point)
    best: tuple[int, dict[Method, dict[int, Point]]] = (0, {})
    for (*_, encoding), own in groups.items():
        read = defaultdict(set)
        for point in own:
            read[point.train_len].add(point.length)
        length = max((one for one in set.intersection(*read.values()) if one >= max(read)), default=0)
        if len(read) < 2 or not length or length <= best[0]:
            continue
        cells: dict[Method, dict[int, Point]] = defaultdict(dict)
        for point in own:
            if point.length == length:
                cells[encoding, point.extension, point.scale_attention][point.train_len] = point
                if point.floor is not None:
                    cells[FLOOR].setdefault(point.train_len, point)
        best = length, cells
    return best


def _lines(axes, cells: dict[Method, dict[int, Point]], names: dict[Method, str]) -> None:
    ends, pens = [], {**looks_of_methods(method for method in cells if method != FLOOR), FLOOR: (GREY, DASHES[0])}
    for method, own in cells.items():
        losses = [(train_len, point.floor if method == FLOOR else point.nll) for train_len, point in sorted(own.items())]
        colour, dash = pens[method]
        style = {"linestyle": dash, "marker": MARKERS[DASHES.index(dash)], "markersize": 4, "linewidth": 1.4}
        axes.plot(*zip(*losses, strict=True), color=colour, zorder=3, **style)
        ends.append((losses[-1][1], losses[-1][0], names[method], colour))
    end_labels(axes, ends)
