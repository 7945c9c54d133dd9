"""Measurements of benchmarks as tables, and those of every method as a picture."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from posbench.report.figures.lines import write_names_at_ends
from posbench.report.figures.style import GREY, OKABE_ITO, write_figure
from posbench.report.table_formats import markdown_row
from posbench.tools.benchmark.measure import BASE_CASE, LLAMA_CASE, Measurement

BLUE = OKABE_ITO[0]
MEMORY_APART = 1.35  # times the memory of the base, from which a case is named
LIGHT_RATIOS = (0.3, 3.3)  # ratios between which a cell of the heat map is light


def _table(align: str, heads: Iterable[str], rows: Iterable[list[str]]) -> list[str]:
    """Lines of a Markdown table; `align` has < for a column of words and > for one of numbers."""
    rules = [":---" if side == "<" else "---:" for side in align]
    head, *lines = map(markdown_row, (heads, rules, *rows))
    return [head.replace("|  |", "| |"), *lines]


def _of_kind(measurements: Iterable[Measurement], kind: str) -> list[Measurement]:
    """Measurements of a kind, such as training."""
    return [measurement for measurement in measurements if measurement.kind == kind]


def speed_table(measurements: list[Measurement], machine: str) -> str:
    """Table of training speed, evaluation time at each length, and memory of every case."""
    steps = {step.case: step for step in _of_kind(measurements, "training")}
    passes = {(row.case, row.length): row for row in _of_kind(measurements, "evaluation")}
    lengths = sorted({length for _, length in passes})
    rows = []
    for case in dict.fromkeys([*steps, *(case for case, _ in passes)]):
        speed = ["", ""]
        if case in steps:
            step = steps[case]
            speed = [f"{step.tokens_per_second:,.0f}", f"{1 / step.ratio:.2f}"]
        at_lengths = [passes.get((case, length)) for length in lengths]
        times = [f"{of_length.ratio:.2f}" if of_length else "" for of_length in at_lengths]
        memory = [f"{of_length.mib:.1f}" if of_length else "-" for of_length in at_lengths]
        rows.append([case, *speed, *times, " ".join(memory)])
    heads = [
        "",
        "training: tokens/s",
        "of rope's",
        *(f"time at {length}" for length in lengths),
        "MiB at each length",
    ]
    lines = [
        f"# Speed and memory beside plain attention (`{BASE_CASE}`)",
        "",
        machine,
        "",
        *_table("<>>" + ">" * len(lengths) + "<", heads, rows),
        "",
        "Time: of one evaluation pass over 8,192 tokens, as a ratio to the base case in the"
        " same rounds (below 1 is faster).",
        "MiB: tensors that live at once while one window of each length is read, weights aside.",
        *_beside_transformers(measurements),
    ]
    return "\n".join(lines) + "\n"


def _beside_transformers(measurements: list[Measurement]) -> list[str]:
    """Section on training steps of several vocabularies; no lines without transformers."""
    steps = {}  # {(vocabulary, length, case): measurement}
    for measurement in measurements:
        if measurement.kind.startswith("trained "):
            vocab = int(measurement.kind.split()[1])
            steps[vocab, measurement.length, measurement.case] = measurement
    if not steps:
        return []
    rows = []
    for (vocab, length, case), step in steps.items():
        if case == BASE_CASE:
            theirs = steps[vocab, length, LLAMA_CASE]
            rows.append(
                [
                    f"{vocab:,}",
                    str(length),
                    f"{1e3 * step.seconds:.0f}",
                    f"{1e3 * theirs.seconds:.0f}",
                    f"{theirs.ratio:.2f}",
                    f"{step.mib:.0f}",
                    f"{theirs.mib:.0f}",
                ]
            )
    heads = ["vocabulary", "tokens of a sequence", "ms", "theirs", "times as fast", "MiB", "theirs"]
    return [
        "",
        f"## A training step beside {LLAMA_CASE}",
        "",
        *_table(">" * len(heads), heads, rows),
        "",
        "Steps of 2,048 tokens; theirs with torch.optim.Muon and cross_entropy, of the same shape,"
        " in the same rounds.",
    ]


def checkpoint_markdown(measurements: list[Measurement], path: str, machine: str) -> str:
    """Table with a line for each case at each length."""
    rows = []
    unmeasured: dict[str, list[str]] = {}  # {case with its reason: lengths}
    for measurement in measurements:
        length = f"{measurement.length:,}"
        if measurement.ratio is None:
            case = f"{measurement.case} ({measurement.note.rstrip('.')})"
            unmeasured.setdefault(case, []).append(length)
        else:
            rows.append([length, *_checkpoint_cells(measurement)])
    heads = [
        "tokens in the window",
        "",
        "tokens/s",
        "time, `none` = 1",
        "time, `transformers` = 1",
        "MiB",
    ]
    lines = [
        f"# Speed and memory of `{path}`",
        "",
        machine,
        "",
        *_table("><>>>>", heads, rows),
        "",
        "Times are ratios within the same rounds: below 1 is faster. MiB: tensors that live at"
        " once in a pass, weights aside.",
    ]
    if unmeasured:
        lines += ["", "Not measured:", ""]
    for case, lengths in unmeasured.items():
        lines.append(f"- {case} at {', '.join(lengths)} tokens")
    return "\n".join(lines) + "\n"


def _checkpoint_cells(measurement: Measurement) -> list[str]:
    """Cells of a case behind its length: name, tokens/s, time over that of the plain model and over
    that of transformers, MiB.
    """
    case = measurement.case
    decimals = 0
    if measurement.kind == "token":
        case += ", a token after it"
        decimals = 1
    if measurement.note:  # a case with a time has no other note
        case += " (one pass)"
    return [
        case,
        f"{measurement.tokens_per_second:,.{decimals}f}",
        f"{measurement.ratio:.2f}",
        "" if measurement.of_theirs is None else f"{measurement.of_theirs:.2f}",
        f"{measurement.mib:,.0f}",
    ]


def draw_benchmark(measurements: list[Measurement], stem: Path) -> list[Path]:
    """Draw training speed, memory and a heat map of evaluation time, as png and svg.

    Returns the paths.
    """
    steps = sorted(_of_kind(measurements, "training"), key=lambda step: step.ratio)
    passes = _of_kind(measurements, "evaluation")
    n_cases = len({one_pass.case for one_pass in passes})
    figure = Figure(figsize=(11, 1.2 + 0.21 * max(n_cases, len(steps))), layout="constrained")
    # The heat map is as high as bars and memory together, a line for each case. The bars take a
    # line for each step; the memory has the lines that are left, and at least 6.
    heights = (len(steps), max(6, n_cases - len(steps)))
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.25), height_ratios=heights)
    bars = figure.add_subplot(grid[0, 0])
    memory = figure.add_subplot(grid[1, 0])
    heat = figure.add_subplot(grid[:, 1])
    ends = _draw_memory(memory, passes)
    _draw_bars(bars, steps)
    _draw_heat(heat, passes)
    for axes in (bars, memory, heat):
        axes.tick_params(labelsize=7.5, length=0)
        axes.spines[:].set_visible(False)
    bars.set_ylim(len(steps) - 0.5, -0.5)
    figure.draw_without_rendering()  # places the axes, in whose points names are kept apart
    write_names_at_ends(memory, ends)
    return write_figure(figure, stem)


def _draw_bars(axes, steps: list[Measurement]) -> None:
    """Draw a bar for the training speed of each case, with its number inside."""
    speeds = [1 / step.ratio for step in steps]
    axes.barh([step.case for step in steps], speeds, color=BLUE, height=0.7)
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    style = {"va": "center", "ha": "right", "fontsize": 7, "color": "white"}
    for index, speed in enumerate(speeds):
        axes.text(speed - 0.01, index, f"{speed:.2f}", **style)
    axes.set_title("Training speed, rope = 1", fontsize=9, loc="left")


def _draw_heat(axes, passes: list[Measurement]) -> None:
    """Draw a heat map of the ratios of evaluation time: a row for each case, a column a length."""
    ratios = {(one_pass.case, one_pass.length): one_pass.ratio for one_pass in passes}
    cases = list(dict.fromkeys(case for case, _ in ratios))
    lengths = sorted({length for _, length in ratios})
    cells = [[ratios.get((case, length), math.nan) for length in lengths] for case in cases]
    ratios_of_colours = LogNorm(1 / 8, 8)  # others have the colour of the nearer end
    axes.imshow(cells, aspect="auto", cmap="RdBu_r", norm=ratios_of_colours)
    for row, case in enumerate(cases):
        for column, length in enumerate(lengths):
            if (case, length) in ratios:
                ratio = ratios[case, length]
                colour = "black" if LIGHT_RATIOS[0] < ratio < LIGHT_RATIOS[1] else "white"
                style = {"ha": "center", "va": "center", "fontsize": 6.5, "color": colour}
                axes.text(column, row, f"{ratio:.2f}", **style)
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(range(len(cases)), cases)
    axes.set_xlabel("tokens in the window", fontsize=8)
    axes.set_title("Evaluation time, rope = 1", fontsize=9, loc="left")


class LineEnd(NamedTuple):
    """Last point of a line, with its name, for `write_names_at_ends`."""

    y: float
    x: int
    name: str
    colour: str


def _draw_memory(axes, passes: list[Measurement]) -> list[LineEnd]:
    """Draw a line for each case. Returns the ends of the base and of each case far above it."""
    lines: dict[str, dict[int, float]] = {}  # {case: {length: MiB}}
    for one_pass in passes:
        lines.setdefault(one_pass.case, {})[one_pass.length] = one_pass.mib
    base = lines[BASE_CASE]
    ends = []
    for case, points in lines.items():
        length, mib = max(points.items())
        colour = BLUE if case == BASE_CASE else GREY
        style = {"linewidth": 0.5, "zorder": 2}
        if case == BASE_CASE or mib > MEMORY_APART * base[length]:
            style = {"linewidth": 1.6, "zorder": 3}
            ends.append(LineEnd(mib, length, case, colour))
        axes.plot(list(points), list(points.values()), color=colour, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(base), map(str, base))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_xlabel("tokens in the window", fontsize=8)
    axes.set_title("Memory of one window, MiB", fontsize=9, loc="left")
    return ends
