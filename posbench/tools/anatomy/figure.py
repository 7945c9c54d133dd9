"""Picture of one anatomy: a page of panels, each drawn only if it shows something."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posbench.report.figures.style import FONT_SIZE, GREY, OKABE_ITO
from posbench.tools.anatomy.as_text import (
    PROPERTIES,
    lengths_in_words,
    methods_title,
    named_values,
    reader_notes,
)
from posbench.tools.anatomy.dissect import Anatomy, sampled_distances
from posbench.tools.anatomy.query_view import LayerView, channel_scores

BLUE, ORANGE = OKABE_ITO[:2]
# ground: what training held, keys that are not seen
TRAINED_COLOUR, HIDDEN_COLOUR = (
    "#e7f5f0",
    "#efefef",
)
LEAST_BIAS_SHOWN = -20.0  # nats: with a bias below this a key has practically no weight
DASHED_STYLE = {"color": GREY, "linewidth": 1, "linestyle": (0, (4, 3))}
DOTTED_STYLE = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 2}
CURVE_STYLE = {"linewidth": 1.5, "zorder": 3}
LEGEND_STYLE = {
    "fontsize": 7.6,
    "handlelength": 1.6,
    "borderaxespad": 0.3,
    "labelspacing": 0.3,
    "facecolor": "white",
    "edgecolor": "none",
    "framealpha": 0.85,
}

# Inches.
PANEL_WIDTH, PANEL_HEIGHT, LEAST_WIDTH = 4.0, 3.3, 6.4  # a panel with its labels; the page
HEAD_HEIGHT = 0.9  # title and lengths, with the lower margin
EDGES = {"left": 0.62, "right": 0.15, "top": 0.95, "bottom": 0.5}  # around all panels
TITLE_DOWN, LENGTHS_DOWN, INDENT = 0.2, 0.45, 0.1  # below the upper edge, right of the left one
LETTERS_PER_INCH = 19  # characters of a note in an inch


@dataclass(frozen=True)
class Panel:
    """A panel of a page. It is drawn if a value `needs` of the anatomy or of a layer is there."""

    needs: str
    heading: str
    x: str
    y: str
    draw: Callable  # (axes, numbers, views): draws the panel, and returns an end of the heading
    legend: str = "best"
    by_distance: bool = False  # x is a logarithm of tokens
    hides: bool = True  # with by_distance: distances at which no key is seen are grey


def anatomy_page(anatomy: Anatomy) -> Figure:
    """Figure of the panels, with the property table and the notes below them."""
    numbers = anatomy.numbers
    views = anatomy.views
    panels = _chosen_panels(anatomy)
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))  # 4 fill two lines of 2
    lines = -(-len(panels) // columns)
    width = max(LEAST_WIDTH, PANEL_WIDTH * columns)
    height = PANEL_HEIGHT * lines + HEAD_HEIGHT
    figure = Figure(figsize=(width, height), layout=None)
    grid = figure.subplots(lines, columns, squeeze=False)
    figure.subplots_adjust(
        left=EDGES["left"] / width,
        right=1 - EDGES["right"] / width,
        top=1 - EDGES["top"] / height,
        bottom=EDGES["bottom"] / height,
        wspace=0.26,
        hspace=0.42,
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        if panel.by_distance:
            _set_up_distance_axis(axes, numbers, panel.hides)
        heading_end = panel.draw(axes, numbers, views) or ""
        _write_labels(axes, panel, heading_end)
    left = INDENT / width
    style = {"fontsize": 13, "fontweight": "bold", "va": "center"}
    figure.text(left, 1 - TITLE_DOWN / height, methods_title(numbers), **style)
    style = {"fontsize": 9.5, "color": GREY, "va": "center"}
    figure.text(left, 1 - LENGTHS_DOWN / height, lengths_in_words(numbers), **style)
    notes = [
        part
        for line in _notes_below(numbers)
        for part in textwrap.wrap(line, int(width * LETTERS_PER_INCH))
    ]
    style = {"fontsize": 7.8, "color": GREY, "va": "top", "linespacing": 1.4}
    # Below the lower edge: files are as large as all that is drawn (style.TIGHT).
    figure.text(left, 0.0, "\n".join(notes), **style)
    return figure


def _chosen_panels(anatomy: Anatomy) -> list[Panel]:
    """Panels that show something, in the order of a page.

    `panel.needs` is a key of the anatomy's numbers, or of a layer's; without a value, or with an
    empty one, there is nothing to draw.
    """
    numbers = anatomy.numbers
    layers = anatomy.numbers["layers"]
    values = {
        **numbers,
        # An encoding with coordinates adds to embeddings, and reads no distance.
        "by distance": not numbers["coordinates"],
        "turned": any(_turns_channels(view) for view in anatomy.views),
        "rescaled": any(np.any(np.array(layer["logit_scale"]) != 1) for layer in layers),
    }
    return [
        panel for panel in PANELS if any(source.get(panel.needs) for source in (values, *layers))
    ]


def _notes_below(numbers: dict) -> list[str]:
    """Notes below the panels."""
    ground = "Dashed: the training length. Green: what training held."
    if any(None in layer["distance"] for layer in numbers["layers"]):
        ground += " Grey: keys that the last query does not see."
    properties = named_values(PROPERTIES, numbers["properties"])
    return [f"Measured: {properties}. {ground}", *reader_notes(numbers)]


def _set_up_distance_axis(axes: Axes, numbers: dict, hides: bool) -> None:
    """Set up an x axis of distances, with a line at the training length and hidden keys in grey."""
    length = numbers["length"]
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(2, length))
    axes.xaxis.set_major_formatter("{x:.7g}")
    axes.axvline(numbers["train_len"], **DASHED_STYLE, zorder=1)
    hidden = np.zeros(length + 2, int)  # with a visible end at each side
    if hides:
        distances = [layer["distance"] for layer in numbers["layers"]]
        hidden[1:-1] = [set(at_index) == {None} for at_index in zip(*distances, strict=True)]
    # Changes come in pairs, the start and the end of each hidden stretch.
    for start, end in np.flatnonzero(np.diff(hidden)).reshape(-1, 2):
        axes.axvspan(start, end, color=HIDDEN_COLOUR, linewidth=0, zorder=0)


def _write_labels(axes: Axes, panel: Panel, heading_end: str) -> None:
    """Write the heading, labels and legend of a panel."""
    style = {"fontsize": 10, "loc": "left", "color": "#222222", "pad": 7}
    axes.set_title(panel.heading + heading_end, **style)
    axes.set_xlabel(panel.x, fontsize=FONT_SIZE)
    if panel.y:
        axes.set_ylabel(panel.y, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=7.8, color=GREY)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=panel.legend, **LEGEND_STYLE)


def _turns_channels(view: LayerView) -> bool:
    """True if the encoding turns q and k."""
    return view.plan.bands[0].q_table is not None


def _draw_spectrum(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    one_turn = 2 * torch.pi / numbers["train_len"]
    styles = layer_styles(numbers, "spectrum")
    for layer, colour, name in styles:
        changed = layer["spectrum"] != layer["spectrum_before"]
        label = name
        if changed:
            _draw_frequencies(axes, layer["spectrum_before"], one_turn, GREY, "in training")
            label = name or "at evaluation"
        _draw_frequencies(axes, layer["spectrum"], one_turn, colour, label)
    axes.set_yscale("log", base=10)
    axes.axhline(one_turn, **DASHED_STYLE, zorder=1)
    corner = {"xycoords": "axes fraction", "fontsize": 7.4, "color": GREY}
    axes.annotate("dashed: one turn in training\nhollow: less than one", (0.02, 0.03), **corner)
    last_layer, _, _ = styles[-1]
    still = sum(value <= 0 for value in last_layer["spectrum"])
    if still:
        axes.annotate(f"{still} more stand still", (0.98, 0.03), ha="right", **corner)


def _draw_frequencies(axes: Axes, values: list, one_turn: float, colour: str, label: str) -> None:
    """Draw the frequency of each pair that turns, hollow below `one_turn`."""
    value_P = np.array(values)
    (turning_P,) = np.nonzero(value_P > 0)
    (slow_P,) = np.nonzero((value_P > 0) & (value_P < one_turn))
    style = {"color": colour, "marker": "o", "markersize": 3.4}
    axes.plot(turning_P, value_P[turning_P], label=label or None, linewidth=1.0, **style)
    hollow = {**style, "linestyle": "none", "markerfacecolor": "white", "zorder": 3}
    axes.plot(slow_P, value_P[slow_P], linewidth=1.0, **hollow)


def _draw_positions(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    length = numbers["length"]
    axes.axhspan(0, numbers["trained_reach"], color=TRAINED_COLOUR, linewidth=0, zorder=0.5)
    axes.axvline(numbers["train_len"], **DASHED_STYLE, zorder=1)
    axes.plot([0, length], [0, length], **DOTTED_STYLE)
    y = "row of the table" if numbers["table_rows"] else "position for the encoding"
    positions = numbers["table_rows"] or numbers["coordinates"]
    draw_line(axes, positions, BLUE)
    axes.set_ylabel(y, fontsize=FONT_SIZE)
    axes.set_xlim(0, length)
    axes.set_ylim(0, 1.05 * max(length, numbers["trained_reach"], *positions))


def _draw_embedding(axes: Axes, numbers: dict, views: list[LayerView]) -> None:
    view = views[0]
    positions = torch.linspace(0, view.length - 1, min(view.length, 512)).round().long()
    rows = view.added_TC[positions].T
    draw_heat_map(axes, positions, rows, float(rows.abs().quantile(0.98)))
    axes.axvline(numbers["train_len"], color="black", linewidth=1, linestyle=(0, (4, 3)), zorder=2)


def _draw_similarity(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    curve = numbers["similarity"]
    axes.plot(curve["at"], curve["cosine"], color=BLUE, linewidth=1.4, zorder=3)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    axes.set_ylim(None, 1.03)


def _draw_distances(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    """Draw the distance that each kind of layer reads by the distance in tokens; dotted: the same
    distance.
    """
    length = numbers["length"]
    reach = numbers["trained_reach"]
    # Neither None, of keys that are not seen, nor 0, which a log axis has not.
    seen = [value for layer in numbers["layers"] for value in layer["distance"] if value]
    low = min([1.0, *seen])
    high = max([2.0, length, *seen])
    axes.set_yscale("log", base=2)
    axes.axhspan(low / 2, max(low, reach), color=TRAINED_COLOUR, linewidth=0, zorder=0.5)
    axes.plot([1, length], [1, length], **DOTTED_STYLE)
    for layer, colour, name in reversed(layer_styles(numbers)):  # the first kind on top
        draw_line(axes, layer["distance"], colour, name)
    axes.set_ylim(low / 1.15, high * 1.1)
    axes.yaxis.set_major_formatter("{x:.7g}")


def _draw_channels(axes: Axes, numbers: dict, views: list[LayerView]) -> None:
    """Draw the score in each channel by distance, of the first kind of layer that turns channels.

    Keys that are not seen show the grey of the background.
    """
    view = next(filter(_turns_channels, views))
    delta_K = sampled_distances(view.length)
    delta_K = delta_K[delta_K > 0]  # a log axis has no 0
    rows = channel_scores(view, delta_K)
    axes.set_facecolor(HIDDEN_COLOUR)
    draw_heat_map(axes, delta_K, rows)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    style = {"fontsize": 7.4, "color": GREY, "ha": "right", "transform": axes.transAxes}
    axes.text(1, 1.03, "blue -1, orange +1", **style)


def _draw_decay(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    """Draw the factor on a score by distance, of three pairs of the first kind of layer that has a
    decay.
    """
    layer, _, _ = layer_styles(numbers, "decay")[0]
    rates = layer["decay"]  # the largest first
    pairs = {
        "fastest pair": rates[0],
        "middle pair": rates[len(rates) // 2],
        "slowest pair": rates[-1],
    }
    distance_T = np.array(numbers["distance"], float)
    for (label, rate), colour in zip(pairs.items(), OKABE_ITO, strict=False):
        axes.plot(np.exp(-rate * distance_T), color=colour, label=label, **CURVE_STYLE)
    axes.set_ylim(0, 1.03)


def _draw_bias(axes: Axes, numbers: dict, _: list[LayerView]) -> str:
    """Draw the bias of each head, of the first kind of layer that has one. Returns its name for the
    heading, "" for the only kind.
    """
    layer, _, name = layer_styles(numbers, "bias")[0]
    draw_heads(axes, layer["bias"])
    values = [value for row in layer["bias"] for value in row if value is not None]
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if min(values) < LEAST_BIAS_SHOWN:
        axes.set_ylim(LEAST_BIAS_SHOWN, max(0.5, max(values)))  # the line at 0 is inside
        style = {"xycoords": "axes fraction", "fontsize": 7.4, "color": GREY}
        axes.annotate("below: no weight is left", (0.02, 0.02), **style)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    return f" ({name})" if name else ""


def _draw_weights(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    layer, _, _ = layer_styles(numbers, "even_weights")[0]
    draw_heads(axes, layer["even_weights"])
    axes.set_yscale("log")
    # Neither None, of keys that are not seen, nor 0, which a log axis has not.
    weights = [value for row in layer["even_weights"] for value in row if value]
    axes.set_ylim(max(1e-9, min(weights) / 1.5), max(weights) * 1.5)


def _draw_bound(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    """Draw RoPE's bound on the score by distance, before and after the extension."""
    for layer, colour, name in layer_styles(numbers, "decay_bound"):
        bound = layer["decay_bound"]
        if layer["extended"] and bound["before"] != bound["after"]:
            style = {"color": GREY, "linewidth": 1.0, "zorder": 2}
            axes.plot(bound["at"], bound["before"], label="without extension", **style)
        style = {"color": colour, "linewidth": 1.4, "zorder": 3}
        axes.plot(bound["at"], bound["after"], label=name or None, **style)
    axes.set_ylim(0, None)


