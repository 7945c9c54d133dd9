"""Figures against the steps of a fine-tuning: panels for the shortest length, that of the fine-tuning (or a middle one) and the longest.

Loss from the points of a section, accuracy from its scores, a row of panels for each part of a task. They are drawn where children of one
training have several numbers of steps.
"""

import functools
from collections.abc import Sequence

from posbench.report.figures.captions import data_line, line_name
from posbench.report.figures.lines import Line, Mark, Panel, draw
from posbench.report.figures.palette import bases, looks
from posbench.report.figures.style import FONT, GREY, ruled
from posbench.report.footnotes import questions_of
from posbench.report.records import CurvePoint, Score, span
from posbench.report.scores import LEARNED

Method = tuple[str, str, str]  # encoding without its steps, extension, scale
Cells = dict[Method, dict[int, dict[int, CurvePoint | Score]]]  # {method: {steps: {length: record}}}


def figure(points: list[CurvePoint], title: str):
    """Figure of the losses of a section; None if no method was fine-tuned by several numbers of steps."""
    cells = by_steps([point for point in points if point.nll is not None])
    shown = _records(cells)
    told = data_line(shown, f"{span(point.n_targets for point in shown)} targets") if shown else ""
    return _figure({"Loss": cells} if cells else {}, "nll", "nats/token", title, [told])


def score_figure(section: list[Score], title: str):
    """The same of the accuracies of a section, a row of panels for each part of a task; None as `figure`."""
    tasks = dict.fromkeys(score.task for score in section)
    found = {task: by_steps([score for score in section if score.task == task and score.depth is None]) for task in tasks}
    found = {f"{task}: accuracy": cells for task, cells in found.items() if cells}
    first = section[0]
    told = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {questions_of(section)}. Bars: 95 % intervals."]
    if any(one.n_seeds < one.n_trained for cells in found.values() for one in _records(cells)):
        told.append(f"Means leave out seeds that are right in less than {LEARNED:g} of their answers inside the window.")
    return _figure(found, "accuracy", "share of answers", title, told)


def _records(cells: Cells) -> list[CurvePoint | Score]:
    return [record for own in cells.values() for at in own.values() for record in at.values()]


def _figure(parts: dict[str, Cells], value: str, unit: str, title: str, told: Sequence[str]):
    shown = [record for cells in parts.values() for record in _records(cells)]
    if not shown:
        return None
    lengths = sorted({record.length for record in shown})
    middle = lengths[len(lengths) // 2] if shown[0].train_len == lengths[0] else shown[0].train_len
    shortest, lengths = lengths[0], sorted({lengths[0], lengths[-1], *({middle} & set(lengths))})
    names = _line_names({method: own for cells in parts.values() for method, own in cells.items()})
    rows = []
    for name, cells in parts.items():
        steps, row = sorted({steps for own in cells.values() for steps in own}), []
        for length in lengths:
            before = [getattr(parent, value) for parent in _parents(cells, shortest)] if length == shortest else []
            scales = functools.partial(_scales, steps=steps, share=value == "accuracy", before=before)
            row.append(Panel(f"{name} at {length} tokens ({unit})", _lines(cells, names, length, value), scales))
        rows.append(row)
    line = "Dashed line: the model before, at its own length. " if any(_parents(cells, shortest) for cells in parts.values()) else ""
    zero = "; 0 steps is the same method without fine-tuning" if any(0 in own for cells in parts.values() for own in cells.values()) else ""
    said = f"Fine-tuned at {shown[0].train_len} tokens{zero}. {line}".rstrip()
    return draw(title, rows, [said, *told], tall=260)


def _parents(cells: Cells, length: int) -> list[CurvePoint | Score]:
    """Records without steps, extension and scale, and with the encoding of the parent: the models that were fine-tuned."""
    unchanged = [own.get(0, {}) for method, own in cells.items() if method[1:] == ("none", "none")]
    return [at[length] for at in unchanged if length in at and at[length].behind.keeps_encoding]


def by_steps(records: Sequence[CurvePoint | Score]) -> Cells:
    """Records of the methods that were fine-tuned by several numbers of steps."""
    cells: Cells = {}
    for record in records:
        facts = record.behind
        if facts.steps is not None and facts.tuned_from and not record.source:
            method = facts.line, record.extension, record.scale_attention
            cells.setdefault(method, {}).setdefault(facts.steps, {})[record.length] = record
    return {method: own for method, own in cells.items() if len(own) > 1}


def _line_names(cells: Cells) -> dict[Method, str]:
    """Name of each line: the encoding where there are several, then extension and scale."""
    several = len({encoding for encoding, *_ in cells}) > 1
    return {method: line_name(method[0] if several else "", *method[1:]) or "no extension" for method in cells}


def _lines(cells: Cells, names: dict[Method, str], length: int, value: str) -> list[Line]:
    lines, pens = [], looks(cells, bases(_records(cells)), by_extension=True)
    for method, own in cells.items():
        known = [(steps, at[length]) for steps, at in sorted(own.items()) if length in at]
        if known:
            ends = [(one.low, one.high) if isinstance(one, Score) else (None, None) for _, one in known]
            marks = [Mark(steps, getattr(one, value), *bar) for (steps, one), bar in zip(known, ends, strict=True)]
            lines.append(Line(names[method], marks, pens[method]))
    return lines


def _scales(axes, steps: list[int], share: bool, before: Sequence[float]) -> None:
    if share:
        axes.set_ylim(-0.03, 1.04)
    first = next((one for one in steps if one), 1)
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xticks(steps, map(str, steps))
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.1 * first, steps[-1] * 1.25)
    axes.set_xlabel("steps of fine-tuning", fontsize=FONT)
    ruled(axes)
    for value in before:
        axes.axhline(value, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
