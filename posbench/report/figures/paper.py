"""Layout of figures of a given width: as many panels beside one another as the names of their lines
leave room for.
"""

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from posbench.common.errors import ConfigError
from posbench.report.figures.lines import (
    BELOW,
    BETWEEN,
    LABEL,
    LEADER,
    LEFT,
    Panel,
    beyond_top,
    draw,
    gutters,
    headroom,
    names_at_the_end,
    width,
)
from posbench.report.figures.loss_curves import dodge, limits
from posbench.report.figures.style import FONT, GREY, RULE, floor_axis, note, octaves, ruled

SIZES = {
    "column": (237.6, None),
    "page": (496.8, None),
    "slide": (480.0, 270.0),
}  # points; a slide is shown twice as large
LEAST, LOWEST, MOST, NAMES = (
    72,
    70,
    4,
    0.42,
)  # points of a panel's width and height; columns; share of the width for names
TITLE, NOTE, MARGIN = (
    9.6,
    7.5,
    5,
)  # sizes of headings and of notes; points beside the first and the last mark
SHAPE, TALL = 0.72, (110, 190)  # height of a panel by its width, and its ends in points
FEW, MANY = (
    10,
    12,
)  # places on x that all have a tick; places above which what lies beyond the axis is printed
COLOURED = ("color", "markerfacecolor", "markeredgecolor", "edgecolor", "facecolor")
LIGHT = 0.93  # what black becomes on a dark ground; white becomes 0.13
SCALE = "y axis: linear to 0.1, logarithmic beyond"  # floor_axis
DECADE = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8),
)  # ticks, fewer first


@dataclass(frozen=True)
class AxesSpec:
    """Both axes of all panels: names, which are logarithmic, ends, and the value that divides gain
    from loss.

    `bent`: y has both signs, so its logarithm is linear around zero. `multiple`: x counts training
    lengths, not tokens."""

    x: str
    y: str
    log: frozenset[str]
    ylim: tuple[float, float]
    level: float | None
    bent: bool
    xlim: tuple[float | None, float | None]
    multiple: bool

    def text(self, x: float) -> str:
        return f"{x:.10g}" + "x" * self.multiple


def lay_out(contents: Sequence[Panel], axes: AxesSpec, size: str, title: str = ""):
    """Figure as wide as `size` says. Raises ConfigError where names leave no room for their
    lines.
    """
    across, down = SIZES[size]
    contents, columns, wide = _layout(contents, across, size)
    panels = [
        _panel(content, axes, wide, index % columns == 0) for index, content in enumerate(contents)
    ]
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    tall = min(max(SHAPE * wide, TALL[0]), TALL[1])
    if down is not None:
        above = 18 * len(textwrap.wrap(title, max(30, int(across / 8)))) + sum(map(headroom, rows))
        tall = (down - above) / len(rows) - BELOW
        if tall < LOWEST:
            raise ConfigError(
                f"size={size} has no room for {len(panels)} panels: choose among lines, or another"
                " panel or size."
            )
    made = draw(title, rows, [], wide, tall)
    made.texts[0].set(
        position=(4 / across, 1 - 3 / (72 * made.get_figheight())),
        fontsize=13 if columns * wide > 200 else 11,
    )  # the title
    return made


def _layout(contents: Sequence[Panel], across: float, size: str) -> tuple[list[Panel], int, float]:
    """Contents with names in lines that fit, the number of columns, and the width of a panel."""
    for most in range(min(len(contents), MOST), 0, -1):
        columns = math.ceil(len(contents) / math.ceil(len(contents) / most))
        limit = NAMES * (across - LEFT) / columns - LEADER
        narrow, wider = (
            [
                replace(
                    one, lines=[replace(line, name=wrap_name(line.name, at)) for line in one.lines]
                )
                for one in contents
            ]
            for at in (limit, 2 * limit)
        )
        for named in (narrow, _at_row_ends(wider, columns)):
            room = gutters(
                [named[start : start + columns] for start in range(0, len(named), columns)]
            )
            wide = (across - LEFT + BETWEEN - sum(room)) / columns - BETWEEN
            if wide >= LEAST:
                headings = [
                    wrap_name(one.title, wide + room[index % columns], TITLE)
                    for index, one in enumerate(named)
                ]
                return (
                    [
                        replace(one, title=heading)
                        for one, heading in zip(named, headings, strict=True)
                    ],
                    columns,
                    wide,
                )
    longest = max((line.name for one in contents for line in one.lines), key=width)
    raise ConfigError(
        f"size={size} has no room for a line beside the name {longest}: shorten it with"
        " labels.NAME=, or choose another size."
    )


