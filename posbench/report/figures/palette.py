"""Looks of methods: one colour in every panel of every report, and a dash if colour alone is not
enough.

There are fewer colours than methods, so some methods share one. Panels of many methods are split so
that none has two of one colour. Lines of one family, such as the extensions of one encoding beside
another one, are shades of one colour: each dash has a shade and a mark of its own, so that they are
told apart in grey as well."""

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from posbench.report.figures.style import (
    DASHES,
    FOREIGN_COLOURS,
    MARKERS,
    OKABE_ITO,
    colour_distance,
    luminance,
    with_luminance,
)
from posbench.report.records import SectionKey, grouped

NAMES_IN_PANEL = 8  # names in a panel
MOST_VARIANTS = 4  # in a divided panel at most so many are one method with different arguments
MOST_PANELS = 12  # panels at most; with more methods, some share a colour in one panel
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = range(len(OKABE_ITO))
# Lightness of CIELAB of the darkest and the lightest shade; a colour may be lighter or darker.
DARKEST, LIGHTEST = 20.0, 66.0
LEAST_COLOUR_DISTANCE = 0.12  # least distance in OKLab of a shade to the colour of another family
VISIBLE_PART = 0.75  # part of viridis that stands out from white
Look = tuple[int, int]  # numbers of a colour and of a dash; solid is 0

# Methods that are often compared have different colours. Any other method gets one by a hash of its
# name.
ENCODING_COLOURS = {
    "rope": BLUE, "as_trained": BLUE, "pope": BLUE, "alibi": VERMILLION, "dape": VERMILLION,
    "fox_rope": VERMILLION, "sinusoidal": GREEN, "xpos": GREEN, "stick_breaking": GREEN,
    "p_rope": PURPLE, "t5": PURPLE, "fope": PURPLE, "fox": ORANGE, "kerple": ORANGE,
    "fire": ORANGE, "hybrid": SKY, "learned": SKY, "sandwich": SKY, "gemma3": SKY,
    "none": BLACK, "randomized": BLACK, "cope": BLACK,
}  # fmt: skip
EXTENSION_LOOKS = {
    "self_extend": (VERMILLION, 1), "window": (VERMILLION, 2), "abf": (VERMILLION, 3),
    "ntk_fixed": (VERMILLION, 4), "compose": (GREEN, 1), "table_linear": (GREEN, 2),
    "yarn": (GREEN, 3), "ntk_mixed": (GREEN, 4), "pi": (PURPLE, 1), "dca": (PURPLE, 2),
    "llama3": (PURPLE, 3), "string": (PURPLE, 5), "table_hierarchical": (ORANGE, 1),
    "rerope": (ORANGE, 2), "dynamic_ntk": (ORANGE, 4), "lm_infinite": (ORANGE, 5),
    "longrope": (SKY, 1), "random_keys": (SKY, 2), "leaky_rerope": (SKY, 3),
    "streaming": (SKY, 5), "recompute_window": (BLACK, 2), "ntk_by_parts": (BLACK, 3),
    "ntk": (BLACK, 4),
}  # fmt: skip


@dataclass(frozen=True)
class Pen:
    """Look of a line; `thin` is for numbers of others."""

    colour: str
    dash: object = "-"
    marker: str = "o"
    hollow: bool = False
    thin: bool = False


YamlNames = Mapping[str, str]  # {label of an encoding or an extension: name of its yaml}


def yaml_names(records: Iterable[SectionKey]) -> YamlNames:
    """Names behind the labels of points, steps or scores."""
    names = {"none": "none"}
    for record in records:
        facts = record.label_facts
        names |= dict.fromkeys(
            (facts.encoding, facts.encoding_label, record.encoding), facts.encoding
        )
        # Losses by context are labelled none, while their facts have recompute_window.
        if record.extension != "none":
            names[record.extension] = facts.extension
    return names


