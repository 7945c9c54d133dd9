"""Picture of one anatomy: a page of panels, each drawn only if it shows something."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posbench.anatomy import query_view
from posbench.anatomy.as_text import PROPERTIES, lengths_asked, named_values, reader_notes, title
from posbench.anatomy.axes import BLUE, HIDDEN, ORANGE, TRAINED, dress_axes, heads, line, log2_axis, over_distance, picture, several
from posbench.anatomy.dissect import Anatomy, samples
from posbench.anatomy.query_view import LayerView
from posbench.report.figures.style import GREY, OKABE_ITO, save

UNSEEN = -20.0  # nats: with a bias below this a key has practically no weight


def draw_anatomy(anatomy: Anatomy, stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.svg; equal input gives equal bytes."""
    return save(anatomy_page(anatomy), Path(stem))


def anatomy_page(anatomy: Anatomy):
    """Figure of the panels, with the property table and the notes below them."""
    numbers, shown = anatomy.numbers, shown_panels(anatomy)
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
    figure.text(0.1 / width, 1 - 0.45 / height, lengths_asked(numbers), fontsize=9.5, color=GREY, va="center")
    ground = "Dashed: the training length. Green: what training held."
    if any(value is None for layer in numbers["layers"] for value in layer["distance"]):
        ground += " Grey: keys that the last query does not see."
    said = [f"Measured: {named_values(PROPERTIES, numbers['properties'])}. {ground}", *reader_notes(numbers)]
    wrapped = [part for line in said for part in textwrap.wrap(line, int(width * 19))]
    figure.text(0.1 / width, 0.0, "\n".join(wrapped), fontsize=7.8, color=GREY, va="top", linespacing=1.4)
    return figure


def shown_panels(anatomy: Anatomy) -> list[Callable]:
    """Panels that apply to an anatomy, each a function of an axes and the numbers."""
    layers, added = anatomy.numbers["layers"], anatomy.numbers["coordinates"] is not None
    turned = next((kind for kind in anatomy.kinds if kind.plan.bands[0].q_table is not None), None)

    def has(key: str) -> bool:
        return any(layer[key] for layer in layers)

    shown = {
        spectrum_panel: has("spectrum"),
        positions_panel: added,
        partial(embedding_panel, kind=anatomy.kinds[0]): added,
        similarity_panel: added,
        distances_panel: not added,
        partial(channels_panel, kind=turned): turned is not None,
        decay_panel: has("decay"),
        bias_panel: has("bias"),
        weights_panel: has("even_weights"),
        bound_panel: has("decay_bound"),
        rule_panel: has("distance_rule"),
        logits_panel: any(np.any(np.array(layer["logit_scale"]) != 1) for layer in layers),
    }
    return [panel for panel, applies in shown.items() if applies]


