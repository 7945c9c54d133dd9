"""Axes of an anatomy's panels: frames, scales over distance, lines for heads, heat maps."""

from itertools import groupby

import torch
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor

from posbench.report.figures.style import FONT, GREY, OKABE_ITO

BLUE, ORANGE = OKABE_ITO[:2]
TRAINED = "#e7f5f0"
HIDDEN = "#efefef"


def several(numbers: dict, key: str = "distance") -> list[tuple[dict, str, str]]:
    """List of (layer kind, colour, name) of the kinds of layers that have a value of `key`; the name is empty for a single kind."""
    layers = numbers["layers"]
    named = []
    for index, layer in enumerate(layers):
        which = f"{layer['name']}, {len(layer['numbers'])} of {sum(len(other['numbers']) for other in layers)} layers"
        if layer["window"] is not None:
            which += f", window {layer['window']}"
        named.append((layer, OKABE_ITO[index % len(OKABE_ITO)], which if len(layers) > 1 else ""))
    return [one for one in named if one[0][key]]


def dress_axes(axes, heading: str, x: str, y: str = "", legend: str = "best") -> None:
    """Set title, labels and spines in the style of the curves, and add a legend at `legend` if any line has a name."""
    axes.set_title(heading, fontsize=10, loc="left", color="#222222", pad=7)
    axes.set_xlabel(x, fontsize=FONT)
    axes.set_ylabel(y, fontsize=FONT)
    axes.tick_params(labelsize=7.8, color=GREY)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        ground = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.85}
        axes.legend(loc=legend, fontsize=7.6, handlelength=1.6, borderaxespad=0.3, labelspacing=0.3, **ground)


def log2_axis(axis, low: float, high: float) -> None:
    """Set the ticks of an axis: powers of two, at most eight of them, as plain numbers."""
    bottom, top = int(torch.tensor(low).log2().floor()), int(torch.tensor(high).log2().ceil())
    step = 1 + (top - bottom) // 8
    axis.set_major_locator(FixedLocator([2.0**power for power in range(bottom, top + 1) if power % step == top % step]))
    axis.set_major_formatter(lambda value, _: f"{value:.0f}" if value >= 1 else f"1/{1 / value:.0f}")
    axis.set_minor_locator(NullLocator())


def over_distance(axes, numbers: dict, grey: bool = True) -> None:
    """Set up x = tokens between query and key, 1 to length; mark the end of training and shade hidden keys (`grey`)."""
    train_len, length = numbers["train_len"], numbers["length"]
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(2, length))
    log2_axis(axes.xaxis, 1, max(2, length))
    axes.axvline(train_len, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    hidden = [grey and all(layer["distance"][index] is None for layer in numbers["layers"]) for index in range(length)]
    for unseen, run in groupby(range(length), key=hidden.__getitem__):
        span = list(run)
        if unseen:
            axes.axvspan(span[0], span[-1] + 1, color=HIDDEN, linewidth=0, zorder=0)


def line(axes, values: list, colour: str, label: str = "", width: float = 1.6) -> None:
    """Draw a line of values over their index; None leaves a gap, and a value between two gaps is a dot."""
    style = {"color": colour, "linewidth": width, "zorder": 3, "solid_capstyle": "butt"}
    axes.plot(range(len(values)), values, label=label or None, **style)
    around = [None, *values, None]
    lone = [index for index, value in enumerate(values) if value is not None and around[index] is around[index + 2] is None]
    if lone:
        axes.plot(lone, [values[index] for index in lone], linestyle="", marker="o", markersize=max(1.6, width), color=colour, zorder=3)


def picture(axes, x, rows: Tensor, top: float = 1.0) -> None:
    """Draw a heat map of rows [row, x], from blue for -top to orange for `top`."""
    diverging = LinearSegmentedColormap.from_list("posbench", [BLUE, "#8fbfdf", "#ffffff", "#f0ae82", ORANGE])
    axes.pcolormesh(x, range(len(rows)), rows, cmap=diverging, vmin=-top, vmax=top, shading="nearest", rasterized=True, zorder=1)


def heads(axes, rows: list[list], label: str = "head {}") -> None:
    """Draw a line for each head, one if all are equal. Of more than four heads only the first and the last are named."""
    if len(rows) > 1 and all(row == rows[0] for row in rows):
        rows, label = rows[:1], "all heads"
    many = colormaps["viridis"]
    for head, values in enumerate(rows):
        colour = OKABE_ITO[head] if len(rows) <= len(OKABE_ITO) else many(head / len(rows))
        name = label.format(head + 1) if label and (len(rows) <= 4 or head in (0, len(rows) - 1)) else ""
        line(axes, values, colour, name)
