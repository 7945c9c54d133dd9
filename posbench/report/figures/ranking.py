"""Figure of comparisons: a row for each line, the difference to the reference with its interval."""

from collections.abc import Sequence
from typing import NamedTuple

from posbench.report.comparison import (
    ACCURACY,
    NO_INTERVAL,
    NOT_TOLD_APART,
    WORSE,
    Compared,
    Comparison,
)
from posbench.report.comparison_tables import section_words
from posbench.report.comparison_words import TEXTS, Scale, how_compared
from posbench.report.figures.lines import text_width
from posbench.report.figures.style import (
    FAIL_COLOUR,
    FONT_SIZE,
    GAIN_COLOUR,
    GREY,
    Frame,
    write_note,
)

# Points.
ROW_HEIGHT = 13
PANEL_WIDTH = 220
SPACE_ABOVE = 34
SPACE_UNDER = 46
PANEL_DISTANCE = 18
MOST_PANELS = 4
UNDECIDED_COLOUR = "#7a7a7a"


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
    ends = [_x_ends(panel) for panel in shown]
    limits = min(low for low, _ in ends), max(high for _, high in ends)
    several_sections = len({panel.comparison.section for panel in shown}) > 1
    names_width = 12 + max(text_width(name, FONT_SIZE) for name in names)
    height = ROW_HEIGHT * len(names)
    frame_width = names_width + len(shown) * (PANEL_WIDTH + PANEL_DISTANCE)
    frame = Frame(title, frame_width, SPACE_ABOVE + height + SPACE_UNDER)
    for index, panel in enumerate(shown):
        left = names_width + index * (PANEL_WIDTH + PANEL_DISTANCE)
        axes = frame.axes(left, SPACE_ABOVE, PANEL_WIDTH, height)
        same_scale = panel.scale == shown[0].scale
        _draw_panel(axes, panel, names, limits if same_scale else ends[index])
        axes.set_title(_heading(panel.comparison, several_sections), fontsize=FONT_SIZE, loc="left")
        if index == 0:
            for row, name in enumerate(names):
                style = {
                    "xycoords": axes.get_yaxis_transform(),
                    "va": "center",
                    "fontsize": FONT_SIZE,
                }
                write_note(axes, name, (0, row), (4 - names_width, 0), **style)
    frame.caption(_caption(shown[-1].comparison, len(comparisons)), up=8)
    return frame.figure


def _x_ends(panel: Panel) -> tuple[float, float]:
    """Ends of the x axis of a panel: all intervals and the reference are inside."""
    ends = [_reference_place(panel)]
    for row in panel.comparison.lines:
        difference = panel.scale.difference(row)
        if difference is not None:
            ends += [end for end in difference if end is not None]
    low, high = min(ends), max(ends)
    # 0.01: an axis needs a width, even where all ends are one number.
    margin = 0.04 * (high - low) or 0.01
    return low - margin, high + margin


def _reference_place(panel: Panel) -> float:
    """Difference of the reference to itself."""
    return 1.0 if panel.scale.is_ratio else 0.0


def _heading(comparison: Comparison, with_section: bool) -> str:
    """Heading of a panel, such as "at 8x (512 tokens)"."""
    place = f"at {comparison.multiple:g}x ({comparison.length:,} tokens)"
    if with_section:
        return f"{section_words(comparison.section)}\n{place}"
    return f"{comparison.section.task}, {place}" if comparison.section.task else place


def _draw_panel(axes, panel: Panel, names: Sequence[str], limits: tuple[float, float]) -> None:
    """Draw the dots and intervals of one comparison."""
    zero = _reference_place(panel)
    rows = {row.line.name: row for row in panel.comparison.lines}
    for index, name in enumerate(names):
        if name not in rows:
            continue
        row = rows[name]
        difference = panel.scale.difference(row)
        colour = _verdict_colour(row)
        if difference is None:  # other lines than the reference get no dot
            if row.line.name == row.against:
                axes.plot([zero], [index], "o", color="black", markersize=4.5)
            continue
        if difference.low is not None:
            axes.hlines(index, difference.low, difference.high, color=colour, linewidth=1.4)
        marker = "o" if row.line.gate != "failed" else "x"
        axes.plot([difference.value], [index], marker, color=colour, markersize=4)
    axes.axvline(zero, color=GREY, linewidth=0.8)
    axes.set(ylim=(len(names) - 0.5, -0.5), yticks=[])
    axes.set_xlim(*limits)
    axes.tick_params(labelsize=FONT_SIZE, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", visible=False)
    words = panel.scale.difference_words
    if panel.scale.measure == ACCURACY:
        words = panel.scale.words  # "of the answers" alone would not say of what
    against = panel.comparison.reference.line.name
    axes.set_xlabel(
        f"{words}, {'over' if panel.scale.is_ratio else 'minus'} {against}", fontsize=FONT_SIZE
    )


def _verdict_colour(row: Compared) -> str:
    if row.verdict in (NOT_TOLD_APART, NO_INTERVAL):
        return UNDECIDED_COLOUR
    return FAIL_COLOUR if row.verdict == WORSE else GAIN_COLOUR


def _caption(comparison: Comparison, n_comparisons: int) -> list[str]:
    """Lines of the caption, with those on how the last comparison drawn was made."""
    lines = [
        "Dots are means over the seeds that both lines have, bars 95 % intervals. Green: better;"
        " orange: worse; grey: not told apart from the line that all are compared with; a cross:"
        " the gate failed.",
        # Marks are those of tables; the figure has colours.
        *(line for line in how_compared(comparison) if line != TEXTS["marks"]),
    ]
    if n_comparisons > MOST_PANELS:
        lines.append(f"Drawn are the last {MOST_PANELS} of {n_comparisons} comparisons.")
    return lines
