"""Picture of one anatomy: a page of panels, each drawn only if it shows something."""

import textwrap

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posbench.report.figures.style import FONT, GREY, OKABE_ITO
from posbench.tools.anatomy.as_text import (
    PROPERTIES,
    lengths_asked,
    named_values,
    reader_notes,
    title,
)
from posbench.tools.anatomy.dissect import Anatomy, samples
from posbench.tools.anatomy.query_view import LayerView, channel_scores

BLUE, ORANGE = OKABE_ITO[:2]
TRAINED, HIDDEN = "#e7f5f0", "#efefef"
UNSEEN = -20.0  # nats: with a bias below this a key has practically no weight
DASHED = {"color": GREY, "linewidth": 1, "linestyle": (0, (4, 3))}
DISTANCE = "tokens between query and key"


def anatomy_page(anatomy: Anatomy):
    """Figure of the panels, with the property table and the notes below them."""
    numbers, kinds = anatomy.numbers, anatomy.kinds
    given = {
        **numbers,
        "by distance": not numbers["coordinates"],
        "turned": any(map(_turned, kinds)),
    }
    given["rescaled"] = any(
        np.any(np.array(layer["logit_scale"]) != 1) for layer in numbers["layers"]
    )
    shown = [
        panel for key, *panel in PANELS if any(one.get(key) for one in (given, *numbers["layers"]))
    ]
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    lines = -(-len(shown) // columns)
    width, height = max(6.4, 4.0 * columns), 3.3 * lines + 0.9
    figure = Figure(figsize=(width, height), layout=None)
    grid = figure.subplots(lines, columns, squeeze=False)
    edges = {
        "left": 0.62 / width,
        "right": 1 - 0.15 / width,
        "top": 1 - 0.95 / height,
        "bottom": 0.5 / height,
    }
    figure.subplots_adjust(wspace=0.26, hspace=0.42, **edges)
    for axes, panel in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, numbers, kinds, *panel)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_axis_off()
    figure.text(
        0.1 / width, 1 - 0.2 / height, title(numbers), fontsize=13, fontweight="bold", va="center"
    )
    figure.text(
        0.1 / width,
        1 - 0.45 / height,
        lengths_asked(numbers),
        fontsize=9.5,
        color=GREY,
        va="center",
    )
    ground = "Dashed: the training length. Green: what training held."
    if any(value is None for layer in numbers["layers"] for value in layer["distance"]):
        ground += " Grey: keys that the last query does not see."
    said = [
        f"Measured: {named_values(PROPERTIES, numbers['properties'])}. {ground}",
        *reader_notes(numbers),
    ]
    wrapped = [part for line in said for part in textwrap.wrap(line, int(width * 19))]
    figure.text(
        0.1 / width, 0.0, "\n".join(wrapped), fontsize=7.8, color=GREY, va="top", linespacing=1.4
    )
    return figure


def _draw_panel(
    axes,
    numbers: dict,
    kinds: list[LayerView],
    heading: str,
    x: str,
    y: str,
    legend: str,
    over: bool | None,
    draw,
) -> None:
    if over is not None:
        length, layers = numbers["length"], numbers["layers"]
        axes.set_xscale("log", base=2)
        axes.set_xlim(1, max(2, length))
        axes.xaxis.set_major_formatter("{x:.7g}")
        axes.axvline(numbers["train_len"], **DASHED, zorder=1)
        hidden = [
            over and all(layer["distance"][index] is None for layer in layers)
            for index in range(length)
        ]
        for start, end in np.flatnonzero(np.diff([0, *hidden, 0])).reshape(-1, 2):
            axes.axvspan(start, end, color=HIDDEN, linewidth=0, zorder=0)
    axes.set_title(
        heading + (draw(axes, numbers, kinds) or ""),
        fontsize=10,
        loc="left",
        color="#222222",
        pad=7,
    )
    axes.set_xlabel(x, fontsize=FONT)
    if y:
        axes.set_ylabel(y, fontsize=FONT)
    axes.tick_params(labelsize=7.8, color=GREY)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        ground = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.85}
        axes.legend(
            loc=legend,
            fontsize=7.6,
            handlelength=1.6,
            borderaxespad=0.3,
            labelspacing=0.3,
            **ground,
        )


