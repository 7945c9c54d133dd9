"""Picture of diagnostics.json: a row of panels for each layer, with the entropy of its heads by
length and maps of head and distance.
"""

import math
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, PowerNorm

from posbench.report.figures.lines import write_names_at_ends
from posbench.report.figures.style import (
    FONT_SIZE,
    GREY,
    OKABE_ITO,
    Frame,
    legible_ink,
    set_up_octaves_x,
    write_note,
)
from posbench.report.records import tick_lengths
from posbench.tools.anatomy.attention_file import arm_name, windows_read

# Points.
CURVE_WIDTH, CELL_WIDTH = 150, 20  # width of a panel of curves, and of a column of a map
LEAST_LAYER_HEIGHT = 84  # of a layer
LEAST_ROW_HEIGHT, MOST_ROW_HEIGHT = 4, 11  # height of a head's row in a map
ALL_ROWS_HEIGHT = 2600  # height of all rows, if these may be so high
LEFT_OF_PANELS, ABOVE_PANELS, BELOW_PANELS = 92, 46, 40  # left of the panels, above and below them
RIGHT_OF_CURVES = 60  # right of curves
RIGHT_OF_MAP = 34  # right of a map
BETWEEN_LAYERS = 14
HIDDEN_COLOUR = "#ececec"  # colour of what is not seen
MOST_HEADS_NUMBERED = 96  # most heads of a model whose maps have numbers
# most heads of a layer whose curves have names, and intervals
MOST_HEADS_LABELLED, MOST_HEADS_WITH_BARS = (
    12,
    4,
)
DOTTED = (0, (1.2, 1.4))
DASHED = (0, (4, 3))


class Panel(NamedTuple):
    """A column of panels: a map of one text, or the curves of an arm over its texts."""

    name: str
    text: dict | None = None
    arm: dict | None = None

    @property
    def heading(self) -> str:
        """Line below the name."""
        if self.arm:
            return "entropy (nats)"
        loss = self.text["nll"]
        return f"{self.text['length']} tokens, loss {loss:.3f}: share of the weight (%)"


class Column(NamedTuple):
    """A column of a map: its label, key of a layer, and for `mass` the number of the bucket."""

    label: str
    key: str
    bucket: int = 0


def attention_page(diagnostics: dict):
    """Figure of diagnostics.json: on the left the model as it was trained, then for each arm
    curves, and a map at its longest length.
    """
    layers = diagnostics["layers"]
    train_len = diagnostics["train_len"]
    texts = [text for arm in diagnostics["arms"] for text in arm["measured"]]
    heads = len(texts[0]["layers"][0]["entropy"])
    layer_height = _layer_height(heads, len(layers))
    columns = _map_columns(diagnostics["buckets"], texts)
    panels = _panels(diagnostics)
    widths = [CURVE_WIDTH if panel.arm else CELL_WIDTH * len(columns) for panel in panels]
    gaps = [RIGHT_OF_CURVES if panel.arm else RIGHT_OF_MAP for panel in panels]
    # At least 2: log 1 would leave an axis without height.
    most_keys = max(max(layer["keys"], 2) for text in texts for layer in text["layers"])
    frame = Frame(
        _page_title(diagnostics),
        LEFT_OF_PANELS + sum(widths) + sum(gaps),
        ABOVE_PANELS + len(layers) * (layer_height + BETWEEN_LAYERS) + BELOW_PANELS,
    )
    for layer_index in range(len(layers)):
        is_last = layer_index == len(layers) - 1
        top = ABOVE_PANELS + layer_index * (layer_height + BETWEEN_LAYERS)
        x = LEFT_OF_PANELS
        for panel_index, panel in enumerate(panels):
            axes = frame.axes(x, top, widths[panel_index], layer_height)
            x += widths[panel_index] + gaps[panel_index]
            if panel.arm:
                axes.set_ylim(0, math.log(most_keys) * 1.04)  # a little above the largest
                _draw_curves(axes, panel.arm["measured"], layer_index, train_len, is_last)
            else:
                row_name = "{}" if panel_index else "head {}"  # formats of the number of a head
                _draw_map(axes, panel.text["layers"][layer_index], columns, train_len, row_name)
                if heads * len(layers) <= MOST_HEADS_NUMBERED:
                    _write_shares(axes, panel.text["layers"][layer_index], columns)
                _label_columns(axes, columns if is_last else [])
            if layer_index == 0:
                _write_heading(axes, panel)
            if panel_index == 0:
                _write_layer_name(axes, layers, layer_index)
    frame.caption(_caption(diagnostics, panels, columns), up=2)
    return frame.figure


