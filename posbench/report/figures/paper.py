"""Layout of figures of a given width: as many columns as the names of lines leave room for."""

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.report.figures.captions import LINEAR, LINEAR_THEN_LOG, LOG, scales_line
from posbench.report.figures.lines import (
    LEADER_WIDTH,
    LEFT_MARGIN,
    MOST_OCTAVES_ASIDE,
    NAME_FONT,
    SPACE_BELOW,
    SPACE_BETWEEN,
    Line,
    Mark,
    Panel,
    draw_panels,
    height_above_row,
    in_rows,
    name_column_widths,
    size_in_points,
    text_width,
    values_beyond_top,
    with_names_in_last_panel,
)
from posbench.report.figures.loss_curves import axis_limits
from posbench.report.figures.style import (
    FONT_SIZE,
    GREY,
    LINE_SPACING,
    RULE_COLOUR,
    draw_rules,
    luminance,
    set_up_floor_y,
    set_up_octaves_x,
    with_luminance,
    write_note,
)

# {size: (width, height)} in points; None for what the panels take. A slide is shown twice as large
SIZES = {"column": (237.6, None), "page": (496.8, None), "slide": (480.0, 270.0)}
LEAST_PANEL_WIDTH, LEAST_PANEL_HEIGHT = 72, 70  # points: least width and height of a panel
MOST_COLUMNS = 4  # columns of panels
NAMES_SHARE = 0.42  # share of the width that names of lines may take
HEADING_FONT, NOTE_FONT = 9.6, 7.5  # sizes of headings and of notes
MARK_MARGIN = 5  # points beside the first and the last mark
# height of a panel by its width, and its ends in points
HEIGHT_BY_WIDTH, HEIGHT_RANGE = 0.72, (110, 190)
MOST_TICKS = 10  # places on x that all have a tick
MOST_X_WITH_CARETS = 12  # places on x above which what lies beyond the y axis is not printed
MOST_BARS_SHARE = 0.4  # of the values, for bars beyond them
PIECES_OF_LINE = 20  # of a line between two marks, in a search for a free place
COLOUR_PROPERTIES = ("color", "markerfacecolor", "markeredgecolor", "edgecolor", "facecolor")
LEAST_LUMINANCE = 0.15  # least luminance of a colour on a dark ground: a contrast of 3
LIGHT_GREY = 0.93  # what black becomes on a dark ground; white becomes 0.13
FOOTNOTE_MARGIN, FOOTNOTE_FONT = 4, 6.8  # points below and beside a footnote, and its font
# ticks within a decade, fewer first
TICKS_IN_DECADE = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8),
)


@dataclass(frozen=True)
class AxesSpec:
    """Both axes of all panels: names, which are logarithmic, ends, and what divides gain from loss.

    `both_signs`: y has both signs, so its logarithm is linear around zero. `multiple`: x counts
    training lengths, not tokens."""

    x: str
    y: str
    log: frozenset[str]
    ylim: tuple[float, float]
    level: float | None
    both_signs: bool
    xlim: tuple[float | None, float | None]
    multiple: bool

    @property
    def scales(self) -> str:
        """Sentence on the scales of both axes."""
        y = LINEAR
        if "y" in self.log:
            y = LINEAR_THEN_LOG if self.both_signs else LOG
        return scales_line(LOG if "x" in self.log else LINEAR, y)

    def text(self, x: float) -> str:
        """Text of a tick, such as "512" or "4x"."""
        return f"{x:.10g}x" if self.multiple else f"{x:.10g}"


class Layout(NamedTuple):
    """Panels with names in lines that fit, the number of columns, and the width of a panel."""

    panels: list[Panel]
    columns: int
    width: float


