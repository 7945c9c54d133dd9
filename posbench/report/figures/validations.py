"""Loss by length while models trained: a panel for each method, a line for each length."""

import functools
from collections.abc import Iterable, Sequence

from posbench.report.figures.captions import (
    LINEAR,
    data_line,
    joined_sentences,
    line_name,
    scales_line,
)
from posbench.report.figures.lines import (
    Line,
    Panel,
    draw_panels,
    in_rows,
    values_beyond_top,
    with_names_in_last_panel,
)
from posbench.report.figures.palette import pens_by_length
from posbench.report.figures.registry import report_figure
from posbench.report.figures.style import FONT_SIZE, draw_rules
from posbench.report.figures.uncertainty import INTERVAL, bars_line, mark_with_bar
from posbench.report.records import StepPoint, grouped

MOST_MARKED_STEPS = 12  # steps above which lines have no markers
PANEL_COLUMNS = 3  # of panels
EARLY_STEPS_DIVISOR = 10  # the first tenth of the steps may lie above the axes


@report_figure("validation", "validation", "Loss by length while the models trained")
def figure(section: list[StepPoint], title: str, bars: str = INTERVAL):
    """Figure of the points of one section; None if no loss is finite."""
    finite = [point for point in section if point.nll is not None]
    if not finite:
        return None
    pens = pens_by_length(point.length for point in section)
    edges = late_loss_range([(point.step, point.nll) for point in finite])
    steps = sorted({point.step for point in section})
    few_steps = len(steps) <= MOST_MARKED_STEPS
    panels = []
    for method, points in grouped(finite, lambda point: point.method).items():
        lines = []
        for length, of_length in sorted(grouped(points, lambda point: point.length).items()):
            name = f"{length} tokens"
            if length == section[0].train_len:
                name += " (trained)"
            shape = None if few_steps else ""  # None: the marker of the line; "": none
            marks = [mark_with_bar(point, point.step, "nll", bars, shape) for point in of_length]
            lines.append(Line(name, marks, pens[length], band=True))
        is_left = len(panels) % PANEL_COLUMNS == 0
        set_up_axes = functools.partial(_set_up_axes, steps=steps, edges=edges, is_left=is_left)
        # Values of many steps would stand in each other's way.
        beyond = values_beyond_top(lines, edges[1], steps) if few_steps else {}
        encoding, extension, scale_attention, _ = method  # without its source: here all are of runs
        name = line_name(encoding, extension, scale_attention)
        panels.append(Panel(name, lines, set_up_axes, beyond_top=beyond))
    rows = [with_names_in_last_panel(row) for row in in_rows(panels, PANEL_COLUMNS)]
    return draw_panels(title, rows, _caption(section, bars))


def late_loss_range(places: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Bottom and top of the y axis of (step, loss): all losses but those of the first steps, whose
    fall would flatten the rest.
    """
    places = list(places)
    last_step = max(step for step, _ in places)
    late = [loss for step, loss in places if EARLY_STEPS_DIVISOR * step >= last_step]
    low, high = min(late), max(late)
    margin = 0.06 * ((high - low) or 0.1)
    return low - margin, high + margin


def _set_up_axes(axes, steps: Sequence[int], edges: tuple[float, float], is_left: bool) -> None:
    draw_rules(axes)
    margin = 0.03 * (steps[-1] - steps[0]) or 1  # 1: a single step
    axes.set_xlim(steps[0] - margin, steps[-1] + margin)
    axes.set_ylim(*edges)
    axes.set_xlabel("step of training", fontsize=FONT_SIZE)
    if is_left:
        axes.set_ylabel("loss (nats/token)", fontsize=FONT_SIZE)


def _caption(section: list[StepPoint], bars: str) -> list[str]:
    """Lines of a caption: what was measured, the scales, and what the shade is."""
    targets = f"the same {section[0].n_targets} targets at every length and step"
    scales = scales_line(LINEAR, f"{LINEAR}, of the losses from a tenth of the steps on")
    return [data_line(section, targets), joined_sentences(scales, bars_line(section, "nll", bars))]
