"""Figure of comparisons: a row for each line, the difference to the reference with its interval."""

from collections.abc import Sequence
from typing import NamedTuple

from posbench.report.comparison import UNTOLD, WORSE, Compared, Comparison
from posbench.report.comparison_tables import PPL, Scale, how_compared
from posbench.report.figures.lines import width
from posbench.report.figures.style import FAIL, FONT, GAIN, GREY, Frame, note

# Points.
ROW = 13
PANEL = 220
HEAD = 34
BENEATH = 46
BETWEEN = 18
MOST_PANELS = 4
UNDECIDED = "#7a7a7a"


class Panel(NamedTuple):
    """A comparison with the scale in which it is shown."""

    comparison: Comparison
    scale: Scale


def ranking_figure(comparisons: Sequence[Comparison], title: str, unit: str):
    """Dots with intervals, the best line on top; a panel for each comparison, at most MOST_PANELS.

    Rows are in the order of the last comparison.
    """
    shown = [
        Panel(comparison, Scale(unit, comparison.measure))
        for comparison in comparisons[-MOST_PANELS:]
    ]
    names = list(dict.fromkeys(row.line.name for row in shown[-1].comparison.lines))
    for panel in shown:
        names += [row.line.name for row in panel.comparison.lines if row.line.name not in names]
    names_width = 12 + max(width(name, FONT) for name in names)
    height = ROW * len(names)
    frame_width = names_width + len(shown) * (PANEL + BETWEEN)
    frame = Frame(title, frame_width, HEAD + height + BENEATH)
    for index, panel in enumerate(shown):
        left = names_width + index * (PANEL + BETWEEN)
        axes = frame.axes(left, HEAD, PANEL, height)
        _draw(axes, panel, names)
        if index == 0:
            for row, name in enumerate(names):
                style = {"xycoords": axes.get_yaxis_transform(), "va": "center", "fontsize": FONT}
                note(axes, name, (0, row), (4 - names_width, 0), **style)
    last = shown[-1]
    frame.caption(_caption(last), up=8)
    return frame.figure


def _draw(axes, panel: Panel, names: Sequence[str]) -> None:
    """Draw the dots and intervals of one comparison."""
    zero = 1.0 if _is_ratio(panel.scale) else 0.0
    rows = {row.line.name: row for row in panel.comparison.lines}
    ends = [zero]
    for index, name in enumerate(names):
        if name not in rows:
            continue
        row = rows[name]
        difference = panel.scale.difference(row)
        colour = _colour(row)
        if difference is None:
            if row.line.name == row.against:
                axes.plot([zero], [index], "o", color="black", markersize=4.5)
            continue
        if difference.low is not None:
            axes.hlines(index, difference.low, difference.high, color=colour, linewidth=1.4)
            ends += [difference.low, difference.high]
        marker = "o" if row.line.gate != "failed" else "x"
        axes.plot([difference.value], [index], marker, color=colour, markersize=4)
        ends.append(difference.value)
    axes.axvline(zero, color=GREY, linewidth=0.8)
    axes.set(ylim=(len(names) - 0.5, -0.5), yticks=[])
    low, high = min(ends), max(ends)
    margin = 0.04 * (high - low) or 0.01
    axes.set_xlim(low - margin, high + margin)
    axes.tick_params(labelsize=FONT, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", visible=False)
    comparison = panel.comparison
    heading = f"at {comparison.multiple:g}x ({comparison.length:,} tokens)"
    if comparison.section.task:
        heading = f"{comparison.section.task} {heading}"
    axes.set_title(heading, fontsize=FONT, loc="left")
    words = panel.scale.difference_words
    against = comparison.lines[0].against
    axes.set_xlabel(
        f"{words}, {'over' if _is_ratio(panel.scale) else 'minus'} {against}", fontsize=FONT
    )


def _is_ratio(scale: Scale) -> bool:
    return scale.unit == PPL and scale.difference_words.startswith("times")


def _colour(row: Compared) -> str:
    if row.verdict == UNTOLD:
        return UNDECIDED
    return FAIL if row.verdict == WORSE else GAIN


def _caption(panel: Panel) -> list[str]:
    return [
        "Dots are means over the seeds that both lines have, bars 95 % intervals. Grey: not told"
        " apart from the line that all are compared with; a cross: the gate failed.",
        *how_compared(panel.comparison),
    ]