def draw_at_size(
    contents: Sequence[Panel],
    axes: AxesSpec,
    size: str,
    title: str = "",
    footnotes: Sequence[str] = (),
):
    """Figure as wide as `size` says, with `footnotes` at its lower edge.

    Raises ConfigError where names leave no room for their lines.
    """
    across, down = SIZES[size]
    layout = _layout(contents, across, size)
    panels = []
    for index, content in enumerate(layout.panels):
        is_left = index % layout.columns == 0
        panels.append(_panel_with_axes(content, axes, layout.width, is_left))
    rows = in_rows(panels, layout.columns)
    footnote = "\n".join(
        wrap_name(text, across - 2 * FOOTNOTE_MARGIN, FOOTNOTE_FONT) for text in footnotes
    )
    room = 0.0
    if footnote:
        room = FOOTNOTE_MARGIN + (footnote.count("\n") + 1) * FOOTNOTE_FONT * LINE_SPACING
    panel_height = min(max(HEIGHT_BY_WIDTH * layout.width, HEIGHT_RANGE[0]), HEIGHT_RANGE[1])
    if down is not None:
        # as `Frame` does: a letter about 8 points wide, a line 18 high
        titles = textwrap.wrap(title, max(30, int(across / 8)))
        above = 18 * len(titles) + sum(map(height_above_row, rows))
        panel_height = (down - above - room) / len(rows) - SPACE_BELOW
        if panel_height < LEAST_PANEL_HEIGHT:
            raise ConfigError(
                f"size={size} has no room for {len(panels)} panels: choose among lines, or another"
                " panel or size."
            )
    figure = draw_panels(title, rows, [], layout.width, panel_height, room)
    if footnote:
        style = {
            "fontsize": FOOTNOTE_FONT,
            "color": GREY,
            "linespacing": LINE_SPACING,
            "va": "bottom",
        }
        figure.text(
            FOOTNOTE_MARGIN / across,
            FOOTNOTE_MARGIN / (72 * figure.get_figheight()),
            footnote,
            **style,
        )
    # `Frame` puts the title into the very corner, and other figures get a margin when they are
    # saved. A figure of a given size gets none: its title stands 4 points from the left, 3 from
    # the top.
    figure_title = figure.texts[0]
    figure_title.set_position((4 / across, 1 - 3 / (72 * figure.get_figheight())))
    # A line of a title has up to 30 letters even in a narrow figure, too many for size 13.
    is_narrow = layout.columns * layout.width <= 200  # points of the panels
    figure_title.set_fontsize(11 if is_narrow else 13)
    return figure


def _layout(contents: Sequence[Panel], across: float, size: str) -> Layout:
    """Layout with as many columns as there is room for.

    Names stand in short lines beside all panels, or in longer ones at the ends of rows."""
    for most in range(min(len(contents), MOST_COLUMNS), 0, -1):
        # No more columns than fill as many rows: four panels stand two by two, not three and one.
        columns = math.ceil(len(contents) / math.ceil(len(contents) / most))
        limit = NAMES_SHARE * (across - LEFT_MARGIN) / columns - LEADER_WIDTH
        beside_all = _with_wrapped_names(contents, limit)
        # One column of names in a row may be wider than each of several.
        at_ends = _at_row_ends(_with_wrapped_names(contents, 2 * limit), columns)
        for panels in (beside_all, at_ends):
            name_widths = name_column_widths(in_rows(panels, columns))
            wide = (
                across - LEFT_MARGIN + SPACE_BETWEEN - sum(name_widths)
            ) / columns - SPACE_BETWEEN
            if wide < LEAST_PANEL_WIDTH:
                continue
            titled = []
            for index, panel in enumerate(panels):
                room = wide + name_widths[index % columns]
                titled.append(replace(panel, title=wrap_name(panel.title, room, HEADING_FONT)))
            return Layout(titled, columns, wide)
    longest = max((line.name for panel in contents for line in panel.lines), key=text_width)
    raise ConfigError(
        f"size={size} has no room for a line beside the name {longest}: shorten it with"
        " labels.NAME=, or choose another size."
    )


def _with_wrapped_names(panels: Sequence[Panel], limit: float) -> list[Panel]:
    """Panels whose lines have names in lines of at most `limit` points."""

    def wrapped(line: Line) -> Line:
        return replace(line, name=wrap_name(line.name, limit))

    return [replace(panel, lines=list(map(wrapped, panel.lines))) for panel in panels]


