"""Colours that stay, panels of few lines, intervals side by side, numbers that can be read on any ground."""

import itertools

import pytest
from conftest import choices
from labelled import method_of
from test_large_figures import LENGTHS, grid, pens_of, point

from posbench.report.figures import loss_curves as multiples
from posbench.report.figures.method_lines import groups
from posbench.report.figures.palette import (
    ENCODINGS,
    EXTENSIONS,
    MOST,
    encoding_look,
    extension_look,
    looks,
    told_apart,
)
from posbench.report.figures.style import OKABE_ITO


def test_methods_with_a_colour_of_their_own_exist_and_extensions_differ():
    assert set(ENCODINGS) <= {*choices("encoding"), "as_trained"} and set(EXTENSIONS) <= set(choices("extension"))
    assert len(set(EXTENSIONS.values())) == len(EXTENSIONS) and all(dash for _, dash in EXTENSIONS.values())


def colours(curve):
    """(encoding, extension) -> every colour that a figure gives it where encodings, or else extensions, are told apart by colour."""
    shown, found = groups(curve), {}
    for pens in pens_of(curve, shown):
        for cell, (colour, _) in pens.items():
            found.setdefault(cell, set()).add(colour)
    return found


def test_a_method_keeps_its_colour_in_every_panel_of_every_report():
    encodings = ("alibi", "fire", "rope", "my_own", "sinusoidal", "t5 max_distance=128", "fire threshold=512.0")
    seen: dict = {}
    for order in (encodings, encodings[::-1], encodings[2:4]):
        for extensions in (("none",), ("none", "pi", "ntk", "yarn beta=10.0", "mine"), ("mine", "none", "yarn", "pi")):
            for cell, found in colours(grid(order, extensions, ("none",))).items():
                if len(order) * len(extensions) <= 6 and cell[1] != "none":
                    continue  # in one panel of several encodings colour is the encoding's
                of_encoding, key = encoding_look(method_of(cell[0]))[0], method_of(cell[0] if cell[1] == "none" else cell[1])
                if cell[1] != "none" and extension_look(key)[0] == of_encoding:
                    assert OKABE_ITO[of_encoding] not in found, "the line without an extension has that colour"
                    continue
                seen.setdefault((cell[1] == "none", key), set()).update(found)
    assert all(len(found) == 1 for found in seen.values()) and len(seen) == 6 + 4
    assert seen[True, "rope"] == {OKABE_ITO[0]} and seen[True, "fire"] != seen[True, "rope"]


@pytest.mark.parametrize("kind", ["encodings", "extensions"])
def test_no_panel_has_two_methods_of_one_colour_and_others_are_grey(kind):
    """Twenty methods, some with other arguments: each is drawn once, and stands in grey behind the others of its heading."""
    names = choices("encoding")[:18] if kind == "encodings" else [name for name in choices("extension") if name != "none"][:18]
    names += [f"{names[0]} base=1.0", f"{names[1]} a=1", f"{names[1]} a=2"]
    curve = grid(names, ("none",), ("none",)) if kind == "encodings" else grid(("rope",), ("none", *names), ("none",))
    shown, at = groups(curve), 0 if kind == "encodings" else 1
    drawn = [list(dict.fromkeys((one.encoding, one.extension) for one in panel.points)) for panel in shown]
    assert len(shown) > 2 and all(panel.heading.endswith(f"({n} of {len(shown)})") for n, panel in enumerate(shown, start=1))
    listed = [cell for panel in drawn for cell in panel if cell != ("rope", "none") or kind == "encodings"]
    assert sorted(cell[at] for cell in listed) == sorted(names)
    for panel, pens in zip(shown, pens_of(curve, shown), strict=True):
        own = {cell: look for cell, look in pens.items() if kind == "encodings" or cell[1] != "none"}
        methods = {method_of(cell[at]) for cell in own}
        assert len({colour for colour, _ in own.values()}) == len(methods) and len(own) <= MOST
        assert len({str(look) for look in pens.values()}) == len(pens)  # variants of one method by their dashes
        assert len(panel.points) + len(panel.others) == len(curve)
    axes = multiples.figure(curve, "t").axes[0]
    grey = [line for line in axes.lines if line.get_color() == "#cfcfcf"]
    assert len(grey) == len(names) - len([cell for cell in drawn[0] if cell in listed])


def test_extensions_are_never_solid_and_a_method_comes_before_its_arguments():
    wanted = {name: extension_look("ntk") for name in ("ntk multiplier=2.0", "ntk", *(f"ntk a={n}" for n in range(4)))}
    found = told_apart(wanted, {name: "ntk" for name in wanted})
    assert found["ntk"] == EXTENSIONS["ntk"] and len(set(found.values())) == 6 and all(dash for _, dash in found.values())


def bars(axes):
    """[(x in points, bottom, top)] of every interval."""
    from matplotlib.collections import LineCollection

    segments = [part for lines in axes.collections if isinstance(lines, LineCollection) for part in lines.get_segments()]
    place = axes.transData.transform
    return [(place(part[0])[0] * 72 / axes.figure.dpi, part[0][1], part[1][1]) for part in segments]


@pytest.mark.parametrize("lines", [1, 2, 8])
def test_intervals_at_one_length_stand_side_by_side(lines):
    names = ["none", *(f"e{n}" for n in range(lines - 1))]
    curve = [point(extension=name, length=length, difference=0.05, half=0.03) for name in names for length in LENGTHS]
    (axes,) = multiples.figure(curve, "t").axes
    xs = sorted(x for x, *_ in bars(axes))
    assert len(xs) == lines * len(LENGTHS) and all(after - before > 2.4 for before, after in itertools.pairwise(xs))  # 2.4 wide
    tick = [axes.transData.transform((length, 0))[0] * 72 / axes.figure.dpi for length in LENGTHS]
    assert [sum(xs[n * lines : (n + 1) * lines]) / lines for n in range(len(LENGTHS))] == pytest.approx(tick, abs=0.1)
    assert tick[0] - xs[0] < (tick[1] - tick[0]) / 3  # nearer to its own length than to the next


def test_an_extension_takes_another_colour_than_an_encoding_of_the_same_figure_has():
    methods = [("rope", "none", "none"), ("fox", "none", "none"), ("rope", "yarn", "none"), ("rope", "rerope", "log_n")]
    names = {name: name for name in ("rope", "fox", "none", "yarn", "rerope")}
    assert (
        EXTENSIONS["rerope"][0] == ENCODINGS["fox"] and len({pen.colour for pen in looks(methods, names, by_extension=True).values()}) == 4
    )
    alone = looks(methods[2:], names, by_extension=True)
    assert alone["rope", "rerope", "log_n"].colour == OKABE_ITO[EXTENSIONS["rerope"][0]]