def _layer_height(heads: int, layers: int) -> float:
    """Points of a layer's panels, in which a map has a row for each head."""
    row = min(MOST_ROW_HEIGHT, max(LEAST_ROW_HEIGHT, ALL_ROWS_HEIGHT / heads / layers))
    return max(LEAST_LAYER_HEIGHT, row * heads)


def _page_title(diagnostics: dict) -> str:
    methods = diagnostics["encoding"]
    if diagnostics["trained_scale"] != "none":
        methods += f" trained with {diagnostics['trained_scale']}"
    return f"Attention of {methods}, head by head ({diagnostics['run']})"


def _panels(diagnostics: dict) -> list[Panel]:
    """Panels from left to right."""
    arms = diagnostics["arms"]
    trained = next(text for text in arms[0]["measured"] if text["length"] == diagnostics["known"])
    panels = [Panel("as trained", text=trained)]
    for arm in arms:
        longest = arm["measured"][-1]
        if len(arm["measured"]) > 1:  # curves over its lengths
            panels.append(Panel(arm_name(arm), arm=arm))
        if longest is not trained:  # its map, unless the first panel shows it already
            panels.append(Panel(arm_name(arm), text=longest))
    return panels


def _map_columns(buckets: list[list[int]], texts: list[dict]) -> list[Column]:
    """Columns of all maps; that of the sink only where some head has one."""
    columns = [Column("first", "first")]
    if any(max(layer["sink"]) for text in texts for layer in text["layers"]):
        columns.insert(0, Column("sink", "sink"))
    for bucket, (low, _) in enumerate(buckets):
        label = str(low) if low < 1024 else f"{low // 1024}k"
        columns.append(Column(label, "mass", bucket))
    return columns


def _write_heading(axes, panel: Panel) -> None:
    """Write the name of a panel and the line below it, both above the axes."""
    style = {"xycoords": "axes fraction"}
    write_note(axes, panel.name, (0, 1), (0, 19), fontsize=9.5, fontweight="bold", **style)
    write_note(axes, panel.heading, (0, 1), (0, 7), fontsize=8.2, color="#222222", **style)


def _write_layer_name(axes, layers: list[dict], layer_index: int) -> None:
    """Write the number of a layer on the left, and its kind and window if layers differ."""
    lines = [f"layer {layers[layer_index]['number']}"]
    kinds = {(layer["kind"], layer["window"]) for layer in layers}
    if len(kinds) > 1:
        lines.append(layers[layer_index]["kind"])
        if layers[layer_index]["window"] is not None:
            lines.append(f"window {layers[layer_index]['window']}")
    style = {"va": "top", "ha": "right", "fontsize": 8.5, "linespacing": 1.3}
    write_note(axes, "\n".join(lines), (0, 1), (-40, 1), xycoords="axes fraction", **style)


def _draw_curves(axes, texts: list[dict], layer_index: int, train_len: int, is_last: bool) -> None:
    """Draw the entropy of each head of one layer by length."""
    lengths = [text["length"] for text in texts]
    layers = [text["layers"][layer_index] for text in texts]
    set_up_octaves_x(axes, tick_lengths(lengths, train_len), train_len)
    axes.set_xlim(min(lengths) / 1.15, max(lengths) * 1.15)
    axes.tick_params(labelsize=7.5, labelbottom=is_last)
    # The largest entropy there is: that of equal weights.
    even = [math.log(layer["keys"]) for layer in layers]
    axes.plot(lengths, even, color=GREY, linewidth=1, linestyle=DOTTED, zorder=2)
    labels = [(even[-1], lengths[-1], "even", GREY)]
    heads = len(layers[0]["entropy"])
    for head in range(heads):
        colour = _head_colour(head, heads)
        values = np.array([layer["entropy"][head] for layer in layers])
        # half widths of intervals; None where all windows are of one document
        halves = [layer["entropy_half"][head] for layer in layers]
        style = {"marker": "o", "markersize": 2.6, "linewidth": 1.2, "zorder": 3}
        axes.plot(lengths, values, color=colour, **style)
        if heads <= MOST_HEADS_WITH_BARS and None not in halves:
            style = {"linewidth": 2.2, "alpha": 0.3, "zorder": 2}
            axes.vlines(lengths, values - halves, values + halves, color=colour, **style)
        if heads <= MOST_HEADS_LABELLED:
            labels.append((values[-1], lengths[-1], f"head {head + 1}", colour))
    write_names_at_ends(axes, labels)
    if is_last:
        axes.set_xlabel("length (tokens)", fontsize=FONT_SIZE)


def _head_colour(head: int, heads: int) -> object:
    """Colour of a head's curve: one of the palette, or a shade where it has too few colours."""
    if heads <= len(OKABE_ITO):
        return OKABE_ITO[head]
    return colormaps["viridis"](0.95 * head / heads)