def _turned(kind: LayerView) -> bool:
    return kind.plan.bands[0].q_table is not None


def _draw_spectrum(axes, numbers: dict, _: list[LayerView]) -> None:
    one_turn = 2 * torch.pi / numbers["train_len"]
    for layer, colour, name in several(numbers, "spectrum"):
        changed = layer["spectrum"] != layer["spectrum_before"]
        curves = [(layer["spectrum_before"], GREY, "in training")] * changed + [
            (layer["spectrum"], colour, name or "at evaluation")
        ]
        for values, own, label in curves:
            value_P = torch.tensor(values, dtype=torch.float64)
            turning_P, slow_P = value_P > 0, (value_P > 0) & (value_P < one_turn)
            style = {"color": own, "marker": "o", "markersize": 3.4, "linewidth": 1.0}
            axes.plot(
                turning_P.nonzero(),
                value_P[turning_P],
                label=label if changed or name else None,
                **style,
            )
            axes.plot(
                slow_P.nonzero(),
                value_P[slow_P],
                **{**style, "linestyle": "none", "markerfacecolor": "white"},
                zorder=3,
            )
    axes.set_yscale("log", base=10)
    axes.axhline(one_turn, **DASHED, zorder=1)
    corner = {"xycoords": "axes fraction", "fontsize": 7.4, "color": GREY}
    axes.annotate("dashed: one turn in training\nhollow: less than one", (0.02, 0.03), **corner)
    if still := int((~turning_P).sum()):
        axes.annotate(f"{still} more stand still", (0.98, 0.03), ha="right", **corner)