def pens_by_length(lengths: Iterable[int]) -> dict[int, Pen]:
    """Pen of each length, from dark to light as it grows."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    ordered = sorted({*lengths})
    step = VISIBLE_PART / max(1, len(ordered) - 1)
    return {
        length: Pen(to_hex(colormaps["viridis"](rank * step)), marker=MARKERS[rank % len(MARKERS)])
        for rank, length in enumerate(ordered)
    }


def encoding_look(name: str) -> Look:
    """Colour of an encoding, with a solid line."""
    return ENCODING_COLOURS.get(name, zlib.crc32(name.encode()) % len(OKABE_ITO)), 0


def extension_look(name: str) -> Look:
    """Colour and dash of an extension, never solid."""
    if name in EXTENSION_LOOKS:
        return EXTENSION_LOOKS[name]
    dash, colour = divmod(zlib.crc32(name.encode()), len(OKABE_ITO))
    return colour, 1 + dash % (len(DASHES) - 1)


def pens_of_methods(
    cells: Iterable[tuple],
    base: YamlNames,
    extensions: Iterable[str] = (),
    by_extension: bool = False,
) -> dict[tuple, Pen]:
    """Pen of each (encoding, extension, ...) of one panel, no two of one colour and dash.

    `extensions`: those of the whole figure. A line without an extension has its encoding's colour.
    In a panel of one encoding, and `by_extension`, each extension has its own colour, or another if
    an encoding has that; in a panel of several, that of its encoding. Lines that share a colour
    have shades of it."""
    cells = list(cells)
    encodings = {cell[0] for cell in cells}
    one_encoding = len(encodings) == 1 and any(cell[1] != "none" for cell in cells)
    by_extension = by_extension or one_encoding
    of_figure = distinct_looks(
        {name: extension_look(base[name]) for name in extensions if name != "none"}, base
    )
    preferred: dict[tuple, Look] = {}
    for cell in cells:
        encoding, extension = cell[:2]
        preferred[cell] = encoding_look(base[encoding])
        if extension != "none":
            look = of_figure.get(extension) or extension_look(base[extension])
            colour, dash = look
            if not by_extension:
                colour = preferred[cell][0]
            preferred[cell] = colour, dash
    if by_extension:
        _recolour_extensions(preferred, base)
    chosen = distinct_looks(preferred, base)
    tints = _colours_of_looks(chosen.values())
    return {
        cell: Pen(tints[look], DASHES[look[1]], MARKERS[look[1]]) for cell, look in chosen.items()
    }


def _colours_of_looks(chosen: Iterable[Look]) -> dict[Look, str]:
    """Colour of each look of a panel: that of its number, or a shade of it where several share it.

    The first dash of a family has the colour. A shade that could be taken for the colour of another
    family is left out, if there are enough others."""
    by_colour = grouped(sorted({*chosen}), lambda look: look[0])
    tints: dict[Look, str] = {}
    for colour, members in by_colour.items():
        of_others = [OKABE_ITO[other] for other in by_colour if other != colour]
        clear = [
            shade
            for shade in shades(colour)
            if all(colour_distance(shade, other) >= LEAST_COLOUR_DISTANCE for other in of_others)
        ]
        free = clear if len(clear) >= len(members) else shades(colour)
        # The first of these is the colour itself. No colour has more looks than shades.
        for look, shade in zip(members, farthest_first(OKABE_ITO[colour], free), strict=False):
            tints[look] = shade
    return tints


@cache
def shades(colour: int) -> tuple[str, ...]:
    """Shades of a colour of OKABE_ITO, by its number, as many as DASHES; the first is the colour.

    They are spread from dark to light, and each is as far as it can be from those before it.

    >>> shades(BLUE)[:2]
    ('#0072B2', '#003350')
    """
    base = lightness(luminance(OKABE_ITO[colour]))
    low = min(base, DARKEST)
    high = max(base, LIGHTEST)
    count = len(DASHES) - 1
    n_darker = round(count * (base - low) / (high - low))
    n_lighter = count - n_darker
    levels = [low + step * (base - low) / n_darker for step in range(n_darker)]
    levels += [high - step * (high - base) / n_lighter for step in range(n_lighter)]
    others = [with_luminance(OKABE_ITO[colour], luminance_of(level)) for level in levels]
    return farthest_first(OKABE_ITO[colour], others)


def farthest_first(first: str, others: Iterable[str]) -> tuple[str, ...]:
    """Colours, each as far in lightness as it can be from those before it."""
    levels = {colour: lightness(luminance(colour)) for colour in (first, *others)}
    chosen = [first]
    free = [colour for colour in levels if colour != first]
    while free:
        farthest = max(
            free,
            key=lambda colour: min(abs(levels[colour] - levels[before]) for before in chosen),
        )
        chosen.append(farthest)
        free.remove(farthest)
    return tuple(chosen)


def lightness(luminance: float) -> float:
    """Lightness L* of CIELAB, 0 to 100, of a relative luminance.

    >>> round(lightness(0.184))
    50
    """
    if luminance <= (6 / 29) ** 3:
        return luminance * (29 / 3) ** 3
    return 116 * luminance ** (1 / 3) - 16


def luminance_of(lightness: float) -> float:
    """Relative luminance of a lightness of CIELAB.

    >>> round(luminance_of(50), 3)
    0.184
    """
    if lightness <= 8:
        return lightness / (29 / 3) ** 3
    return ((lightness + 16) / 116) ** 3


def foreign_pens(lines: Iterable[Hashable]) -> dict[Hashable, Pen]:
    """Pen of each line of others' numbers: a colour of FOREIGN_COLOURS by a hash of its name, or
    the next.

    Dashes follow when all colours are used. No method of posbench has one of these colours, so that
    nobody takes one for the other.
    """
    pens: dict[Hashable, Pen] = {}
    colours = range(len(FOREIGN_COLOURS))
    every = list(itertools.product(range(len(DASHES)), colours))  # (dash, colour)
    free = list(every)
    for line in lines:
        free = free or list(every)
        hashed = zlib.crc32(repr(line).encode()) % len(FOREIGN_COLOURS)
        dash, colour = min(
            free, key=lambda look: (look[0], (look[1] - hashed) % len(FOREIGN_COLOURS))
        )
        free.remove((dash, colour))
        pens[line] = Pen(FOREIGN_COLOURS[colour], DASHES[dash], "x", thin=True)
    return pens


def _recolour_extensions(preferred: dict[tuple[str, ...], Look], base: YamlNames) -> None:
    """Give extensions that have an encoding's colour one that nothing else has, if there is any."""
    of_encodings = {colour for method, (colour, _) in preferred.items() if method[1] == "none"}
    used = {colour for colour, _ in preferred.values()}
    free = [colour for colour in range(len(OKABE_ITO)) if colour not in used]
    replacements: dict[str, int] = {}  # {extension: its new colour}
    for method, (colour, dash) in preferred.items():
        name = base[method[1]]
        if method[1] == "none" or colour not in of_encodings:
            continue
        if name not in replacements and free:
            replacements[name] = free.pop(0)
        if name in replacements:
            preferred[method] = replacements[name], dash


