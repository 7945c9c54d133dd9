"""One sheet with every method of configs/: encodings above, then extensions, then scales, small
multiples on one grid.

Letters: D pictured channels, H heads, K keys, T tokens.
"""

import math
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.nn.functional import pad

from posbench.common.errors import ConfigError
from posbench.config.names import shipped_yamls
from posbench.model.build import seeded
from posbench.position.geometry import Bias, Shape
from posbench.position.instantiate import make_method
from posbench.position.legality import verdict_of
from posbench.report.figures.style import GREY, OKABE_ITO, write_note
from posbench.tools.anatomy.dissect import Anatomy, dissect
from posbench.tools.anatomy.figure import (
    BLUE,
    HIDDEN_COLOUR,
    ORANGE,
    TRAINED_COLOUR,
    draw_heads,
    draw_heat_map,
    draw_line,
)
from posbench.tools.anatomy.query_view import channel_scores

SHAPE = Shape(d_model=256, n_layer=4, n_head=4, n_kv_head=4, train_len=64)
LENGTH = 4 * SHAPE.train_len
POSITION_TICKS = [0, SHAPE.train_len, LENGTH // 2, LENGTH]  # ticks
# Turns in training of the pair drawn between the fastest and the slowest, where extensions differ
# most.
TURNS_OF_MIDDLE_PAIR = 2
PAIR_PENS = ((OKABE_ITO[5], 5.0), (ORANGE, 2.8), ("black", 1.0))
LARGEST_FACTOR = 3.0  # largest factor drawn of a scale
LOWEST_BIAS = -8.0  # nats: the lowest bias drawn, since a weight times e^-8 is nearly nothing
ONLY_CURVE_WIDTH = 1.8  # points: width of the one curve of a tile
DOTTED = (0, (1, 2))

# Layout in inches.
TILES_IN_LINE = 6  # tiles in a line
# side of a tile, space right of it, height of a line of tiles
TILE_SIDE, TILE_GAP, LINE_HEIGHT = (
    1.42,
    0.28,
    2.12,
)
TILE_HEAD_HEIGHT = 0.36  # name and words above a tile
LEFT, INDENT, BELOW = 0.45, 0.1, 0.1  # left of the tiles and of texts, below the last line
HEADING_DOWN, TEXT_DOWN = 0.2, 0.4  # from the upper edge of a section to its heading and its text
LETTERS_PER_INCH = 15  # characters of a text in an inch
ENCODINGS_TEXT = (
    "x: tokens between query and key, or the position where something is added to embeddings, to"
    f" {LENGTH}; dashed: the training length {SHAPE.train_len}. Colours: what each pair of channels"
    " (each channel) says of it, from blue -1 to orange +1. Curves: what is added to the score of"
    f" a head, down to {LOWEST_BIAS:.0f} nats; learned numbers as they start. Where it depends on"
    " content: gates of a token of zeros, and the logarithm of the weights where all content"
    " scores are 0. 1 of 4: layers with attention."
)
EXTENSIONS_TEXT = (
    f"y: how far a key seems, x: how far it is, to {LENGTH} tokens, trained at {SHAPE.train_len}"
    f" (dashed): for the fastest pair of channels of RoPE (blue), one that turned about"
    f" {TURNS_OF_MIDDLE_PAIR} times in training (orange) and the slowest (black). Green: what"
    " training held. Dotted: no extension. Where there is no line or dot keys are not seen. In"
    " grey: what is changed, and the factor on the logits. On a learned table, y is the row read"
    " at position x."
)
SCALES_TEXT = (
    f"Blue: the factor on the logits of the query that sees x keys, to {LENGTH} (scale_invariant:"
    " on those of a key x tokens away); learned numbers as they start. Orange: what is left of a"
    " weight where all content scores are 0, beside a sink, or at distance x against distance 0."
    " Dotted: 1."
)


class Tile(NamedTuple):
    """A method of a group, and its anatomy with an encoding that it acts on."""

    name: str
    encoding: str
    anatomy: Anatomy


class Section(NamedTuple):
    """A group of methods on the sheet."""

    heading: str
    text: str
    tiles: list[Tile]
    y_ticks: list[int]
    head: float  # inches of the heading and the text
    draw: Callable[[Axes, Anatomy], str]  # draws a tile and returns words about it

    @property
    def n_lines(self) -> int:
        """Number of lines of tiles."""
        return -(-len(self.tiles) // TILES_IN_LINE)


def gallery_figure(tiles: dict[str, list[Tile]]) -> Figure:
    """Figure of the three sections: small multiples on one grid. `tiles` are the `tiles_of_group`
    of each group.
    """
    factors = list(range(int(LARGEST_FACTOR) + 1))
    scales = tiles["scale_attention"]
    encodings = tiles["encoding"]
    extensions = tiles["extension"]
    sections = (  # with the ticks of y, and the inches of the heading and the text
        Section("Encodings", ENCODINGS_TEXT, encodings, [], 1.0, _draw_encoding),
        Section("Extensions", EXTENSIONS_TEXT, extensions, POSITION_TICKS, 1.15, _draw_extension),
        Section("Scales of attention", SCALES_TEXT, scales, factors, 1.0, _draw_scale),
    )
    width = LEFT + TILES_IN_LINE * (TILE_SIDE + TILE_GAP)
    heads = sum(section.head for section in sections)
    height = heads + sum(section.n_lines for section in sections) * LINE_HEIGHT + BELOW
    figure = Figure(figsize=(width, height), layout=None)
    top = height
    for section in sections:
        _write_heading(figure, section, top)
        top -= section.head
        _draw_tiles(figure, section, top)
        top -= section.n_lines * LINE_HEIGHT
    return figure


def _write_heading(figure: Figure, section: Section, top: float) -> None:
    """Write heading and text of a section whose upper edge is `top` inches above the lower one."""
    width, height = figure.get_size_inches()
    style = {"fontsize": 14, "fontweight": "bold", "va": "center"}
    figure.text(INDENT / width, (top - HEADING_DOWN) / height, section.heading, **style)
    text = "\n".join(textwrap.wrap(section.text, int(width * LETTERS_PER_INCH)))
    style = {"fontsize": 8.6, "color": GREY, "va": "top", "linespacing": 1.35}
    figure.text(INDENT / width, (top - TEXT_DOWN) / height, text, **style)


def _draw_tiles(figure: Figure, section: Section, top: float) -> None:
    """Draw the tiles of a section from `top` inches above the lower edge downwards."""
    width, height = figure.get_size_inches()
    for index, tile in enumerate(section.tiles):
        line, column = divmod(index, TILES_IN_LINE)
        left = LEFT + column * (TILE_SIDE + TILE_GAP)
        bottom = top - line * LINE_HEIGHT - TILE_SIDE - TILE_HEAD_HEIGHT
        axes = figure.add_axes(
            (left / width, bottom / height, TILE_SIDE / width, TILE_SIDE / height)
        )
        words = section.draw(axes, tile.anatomy)
        if tile.encoding not in ("rope", tile.name):  # most tiles are of rope
            words += f" ({tile.encoding})"
        axes.set_title(tile.name, fontsize=9.4, loc="left", pad=13, color="black")
        axes.text(0, 1.035, words, fontsize=7.6, color=GREY, transform=axes.transAxes)
        axes.set_xlim(0, LENGTH)
        style = {"color": "#333333", "linewidth": 0.8, "linestyle": (0, (4, 3)), "zorder": 4}
        axes.axvline(SHAPE.train_len, **style)
        axes.set_xticks(POSITION_TICKS)
        axes.set_yticks(section.y_ticks if column == 0 else [])
        axes.tick_params(labelsize=7.2, length=2.5, color=GREY)
        axes.spines[:].set_color("#bbbbbb")


def tiles_of_group(group: str) -> list[Tile]:
    """Every method of a group of configs/ with its anatomy, `none` first.

    An encoding that does not reach LENGTH by itself has recompute_window; other methods act on
    RoPE, else on the first encoding they can; one that acts on none is left out."""
    methods = shipped_yamls(group)
    tiles = []
    for name in sorted(methods, key=lambda name: (name != "none", name)):
        tile = _encoding_tile(name) if group == "encoding" else _tile_of_first_change(group, name)
        if tile is not None:
            tiles.append(tile)
    return tiles


def _encoding_tile(name: str) -> Tile | None:
    """An encoding by itself, or with recompute_window, which reads no text beyond training; None
    for one without attention.
    """
    encoding = shipped_yamls("encoding")[name]
    anatomy = _anatomy_of_yamls(encoding)
    if anatomy is None:
        anatomy = _anatomy_of_yamls(
            encoding, extension=shipped_yamls("extension")["recompute_window"]
        )
    return None if anatomy is None else Tile(name, name, anatomy)


def _tile_of_first_change(group: str, name: str) -> Tile | None:
    """An extension or a scale on the first encoding that it changes, RoPE if it can."""
    encodings = shipped_yamls("encoding")
    method = shipped_yamls(group)[name]
    for encoding in ("rope", *encodings):
        anatomy = _anatomy_of_yamls(encodings[encoding], **{group: method})
        if anatomy is not None:
            return Tile(name, encoding, anatomy)
    return None


def _anatomy_of_yamls(
    encoding: dict, extension: dict | None = None, scale_attention: dict | None = None
) -> Anatomy | None:
    """Anatomy of methods from their yamls; None if not defined at LENGTH or of no effect, and for
    an encoding without attention.
    """
    with seeded(0):  # learned numbers begin with a draw
        made_encoding = make_method(encoding, SHAPE)
    if all(layer.encoding.mixes for layer in made_encoding.layers()):
        return None
    made_extension = make_method(extension or shipped_yamls("extension")["none"])
    scale = make_method(scale_attention or shipped_yamls("scale_attention")["none"], SHAPE)
    trained_scale = None
    if scale.trained or scale.sinks:
        # Learned factors and sinks are a part of the training; an evaluation has no scale then.
        trained_scale = scale
        scale = make_method(shipped_yamls("scale_attention")["none"], SHAPE)
    try:
        verdict = verdict_of(made_encoding, made_extension, scale, [LENGTH], allow_untested=True)
    except ConfigError:
        return None
    if verdict.noop:
        return None
    return dissect(made_encoding, made_extension, scale, LENGTH, trained_scale)


def _draw_encoding(axes: Axes, anatomy: Anatomy) -> str:
    """Draw an encoding, and return words about it."""
    words = _draw_scores(axes, anatomy)
    without_attention = len(anatomy.numbers["without_attention"])
    if without_attention:
        words += f", {SHAPE.n_layer - without_attention} of {SHAPE.n_layer}"
    return words


def _draw_scores(axes: Axes, anatomy: Anatomy) -> str:
    """Draw what an encoding says of the keys, and return words about the way it does so."""
    numbers = anatomy.numbers
    view = anatomy.views[0]
    if len(anatomy.views) > 1:
        _draw_layer_bars(axes, numbers["layers"])
        return "layers of two kinds"
    if numbers["coordinates"]:  # only what is added to embeddings has them
        # A learned table may end before LENGTH; behind it the background shows.
        rows_DT = pad(view.added_TC.T, (0, LENGTH - view.length), value=torch.nan)
        axes.set_facecolor(HIDDEN_COLOUR)
        top = float(rows_DT.nan_to_num().abs().quantile(0.98))  # a few outliers pale nothing
        draw_heat_map(axes, range(LENGTH), rows_DT, top)
        return "added to embeddings"
    # Weights of an encoding that mixes scores by itself, with all scores alike (stick-breaking).
    if numbers["even_weights"]:
        _draw_bias_curves(axes, _relative_logarithms(numbers["even_weights"]))
        return "weighs whole rows"
    turned = view.plan.bands[0].q_table is not None
    if numbers["bias"]:
        _draw_bias_curves(axes, numbers["bias"])
        on_scores = view.encoding.biases & (Bias.COLUMNS | Bias.DENSE)
        words = "added to scores" if on_scores else "forget gates"
        return f"{words}, turned" if turned else words
    if turned:
        delta_K = torch.arange(LENGTH)
        rows_DK = channel_scores(view, delta_K)
        draw_heat_map(axes, delta_K, rows_DK)
        axes.set_ylim(-0.5, len(rows_DK) - 0.5)
        return "turns q and k, decays" if numbers["decay"] else "turns q and k"
    axes.set_ylim(-1, 1)
    axes.axhline(0, color=BLUE, linewidth=1.6)
    style = {"ha": "center", "fontsize": 7.6, "color": GREY}
    write_note(axes, "every key alike", (0.63 * LENGTH, 0), (0, 5), **style)
    return "the causal mask alone"


def _relative_logarithms(weights: list[list]) -> list[list]:
    """The bias that would give the same weights: their logarithm, relative to the largest."""
    largest = max(value for row in weights for value in row if value)
    return [[math.log(value / largest) if value else None for value in row] for row in weights]


def _draw_bias_curves(axes: Axes, rows: list[list]) -> None:
    """Draw the bias of each head over distance; None is a key that is not seen."""
    draw_heads(axes, rows, label="")
    values = [value for row in rows for value in row if value is not None]
    low, high = max(min(values), LOWEST_BIAS), max(0.0, *values)
    margin = 0.06 * (high - low) + 1e-3  # some where all are 0
    axes.set_ylim(low - margin, high + margin)
    axes.axhline(0, color="black", linewidth=0.6, zorder=1)


def _draw_layer_bars(axes: Axes, layers: list[dict]) -> None:
    """Draw a bar for each transformer layer, as long as the number of keys that the last query
    sees.
    """
    names = sorted({layer["name"] for layer in layers}, reverse=True)
    colours = dict(zip(names, OKABE_ITO, strict=False))
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    for layer in layers:
        seen = sum(value is not None for value in layer["distance"])
        style = {"va": "center", "fontsize": 7.2, "zorder": 5}
        if seen == LENGTH:  # the name is inside
            style |= {"ha": "right"}
            offset = (-3, 0)
        else:
            style |= {"ha": "left", "bbox": box}
            offset = (3, 0)
        for number in layer["numbers"]:
            colour = colours[layer["name"]]
            axes.barh(number, seen, height=0.72, color=colour, alpha=0.75, linewidth=0)
            write_note(axes, layer["name"], (seen, number), offset, **style)
    axes.set_ylim(-0.7, sum(len(layer["numbers"]) for layer in layers) - 0.3)


def _draw_extension(axes: Axes, anatomy: Anatomy) -> str:
    """Draw the distance at which three pairs see each key (its angle by the frequency in training),
    or the rows of a table.
    """
    numbers = anatomy.numbers
    axes.axhspan(0, SHAPE.train_len - 1, color=TRAINED_COLOUR, linewidth=0, zorder=0)
    axes.plot([0, LENGTH], [0, LENGTH], color=GREY, linewidth=0.8, linestyle=DOTTED, zorder=1)
    axes.set_ylim(0, LENGTH)
    if numbers["encoding"] == "rope":
        trained_F = torch.tensor(numbers["spectrum_before"])
        speed_F = torch.tensor(numbers["spectrum"]) / trained_F
        turns_F = trained_F * SHAPE.train_len / (2 * torch.pi)  # in training, of each pair
        middle = int((turns_F - TURNS_OF_MIDDLE_PAIR).abs().argmin())
        for pair, (colour, width) in zip((0, middle, -1), PAIR_PENS, strict=True):
            speed = float(speed_F[pair])
            seen = [None if value is None else value * speed for value in numbers["distance"]]
            draw_line(axes, seen, colour, width=width)
    else:
        # The rows of a learned table; else positions, of embeddings; else the distance.
        curve = numbers["table_rows"] or numbers["coordinates"] or numbers["distance"]
        draw_line(axes, curve, ORANGE)
    return ", ".join(_extension_words(numbers)) or "no change"


def _extension_words(numbers: dict) -> list[str]:
    """Words for the changes of an extension, such as ["positions", "mask", "x1.2"]."""
    words = []
    if numbers["table_rows"]:
        words.append("table")
    else:
        if numbers["spectrum"] != numbers["spectrum_before"]:
            words.append("frequencies")
        if any(
            value is not None and abs(value - index) > 1e-6
            for index, value in enumerate(numbers["distance"])
        ):
            words.append("positions")
        if None in numbers["distance"]:
            words.append("crop" if numbers["fed"] < numbers["length"] else "mask")
    if numbers["temperature"] != 1:
        words.append(f"x{numbers['temperature']:.2g}")
    return words


def _draw_scale(axes: Axes, anatomy: Anatomy) -> str:
    """Draw the factor on the logits and what a sink or distance leaves, and return words."""
    numbers = anatomy.numbers
    factors = torch.as_tensor(numbers["logit_scale"], dtype=torch.float64)  # [T] or [H, T]
    axes.axhline(1, color="black", linewidth=0.9, linestyle=DOTTED, zorder=1)
    style = {"linewidth": ONLY_CURVE_WIDTH, "zorder": 3}
    for rule in numbers["distance_rule"] or ():
        axes.plot(rule["at"], rule["factor"], color=BLUE, **style)
        # An addend to a logit multiplies its weight by exp.
        axes.plot(rule["at"], torch.as_tensor(rule["addend"]).exp(), color=ORANGE, **style)
    if not numbers["distance_rule"]:
        # Heads with the same factors share a line.
        for factor_T in torch.atleast_2d(factors).unique(dim=0):
            draw_line(axes, factor_T.tolist(), BLUE, width=ONLY_CURVE_WIDTH)
    if numbers["sink"]:
        keys_T = torch.arange(1, LENGTH + 1)
        for logit in sorted(set(numbers["sink"])):
            # The weight of all keys together, if their scores are 0.
            share_T = keys_T / (keys_T + torch.tensor(logit).exp())
            axes.plot(keys_T - 1, share_T, color=ORANGE, **style)
    axes.set_ylim(0, LARGEST_FACTOR)
    return ", ".join(_scale_words(numbers, factors)) or "no change"


def _scale_words(numbers: dict, factors: torch.Tensor) -> list[str]:
    """Words for the changes of a scale, such as ["by keys, learned", "a sink"].

    `factors` are [T], or [H, T] if each head has learned its own.
    """
    words = []
    if factors.ndim == 1 and factors.unique().numel() == 1 and factors[0] != 1:
        words.append(f"x{factors[0]:.2f}")
    elif (factors != 1).any():
        words.append("by keys, learned" if factors.ndim == 2 else "by keys")
    if numbers["distance_rule"]:
        words.append("by distance")
    if numbers["sink"]:
        words.append("a sink")
    return words
