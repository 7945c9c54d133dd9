"""Figures against the steps of a fine-tuning: panels for the shortest length, that of the fine-tuning (or a middle one) and the longest.

Loss from the points of a section, accuracy from its scores, a row of panels for each part of a task. They are drawn where children of one
training have several numbers of steps.
"""

from collections.abc import Sequence

from posbench.report.figures.captions import data_line, line_name
from posbench.report.figures.lines import Line, Mark, Panel, draw
from posbench.report.figures.palette import bases, looks
from posbench.report.figures.style import FONT, GREY, ruled
from posbench.report.footnotes import questions_of
from posbench.report.records import CurvePoint, Score, grouped, span
from posbench.report.scores import LEARNED

Record = CurvePoint | Score


def figure(points: list[CurvePoint], title: str):
    """Figure of the losses of a section; None if no method was fine-tuned by several numbers of steps."""
    shown = tuned([point for point in points if point.nll is not None])
    told = data_line(shown, f"{span(point.n_targets for point in shown)} targets") if shown else ""
    return _figure({"Loss": shown}, "nats/token", title, [told])


def score_figure(section: list[Score], title: str):
    """The same of the accuracies of a section, a row of panels for each part of a task; None as `figure`."""
    found = {task: tuned(own) for task, own in grouped((one for one in section if one.depth is None), lambda one: one.task).items()}
    first = section[0]
    told = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {questions_of(section)}. Bars: 95 % intervals."]
    if any(one.n_seeds < one.n_trained for own in found.values() for one in own):
        told.append(f"Means leave out seeds that are right in less than {LEARNED:g} of their answers inside the window.")
    return _figure({f"{task}: accuracy": own for task, own in found.items()}, "share of answers", title, told)


def tuned(records: Sequence[Record]) -> list[Record]:
    """Records of the methods that were fine-tuned by several numbers of steps."""
    children = [one for one in records if one.behind.steps is not None and one.behind.tuned_from and not one.source]
    return [one for own in grouped(children, _method).values() if len({one.behind.steps for one in own}) > 1 for one in own]


def _method(record: Record) -> tuple[str, str, str]:
    """Encoding without its steps, extension, scale."""
    return record.behind.line, record.extension, record.scale_attention


def _value(record: Record) -> float:
    return record.accuracy if isinstance(record, Score) else record.nll


def _figure(parts: dict[str, list[Record]], unit: str, title: str, told: Sequence[str]):
    parts = {name: own for name, own in parts.items() if own}
    shown = [record for own in parts.values() for record in own]
    if not shown:
        return None
    lengths = sorted({record.length for record in shown})
    middle = lengths[len(lengths) // 2] if shown[0].train_len == lengths[0] else shown[0].train_len
    lengths = sorted({lengths[0], lengths[-1], *({middle} & set(lengths))})
    several = len({record.behind.line for record in shown}) > 1
    parents = [one for one in shown if one.length == lengths[0] and one.behind.steps == 0 and one.behind.keeps_encoding]
    parents = [one for one in parents if one.extension == one.scale_attention == "none"]  # the models that were fine-tuned

    def panel(name: str, own: list[Record], length: int) -> Panel:
        pens, steps = looks(grouped(own, _method), bases(own), by_extension=True), sorted({one.behind.steps for one in own})
        lines = []
        for method, records in grouped((one for one in own if one.length == length), _method).items():
            ends = [(one.low, one.high) if isinstance(one, Score) else (None, None) for one in records]
            marks = [Mark(one.behind.steps, _value(one), *bar) for one, bar in zip(records, ends, strict=True)]
            text = line_name(method[0] if several else "", *method[1:]) or "no extension"
            lines.append(Line(text, sorted(marks, key=lambda mark: mark.x), pens[method]))

        def scales(axes) -> None:
            if isinstance(own[0], Score):
                axes.set_ylim(-0.03, 1.04)
            first = next((one for one in steps if one), 1)
            axes.set_xscale("symlog", linthresh=first, linscale=0.6)
            axes.set_xticks(steps, map(str, steps))
            axes.set_xticks([], minor=True)
            axes.set_xlim(-0.1 * first, steps[-1] * 1.25)
            axes.set_xlabel("steps of fine-tuning", fontsize=FONT)
            ruled(axes)
            for value in [_value(one) for one in parents if one in own and length == lengths[0]]:
                axes.axhline(value, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)

        return Panel(f"{name} at {length} tokens ({unit})", lines, scales)

    rows = [[panel(name, own, length) for length in lengths] for name, own in parts.items()]
    line = "Dashed line: the model before, at its own length. " if parents else ""
    zero = "; 0 steps is the same method without fine-tuning" if any(one.behind.steps == 0 for one in shown) else ""
    said = f"Fine-tuned at {shown[0].train_len} tokens{zero}. {line}".rstrip()
    return draw(title, rows, [said, *told], tall=260)