def distinct_looks(preferred: Mapping[Hashable, Look], base: YamlNames) -> dict[Hashable, Look]:
    """Each look as preferred, or with the next free dash of its colour.

    A method chooses before its variants with arguments.
    """

    def is_variant(key: Hashable) -> bool:
        names = [key] if isinstance(key, str) else key
        return any(base.get(name, name) != name for name in names)

    chosen: dict[Hashable, Look] = {}
    used: set[Look] = set()
    for key in sorted(preferred, key=is_variant):
        colour, dash = preferred[key]
        # solid only for those that prefer it
        dashes = [*range(dash, len(DASHES)), *range(1, dash)]
        free = (other for other in dashes if (colour, other) not in used)
        chosen[key] = colour, next(free, dash)
        used.add(chosen[key])
    return chosen


def groups_of_distinct_colours(
    names: Sequence[str], look: Callable[[str], Look], base: YamlNames
) -> list[list[str]]:
    """Few groups of names, for panels of about NAMES_IN_PANEL names; MOST_PANELS groups at most.

    No two methods of a panel have one colour. A method's variants stay together, in units of at
    most MOST_VARIANTS. The order is kept within each group."""
    if len(names) <= NAMES_IN_PANEL:
        return [list(names)]
    units = []
    for variants in grouped(names, lambda name: base[name]).values():
        parts = math.ceil(len(variants) / MOST_VARIANTS)
        size = math.ceil(len(variants) / parts)
        units += [variants[start : start + size] for start in range(0, len(variants), size)]
    colours = {name: look(base[name])[0] for name in names}
    units_of_colour = Counter(colours[unit[0]] for unit in units)
    # As many groups as units share a colour, so that each of these can have its own.
    count = min(MOST_PANELS, max(math.ceil(len(names) / NAMES_IN_PANEL), *units_of_colour.values()))
    room = math.ceil(len(names) / count)
    groups: list[list[str]] = [[] for _ in range(count)]
    for unit in units:
        colour = colours[unit[0]]
        without_colour = [
            group for group in groups if all(colours[name] != colour for name in group)
        ]
        candidates = without_colour or groups
        roomy = [group for group in candidates if len(group) + len(unit) <= room]
        group = roomy[0] if roomy else min(candidates, key=len)
        group.extend(unit)
    return [sorted(group, key=names.index) for group in groups if group]