def _draw_rule(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    layer, _, _ = layer_styles(numbers, "distance_rule")[0]
    for rule in layer["distance_rule"]:
        axes.plot(rule["at"], rule["factor"], color=BLUE, label="factor", **CURVE_STYLE)
        axes.plot(rule["at"], rule["addend"], color=ORANGE, label="addend", **CURVE_STYLE)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)


def _draw_logits(axes: Axes, numbers: dict, _: list[LayerView]) -> None:
    """Draw the factor on the logits by position: a line, or one for each head if heads differ."""
    for layer, colour, name in layer_styles(numbers):
        factors = layer["logit_scale"]
        by_head = isinstance(factors[0], list)
        if by_head:
            draw_heads(axes, factors)
        else:
            draw_line(axes, factors, colour, name)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.95), max(high, 1.1))  # so that a small change looks small
    axes.axhline(1, color="black", linewidth=0.7, zorder=1)


def _distance_panel(needs: str, heading: str, y: str, draw: Callable, **options: object) -> Panel:
    x = "tokens between query and key"
    return Panel(needs, heading, x, y, draw, by_distance=True, **options)


PANELS = (  # in the order of a page
    Panel(
        "spectrum",
        "Frequencies",
        "pair of channels",
        "radians per token",
        _draw_spectrum,
        legend="upper right",
    ),
    Panel("coordinates", "At which position a token is read", "token", "", _draw_positions),
    Panel("coordinates", "What is added to the embedding", "token", "channel", _draw_embedding),
    Panel(
        "coordinates",
        "How alike two positions are",
        "tokens between them",
        "cosine",
        _draw_similarity,
        by_distance=True,
    ),
    _distance_panel(
        "by distance",
        "At which distance a key is seen",
        "distance for the encoding",
        _draw_distances,
        legend="lower right",
    ),
    _distance_panel(
        "turned",
        "What each pair says of a key",
        "pair of channels",
        _draw_channels,
        hides=False,
    ),
    _distance_panel(
        "decay", "What distance leaves of a pair", "factor", _draw_decay, legend="lower left"
    ),
    _distance_panel(
        "bias", "What is added to the score", "bias (nats)", _draw_bias, legend="center left"
    ),
    _distance_panel(
        "even_weights",
        "Weights, if no content matters",
        "attention weight",
        _draw_weights,
        legend="lower left",
    ),
    _distance_panel(
        "decay_bound",
        "Decay: bound of the score",
        "mean |partial sum|",
        _draw_bound,
        legend="upper right",
    ),
    _distance_panel(
        "distance_rule",
        "What distance does to the score",
        "",
        _draw_rule,
        legend="center left",
    ),
    Panel(
        "rescaled",
        "Factor on the logits",
        "position of the query",
        "factor",
        _draw_logits,
        legend="upper left",
        by_distance=True,
        hides=False,
    ),
)


