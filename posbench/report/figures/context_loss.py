"""Figure of loss against context inside the window: the loss on the left, the gain of each doubling on the right."""

from collections.abc import Callable

from posbench.report.context_loss import Step, by_name, gain, of_intervals, scored
from posbench.report.figures.annotations import GAP, end_labels, measured, shortened, width
from posbench.report.figures.palette import looks
from posbench.report.figures.style import DASHES, FONT, GREY, MARKERS, Frame, note, octaves
from posbench.report.points import marked, two_seeds

PANEL_WIDTH, PANEL_HEIGHT = 250, 250  # points
LEFT, LEADER, BETWEEN, ABOVE, BELOW = 48, 14, 58, 24, 40
BESIDE, STEEP = 0.5, 0.3  # octaves that the intervals at one c share side by side; fewer for a steep line, which would seem higher
Value = Callable[[Step], tuple[float | None, float | None]]


def figure(section: list[Step], title: str):
    """Figure of one section."""
    lines = by_name(section)
    panels: dict[str, tuple[Value, float]] = {
        "Loss (nats/token)": (lambda step: (step.nll, step.half_width), STEEP),
        "What the doubling to c tokens brings (nats/token)": (lambda step: (step.doubling, step.doubling_half_width), BESIDE),
    }
    gutter = LEADER + max(width(shortened(name)) for name in lines)
    tall = max(PANEL_HEIGHT, 1.6 * GAP * len(lines))
    frame = Frame(title, LEFT + 2 * (PANEL_WIDTH + gutter) + BETWEEN, ABOVE + tall + BELOW)
    cut = False
    for index, (heading, (value, beside)) in enumerate(panels.items()):
        axes = frame.axes(LEFT + index * (PANEL_WIDTH + gutter + BETWEEN), ABOVE, PANEL_WIDTH, tall)
        axes.set_title(heading, fontsize=9.5, loc="left", pad=6, color="#222222")
        known = [step for step in section if value(step)[0] is not None]
        if known:
            low, high, beyond = edges([value(step) for step in known])
            _scales(axes, [step.context for step in known], section[0].train_len, (low, high))
            _lines(axes, lines, value, beside)
            cut = cut or beyond
    frame.caption(_said(section, cut), up=4)
    return frame.figure


def edges(values: list[tuple[float, float | None]]) -> tuple[float, float, bool]:
    """Bottom and top of the y axis, and True if they cut an interval: those of two seeds can be wider than everything else."""
    means = [mean for mean, _ in values]
    ends = [mean + sign * (half or 0.0) for mean, half in values for sign in (1, -1)]
    span = (max(means) - min(means)) or 0.1
    low, high = max(min(ends), min(means) - span / 3), min(max(ends), max(means) + span / 3)
    return low - 0.05 * span, high + 0.05 * span, min(ends) < low - 0.05 * span or max(ends) > high + 0.05 * span


def _scales(axes, contexts: list[int], train_len: int, limits: tuple[float, float]) -> None:
    octaves(axes, marked(contexts), train_len)
    axes.set(xlim=(min(contexts) / 1.25, max(*contexts, train_len) * 1.25), ylim=limits)
    style = {"xycoords": axes.get_xaxis_transform(), "ha": "right", "va": "top", "fontsize": 7.5, "color": GREY}
    note(axes, f"trained at {train_len}", (train_len, 1), (-4, -2), **style)
    if limits[0] < 0 < limits[1]:
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)
    axes.set_xlabel("c, tokens of context before every target", fontsize=FONT)


def _lines(axes, lines: dict[str, dict[int, Step]], value: Value, beside: float) -> None:
    """Draw each encoding's line with its intervals, and its name at the end. Dashes and marks tell apart lines of one colour."""
    ends, pens = [], looks(((name, "none") for name in lines), ())
    for index, (name, own) in enumerate(lines.items()):
        aside = 2 ** (beside * ((index + 0.5) / len(lines) - 0.5))
        known = [(context * aside, *value(step)) for context, step in sorted(own.items()) if value(step)[0] is not None]
        if not known:
            continue
        colour, dash = pens[name, "none"]
        style = {"linestyle": dash, "marker": MARKERS[DASHES.index(dash)], "markersize": 3.8, "linewidth": 1.3}
        axes.plot([context for context, *_ in known], [mean for _, mean, _ in known], color=colour, zorder=3, **style)
        bars = [(context, mean - half, mean + half) for context, mean, half in known if half]
        if bars:
            axes.vlines(*zip(*bars, strict=True), color=colour, linewidth=4.4 * beside, alpha=0.35, zorder=2)
        ends.append((known[-1][1], known[-1][0], shortened(name), colour))
    end_labels(axes, ends)


def _said(section: list[Step], cut: bool) -> list[str]:
    first, over = section[0], of_intervals(section)
    lines = [measured(section, scored(section))]
    if over:
        lines.append(f"Bars: {over}; on the left of the difference to {first.train_len} tokens.{' Bars at an edge go on beyond it.' * cut}")
    known = [f"{name} {gain(own.get(first.train_len))}" for name, own in by_name(section).items()]
    lines += [f"{said[0].upper()}{said[1:]}." for said in two_seeds(section)]
    return [*lines, f"G, what the second half of the window brings ({first.train_len // 2} -> {first.train_len}): {'; '.join(known)}."]