def _at_row_ends(named: list[Panel], columns: int) -> list[Panel]:
    """Panels in rows of so many columns, as `names_at_the_end` has them."""
    rows = [
        names_at_the_end(named[start : start + columns]) for start in range(0, len(named), columns)
    ]
    return list(itertools.chain.from_iterable(rows))


def wrap_name(name: str, limit: float, size: float = LABEL) -> str:
    """Name in lines of at most `limit` points, as far as its words allow; a + stays with the word
    behind it.
    """
    lines = [""]
    for word in name.replace(" + ", " +\N{NO-BREAK SPACE}").split(" "):
        longer = f"{lines[-1]} {word}".strip()
        lines = (
            [*lines[:-1], longer]
            if width(longer, size) <= limit or not lines[-1]
            else [*lines, word]
        )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def _panel(content: Panel, axes: AxesSpec, wide: float, left: bool) -> Panel:
    marks = [mark for line in content.lines for mark in line.marks]
    xs = sorted({mark.x for mark in marks})
    low, high = min(xs[0], *content.trained), max(xs[-1], *content.trained)
    barred = len(content.lines) * any(mark.low is not None for mark in marks)
    beside = dict.fromkeys(xs, 0.0)
    if "x" in axes.log:
        span = math.log2(high / low) + 0.5
        beside = dodge(xs, barred, span, wide)
        aside = 2 ** (0.5 * max(beside[xs[0]], beside[xs[-1]]) + MARGIN * span / wide)
        low, high = low / aside, high * aside
    else:
        low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)
    low, high = (
        end if given is None else given for given, end in zip(axes.xlim, (low, high), strict=True)
    )
    inside, (bottom, top) = [x for x in xs if low <= x <= high] or xs, axes.ylim

    def scales(drawn) -> None:
        ruled(drawn)
        places = (
            _ticks(inside, axes.text, (low, high), wide) if "x" in axes.log else _round(low, high)
        )
        if "x" in axes.log:
            octaves(drawn, places)
        drawn.set_xticks(places, list(map(axes.text, places)))
        drawn.set_xlim(low, high)
        for train_len in content.trained:
            drawn.axvline(train_len, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        if axes.bent and "y" in axes.log:
            floor_axis(drawn, bottom, top)
            drawn.set_ylim(bottom, top)
            places = _clear(drawn, drawn.get_yticks())
        else:
            drawn.set_yscale("log" if "y" in axes.log else "linear")
            places = _decades(bottom, top) if "y" in axes.log else _round(bottom, top)
            if axes.level is not None:
                drawn.axhline(axes.level, color="black", linewidth=0.9, zorder=1)
        drawn.set_yticks(
            places, [f"{place:{'+' if axes.bent and place else ''}.10g}" for place in places]
        )
        drawn.set_yticks([], minor=True)
        drawn.set_ylim(bottom, top)
        drawn.set_xlabel(axes.x, fontsize=FONT)
        room = _tall(drawn) + BELOW
        drawn.set_ylabel(
            axes.y if left else "", fontsize=FONT * min(1, room / max(1, width(axes.y, FONT)))
        )
        if left and axes.bent and "y" in axes.log:
            note(
                drawn,
                SCALE,
                (0, 0),
                (-24, -38),
                xycoords="axes fraction",
                fontsize=NOTE - 0.5,
                color=GREY,
            )
        if not axes.multiple and len(content.trained) == 1:
            _note(drawn, f"trained at {content.trained[0]:.10g}", content, wide)

    beyond = beyond_top(content.lines, top, inside) if len(xs) <= MANY else {}
    return replace(content, scales=scales, dodge=beside, beyond=beyond, signed=axes.level == 0)


def _note(drawn, text: str, content: Panel, wide: float) -> None:
    """Write a text beside the training length, at the bottom or the top, right or left of it, where
    no line passes; else nowhere.
    """
    (train_len,), tall, across, high = (
        content.trained,
        _tall(drawn),
        width(text, NOTE) + 8,
        NOTE + 8,
    )
    place = (drawn.transScale + drawn.transLimits).transform
    at = wide * place((train_len, drawn.get_ylim()[1]))[0]
    passed = []
    for line in content.lines:
        ends = [(wide * x, tall * y) for x, y in place([(mark.x, mark.y) for mark in line.marks])]
        passed += [
            (a + n / 20 * (c - a), b + n / 20 * (d - b))
            for (a, b), (c, d) in itertools.pairwise(ends)
            for n in range(21)
        ] or ends
    for up, right in ((False, True), (False, False), (True, True), (True, False)):
        left, low = (at if right else at - across), (tall - high if up else 0)
        if (
            left >= 0
            and left + across <= wide
            and not any(left <= x <= left + across and low <= y <= low + high for x, y in passed)
        ):
            style = {
                "ha": "left" if right else "right",
                "va": "top" if up else "bottom",
                "fontsize": NOTE,
                "color": GREY,
            }
            note(
                drawn,
                text,
                (train_len, up),
                (4 if right else -4, -4 if up else 4),
                xycoords=drawn.get_xaxis_transform(),
                **style,
            )
            return


def _tall(drawn) -> float:
    """Height of axes in points."""
    return drawn.get_position().height * drawn.figure.get_figheight() * 72


def y_ends(
    values: Sequence[float], level: float | None, bent: bool, log: bool
) -> tuple[float, float]:
    """Ends of the y axis: those of a report's figure where that is of both signs and logarithmic,
    else all values.
    """
    if bent and log:
        return limits(values, relative=True)
    values = [*values, *([] if level is None else [level])]
    low, high = min(values), max(values)
    if log and low > 0:
        margin = max((high / low) ** 0.06, 1.02)
        return low / margin, high * margin
    margin = 0.06 * ((high - low) or 0.1)
    return low - margin, high + margin


def _ticks(
    xs: Sequence[float], text: Callable[[float], str], xlim: tuple[float, float], wide: float
) -> list[float]:
    """Places of ticks on octaves `wide` points wide: all x if they are few, else the powers of two,
    or as many as their texts have room.
    """
    places = list(xs)
    if len(places) > FEW:
        places = [
            2.0**power
            for power in range(math.ceil(math.log2(xlim[0])), math.floor(math.log2(xlim[1])) + 1)
        ]
    for step in range(1, len(places)):
        kept = places[::step]
        at = [wide * math.log2(one / xlim[0]) / math.log2(xlim[1] / xlim[0]) for one in kept]
        half = [width(text(one), FONT) / 2 + 2 for one in kept]
        if all(b - a >= x + y for (a, x), (b, y) in itertools.pairwise(zip(at, half, strict=True))):
            return kept
    return places[:1]


def _clear(drawn, places: Sequence[float]) -> list[float]:
    """Places on y whose texts do not touch, from zero outwards; others where there is none but
    zero.
    """
    tall, (bottom, top) = _tall(drawn), drawn.get_ylim()
    places = places if len(places) > 1 else _round(bottom, top)
    height = (drawn.transScale + drawn.transLimits).transform
    kept: list[float] = []
    for place in sorted(places, key=abs):
        at = tall * height((1.0, place))[1]
        if all(abs(at - tall * height((1.0, other))[1]) >= FONT + 1 for other in kept):
            kept.append(place)
    return sorted(kept)


def _decades(bottom: float, top: float) -> list[float]:
    """Round values between two ends of a logarithmic axis, at least three where there are so
    many.
    """
    powers = [
        10.0**power
        for power in range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
    ]
    for steps in DECADE:
        places = [
            step * power for power in powers for step in steps if bottom <= step * power <= top
        ]
        if len(places) >= 3:
            return places[:: math.ceil(len(places) / FEW)]
    return _round(bottom, top)


def _round(bottom: float, top: float) -> list[float]:
    """Few round values between two ends, at equal distances."""
    from matplotlib.ticker import MaxNLocator

    return [
        float(place)
        for place in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(bottom, top)
        if bottom <= place <= top
    ]


def darken(figure) -> None:
    """Put a figure on a dark ground: white becomes dark, greys are inverted, colours a quarter
    lighter.
    """
    from matplotlib.colors import to_rgba

    def inverted(colour: object) -> tuple[float, ...]:
        *rgb, alpha = to_rgba(colour)
        return (
            (*[LIGHT - 0.8 * rgb[0]] * 3, alpha)
            if max(rgb) - min(rgb) < 0.05
            else (*(0.75 * one + 0.25 for one in rgb), alpha)
        )

    for artist in figure.findobj(
        lambda one: not hasattr(one, "patch")
    ):  # figures and axes are coloured by their patches
        kinds = [
            kind
            for kind in COLOURED
            if hasattr(artist, f"set_{kind}") and hasattr(artist, f"get_{kind}")
        ]
        for kind, colour in [(kind, getattr(artist, f"get_{kind}")()) for kind in kinds]:
            many = getattr(colour, "ndim", 1) == 2
            getattr(artist, f"set_{kind}")(
                [inverted(one) for one in colour] if many else inverted(colour)
            )
    for axes in figure.axes:  # whose ticks may be made again
        axes.tick_params(
            color=inverted(GREY), labelcolor=inverted("black"), grid_color=inverted(RULE)
        )