def layer_styles(numbers: dict, key: str = "distance") -> list[tuple[dict, str, str]]:
    """(kind of layer, colour, name) of each kind with a value of `key`, such as (layer, "#0072B2",
    "rope, 3 of 4 layers, window 32"); the name is empty for a single kind.
    """
    layers = numbers["layers"]
    count = sum(len(layer["numbers"]) for layer in layers)
    styles = []
    for index, layer in enumerate(layers):
        name = ""
        if len(layers) > 1:
            name = f"{layer['name']}, {len(layer['numbers'])} of {count} layers"
            if layer["window"] is not None:
                name += f", window {layer['window']}"
        if layer[key]:
            styles.append((layer, OKABE_ITO[index % len(OKABE_ITO)], name))
    return styles


def draw_line(axes: Axes, values: list, colour: str, label: str = "", width: float = 1.6) -> None:
    """Draw a line of values over their index; None leaves a gap, and a value between two gaps is a
    dot.
    """
    style = {"color": colour, "linewidth": width, "zorder": 3, "solid_capstyle": "butt"}
    axes.plot(range(len(values)), values, label=label or None, **style)
    lone = []  # indices of values between two gaps
    neighbours = zip([None, *values], values, [*values[1:], None], strict=False)
    for index, (before, value, after) in enumerate(neighbours):
        if value is not None and before is None and after is None:
            lone.append(index)
    if lone:
        dots = {"linestyle": "", "marker": "o", "markersize": max(1.6, width)}
        axes.plot(lone, [values[index] for index in lone], color=colour, zorder=3, **dots)


def draw_heat_map(axes: Axes, x: object, rows: Tensor, top: float = 1.0) -> None:
    """Draw a heat map of rows [row, x], from blue for -top to orange for `top`."""
    colours = LinearSegmentedColormap.from_list(
        "posbench", [BLUE, "#8fbfdf", "#ffffff", "#f0ae82", ORANGE]
    )
    style = {"shading": "nearest", "rasterized": True, "zorder": 1}
    axes.pcolormesh(x, range(len(rows)), rows, cmap=colours, vmin=-top, vmax=top, **style)


def draw_heads(axes: Axes, rows: list[list], label: str = "head {}") -> None:
    """Draw a line for each head, one if all are equal. Of more than four heads only the first and
    the last are named.
    """
    if len(rows) > 1 and all(row == rows[0] for row in rows):
        rows = rows[:1]
        label = "all heads"
    many = colormaps["viridis"]
    for head, values in enumerate(rows):
        colour = OKABE_ITO[head] if len(rows) <= len(OKABE_ITO) else many(head / len(rows))
        named = len(rows) <= 4 or head in (0, len(rows) - 1)
        draw_line(axes, values, colour, label.format(head + 1) if named else "")