def _draw_positions(axes, numbers: dict, _: list[LayerView]) -> None:
    length = numbers["length"]
    axes.axhspan(0, numbers["trained_reach"], color=TRAINED, linewidth=0, zorder=0.5)
    axes.axvline(numbers["train_len"], **DASHED, zorder=1)
    axes.plot([0, length], [0, length], color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
    at = numbers["table_rows"] or numbers["coordinates"]
    line(axes, at, BLUE)
    axes.set_ylabel(
        "row of the table" if numbers["table_rows"] else "position for the encoding", fontsize=FONT
    )
    axes.set_xlim(0, length)
    axes.set_ylim(0, 1.05 * max(length, numbers["trained_reach"], *at))


def _draw_embedding(axes, numbers: dict, kinds: list[LayerView]) -> None:
    kind = kinds[0]
    at = torch.linspace(0, kind.length - 1, min(kind.length, 512)).round().long()
    rows = kind.added_TC[at].T
    picture(axes, at, rows, float(rows.abs().quantile(0.98)))
    axes.axvline(numbers["train_len"], color="black", linewidth=1, linestyle=(0, (4, 3)), zorder=2)


def _draw_similarity(axes, numbers: dict, _: list[LayerView]) -> None:
    axes.plot(
        numbers["similarity"]["at"],
        numbers["similarity"]["cosine"],
        color=BLUE,
        linewidth=1.4,
        zorder=3,
    )
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    axes.set_ylim(None, 1.03)


def _draw_distances(axes, numbers: dict, _: list[LayerView]) -> None:
    seen = [value for layer in numbers["layers"] for value in layer["distance"] if value]
    low, high = min([1.0, *seen]), max([2.0, numbers["length"], *seen])
    axes.set_yscale("log", base=2)
    axes.axhspan(
        low / 2, max(low, numbers["trained_reach"]), color=TRAINED, linewidth=0, zorder=0.5
    )
    axes.plot(
        [1, numbers["length"]],
        [1, numbers["length"]],
        color=GREY,
        linewidth=0.9,
        linestyle=(0, (1, 2)),
        zorder=2,
    )
    for layer, colour, name in reversed(several(numbers)):
        line(axes, layer["distance"], colour, name)
    axes.set_ylim(low / 1.15, high * 1.1)
    axes.yaxis.set_major_formatter("{x:.7g}")


def _draw_channels(axes, numbers: dict, kinds: list[LayerView]) -> None:
    kind = next(filter(_turned, kinds))
    delta_K = samples(kind.length)
    delta_K = delta_K[delta_K > 0]
    rows = channel_scores(kind, delta_K)
    axes.set_facecolor(HIDDEN)
    picture(axes, delta_K, rows)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.text(
        1,
        1.03,
        "blue -1, orange +1",
        fontsize=7.4,
        color=GREY,
        ha="right",
        transform=axes.transAxes,
    )


def _draw_decay(axes, numbers: dict, _: list[LayerView]) -> None:
    rates = several(numbers, "decay")[0][0]["decay"]
    picked = [
        ("fastest pair", rates[0]),
        ("middle pair", rates[len(rates) // 2]),
        ("slowest pair", rates[-1]),
    ]
    at_T = np.array(numbers["distance"], float)
    for (label, rate), colour in zip(picked, OKABE_ITO, strict=False):
        axes.plot(np.exp(-rate * at_T), color=colour, linewidth=1.5, label=label, zorder=3)
    axes.set_ylim(0, 1.03)


def _draw_bias(axes, numbers: dict, _: list[LayerView]) -> str:
    layer, _, name = several(numbers, "bias")[0]
    heads(axes, layer["bias"])
    known = [value for row in layer["bias"] for value in row if value is not None]
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if min(known) < UNSEEN:
        axes.set_ylim(UNSEEN, max(0.5, max(known)))
        axes.annotate(
            "below: no weight is left",
            (0.02, 0.02),
            xycoords="axes fraction",
            fontsize=7.4,
            color=GREY,
        )
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    return f" ({name})" if name else ""


def _draw_weights(axes, numbers: dict, _: list[LayerView]) -> None:
    rows = several(numbers, "even_weights")[0][0]["even_weights"]
    heads(axes, rows)
    axes.set_yscale("log")
    known = [value for row in rows for value in row if value]
    axes.set_ylim(max(1e-9, min(known) / 1.5), max(known) * 1.5)


def _draw_bound(axes, numbers: dict, _: list[LayerView]) -> None:
    for layer, colour, name in several(numbers, "decay_bound"):
        bound = layer["decay_bound"]
        if layer["extended"] and bound["before"] != bound["after"]:
            axes.plot(
                bound["at"],
                bound["before"],
                color=GREY,
                linewidth=1.0,
                label="without extension",
                zorder=2,
            )
        axes.plot(
            bound["at"], bound["after"], color=colour, linewidth=1.4, label=name or None, zorder=3
        )
    axes.set_ylim(0, None)


def _draw_rule(axes, numbers: dict, _: list[LayerView]) -> None:
    for rule in several(numbers, "distance_rule")[0][0]["distance_rule"]:
        axes.plot(rule["at"], rule["factor"], color=BLUE, linewidth=1.5, label="factor", zorder=3)
        axes.plot(rule["at"], rule["addend"], color=ORANGE, linewidth=1.5, label="addend", zorder=3)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)


def _draw_logits(axes, numbers: dict, _: list[LayerView]) -> None:
    for layer, colour, name in several(numbers):
        rows = layer["logit_scale"]
        if isinstance(rows[0], list):
            heads(axes, rows)
        else:
            line(axes, rows, colour, name)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.95), max(high, 1.1))
    axes.axhline(1, color="black", linewidth=0.7, zorder=1)


