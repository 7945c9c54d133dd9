"""One sheet with every method of configs/: encodings above, then extensions, then scales, small multiples on one grid.

An encoding has its picture, an extension the distance at which it shows a key, a scale what it makes of logits and weights.

Letters: D pictured channels, H heads, K keys, T tokens.
"""

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from posbench.anatomy import axes as draws
from posbench.anatomy.dissect import Anatomy, dissect
from posbench.anatomy.query_view import channel_scores
from posbench.common.errors import ConfigError
from posbench.config.names import nodes
from posbench.model.build import seeded
from posbench.position.geometry import Bias, Shape
from posbench.position.instantiate import make
from posbench.position.legality import check
from posbench.report.figures.style import GREY, OKABE_ITO, save

SHAPE = Shape(d_model=256, n_layer=4, n_head=4, n_kv_head=4, train_len=64)
LENGTH = 4 * SHAPE.train_len
TURNS = 2  # turns in training of the pair drawn between the fastest and the slowest, where extensions differ most
PENS = ((OKABE_ITO[5], 5.0), (OKABE_ITO[1], 2.8), ("black", 1.0))
TOP = 3.0  # largest factor drawn of a scale
FLOOR = -8.0  # nats: the lowest bias drawn, since a weight times e^-8 is nearly nothing
COLUMNS, TILE, GAP, LINE = 6, 1.42, 0.28, 2.12  # tiles in a line; inches
ENCODINGS = (
    f"x: tokens between query and key, or the position where something is added to embeddings, to {LENGTH}; dashed: the training length "
    f"{SHAPE.train_len}. Colours: what each pair of channels (each channel) says of it, from blue -1 to orange +1. Curves: what is added "
    f"to the score of a head, down to {FLOOR:.0f} nats; learned numbers as they start. Where it depends on content: gates of a token of "
    "zeros, and the logarithm of the weights where all content scores are 0."
)
EXTENSIONS = (
    f"y: how far a key seems, x: how far it is, to {LENGTH} tokens, trained at {SHAPE.train_len} (dashed): for the fastest pair of "
    f"channels of RoPE (blue), one that turned about {TURNS} times in training (orange) and the slowest (black). Green: what training "
    "held. Dotted: no extension. Where there is no line or dot keys are not seen. In grey: what is changed, and the factor on the "
    "logits. On a learned table, y is the row read at position x."
)
SCALES = (
    f"Blue: the factor on the logits of the query that sees x keys, to {LENGTH} (scale_invariant: on those of a key x tokens away); "
    "learned numbers as they start. Orange: what is left of a weight where all content scores are 0, beside a sink, or at distance x "
    "against distance 0. Dotted: 1."
)


@dataclass(frozen=True)
class Tile:
    """Picture of a method: its name, a few words, and the function that draws it."""

    name: str
    words: str
    draw: Callable


