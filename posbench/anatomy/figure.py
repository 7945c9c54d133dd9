"""Picture of one anatomy: a page of panels, each drawn only if it shows something."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from posbench.anatomy import panels as draws
from posbench.anatomy.dissect import Anatomy
from posbench.anatomy.words import PROPERTIES, asked, notes, table, title
from posbench.report.figures.style import GREY, save


def draw(anatomy: Anatomy, stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.svg; equal input gives equal bytes."""
    return save(page(anatomy), Path(stem))


def page(anatomy: Anatomy):
    """Figure of the panels, with the property table and the notes below them."""
    numbers, shown = anatomy.numbers, panels(anatomy)
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    lines = -(-len(shown) // columns)
    width, height = max(6.4, 4.0 * columns), 3.3 * lines + 0.9
    figure = Figure(figsize=(width, height), layout=None)
    grid = figure.subplots(lines, columns, squeeze=False)
    edges = {"left": 0.62 / width, "right": 1 - 0.15 / width, "top": 1 - 0.95 / height, "bottom": 0.5 / height}
    figure.subplots_adjust(wspace=0.26, hspace=0.42, **edges)
    for axes, panel in zip(grid.flat, shown, strict=False):
        panel(axes, numbers)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_axis_off()
    figure.text(0.1 / width, 1 - 0.2 / height, title(numbers), fontsize=13, fontweight="bold", va="center")
    figure.text(0.1 / width, 1 - 0.45 / height, asked(numbers), fontsize=9.5, color=GREY, va="center")
    ground = "Dashed: the training length. Green: what training held."
    if any(value is None for layer in numbers["layers"] for value in layer["distance"]):
        ground += " Grey: keys that the last query does not see."
    said = [f"Measured: {table(PROPERTIES, numbers['properties'])}. {ground}", *notes(numbers)]
    wrapped = [part for line in said for part in textwrap.wrap(line, int(width * 19))]
    figure.text(0.1 / width, 0.0, "\n".join(wrapped), fontsize=7.8, color=GREY, va="top", linespacing=1.4)
    return figure


def panels(anatomy: Anatomy) -> list[Callable]:
    """Panels that apply to an anatomy, each a function of an axes and the numbers."""
    layers, added = anatomy.numbers["layers"], anatomy.numbers["coordinates"] is not None
    turned = next((kind for kind in anatomy.kinds if kind.plan.bands[0].q_table is not None), None)

    def has(key: str) -> bool:
        return any(layer[key] for layer in layers)

    shown = {
        draws.spectrum: has("spectrum"),
        draws.positions: added,
        partial(draws.rows, kind=anatomy.kinds[0]): added,
        draws.similarity: added,
        draws.distances: not added,
        partial(draws.channels, kind=turned): turned is not None,
        draws.decay: has("decay"),
        draws.bias: has("bias"),
        draws.weights: has("even_weights"),
        draws.bound: has("decay_bound"),
        draws.rule: has("distance_rule"),
        draws.logits: any(np.any(np.array(layer["logit_scale"]) != 1) for layer in layers),
    }
    return [panel for panel, applies in shown.items() if applies]