def _shares_of_heads(layer: dict, columns: list[Column]) -> np.ma.MaskedArray:
    """Share of each head's weight in each column: [heads, columns], masked where no key is seen."""
    heads = len(layer["entropy"])
    shares = []
    for column in columns:
        if column.key != "mass":
            shares.append(layer[column.key])
        # Columns are those of the longest text, and a shorter one has fewer buckets.
        elif column.bucket < len(layer["seen"]) and layer["seen"][column.bucket]:
            shares.append([mass[column.bucket] for mass in layer["mass"]])
        else:
            shares.append([math.nan] * heads)
    return np.ma.masked_invalid(np.array(shares, float).T)


def _share_colours() -> tuple[Colormap, Normalize]:
    """Colours of shares of the weight, and their scale."""
    steps = ["#ffffff", "#8fbfdf", OKABE_ITO[0], "#00263d"]
    colours = LinearSegmentedColormap.from_list("share", steps).with_extremes(bad=HIDDEN_COLOUR)
    return colours, PowerNorm(0.6, 0, 1)


def _draw_map(axes, layer: dict, columns: list[Column], train_len: int, row_name: str) -> None:
    """Draw a row for each head and a column for each range of distances."""
    heads = len(layer["entropy"])
    colours, norm = _share_colours()
    figure_height = 72 * axes.figure.get_figheight()  # points, of which an inch has 72
    row_height = axes.get_position().height * figure_height / heads
    border = 0.4 if row_height > 6 else 0  # lower rows would be little but borders
    shares = _shares_of_heads(layer, columns)
    axes.pcolormesh(shares, cmap=colours, norm=norm, edgecolor="white", linewidth=border)
    axes.set(xlim=(0, len(columns)), ylim=(heads, 0))
    # Before the buckets there are the columns of the sink, if there is one, and of the first token.
    first_bucket = sum(column.key != "mass" for column in columns)
    # After the bucket of distance 0 each bucket is an octave, the first of them from 1 on.
    trained = first_bucket + 1 + math.log2(train_len)
    if trained < len(columns):
        axes.axvline(trained, color=GREY, linewidth=1, linestyle=DASHED)
    axes.axvline(first_bucket, color="black", linewidth=0.8)
    # Names of lower rows would overlap, so that only the outer two are written.
    named = [head for head in range(heads) if row_height >= 7 or head in (0, heads - 1)]
    names = [row_name.format(head + 1) for head in named]
    axes.set_yticks([head + 0.5 for head in named], names)


def _write_shares(axes, layer: dict, columns: list[Column]) -> None:
    """Write the shares that round to 1 % or more, in percent."""
    shares = _shares_of_heads(layer, columns)
    colours, norm = _share_colours()
    for head, column in zip(*np.nonzero(shares.filled(0) >= 0.005), strict=True):
        share = shares[head, column]
        style = {"ha": "center", "va": "center", "fontsize": 6.8}
        style["color"] = legible_ink(colours(norm(share)), ("#1a1a1a", "#ffffff"))
        axes.text(column + 0.5, head + 0.53, f"{100 * share:.0f}", **style)


def _label_columns(axes, columns: list[Column]) -> None:
    """Set up the x axis of a map. `columns` are empty above the last layer, which has the labels of
    all.
    """
    places = np.arange(*axes.get_xlim()) + 0.5  # the middles of cells, which begin at 0, 1, ...
    axes.set_xticks(places, [column.label for column in columns])
    axes.tick_params(labelsize=7, color=GREY, length=2, pad=2)
    axes.spines[:].set_color(GREY)
    if columns:
        axes.set_xlabel("distance of the key (tokens, at least)", fontsize=FONT_SIZE)


def _caption(diagnostics: dict, panels: list[Panel], columns: list[Column]) -> list[str]:
    """Lines below the figure."""
    lines = [
        f"Means over {windows_read(diagnostics)}; the same at every length. Dashed:"
        f" {diagnostics['train_len']} tokens, the training length."
    ]
    if any(panel.arm for panel in panels):
        curves = (
            "Entropy of a query's weights; dotted: as if all keys that it sees had equal weight."
        )
        text = diagnostics["arms"][0]["measured"][0]  # any: all are read in the same windows
        if text["documents"] > 1 and len(text["layers"][0]["entropy"]) <= MOST_HEADS_WITH_BARS:
            curves += " Bars: 95 % intervals over documents."
        lines.append(curves)
    maps = (
        "Maps: a row for each head, a column for the first token and for each range of distances"
        " to the other keys, grey where none is seen."
    )
    if columns[0].key == "sink":  # it comes first where there is one
        maps += " sink: the weight that no key gets."
    lines.append(maps)
    if any(arm["untested"] for arm in diagnostics["arms"]):
        lines.append("* a pair its authors have not tested")
    return lines
