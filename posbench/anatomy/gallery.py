"""One sheet with every method of configs/: encodings above, then extensions, then scales, small multiples on one grid."""

import textwrap
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from posbench.anatomy.gallery_tiles import FLOOR, LENGTH, SHAPE, TOP, TURNS, Tile, encoding_tiles, extension_tiles, scale_tiles
from posbench.report.figures.style import GREY, save

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
