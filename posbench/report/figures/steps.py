"""Figures against the steps of a fine-tuning: panels for the shortest length, that of the fine-tuning (or a middle one) and the longest.

Loss from the points of a section, accuracy from its scores, a row of panels for each part of a task. They are drawn where children of one
training have several numbers of steps, from these records alone: their names hold the steps.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from posbench.report.figures.annotations import GAP, end_labels, line_name, measured, width
from posbench.report.figures.palette import looks_of_methods
from posbench.report.figures.style import DASHES, FONT, GREY, MARKERS, Frame, ruled
from posbench.report.points import Point, span
from posbench.report.score_tables import asked
from posbench.report.scores import LEARNED, Score

PANEL_WIDTH, PANEL_HEIGHT = 230, 260  # points
LEFT, LEADER, BETWEEN, ABOVE, BELOW = 48, 14, 44, 24, 40
STEPS = re.compile(r" (?:train\.)?steps=(\d+)")
Method = tuple[str, str, str]  # encoding without its steps, extension, scale
Cells = dict[Method, dict[int, dict[int, Point | Score]]]  # {method: {steps: {length: record}}}


def figure(points: list[Point], title: str):
    """Figure of the losses of a section; None if no method was fine-tuned by several numbers of steps."""
    cells = by_steps([point for point in points if point.nll is not None])
    shown = _records(cells)
    told = measured(shown, f"{span(point.n_targets for point in shown)} targets") if shown else ""
    return _figure({"Loss": cells} if cells else {}, "nll", "nats/token", title, [told])


def scores(section: list[Score], title: str):
    """The same of the accuracies of a section, a row of panels for each part of a task; None as `figure`."""
    tasks = dict.fromkeys(score.task for score in section)
    found = {task: by_steps([score for score in section if score.task == task and score.depth is None]) for task in tasks}
    found = {f"{task}: accuracy": cells for task, cells in found.items() if cells}
    first = section[0]
    told = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {asked(section)}. Bars: 95 % intervals."]
    if any(one.n_seeds < one.n_trained for cells in found.values() for one in _records(cells)):
        told.append(f"Where some seeds are right in less than {LEARNED:g} of their answers inside the window, the mean is of the others.")
    return _figure(found, "accuracy", "share of answers", title, told)


def _records(cells: Cells) -> list[Point | Score]:
    return [record for own in cells.values() for at in own.values() for record in at.values()]


def _figure(parts: dict[str, Cells], value: str, unit: str, title: str, told: Sequence[str]):
    shown = [record for cells in parts.values() for record in _records(cells)]
    if not shown:
        return None
    lengths = sorted({record.length for record in shown})
    middle = lengths[len(lengths) // 2] if shown[0].train_len == lengths[0] else shown[0].train_len
    lengths = sorted({lengths[0], lengths[-1], *({middle} & set(lengths))})
    names = _names({method: own for cells in parts.values() for method, own in cells.items()})
    tall, gutter = max(PANEL_HEIGHT, 1.6 * GAP * len(names)), LEADER + max(map(width, names.values()))
    row = ABOVE + tall + BELOW
    frame = Frame(title, LEFT + len(lengths) * (PANEL_WIDTH + gutter) + (len(lengths) - 1) * BETWEEN, len(parts) * row)
    for line, (name, cells) in enumerate(parts.items()):
        for index, length in enumerate(lengths):
            axes = frame.axes(LEFT + index * (PANEL_WIDTH + gutter + BETWEEN), line * row + ABOVE, PANEL_WIDTH, tall)
            axes.set_title(f"{name} at {length} tokens ({unit})", fontsize=9.5, loc="left", pad=6, color="#222222")
            if value == "accuracy":
                axes.set_ylim(-0.03, 1.04)
            _scales(axes, sorted({steps for own in cells.values() for steps in own}))
            _lines(axes, cells, names, length, value)
            for parent in _parents(cells, lengths[0]) if not index else ():
                axes.axhline(getattr(parent, value), color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    line = "Dashed line: the model before, at its own length. " if any(_parents(cells, lengths[0]) for cells in parts.values()) else ""
    said = f"Fine-tuned at {shown[0].train_len} tokens; 0 steps is the same method without fine-tuning. {line}".rstrip()
    frame.caption([said, *told], up=4)
    return frame.figure


def _parents(cells: Cells, length: int) -> list[Point | Score]:
    """Records without steps, extension and scale, and with the encoding of the parent: the models that were fine-tuned."""
    unchanged = {method: own.get(0, {}) for method, own in cells.items() if method[1:] == ("none", "none") and _keeps(method[0])}
    return [at[length] for at in unchanged.values() if length in at]


def _keeps(encoding: str) -> bool:
    """True for rope tuned from rope-64, which names one encoding twice, and False for none tuned from rope-64."""
    own, _, parent = encoding.partition(" tuned from ")
    return own.split()[0] == parent.rpartition("-")[0]


def by_steps(records: Sequence[Point | Score]) -> Cells:
    """Records of the methods that were fine-tuned by several numbers of steps."""
    cells: Cells = defaultdict(lambda: defaultdict(dict))
    for record in records:
        found = STEPS.search(record.encoding)
        if found and " tuned from " in record.encoding and not record.source:
            method = STEPS.sub("", record.encoding), record.extension, record.scale_attention
            cells[method][int(found[1])][record.length] = record
    return {method: own for method, own in cells.items() if len(own) > 1}


def _names(cells: Cells) -> dict[Method, str]:
    """Name of each line: the encoding where there are several, then extension and scale."""
    several = len({encoding for encoding, *_ in cells}) > 1
    return {method: line_name(method[0] if several else "", *method[1:]) or "no extension" for method in cells}


def _scales(axes, steps: list[int]) -> None:
    first = next((one for one in steps if one), 1)
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xticks(steps, map(str, steps))
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.1 * first, steps[-1] * 1.25)
    axes.set_xlabel("steps of fine-tuning", fontsize=FONT)
    ruled(axes)


def _lines(axes, cells: Cells, names: dict[Method, str], length: int, value: str) -> None:
    ends, pens = [], looks_of_methods(cells)
    for method, own in cells.items():
        known = [(steps, at[length]) for steps, at in sorted(own.items()) if length in at]
        if not known:
            continue
        colour, dash = pens[method]
        x, y = [steps for steps, _ in known], [getattr(record, value) for _, record in known]
        style = {"linestyle": dash, "marker": MARKERS[DASHES.index(dash)], "markersize": 4, "linewidth": 1.4}
        axes.plot(x, y, color=colour, zorder=3, **style)
        if isinstance(known[0][1], Score):
            low, high = [record.low for _, record in known], [record.high for _, record in known]
            axes.vlines(x, low, high, color=colour, linewidth=2.2, alpha=0.3, zorder=2)
        ends.append((y[-1], x[-1], names[method], colour))
    end_labels(axes, ends)