# Panels in the order of a page: what the numbers or some kind of layer must have; heading, labels
# of x and y, place of the legend; whether keys that are hidden are grey, None if x is no distance;
# and what draws it and may add to the heading.
PANELS = (
    (
        "spectrum",
        "Frequencies",
        "pair of channels",
        "radians per token",
        "upper right",
        None,
        _draw_spectrum,
    ),
    (
        "coordinates",
        "At which position a token is read",
        "token",
        "",
        "best",
        None,
        _draw_positions,
    ),
    (
        "coordinates",
        "What is added to the embedding",
        "token",
        "channel",
        "best",
        None,
        _draw_embedding,
    ),
    (
        "coordinates",
        "How alike two positions are",
        "tokens between them",
        "cosine",
        "best",
        True,
        _draw_similarity,
    ),
    (
        "by distance",
        "At which distance a key is seen",
        DISTANCE,
        "distance for the encoding",
        "lower right",
        True,
        _draw_distances,
    ),
    (
        "turned",
        "What each pair says of a key",
        DISTANCE,
        "pair of channels",
        "best",
        False,
        _draw_channels,
    ),
    (
        "decay",
        "What distance leaves of a pair",
        DISTANCE,
        "factor",
        "lower left",
        True,
        _draw_decay,
    ),
    (
        "bias",
        "What is added to the score",
        DISTANCE,
        "bias (nats)",
        "center left",
        True,
        _draw_bias,
    ),
    (
        "even_weights",
        "Weights, if no content matters",
        DISTANCE,
        "attention weight",
        "lower left",
        True,
        _draw_weights,
    ),
    (
        "decay_bound",
        "Decay: bound of the score",
        DISTANCE,
        "mean |partial sum|",
        "upper right",
        True,
        _draw_bound,
    ),
    (
        "distance_rule",
        "What distance does to the score",
        DISTANCE,
        "",
        "center left",
        True,
        _draw_rule,
    ),
    (
        "rescaled",
        "Factor on the logits",
        "position of the query",
        "factor",
        "upper left",
        False,
        _draw_logits,
    ),
)


def several(numbers: dict, key: str = "distance") -> list[tuple[dict, str, str]]:
    """List of (layer kind, colour, name) of the kinds of layers that have a value of `key`; the
    name is empty for a single kind.
    """
    layers = numbers["layers"]
    named = []
    for index, layer in enumerate(layers):
        which = (
            f"{layer['name']}, {len(layer['numbers'])} of"
            f" {sum(len(other['numbers']) for other in layers)} layers"
        )
        if layer["window"] is not None:
            which += f", window {layer['window']}"
        named.append((layer, OKABE_ITO[index % len(OKABE_ITO)], which if len(layers) > 1 else ""))
    return [one for one in named if one[0][key]]


def line(axes, values: list, colour: str, label: str = "", width: float = 1.6) -> None:
    """Draw a line of values over their index; None leaves a gap, and a value between two gaps is a
    dot.
    """
    style = {"color": colour, "linewidth": width, "zorder": 3, "solid_capstyle": "butt"}
    axes.plot(range(len(values)), values, label=label or None, **style)
    around = [None, *values, None]
    lone = [
        index
        for index, value in enumerate(values)
        if value is not None and around[index] is around[index + 2] is None
    ]
    if lone:
        axes.plot(
            lone,
            [values[index] for index in lone],
            linestyle="",
            marker="o",
            markersize=max(1.6, width),
            color=colour,
            zorder=3,
        )


def picture(axes, x, rows: Tensor, top: float = 1.0) -> None:
    """Draw a heat map of rows [row, x], from blue for -top to orange for `top`."""
    diverging = LinearSegmentedColormap.from_list(
        "posbench", [BLUE, "#8fbfdf", "#ffffff", "#f0ae82", ORANGE]
    )
    axes.pcolormesh(
        x,
        range(len(rows)),
        rows,
        cmap=diverging,
        vmin=-top,
        vmax=top,
        shading="nearest",
        rasterized=True,
        zorder=1,
    )


def heads(axes, rows: list[list], label: str = "head {}") -> None:
    """Draw a line for each head, one if all are equal. Of more than four heads only the first and
    the last are named.
    """
    if len(rows) > 1 and all(row == rows[0] for row in rows):
        rows, label = rows[:1], "all heads"
    many = colormaps["viridis"]
    for head, values in enumerate(rows):
        colour = OKABE_ITO[head] if len(rows) <= len(OKABE_ITO) else many(head / len(rows))
        name = (
            label.format(head + 1)
            if label and (len(rows) <= 4 or head in (0, len(rows) - 1))
            else ""
        )
        line(axes, values, colour, name)
