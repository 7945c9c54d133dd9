"""Looks of methods: one colour in every panel of every report, and a dash if colour alone is not
enough.

There are fewer colours than methods, so some methods share one. Panels of many methods are split so
that none has two of one colour."""

import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from posbench.report.figures.style import DASHES, FOREIGN, MARKERS, OKABE_ITO
from posbench.report.records import SectionKey, grouped

MOST, VARIANTS = (
    8,
    4,
)  # names in a panel; in a divided panel at most so many are one method with different arguments
PANELS = 12  # panels at most; with more methods, some share a colour in one panel
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = range(len(OKABE_ITO))
Look = tuple[int, int]  # numbers of a colour and of a dash; solid is 0

# Methods that are often compared have different colours. Any other method gets one by a hash of its
# name.
ENCODINGS = {
    "rope": BLUE, "as_trained": BLUE, "pope": BLUE, "alibi": VERMILLION, "dape": VERMILLION, "fox_rope": VERMILLION, "sinusoidal": GREEN,
    "xpos": GREEN, "stick_breaking": GREEN, "p_rope": PURPLE, "t5": PURPLE, "fope": PURPLE, "fox": ORANGE, "kerple": ORANGE, "fire": ORANGE,
    "hybrid": SKY, "learned": SKY, "sandwich": SKY, "gemma3": SKY, "none": BLACK, "randomized": BLACK, "cope": BLACK,
}  # fmt: skip
EXTENSIONS = {
    "self_extend": (VERMILLION, 1), "window": (VERMILLION, 2), "abf": (VERMILLION, 3), "ntk_fixed": (VERMILLION, 4),
    "compose": (GREEN, 1), "table_linear": (GREEN, 2), "yarn": (GREEN, 3), "ntk_mixed": (GREEN, 4),
    "pi": (PURPLE, 1), "dca": (PURPLE, 2), "llama3": (PURPLE, 3), "string": (PURPLE, 5),
    "table_hierarchical": (ORANGE, 1), "rerope": (ORANGE, 2), "dynamic_ntk": (ORANGE, 4), "lm_infinite": (ORANGE, 5),
    "longrope": (SKY, 1), "random_keys": (SKY, 2), "leaky_rerope": (SKY, 3), "streaming": (SKY, 5),
    "recompute_window": (BLACK, 2), "ntk_by_parts": (BLACK, 3), "ntk": (BLACK, 4),
}  # fmt: skip


@dataclass(frozen=True)
class Pen:
    """Look of a line; `thin` is for numbers of others."""

    colour: str
    dash: object = "-"
    marker: str = "o"
    hollow: bool = False
    thin: bool = False


Bases = Mapping[str, str]  # {label of an encoding or an extension: name of its yaml}


def bases(records: Iterable[SectionKey]) -> Bases:
    """Names behind the labels of points, steps or scores."""
    found = {"none": "none"}
    for one in records:
        facts = one.behind
        found |= dict.fromkeys((facts.encoding, facts.line, one.encoding), facts.encoding)
        if (
            one.extension != "none"
        ):  # of losses by context the label is none, and what is behind it the floor's
            found[one.extension] = facts.extension
    return found


def encoding_look(name: str) -> Look:
    """Colour of an encoding, with a solid line."""
    return ENCODINGS.get(name, zlib.crc32(name.encode()) % len(OKABE_ITO)), 0