def draw_gallery(stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.svg; equal methods give equal bytes."""
    return save(sheet(encoding_tiles(), extension_tiles(), scale_tiles()), Path(stem))


def sheet(encodings: list[Tile], extensions: list[Tile], scales: list[Tile]):
    """Figure of the three sections: small multiples on one grid."""
    positions = [0, SHAPE.train_len, LENGTH // 2, LENGTH]
    sections = (  # the last two: ticks of y, and inches of the head
        ("Encodings", encodings, ENCODINGS, [], 1.0),
        ("Extensions", extensions, EXTENSIONS, positions, 1.15),
        ("Scales of attention", scales, SCALES, list(range(int(TOP) + 1)), 1.0),
    )
    lines = [-(-len(tiles) // COLUMNS) for _, tiles, *_ in sections]
    width, height = 0.45 + COLUMNS * (TILE + GAP), sum(head for *_, head in sections) + sum(lines) * LINE + 0.1
    figure = Figure(figsize=(width, height), layout=None)
    top = height
    for (heading, tiles, text, y_ticks, head), count in zip(sections, lines, strict=True):
        figure.text(0.1 / width, (top - 0.2) / height, heading, fontsize=14, fontweight="bold", va="center")
        words = "\n".join(textwrap.wrap(text, int(width * 15)))
        figure.text(0.1 / width, (top - 0.4) / height, words, fontsize=8.6, color=GREY, va="top", linespacing=1.35)
        top -= head
        for index, tile in enumerate(tiles):
            line, column = divmod(index, COLUMNS)
            left, bottom = 0.45 + column * (TILE + GAP), top - line * LINE - TILE - 0.36
            axes = figure.add_axes((left / width, bottom / height, TILE / width, TILE / height))
            tile.draw(axes)
            _dress(axes, tile, y_ticks if column == 0 else [])
        top -= count * LINE
    return figure


def _dress(axes, tile: Tile, y_ticks: list[int]) -> None:
    axes.set_title(tile.name, fontsize=9.4, loc="left", pad=13, color="black")
    axes.text(0, 1.035, tile.words, fontsize=7.6, color=GREY, transform=axes.transAxes)
    axes.set_xlim(0, LENGTH)
    axes.axvline(SHAPE.train_len, color="#333333", linewidth=0.8, linestyle=(0, (4, 3)), zorder=4)
    axes.xaxis.set_major_locator(FixedLocator([0, SHAPE.train_len, LENGTH // 2, LENGTH]))
    axes.yaxis.set_major_locator(FixedLocator(y_ticks))
    axes.tick_params(labelsize=7.2, length=2.5, color=GREY)
    axes.spines[:].set_color("#bbbbbb")


def _dissected(encoding: dict, **methods: dict) -> Anatomy | None:
    """Anatomy of an encoding with the nodes of `methods` (extension, scale_attention); None if not defined at LENGTH or of no effect.

    A scale that is meant to be trained in is.
    """
    extension, given = (methods.get(group) or nodes(group)["none"] for group in ("extension", "scale_attention"))
    with seeded(0):
        built = make(encoding, SHAPE)
    acting, none, scale = make(extension), make(nodes("scale_attention")["none"], SHAPE), make(given, SHAPE)
    at_evaluation, trained_in = (none, scale) if scale.trained or scale.sinks else (scale, None)
    try:
        verdict = check(built, acting, at_evaluation, [LENGTH], allow_untested=True)
    except ConfigError:
        return None
    return None if verdict.noop else dissect(built, acting, at_evaluation, LENGTH, trained_in)


def encoding_tiles() -> list[Tile]:
    """Tiles of all encodings, with recompute_window for those that do not reach LENGTH by themselves."""
    recompute_window, tiles = nodes("extension")["recompute_window"], []
    for name, node in _plain_first(nodes("encoding")):
        shown = _dissected(node) or _dissected(node, extension=recompute_window)
        if shown is not None:
            tiles.append(_encoding_tile(name, shown))
    return tiles


def extension_tiles() -> list[Tile]:
    """Tiles of all extensions, on RoPE or else on the first encoding that they can change."""
    return acting_tiles("extension", _extension_tile)


def scale_tiles() -> list[Tile]:
    """Tiles of all scales, on RoPE or else on the first encoding that they can act on."""
    return acting_tiles("scale_attention", _scale_tile)


def acting_tiles(group: str, tile: Callable[[str, str, dict], Tile]) -> list[Tile]:
    """Tiles of the methods of a group that act on an encoding: `tile` of method, encoding and numbers, on RoPE or the first that does."""
    encodings, tiles = nodes("encoding"), []
    for name, node in _plain_first(nodes(group)):
        for own in ("rope", *encodings):
            shown = _dissected(encodings[own], **{group: node})
            if shown is not None:
                tiles.append(tile(name, own, shown.numbers))
                break
    return tiles


def _plain_first(found: dict[str, dict]) -> list[tuple[str, dict]]:
    return sorted(found.items(), key=lambda item: (item[0] != "none", item[0]))


def _encoding_tile(name: str, shown: Anatomy) -> Tile:
    numbers, kind = shown.numbers, shown.kinds[0]
    if len(shown.kinds) > 1:
        return Tile(name, "layers of two kinds", lambda axes: _layer_bars(axes, numbers))
    if numbers["coordinates"]:
        return Tile(name, "added to embeddings", lambda axes: _embedding_rows(axes, shown))
    if numbers["even_weights"]:
        return Tile(name, "weighs whole rows", lambda axes: _log_weights(axes, numbers["even_weights"]))
    turned = kind.plan.bands[0].q_table is not None
    if numbers["bias"]:
        words = "added to scores" if kind.encoding.biases & (Bias.COLUMNS | Bias.DENSE) else "forget gates"
        return Tile(name, words + (", turned" if turned else ""), lambda axes: _bias_curves(axes, numbers["bias"]))
    if turned:
        words = "turns q and k" + (", decays" if numbers["decay"] else "")
        return Tile(name, words, lambda axes: _channels(axes, shown))
    return Tile(name, "the causal mask alone", _no_position)


def _extension_tile(name: str, encoding: str, numbers: dict) -> Tile:
    does = []
    if numbers["spectrum"] != numbers["spectrum_before"]:
        does.append("frequencies")
    if any(value is not None and abs(value - index) > 1e-6 for index, value in enumerate(numbers["distance"])):
        does.append("positions")
    if None in numbers["distance"]:
        does.append("crop" if numbers["fed"] < numbers["length"] else "mask")
    if numbers["table_rows"]:
        does = ["table"]
    if numbers["temperature"] != 1:
        does.append(f"x{numbers['temperature']:.2g}")
    words = ", ".join(does) or "no change"
    if encoding != "rope":
        return Tile(name, f"{words} ({encoding})", lambda axes: _table_rows(axes, numbers))
    return Tile(name, words, lambda axes: _seen_distances(axes, numbers))


def _embedding_rows(axes, shown: Anatomy) -> None:
    kind = shown.kinds[0]
    rows_DT = torch.nn.functional.pad(kind.added_TC.T, (0, LENGTH - kind.length), value=torch.nan)
    axes.set_facecolor(draws.HIDDEN)
    draws.picture(axes, range(LENGTH), rows_DT, float(rows_DT.nan_to_num().abs().quantile(0.98)))


def _channels(axes, shown: Anatomy) -> None:
    delta_K = torch.arange(LENGTH)
    rows_DK = channel_scores(shown.kinds[0], delta_K)
    draws.picture(axes, delta_K, rows_DK)
    axes.set_ylim(-0.5, len(rows_DK) - 0.5)


def _bias_curves(axes, rows: list[list]) -> None:
    draws.heads(axes, rows, label="")
    known = [value for row in rows for value in row if value is not None]
    low, high = max(min(known), FLOOR), max(0.0, *known)
    axes.set_ylim(low - 0.06 * (high - low) - 1e-3, high + 0.06 * (high - low) + 1e-3)
    axes.axhline(0, color="black", linewidth=0.6, zorder=1)


def _log_weights(axes, rows: list[list]) -> None:
    """Draw weights as the bias that would give the same weights: their logarithm, relative to the largest."""
    largest = max(value for row in rows for value in row if value)
    _bias_curves(axes, [[None if not value else math.log(value / largest) for value in row] for row in rows])


def _layer_bars(axes, numbers: dict) -> None:
    """Draw a bar for each transformer layer, as long as the number of keys that the last query sees."""
    colours = dict(zip(sorted({layer["name"] for layer in numbers["layers"]}, reverse=True), OKABE_ITO, strict=False))
    for layer in numbers["layers"]:
        seen = sum(value is not None for value in layer["distance"])
        for number in layer["numbers"]:
            axes.barh(number, seen, height=0.72, color=colours[layer["name"]], alpha=0.75, linewidth=0)
            inside = seen == LENGTH
            style = {"ha": "right" if inside else "left", "va": "center", "fontsize": 7.2, "zorder": 5}
            if not inside:
                style["bbox"] = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
            axes.annotate(layer["name"], (seen, number), xytext=(-3 if inside else 3, 0), textcoords="offset points", **style)
    axes.set_ylim(-0.7, sum(len(layer["numbers"]) for layer in numbers["layers"]) - 0.3)


def _no_position(axes) -> None:
    axes.set_ylim(-1, 1)
    axes.axhline(0, color=OKABE_ITO[0], linewidth=1.6)
    axes.annotate("every key alike", (0.63 * LENGTH, 0), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=7.6, color=GREY)


def _ground(axes) -> None:
    axes.axhspan(0, SHAPE.train_len - 1, color=draws.TRAINED, linewidth=0, zorder=0)
    axes.plot([0, LENGTH], [0, LENGTH], color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    axes.set_ylim(0, LENGTH)


def _seen_distances(axes, numbers: dict) -> None:
    """Draw the distance at which three pairs see each key: its angle divided by the pair's frequency in training."""
    _ground(axes)
    before = torch.tensor(numbers["spectrum_before"])
    speed_F = torch.tensor(numbers["spectrum"]) / before
    middle = int((before * SHAPE.train_len / (2 * torch.pi) - TURNS).abs().argmin())
    for pair, (colour, width) in zip((0, middle, -1), PENS, strict=True):
        seen = [one if one is None else one * float(speed_F[pair]) for one in numbers["distance"]]
        draws.line(axes, seen, colour, width=width)


def _table_rows(axes, numbers: dict) -> None:
    _ground(axes)
    draws.line(axes, numbers["table_rows"] or numbers["coordinates"] or numbers["distance"], OKABE_ITO[1])


def _scale_tile(name: str, encoding: str, numbers: dict) -> Tile:
    factors = torch.as_tensor(numbers["logit_scale"], dtype=torch.float64)
    does = [f"x{factors[..., 0].mean():.2f}"] if factors.ndim == 1 and factors.unique().numel() == 1 and factors[0] != 1 else []
    if not does and (factors != 1).any():
        does = ["by keys, learned" if factors.ndim == 2 else "by keys"]
    if numbers["distance_rule"]:
        does.append("by distance")
    if numbers["sink"]:
        does.append("a sink")
    words = ", ".join(does) or "no change"
    return Tile(name, words if encoding == "rope" else f"{words} ({encoding})", lambda axes: _scale_factors(axes, factors, numbers))


def _scale_factors(axes, factors: torch.Tensor, numbers: dict) -> None:
    axes.axhline(1, color="black", linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    for rule in numbers["distance_rule"] or ():
        axes.plot(rule["at"], rule["factor"], color=draws.BLUE, linewidth=1.8, zorder=3)
        axes.plot(rule["at"], torch.as_tensor(rule["addend"]).exp(), color=draws.ORANGE, linewidth=1.8, zorder=3)
    if not numbers["distance_rule"]:
        for factor_T in factors.unique(dim=0) if factors.ndim == 2 else [factors]:
            draws.line(axes, factor_T.tolist(), draws.BLUE, width=1.8)
    if numbers["sink"]:
        keys_T = torch.arange(1, LENGTH + 1)
        for logit in sorted(set(numbers["sink"])):
            axes.plot(keys_T - 1, keys_T / (keys_T + torch.tensor(logit).exp()), color=draws.ORANGE, linewidth=1.8, zorder=3)
    axes.set_ylim(0, TOP)
