"""Parts shared by the figures: colours and sizes, the frame, axes, and the writing of files."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from posbench.common.files import atomic_path

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# of numbers of others; none is a colour of a method of posbench
FOREIGN_COLOURS = ("#7f7f7f", "#8c510a", "#7b5fc9", "#7a8b00", "#4f9d9d")
GAIN_COLOUR, FAIL_COLOUR = OKABE_ITO[2], OKABE_ITO[1]  # below the floor, above it
DASHES = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.4)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1.2)),
    (0, (8, 2, 1, 2, 1, 2)),
    (0, (2, 2.5)),
)
MARKERS = ("o", "D", "s", "^", "v", "P", "X")
INKS = ("#484848", "#1a1a1a", "#000000")  # the first is for undecided differences
LEAST_CONTRAST = 4.5  # least contrast of a text to its ground
NO_VALUE_COLOUR = "#ececec"  # a cell of a map without a value
HATCH, HATCHING = "////", "#9a9a9a"  # of a cell that was not measured, and their colour
GREY, RULE_COLOUR = "#5a5a5a", "#e6e6e6"
FONT_SIZE = 8.5
LINE_SPACING = 1.35  # height of a line of a caption, in fonts
MOST_CURVES_IN_PANEL = 6  # curves that share one panel at most
LEAST_METHODS = 3  # methods, from which there are a heat map and a plot of differences
# the loss of the first positions, up to this part of the training length, is high in every model
# and would flatten the rest
EARLY_DIVISOR = 8
LINEAR_UP_TO = 0.1  # nats/token at which the scale of differences becomes logarithmic
BROKEN_FROM = 4.0  # nats/token above the floor at which a model knows nothing
# shares of the linear red, green and blue in a luminance
LUMINANCE_WEIGHTS = (0.2126, 0.7152, 0.0722)
# linear red, green and blue to cones, and cube roots of cones to OKLab
TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
HALVINGS = 20  # of a range of shares, in a search
DIFFERENCE_TICKS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16)

FORMATS = {  # file formats, with what gives equal bytes for equal figures
    "png": {"dpi": 160, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
TIGHT = {"bbox_inches": "tight", "pad_inches": 0.15, "facecolor": "white"}


def write_figure(
    figure,
    stem: Path,
    formats: Iterable[str] = ("png", "svg"),
    how: Mapping[str, object] = TIGHT,
    fonts: str = "path",
) -> list[Path]:
    """Write a figure in these formats, and return their paths.

    `fonts="none"` keeps the text of an svg as text.
    """
    import matplotlib

    written = []
    # A fixed salt makes equal files; fonts of type 42 are text that can be searched and edited.
    rc = {"svg.hashsalt": "posbench", "svg.fonttype": fonts, "pdf.fonttype": 42}
    for file_format in formats:
        # with_suffix would replace .v2 in rope.v2
        path = stem.with_name(f"{stem.name}.{file_format}")
        with atomic_path(path) as temporary, matplotlib.rc_context(rc):
            figure.savefig(temporary, **FORMATS[file_format] | how)
        written.append(path)
    return written


class Frame:
    """Figure of `width` points, with `height` points (1/72 inch) below its title."""

    def __init__(self, title: str, width: float, height: float):
        from matplotlib.figure import Figure

        # A letter of the title is about 8 points wide, a line of it 18 high; 72 are an inch.
        titles = textwrap.wrap(title, max(30, int(width / 8)))
        self.title_height = 18 * len(titles)
        self.width = width
        self.height = self.title_height + height
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), layout=None)
        self.figure.text(0, 1, "\n".join(titles), fontsize=13, fontweight="bold", va="top")

    def axes(self, left: float, top: float, width: float, height: float):
        """Axes whose upper left corner is `left` and `top` points from that below the title."""
        bottom = 1 - (self.title_height + top + height) / self.height
        return self.figure.add_axes(
            [left / self.width, bottom, width / self.width, height / self.height]
        )

    def caption(self, lines: Iterable[str], up: float = 0, least: int = 0) -> None:
        """Write the caption from `up` points above the lower edge down; a saved figure grows by it.

        Its lines are as wide as the figure, or `least` characters."""
        characters = max(least, int(self.width / 3.9))  # a letter is about 3.9 points wide
        wrapped = [part for line in lines for part in textwrap.wrap(line, characters)]
        style = {"fontsize": 7.8, "color": GREY, "linespacing": LINE_SPACING, "va": "top"}
        self.figure.text(0, up / self.height, "\n".join(wrapped), **style)


def write_note(
    axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: object
) -> None:
    """Write a text `offset` points from a place of the axes, outside of them as well."""
    axes.annotate(
        text, at, xytext=offset, textcoords="offset points", annotation_clip=False, **style
    )


def set_up_octaves_x(
    axes, lengths: Sequence[int], train_len: int | None = None, label: str = ""
) -> None:
    """Set up an x axis of octaves with ticks at `lengths`, a line at `train_len`, and rules."""
    axes.set_xlabel(label, fontsize=FONT_SIZE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, map(str, lengths))
    axes.set_xticks([], minor=True)
    if train_len is not None:
        axes.axvline(train_len, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    draw_rules(axes)


def set_up_floor_y(axes, bottom: float, top: float) -> None:
    """Set up a y axis of differences: linear to LINEAR_UP_TO, logarithmic beyond, and green below
    zero.
    """
    # The linear part is as tall as 1.3 decades on either side of zero.
    axes.set_yscale("symlog", linthresh=LINEAR_UP_TO, linscale=1.3)
    axes.set_yticks(*difference_ticks(bottom, top))
    axes.set_yticks([], minor=True)
    axes.axhspan(bottom, 0, color=GAIN_COLOUR, alpha=0.07, linewidth=0, zorder=0)
    axes.axhline(0, color="black", linewidth=0.9, zorder=1)


def set_up_difference_y(axes, values: Iterable[float]) -> None:
    """Set up a y axis that holds `values` and zero: linear to LINEAR_UP_TO, logarithmic beyond."""
    values = list(values)
    # At least this much is shown below and above zero, more above, where most differences are.
    # 1.15: room for markers at the ends.
    low = 1.15 * min([-LINEAR_UP_TO / 4, *values])
    high = 1.15 * max([LINEAR_UP_TO / 2, *values])
    # The linear part is as tall as 1.2 decades on either side of zero.
    axes.set_yscale("symlog", linthresh=LINEAR_UP_TO, linscale=1.2)
    axes.set_ylim(low, high)
    axes.set_yticks(*difference_ticks(low, high))
    axes.set_yticks([], minor=True)


def draw_rules(axes) -> None:
    """Draw horizontal rules behind everything, small labels, and only two sides of the frame."""
    axes.tick_params(labelsize=FONT_SIZE, color=GREY)
    axes.grid(axis="y", color=RULE_COLOUR, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def difference_ticks(
    low: float, high: float, sizes: Iterable[float] = DIFFERENCE_TICKS
) -> tuple[list[float], list[str]]:
    """Ticks of a scale of differences from `low` to `high`, and their labels.

    >>> difference_ticks(-0.06, 0.3, (0, 0.05, 0.2, 1))
    ([-0.05, 0, 0.05, 0.2], ['-0.05', '0', '+0.05', '+0.2'])
    """
    values = sorted({sign * size for size in sizes for sign in (1, -1)})
    places = [value for value in values if low <= value <= high]
    return places, [f"{place:+g}" if place else "0" for place in places]


def draw_cell(
    axes,
    place: int,
    line: int,
    ground: object,
    text: str,
    inks: Sequence[str],
    border: float = 0.5,
    size: float = 7.4,
) -> None:
    """Draw a cell of a map, with a text that can be read on its ground."""
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((place, line), 1, 1, facecolor=ground, edgecolor="white", linewidth=border)
    )
    style = {"ha": "center", "va": "center", "fontsize": size, "color": legible_ink(ground, inks)}
    axes.text(place + 0.5, line + 0.52, text, **style)  # 0.52: digits look centred a little lower


def draw_unmeasured(axes, place: float, line: float, border: float = 0.5) -> None:
    """Draw a cell of a map that was not measured: hatched, so that nobody takes it for a zero."""
    from matplotlib.patches import Rectangle

    cell = (place, line), 1, 1
    axes.add_patch(Rectangle(*cell, facecolor=NO_VALUE_COLOUR, edgecolor="none"))
    axes.add_patch(
        Rectangle(*cell, fill=False, hatch=HATCH, edgecolor=HATCHING, linewidth=0, clip_on=True)
    )
    axes.add_patch(Rectangle(*cell, fill=False, edgecolor="white", linewidth=border))


def legible_ink(ground: object, inks: Sequence[str]) -> str:
    """First ink with contrast LEAST_CONTRAST (4.5 to 1, as in WCAG 2) to a ground, else the best
    ink.

    The ground is any colour of matplotlib.
    """
    of_ground = luminance(ground)

    def contrast(ink: str) -> float:
        low, high = sorted((of_ground, luminance(ink)))
        return (high + 0.05) / (low + 0.05)

    return next((ink for ink in inks if contrast(ink) >= LEAST_CONTRAST), max(inks, key=contrast))


def colour_distance(first: str, second: str) -> float:
    """Distance of two colours in OKLab (Ottosson 2020); 0.02 is just visible.

    >>> round(colour_distance("#000000", "#ffffff"), 2)
    1.0
    """
    return math.dist(_oklab(first), _oklab(second))


def _oklab(colour: str) -> tuple[float, ...]:
    """Colour in OKLab, where distances are those that are seen: lightness and two axes of hue."""
    from matplotlib.colors import to_rgb

    linear = [_linear_light(value) for value in to_rgb(colour)]
    cones = [
        math.cbrt(sum(weight * value for weight, value in zip(row, linear, strict=True)))
        for row in TO_CONES
    ]
    return tuple(
        sum(weight * cone for weight, cone in zip(row, cones, strict=True)) for row in TO_OKLAB
    )


def with_luminance(colour: str, target: float) -> str:
    """Colour of the same hue with a relative luminance: mixed with black, or with white.

    >>> with_luminance("#0072B2", 0.05)
    '#004368'
    """
    from matplotlib.colors import to_hex, to_rgb

    end = 0.0 if target < luminance(colour) else 1.0
    rgb = to_rgb(colour)
    low, high = 0.0, 1.0  # shares of black or white
    for _ in range(HALVINGS):
        share = (low + high) / 2
        mixed = tuple(part + share * (end - part) for part in rgb)
        too_light = luminance(mixed) > target
        needs_more = too_light if end == 0.0 else not too_light
        if needs_more:
            low = share
        else:
            high = share
    return to_hex(mixed)


def luminance(colour: object) -> float:
    """Relative luminance of a colour, as WCAG 2 defines it."""
    from matplotlib.colors import to_rgb

    linear = [_linear_light(value) for value in to_rgb(colour)]
    return sum(weight * value for weight, value in zip(LUMINANCE_WEIGHTS, linear, strict=True))


def _linear_light(value: float) -> float:
    """Linear light of a value of sRGB."""
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