def spectrum_panel(axes, numbers: dict) -> None:
    """Draw the frequency of each pair, in training and at evaluation."""
    one_turn = 2 * torch.pi / numbers["train_len"]
    still = 0
    for layer, colour, name in several(numbers, "spectrum"):
        changed = layer["spectrum"] != layer["spectrum_before"]
        curves = [(layer["spectrum_before"], GREY, "in training")] * changed + [(layer["spectrum"], colour, name or "at evaluation")]
        for values, own, label in curves:
            value_P = torch.tensor(values, dtype=torch.float64)
            still = int((value_P <= 0).sum())
            if still == len(values):
                continue
            dots = {"linestyle": "none", "marker": "o", "markersize": 3.4, "markeredgewidth": 0.9, "color": own, "zorder": 3}
            for drawn_P, style in (
                (value_P > 0, {"color": own, "linewidth": 1.0, "zorder": 2}),
                (value_P >= one_turn, dots),
                ((value_P > 0) & (value_P < one_turn), {**dots, "markerfacecolor": "white"}),
            ):
                axes.plot(drawn_P.nonzero(), value_P[drawn_P], **style)
            axes.plot([], [], color=own, marker="o", markersize=3.4, linewidth=1.0, label=label if changed or name else None)
    axes.set_yscale("log", base=10)
    axes.axhline(one_turn, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    corner = {"xycoords": "axes fraction", "fontsize": 7.4, "color": GREY}
    axes.annotate("dashed: one turn in training\nhollow: less than one", (0.02, 0.03), **corner)
    if still:
        axes.annotate(f"{still} more stand still", (0.98, 0.03), ha="right", **corner)
    dress_axes(axes, "Frequencies", "pair of channels", "radians per token", legend="upper right")


def distances_panel(axes, numbers: dict) -> None:
    """Draw the distance at which the last query sees each key."""
    seen = [value for layer in numbers["layers"] for value in layer["distance"] if value]
    low, high = min([1.0, *seen]), max([2.0, numbers["length"], *seen])
    over_distance(axes, numbers)
    axes.set_yscale("log", base=2)
    axes.axhspan(low / 2, max(low, numbers["trained_reach"]), color=TRAINED, linewidth=0, zorder=0.5)
    axes.plot([1, numbers["length"]], [1, numbers["length"]], color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
    for layer, colour, name in reversed(several(numbers)):
        line(axes, layer["distance"], colour, name)
    axes.set_ylim(low / 1.15, high * 1.1)
    log2_axis(axes.yaxis, low, high)
    dress_axes(axes, "At which distance a key is seen", "tokens between query and key", "distance for the encoding", legend="lower right")


def positions_panel(axes, numbers: dict) -> None:
    """Draw the position, or the row of a learned table, at which each token is read."""
    length = numbers["length"]
    axes.axhspan(0, numbers["trained_reach"], color=TRAINED, linewidth=0, zorder=0.5)
    axes.axvline(numbers["train_len"], color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.plot([0, length], [0, length], color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
    at = numbers["table_rows"] or numbers["coordinates"]
    line(axes, at, BLUE)
    axes.set_xlim(0, length)
    axes.set_ylim(0, 1.05 * max(length, numbers["trained_reach"], *at))
    dress_axes(
        axes, "At which position a token is read", "token", "row of the table" if numbers["table_rows"] else "position for the encoding"
    )


def embedding_panel(axes, numbers: dict, kind: LayerView) -> None:
    """Draw the vectors added to embeddings as a heat map of tokens and channels."""
    at = torch.linspace(0, kind.length - 1, min(kind.length, 512)).round().long()
    rows = kind.added_TC[at].T
    picture(axes, at, rows, float(rows.abs().quantile(0.98)))
    axes.axvline(numbers["train_len"], color="black", linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    dress_axes(axes, "What is added to the embedding", "token", "channel")


def similarity_panel(axes, numbers: dict) -> None:
    """Draw the cosine between the vectors added to the last token and to those before it."""
    over_distance(axes, numbers)
    axes.plot(numbers["similarity"]["at"], numbers["similarity"]["cosine"], color=BLUE, linewidth=1.4, zorder=3)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    axes.set_ylim(None, 1.03)
    dress_axes(axes, "How alike two positions are", "tokens between them", "cosine")


def channels_panel(axes, numbers: dict, kind: LayerView) -> None:
    """Draw the score of each key in each pair of channels as a heat map over distance."""
    delta_K = samples(kind.length)
    delta_K = delta_K[delta_K > 0]
    rows = query_view.channel_scores(kind, delta_K)
    over_distance(axes, numbers, grey=False)
    axes.set_facecolor(HIDDEN)
    picture(axes, delta_K, rows)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    dress_axes(axes, "What each pair says of a key", "tokens between query and key", "pair of channels")
    axes.text(1, 1.03, "blue -1, orange +1", fontsize=7.4, color=GREY, ha="right", transform=axes.transAxes)


def decay_panel(axes, numbers: dict) -> None:
    """Draw the decay of the fastest, the middle and the slowest pair over distance."""
    over_distance(axes, numbers)
    rates = several(numbers, "decay")[0][0]["decay"]
    picked = [("fastest pair", rates[0]), ("middle pair", rates[len(rates) // 2]), ("slowest pair", rates[-1])]
    index, at = zip(*((index, value) for index, value in enumerate(numbers["distance"]) if value is not None), strict=True)
    for (label, rate), colour in zip(picked, OKABE_ITO, strict=False):
        axes.plot(index, torch.exp(-rate * torch.tensor(at)), color=colour, linewidth=1.5, label=label, zorder=3)
    axes.set_ylim(0, 1.03)
    dress_axes(axes, "What distance leaves of a pair", "tokens between query and key", "factor", legend="lower left")


def bias_panel(axes, numbers: dict) -> None:
    """Draw the bias of each head over distance."""
    over_distance(axes, numbers)
    layer, _, name = several(numbers, "bias")[0]
    heads(axes, layer["bias"])
    known = [value for row in layer["bias"] for value in row if value is not None]
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if min(known) < UNSEEN:
        axes.set_ylim(UNSEEN, max(0.5, max(known)))
        axes.annotate("below: no weight is left", (0.02, 0.02), xycoords="axes fraction", fontsize=7.4, color=GREY)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    heading = "What is added to the score" + (f" ({name})" if name else "")
    dress_axes(axes, heading, "tokens between query and key", "bias (nats)", legend="center left")


def weights_panel(axes, numbers: dict) -> None:
    """Draw attention weights over distance for content scores of 0, a line for each head."""
    over_distance(axes, numbers)
    rows = several(numbers, "even_weights")[0][0]["even_weights"]
    heads(axes, rows)
    axes.set_yscale("log")
    known = [value for row in rows for value in row if value]
    axes.set_ylim(max(1e-9, min(known) / 1.5), max(known) * 1.5)
    dress_axes(axes, "Weights, if no content matters", "tokens between query and key", "attention weight", legend="lower left")


def bound_panel(axes, numbers: dict) -> None:
    """Draw the envelope of RoPE's score over distance, with and without the extension."""
    over_distance(axes, numbers)
    for layer, colour, name in several(numbers, "decay_bound"):
        bound = layer["decay_bound"]
        if layer["extended"] and bound["before"] != bound["after"]:
            axes.plot(bound["at"], bound["before"], color=GREY, linewidth=1.0, label="without extension", zorder=2)
        axes.plot(bound["at"], bound["after"], color=colour, linewidth=1.4, label=name or None, zorder=3)
    axes.set_ylim(0, None)
    dress_axes(axes, "Decay: bound of the score", "tokens between query and key", "mean |partial sum|", legend="upper right")


def rule_panel(axes, numbers: dict) -> None:
    """Draw factor and addend of the scales that act by distance."""
    over_distance(axes, numbers)
    for rule in several(numbers, "distance_rule")[0][0]["distance_rule"]:
        axes.plot(rule["at"], rule["factor"], color=BLUE, linewidth=1.5, label="factor", zorder=3)
        axes.plot(rule["at"], rule["addend"], color=ORANGE, linewidth=1.5, label="addend", zorder=3)
    axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    dress_axes(axes, "What distance does to the score", "tokens between query and key", legend="center left")


def logits_panel(axes, numbers: dict) -> None:
    """Draw the factor on the logits over the position of the query."""
    over_distance(axes, numbers, grey=False)
    for layer, colour, name in several(numbers):
        rows = layer["logit_scale"]
        if isinstance(rows[0], list):
            heads(axes, rows)
        else:
            line(axes, rows, colour, name)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.95), max(high, 1.1))
    axes.axhline(1, color="black", linewidth=0.7, zorder=1)
    dress_axes(axes, "Factor on the logits", "position of the query", "factor", legend="upper left")