def extension_look(name: str) -> Look:
    """Colour and dash of an extension, never solid."""
    number = zlib.crc32(name.encode())
    return EXTENSIONS.get(
        name, (number % len(OKABE_ITO), 1 + number // len(OKABE_ITO) % (len(DASHES) - 1))
    )


def looks(
    cells: Iterable[tuple], base: Bases, extensions: Iterable[str] = (), by_extension: bool = False
) -> dict[tuple, Pen]:
    """Pen of each (encoding, extension, ...) of one panel, no two of one colour and dash;
    `extensions`: those of the whole figure.

    A line without an extension has its encoding's colour. In a panel of one encoding, and
    `by_extension`, each extension has its own colour, or another if an encoding has that; in a
    panel of several, that of its encoding."""
    cells = list(cells)
    alone = (
        by_extension
        or len({cell[0] for cell in cells}) == 1
        and any(cell[1] != "none" for cell in cells)
    )
    own = told_apart(
        {name: extension_look(base[name]) for name in extensions if name != "none"}, base
    )
    wanted: dict[tuple, Look] = {}
    for cell in cells:
        encoding, extension = cell[:2]
        colour, solid = encoding_look(base[encoding])
        of_extension = own.get(extension) or extension_look(base[extension])
        wanted[cell] = (
            (colour, solid)
            if extension == "none"
            else of_extension
            if alone
            else (colour, of_extension[1])
        )
    if alone:
        _recolour_extensions(wanted, base)
    return {
        cell: Pen(OKABE_ITO[colour], DASHES[dash], MARKERS[dash])
        for cell, (colour, dash) in told_apart(wanted, base).items()
    }


def foreign_pens(lines: Iterable[Hashable]) -> dict[Hashable, Pen]:
    """Pen of each line of somebody else's numbers: a colour of FOREIGN by a hash of its name, or
    the next free one; then dashes.

    None is a colour that a method of posbench has, so that nobody takes one for the other.
    """
    pens: dict[Hashable, Pen] = {}
    every = [(dash, colour) for dash in range(len(DASHES)) for colour in range(len(FOREIGN))]
    free = list(every)
    for line in lines:
        free = free or list(every)
        wanted = zlib.crc32(repr(line).encode()) % len(FOREIGN)
        dash, colour = min(free, key=lambda look: (look[0], (look[1] - wanted) % len(FOREIGN)))
        free.remove((dash, colour))
        pens[line] = Pen(FOREIGN[colour], DASHES[dash], "x", thin=True)
    return pens


def _recolour_extensions(wanted: dict[tuple[str, ...], Look], base: Bases) -> None:
    """Give each extension whose colour an encoding of `wanted` has a colour that nothing else has,
    as long as there are any.
    """
    of_encodings = {colour for method, (colour, _) in wanted.items() if method[1] == "none"}
    free = [
        colour
        for colour in range(len(OKABE_ITO))
        if colour not in {colour for colour, _ in wanted.values()}
    ]
    given: dict[str, int] = {}
    for method, (colour, dash) in wanted.items():
        name = base[method[1]]
        if method[1] != "none" and colour in of_encodings and (name in given or free):
            given[name] = given[name] if name in given else free.pop(0)
            wanted[method] = given[name], dash


def told_apart(wanted: Mapping[Hashable, Look], base: Bases) -> dict[Hashable, Look]:
    """Each look as wanted, or with the next free dash of its colour. A method chooses before its
    variants with arguments.
    """
    found: dict[Hashable, Look] = {}
    taken: set[Look] = set()
    for key in sorted(
        wanted,
        key=lambda key: any(
            base.get(name, name) != name for name in ([key] if isinstance(key, str) else key)
        ),
    ):
        colour, dash = wanted[key]
        turned = sorted(range(1 if dash else 0, len(DASHES)), key=lambda one: one < dash)
        found[key] = colour, next((one for one in turned if (colour, one) not in taken), dash)
        taken.add(found[key])
    return found


def apart(names: Sequence[str], look: Callable[[str], Look], base: Bases) -> list[list[str]]:
    """Divide names into few groups, for panels of about MOST names in which no two methods have one
    colour; PANELS groups at most.

    A method's variants stay together, in units of at most VARIANTS. The order is kept within each
    group."""
    if len(names) <= MOST:
        return [list(names)]
    units = []
    for own in grouped(names, lambda name: base[name]).values():
        size = -(-len(own) // -(-len(own) // VARIANTS))
        units += [own[start : start + size] for start in range(0, len(own), size)]
    colours = {name: look(base[name])[0] for name in names}
    count = min(
        PANELS, max(-(-len(names) // MOST), *Counter(colours[unit[0]] for unit in units).values())
    )
    room = -(-len(names) // count)
    groups: list[list[str]] = [[] for _ in range(count)]
    for unit in units:
        free = [
            group for group in groups if all(colours[name] != colours[unit[0]] for name in group)
        ] or groups
        roomy = [group for group in free if len(group) + len(unit) <= room]
        chosen = roomy[0] if roomy else min(free, key=len)
        chosen.extend(unit)
    return [sorted(group, key=names.index) for group in groups if group]
