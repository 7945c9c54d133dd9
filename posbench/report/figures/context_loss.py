"""Figure of loss against context inside the window: the loss on the left, the gain of each doubling on the right."""

from collections.abc import Callable, Sequence

from posbench.report.figures.captions import data_line, shortened
from posbench.report.figures.lines import Line, Panel, draw, with_interval
from posbench.report.figures.palette import bases, looks
from posbench.report.figures.style import FONT, GREY, note, octaves
from posbench.report.footnotes import contexts_of, units_of_doubling
from posbench.report.records import ContextPoint, file, methods, tick_lengths, two_seeds
from posbench.report.tables import gain_cell

BESIDE, STEEP = 0.5, 0.3  # octaves that the intervals at one c share side by side; fewer for a steep line, which would seem higher
Value = Callable[[ContextPoint], tuple[float | None, float | None]]


def figure(section: list[ContextPoint], title: str):
    """Figure of one section."""
    panels, cut, train_len = [], False, section[0].train_len

    def panel(heading: str, known: list[ContextPoint], value: Value, beside: float, limits: tuple[float, float]) -> Panel:
        def scales(axes) -> None:
            contexts = [step.context for step in known]
            octaves(axes, tick_lengths(contexts), train_len)
            axes.set(xlim=(min(contexts) / 1.25, max(*contexts, train_len) * 1.25), ylim=limits)
            style = {"xycoords": axes.get_xaxis_transform(), "ha": "right", "va": "top", "fontsize": 7.5, "color": GREY}
            note(axes, f"trained at {train_len}", (train_len, 1), (-4, -2), **style)
            if limits[0] < 0 < limits[1]:
                axes.axhline(0, color="black", linewidth=0.9, zorder=1)
            axes.set_xlabel("c, tokens of context before every target", fontsize=FONT)

        pens, lines = looks(((step.encoding, "none") for step in known), bases(known)), []
        for (encoding, *_, source), own in methods(known).items():
            marks = [with_interval(context, *value(step)) for context, step in sorted(own.items())]
            lines.append(Line(shortened(encoding + file(source)), marks, pens[encoding, "none"]))
        return Panel(heading, lines, scales, dodge=beside)

    for heading, value, beside in (
        ("Loss (nats/token)", lambda step: (step.nll, step.half_width), STEEP),
        ("Gain from the doubling to c tokens (nats/token)", lambda step: (step.doubling, step.doubling_half_width), BESIDE),
    ):
        known = [step for step in section if value(step)[0] is not None]
        if known:
            *limits, beyond = edges([value(step) for step in known])
            panels.append(panel(heading, known, value, beside, limits))
            cut = cut or beyond
    return draw(title, [panels], _caption(section, cut)) if panels else None


def edges(values: Sequence[tuple[float, float | None]]) -> tuple[float, float, bool]:
    """Bottom and top of the y axis, and True if they cut an interval: those of two seeds can be wider than everything else."""
    means = [mean for mean, _ in values]
    ends = [mean + sign * (half or 0.0) for mean, half in values for sign in (1, -1)]
    span = (max(means) - min(means)) or 0.1
    low, high = max(min(ends), min(means) - span / 3), min(max(ends), max(means) + span / 3)
    return low - 0.05 * span, high + 0.05 * span, min(ends) < low - 0.05 * span or max(ends) > high + 0.05 * span


def _caption(section: list[ContextPoint], cut: bool) -> list[str]:
    first, over = section[0], units_of_doubling(section)
    lines = [data_line(section, contexts_of(section))]
    if over:
        lines.append(f"Bars: {over}; on the left of the difference to {first.train_len} tokens.{' Bars at an edge are cut.' * cut}")
    known = [f"{encoding}{file(source)} {gain_cell(own.get(first.train_len))}" for (encoding, *_, source), own in methods(section).items()]
    lines += [f"{said[0].upper()}{said[1:]}." for said in two_seeds(section)]
    return [*lines, f"G, the gain from the second half of the window ({first.train_len // 2} -> {first.train_len}): {'; '.join(known)}."]