def _at_row_ends(panels: list[Panel], columns: int) -> list[Panel]:
    """Panels in rows of so many columns, as `with_names_in_last_panel` has them."""
    rows = map(with_names_in_last_panel, in_rows(panels, columns))
    return list(itertools.chain.from_iterable(rows))


def wrap_name(name: str, limit: float, size: float = NAME_FONT) -> str:
    """Name in lines of at most `limit` points, as far as its words allow.

    A + stays with the word behind it.
    """
    lines = [""]
    for word in name.replace(" + ", " +\N{NO-BREAK SPACE}").split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or text_width(longer, size) <= limit:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def _panel_with_axes(content: Panel, spec: AxesSpec, wide: float, is_left: bool) -> Panel:
    """Panel of contents, with scales, room for intervals and values beyond its top."""
    marks = [mark for line in content.lines for mark in line.marks]
    xs = sorted({mark.x for mark in marks})
    low = min([xs[0], *content.train_lens])
    high = max([xs[-1], *content.train_lens])
    if "x" in spec.log:
        octaves_of_bars = 0.0
        if any(mark.low is not None for mark in marks):
            # Bars side by side take at most that much, half of it on either side of their x.
            octaves_of_bars = 0.5 * MOST_OCTAVES_ASIDE
        span = math.log2(high / low) + 0.5  # octaves of the axis, with about half for its margins
        aside = 2 ** (octaves_of_bars + MARK_MARGIN * span / wide)
        low /= aside
        high *= aside
    else:
        margin = 0.03 * (high - low) or 1.0
        low -= margin
        high += margin
    xlim = (
        low if spec.xlim[0] is None else spec.xlim[0],
        high if spec.xlim[1] is None else spec.xlim[1],
    )
    inside = [x for x in xs if xlim[0] <= x <= xlim[1]] or xs

    def set_up_axes(axes) -> None:
        draw_rules(axes)
        _set_up_x(axes, spec, inside, xlim, wide)
        for train_len in content.train_lens:
            axes.axvline(train_len, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        _set_up_y(axes, spec)
        _name_axes(axes, spec, is_left)
        # x in multiples of the training length has it at 1.
        if not spec.multiple and len(content.train_lens) == 1:
            _write_where_free(axes, f"trained at {content.train_lens[0]:.10g}", content)

    beyond = (
        values_beyond_top(content.lines, spec.ylim[1], inside)
        if len(xs) <= MOST_X_WITH_CARETS
        else {}
    )
    are_differences = spec.level == 0  # a line that equals the reference lies at 0
    return replace(content, set_up_axes=set_up_axes, beyond_top=beyond, signed=are_differences)


def _set_up_x(
    axes, spec: AxesSpec, inside: Sequence[float], xlim: tuple[float, float], wide: float
) -> None:
    """Set up an x axis `wide` points wide; `inside`: values within its ends."""
    if "x" in spec.log:
        places = _x_ticks(inside, spec.text, xlim, wide)
        set_up_octaves_x(axes, places)
    else:
        places = _round_ticks(*xlim)
    axes.set_xticks(places, list(map(spec.text, places)))
    axes.set_xlim(*xlim)


def _set_up_y(axes, spec: AxesSpec) -> None:
    """Set up the y axis: scale, ends, ticks, and a line at the reference level."""
    bottom, top = spec.ylim
    if spec.both_signs and "y" in spec.log:
        set_up_floor_y(axes, bottom, top)  # draws the line, at zero
        axes.set_ylim(bottom, top)  # before ticks are chosen by their distances
        places = _ticks_that_do_not_touch(axes, axes.get_yticks())
    else:
        axes.set_yscale("log" if "y" in spec.log else "linear")
        places = _logarithmic_ticks(bottom, top) if "y" in spec.log else _round_ticks(bottom, top)
        if spec.level is not None:
            axes.axhline(spec.level, color="black", linewidth=0.9, zorder=1)
    texts = [f"{place:+.10g}" if spec.both_signs and place else f"{place:.10g}" for place in places]
    axes.set_yticks(places, texts)
    axes.set_yticks([], minor=True)
    axes.set_ylim(bottom, top)  # last, since ticks beyond an end would move it


def _name_axes(axes, spec: AxesSpec, is_left: bool) -> None:
    """Write the names of the axes, that of y left of the first panel of a row alone."""
    axes.set_xlabel(spec.x, fontsize=FONT_SIZE)
    room = size_in_points(axes)[1] + SPACE_BELOW
    size = FONT_SIZE * min(1, room / max(1, text_width(spec.y, FONT_SIZE)))
    axes.set_ylabel(spec.y if is_left else "", fontsize=size)


def _write_where_free(axes, text: str, content: Panel) -> None:
    """Write a text beside the training length where no line passes; else nowhere.

    Places are tried in the order bottom right, bottom left, top right, top left."""
    axes_width, axes_height = size_in_points(axes)
    (train_len,) = content.train_lens
    note_width = text_width(text, NOTE_FONT) + 8
    note_height = NOTE_FONT + 8
    to_axes = (axes.transScale + axes.transLimits).transform
    at_training = axes_width * to_axes((train_len, axes.get_ylim()[1]))[0]
    passed = []
    for line in content.lines:
        places = to_axes([(mark.x, mark.y) for mark in line.marks])
        passed += _points_along([(axes_width * x, axes_height * y) for x, y in places])
    for at_top, at_right in ((False, True), (False, False), (True, True), (True, False)):
        left = at_training if at_right else at_training - note_width
        low = axes_height - note_height if at_top else 0
        right = left + note_width
        high = low + note_height
        if left < 0 or right > axes_width:
            continue
        if any(left <= x <= right and low <= y <= high for x, y in passed):
            continue
        style = {
            "xycoords": axes.get_xaxis_transform(),
            "ha": "left" if at_right else "right",
            "va": "top" if at_top else "bottom",
            "fontsize": NOTE_FONT,
            "color": GREY,
        }
        offset = (4 if at_right else -4, -4 if at_top else 4)
        edge = 1 if at_top else 0  # share of the height of the axes
        write_note(axes, text, (train_len, edge), offset, **style)
        return


def _points_along(places: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Places on the line through these, PIECES_OF_LINE between each two."""
    if len(places) == 1:
        return places
    return [
        (x + piece / PIECES_OF_LINE * (next_x - x), y + piece / PIECES_OF_LINE * (next_y - y))
        for (x, y), (next_x, next_y) in itertools.pairwise(places)
        for piece in range(PIECES_OF_LINE + 1)
    ]


def y_ends(
    marks: Sequence[Mark], level: float | None, symlog: bool, log: bool
) -> tuple[float, float]:
    """Ends of the y axis around all values and the reference `level`, and around their bars as far
    as `_ends_with_bars` says.

    `symlog`: logarithmic on both sides of a linear part around zero."""
    values = [mark.y for mark in marks]
    if symlog:
        # Differences are drawn as in a report's figure, whose limits leave room for the bars.
        return axis_limits(values, relative=True)
    if level is not None:
        values = [*values, level]
    low, high = _ends_with_bars(values, marks, log)
    # 1.02 and 0.1: a single value has room around it too.
    if log and low > 0:
        margin = max((high / low) ** 0.06, 1.02)
        return low / margin, high * margin
    margin = 0.06 * ((high - low) or 0.1)
    return low - margin, high + margin


def _ends_with_bars(
    values: Sequence[float], marks: Sequence[Mark], log: bool
) -> tuple[float, float]:
    """Ends of values and of their bars. Bars of two seeds can be wider than everything else, so
    they widen the axis by at most MOST_BARS_SHARE of the values on either side.
    """
    low, high = min(values), max(values)
    ends = [low, high]
    for mark in marks:
        ends += [end for end in (mark.low, mark.high) if end is not None]
        ends += mark.seeds.values()
    if log and low > 0:
        room = (high / low) ** MOST_BARS_SHARE
        return max(min(ends), low / room), min(max(ends), high * room)
    room = MOST_BARS_SHARE * (high - low)
    return max(min(ends), low - room), min(max(ends), high + room)


def _x_ticks(
    xs: Sequence[float], text: Callable[[float], str], xlim: tuple[float, float], wide: float
) -> list[float]:
    """Places of ticks on octaves `wide` points wide: all x if they are few, else powers of two.

    There are as many as their texts have room for."""
    low, high = xlim
    places = list(xs)
    if len(places) > MOST_TICKS:
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        places = [2.0**power for power in powers]
    for step in range(1, len(places)):
        chosen = places[::step]
        texts = []  # (middle, half of the width)
        for place in chosen:
            middle = wide * math.log2(place / low) / math.log2(high / low)
            # 2 points: half of the least gap between two texts
            texts.append((middle, text_width(text(place), FONT_SIZE) / 2 + 2))
        if all(
            after - before >= half_before + half_after
            for (before, half_before), (after, half_after) in itertools.pairwise(texts)
        ):
            return chosen
    return places[:1]


def _ticks_that_do_not_touch(axes, places: Sequence[float]) -> list[float]:
    """Places on y whose texts do not touch, from zero outwards.

    Others are taken where there is none but zero."""
    height = size_in_points(axes)[1]
    to_axes = (axes.transScale + axes.transLimits).transform
    if len(places) <= 1:
        places = _round_ticks(*axes.get_ylim())
    clear: list[float] = []
    heights: list[float] = []
    for place in sorted(places, key=abs):
        at = height * to_axes((1.0, place))[1]
        if all(abs(at - other) >= FONT_SIZE + 1 for other in heights):
            clear.append(place)
            heights.append(at)
    return sorted(clear)


def _logarithmic_ticks(bottom: float, top: float) -> list[float]:
    """Round values between two ends of a logarithmic axis, at least three if there are so many."""
    first = math.floor(math.log10(bottom))
    last = math.ceil(math.log10(top))
    powers = [10.0**power for power in range(first, last + 1)]
    for steps in TICKS_IN_DECADE:
        values = [step * power for power in powers for step in steps]
        places = [value for value in values if bottom <= value <= top]
        if len(places) >= 3:
            return places[:: math.ceil(len(places) / MOST_TICKS)]
    return _round_ticks(bottom, top)


def _round_ticks(bottom: float, top: float) -> list[float]:
    """Few round values between two ends, at equal distances."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(bottom, top)
    return [float(value) for value in values if bottom <= value <= top]


def darken(figure) -> None:
    """Put a figure on a dark ground: greys are inverted, colours a quarter lighter."""
    # figures and axes are coloured by their patches
    for artist in figure.findobj(lambda artist: not hasattr(artist, "patch")):
        colours = {}  # {kind: colour}, read before any is set
        for kind in COLOUR_PROPERTIES:
            if hasattr(artist, f"set_{kind}") and hasattr(artist, f"get_{kind}"):
                colours[kind] = getattr(artist, f"get_{kind}")()
        for kind, colour in colours.items():
            is_list = getattr(colour, "ndim", 1) == 2
            inverted = list(map(_colour_on_dark, colour)) if is_list else _colour_on_dark(colour)
            getattr(artist, f"set_{kind}")(inverted)
    # Ticks that matplotlib makes later take their colours from here.
    for axes in figure.axes:
        axes.tick_params(
            color=_colour_on_dark(GREY),
            labelcolor=_colour_on_dark("black"),
            grid_color=_colour_on_dark(RULE_COLOUR),
        )


def _colour_on_dark(colour: object) -> tuple[float, ...]:
    """(red, green, blue, alpha) of a colour on a dark ground."""
    from matplotlib.colors import to_hex, to_rgb, to_rgba

    *rgb, alpha = to_rgba(colour)
    is_grey = max(rgb) - min(rgb) < 0.05  # nearly equal parts
    if is_grey:
        grey = LIGHT_GREY - 0.8 * rgb[0]  # white, 1, becomes as dark as the ground may be: 0.13
        return grey, grey, grey, alpha
    lighter = tuple(0.75 * part + 0.25 for part in rgb)
    if luminance(lighter) < LEAST_LUMINANCE:
        lighter = to_rgb(with_luminance(to_hex(lighter), LEAST_LUMINANCE))
    return *lighter, alpha
