"""One sheet with every method of configs/: encodings above, then extensions, then scales, small
multiples on one grid.

Letters: D pictured channels, H heads, K keys, T tokens.
"""

import itertools
import math
import textwrap

import torch
from matplotlib.figure import Figure

from posbench.common.errors import ConfigError
from posbench.config.names import nodes
from posbench.model.build import seeded
from posbench.position.geometry import Bias, Shape
from posbench.position.instantiate import make
from posbench.position.legality import check
from posbench.report.figures.style import GREY, OKABE_ITO
from posbench.tools.anatomy import figure as draws
from posbench.tools.anatomy.dissect import Anatomy, dissect
from posbench.tools.anatomy.query_view import channel_scores

SHAPE = Shape(d_model=256, n_layer=4, n_head=4, n_kv_head=4, train_len=64)
LENGTH = 4 * SHAPE.train_len
# turns in training of the pair drawn between the fastest and the slowest, where extensions differ
# most
TURNS = 2
PENS = ((OKABE_ITO[5], 5.0), (OKABE_ITO[1], 2.8), ("black", 1.0))
TOP = 3.0  # largest factor drawn of a scale
FLOOR = -8.0  # nats: the lowest bias drawn, since a weight times e^-8 is nearly nothing
COLUMNS, TILE, GAP, LINE = 6, 1.42, 0.28, 2.12  # tiles in a line; inches
ENCODINGS = (
    "x: tokens between query and key, or the position where something is added to embeddings, to"
    f" {LENGTH}; dashed: the training length {SHAPE.train_len}. Colours: what each pair of channels"
    " (each channel) says of it, from blue -1 to orange +1. Curves: what is added to the score of"
    f" a head, down to {FLOOR:.0f} nats; learned numbers as they start. Where it depends on"
    " content: gates of a token of zeros, and the logarithm of the weights where all content"
    " scores are 0."
)
EXTENSIONS = (
    f"y: how far a key seems, x: how far it is, to {LENGTH} tokens, trained at {SHAPE.train_len}"
    f" (dashed): for the fastest pair of channels of RoPE (blue), one that turned about {TURNS}"
    " times in training (orange) and the slowest (black). Green: what training held. Dotted: no"
    " extension. Where there is no line or dot keys are not seen. In grey: what is changed, and"
    " the factor on the logits. On a learned table, y is the row read at position x."
)
SCALES = (
    f"Blue: the factor on the logits of the query that sees x keys, to {LENGTH} (scale_invariant:"
    " on those of a key x tokens away); learned numbers as they start. Orange: what is left of a"
    " weight where all content scores are 0, beside a sink, or at distance x against distance 0."
    " Dotted: 1."
)


def sheet(shown: dict[str, list[tuple[str, str, Anatomy]]]):
    """Figure of the three sections: small multiples on one grid. `shown` are the `dissected` of
    each group.
    """
    positions = [0, SHAPE.train_len, LENGTH // 2, LENGTH]
    # the last three: ticks of y, inches of the head, and what draws a tile and returns words about
    # it
    sections = (
        ("Encodings", shown["encoding"], ENCODINGS, [], 1.0, _draw_encoding),
        ("Extensions", shown["extension"], EXTENSIONS, positions, 1.15, _draw_extension),
        (
            "Scales of attention",
            shown["scale_attention"],
            SCALES,
            list(range(int(TOP) + 1)),
            1.0,
            _draw_scale,
        ),
    )
    lines = [-(-len(tiles) // COLUMNS) for _, tiles, *_ in sections]
    width, height = (
        0.45 + COLUMNS * (TILE + GAP),
        sum(head for *_, head, _ in sections) + sum(lines) * LINE + 0.1,
    )
    figure = Figure(figsize=(width, height), layout=None)
    top = height
    for (heading, tiles, text, y_ticks, head, draw), count in zip(sections, lines, strict=True):
        figure.text(
            0.1 / width, (top - 0.2) / height, heading, fontsize=14, fontweight="bold", va="center"
        )
        words = "\n".join(textwrap.wrap(text, int(width * 15)))
        figure.text(
            0.1 / width,
            (top - 0.4) / height,
            words,
            fontsize=8.6,
            color=GREY,
            va="top",
            linespacing=1.35,
        )
        top -= head
        for index, (name, encoding, found) in enumerate(tiles):
            line, column = divmod(index, COLUMNS)
            left, bottom = 0.45 + column * (TILE + GAP), top - line * LINE - TILE - 0.36
            axes = figure.add_axes((left / width, bottom / height, TILE / width, TILE / height))
            does = draw(axes, found) + (
                "" if encoding == "rope" or draw is _draw_encoding else f" ({encoding})"
            )
            axes.set_title(name, fontsize=9.4, loc="left", pad=13, color="black")
            axes.text(0, 1.035, does, fontsize=7.6, color=GREY, transform=axes.transAxes)
            axes.set_xlim(0, LENGTH)
            axes.axvline(
                SHAPE.train_len, color="#333333", linewidth=0.8, linestyle=(0, (4, 3)), zorder=4
            )
            axes.set_xticks(positions)
            axes.set_yticks(y_ticks if column == 0 else [])
            axes.tick_params(labelsize=7.2, length=2.5, color=GREY)
            axes.spines[:].set_color("#bbbbbb")
        top -= count * LINE
    return figure


def dissected(group: str) -> list[tuple[str, str, Anatomy]]:
    """(name, encoding, anatomy) of every method of a group of configs/.

    An encoding that does not reach LENGTH by itself has recompute_window; other methods act on
    RoPE, else on the first encoding they can; one that acts on none is left out."""
    encodings, found = nodes("encoding"), []
    for name, node in sorted(nodes(group).items(), key=lambda item: (item[0] != "none", item[0])):
        tried = [(own, {group: node}) for own in ("rope", *encodings)]
        if group == "encoding":
            tried = [(name, {}), (name, {"extension": nodes("extension")["recompute_window"]})]
        shown = ((name, own, _dissect(encodings[own], **methods)) for own, methods in tried)
        found += itertools.islice((one for one in shown if one[-1] is not None), 1)
    return found


def _dissect(encoding: dict, **methods: dict) -> Anatomy | None:
    """Anatomy of an encoding with the nodes of `methods` (extension, scale_attention); None if not
    defined at LENGTH or of no effect.
    """
    extension, given = (
        methods.get(group) or nodes(group)["none"] for group in ("extension", "scale_attention")
    )
    with seeded(0):
        built = make(encoding, SHAPE)
    acting, none, scale = (
        make(extension),
        make(nodes("scale_attention")["none"], SHAPE),
        make(given, SHAPE),
    )
    at_evaluation, trained_in = (
        (none, scale) if scale.trained or scale.sinks else (scale, None)
    )  # as it is meant
    try:
        verdict = check(built, acting, at_evaluation, [LENGTH], allow_untested=True)
    except ConfigError:
        return None
    return None if verdict.noop else dissect(built, acting, at_evaluation, LENGTH, trained_in)


def _draw_encoding(axes, shown: Anatomy) -> str:
    numbers, kind = shown.numbers, shown.kinds[0]
    if len(shown.kinds) > 1:
        _layer_bars(axes, numbers)
        return "layers of two kinds"
    if numbers["coordinates"]:
        rows_DT = torch.nn.functional.pad(
            kind.added_TC.T, (0, LENGTH - kind.length), value=torch.nan
        )
        axes.set_facecolor(draws.HIDDEN)
        draws.picture(
            axes, range(LENGTH), rows_DT, float(rows_DT.nan_to_num().abs().quantile(0.98))
        )
        return "added to embeddings"
    if numbers[
        "even_weights"
    ]:  # as the bias that would give the same weights: their logarithm, relative to the largest
        largest = max(value for row in numbers["even_weights"] for value in row if value)
        _bias_curves(
            axes,
            [
                [None if not value else math.log(value / largest) for value in row]
                for row in numbers["even_weights"]
            ],
        )
        return "weighs whole rows"
    turned = kind.plan.bands[0].q_table is not None
    if numbers["bias"]:
        _bias_curves(axes, numbers["bias"])
        return (
            "added to scores"
            if kind.encoding.biases & (Bias.COLUMNS | Bias.DENSE)
            else "forget gates"
        ) + ", turned" * turned
    if turned:
        delta_K = torch.arange(LENGTH)
        rows_DK = channel_scores(kind, delta_K)
        draws.picture(axes, delta_K, rows_DK)
        axes.set_ylim(-0.5, len(rows_DK) - 0.5)
        return "turns q and k" + ", decays" * bool(numbers["decay"])
    axes.set_ylim(-1, 1)
    axes.axhline(0, color=OKABE_ITO[0], linewidth=1.6)
    axes.annotate(
        "every key alike",
        (0.63 * LENGTH, 0),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=7.6,
        color=GREY,
    )
    return "the causal mask alone"


def _bias_curves(axes, rows: list[list]) -> None:
    draws.heads(axes, rows, label="")
    known = [value for row in rows for value in row if value is not None]
    low, high = max(min(known), FLOOR), max(0.0, *known)
    axes.set_ylim(low - 0.06 * (high - low) - 1e-3, high + 0.06 * (high - low) + 1e-3)
    axes.axhline(0, color="black", linewidth=0.6, zorder=1)


def _layer_bars(axes, numbers: dict) -> None:
    """Draw a bar for each transformer layer, as long as the number of keys that the last query
    sees.
    """
    colours = dict(
        zip(
            sorted({layer["name"] for layer in numbers["layers"]}, reverse=True),
            OKABE_ITO,
            strict=False,
        )
    )
    for layer in numbers["layers"]:
        seen = sum(value is not None for value in layer["distance"])
        for number in layer["numbers"]:
            axes.barh(
                number, seen, height=0.72, color=colours[layer["name"]], alpha=0.75, linewidth=0
            )
            inside = seen == LENGTH
            style = {
                "ha": "right" if inside else "left",
                "va": "center",
                "fontsize": 7.2,
                "zorder": 5,
            }
            if not inside:
                style["bbox"] = {
                    "boxstyle": "square,pad=0.15",
                    "facecolor": "white",
                    "edgecolor": "none",
                }
            axes.annotate(
                layer["name"],
                (seen, number),
                xytext=(-3 if inside else 3, 0),
                textcoords="offset points",
                **style,
            )
    axes.set_ylim(-0.7, sum(len(layer["numbers"]) for layer in numbers["layers"]) - 0.3)


def _draw_extension(axes, shown: Anatomy) -> str:
    """Draw the distance at which three pairs see each key (its angle by the frequency in training),
    or the rows of a table.
    """
    numbers = shown.numbers
    axes.axhspan(0, SHAPE.train_len - 1, color=draws.TRAINED, linewidth=0, zorder=0)
    axes.plot([0, LENGTH], [0, LENGTH], color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    axes.set_ylim(0, LENGTH)
    if numbers["encoding"] != "rope":
        draws.line(
            axes,
            numbers["table_rows"] or numbers["coordinates"] or numbers["distance"],
            OKABE_ITO[1],
        )
    else:
        before = torch.tensor(numbers["spectrum_before"])
        speed_F = torch.tensor(numbers["spectrum"]) / before
        middle = int((before * SHAPE.train_len / (2 * torch.pi) - TURNS).abs().argmin())
        for pair, (colour, width) in zip((0, middle, -1), PENS, strict=True):
            seen = [
                one if one is None else one * float(speed_F[pair]) for one in numbers["distance"]
            ]
            draws.line(axes, seen, colour, width=width)
    moved = any(
        value is not None and abs(value - index) > 1e-6
        for index, value in enumerate(numbers["distance"])
    )
    does = ["frequencies"] * (numbers["spectrum"] != numbers["spectrum_before"]) + [
        "positions"
    ] * moved
    does += ["crop" if numbers["fed"] < numbers["length"] else "mask"] * (
        None in numbers["distance"]
    )
    does = ["table"] if numbers["table_rows"] else does
    does += [f"x{numbers['temperature']:.2g}"] * (numbers["temperature"] != 1)
    return ", ".join(does) or "no change"


def _draw_scale(axes, shown: Anatomy) -> str:
    numbers = shown.numbers
    factors = torch.as_tensor(numbers["logit_scale"], dtype=torch.float64)
    axes.axhline(1, color="black", linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    for rule in numbers["distance_rule"] or ():
        axes.plot(rule["at"], rule["factor"], color=draws.BLUE, linewidth=1.8, zorder=3)
        axes.plot(
            rule["at"],
            torch.as_tensor(rule["addend"]).exp(),
            color=draws.ORANGE,
            linewidth=1.8,
            zorder=3,
        )
    if not numbers["distance_rule"]:
        for factor_T in factors.unique(dim=0) if factors.ndim == 2 else [factors]:
            draws.line(axes, factor_T.tolist(), draws.BLUE, width=1.8)
    if numbers["sink"]:
        keys_T = torch.arange(1, LENGTH + 1)
        for logit in sorted(set(numbers["sink"])):
            axes.plot(
                keys_T - 1,
                keys_T / (keys_T + torch.tensor(logit).exp()),
                color=draws.ORANGE,
                linewidth=1.8,
                zorder=3,
            )
    axes.set_ylim(0, TOP)
    does = (
        [f"x{factors[..., 0].mean():.2f}"]
        if factors.ndim == 1 and factors.unique().numel() == 1 and factors[0] != 1
        else []
    )
    if not does and (factors != 1).any():
        does = ["by keys, learned" if factors.ndim == 2 else "by keys"]
    does += ["by distance"] * bool(numbers["distance_rule"]) + ["a sink"] * bool(numbers["sink"])
    return ", ".join(does) or "no change"
