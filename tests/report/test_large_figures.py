"""Figures of grids: names that meet nothing, a map whose numbers are those of the table, intervals in their place."""

import itertools
from dataclasses import replace

import pytest
from labelled import labelled, method_of
from test_figures import texts

from posbench.report.figures import heatmap
from posbench.report.figures import intervals as differences
from posbench.report.figures import loss_curves as multiples
from posbench.report.figures.lines import Mark
from posbench.report.figures.method_lines import groups, lines_of, marks_of
from posbench.report.figures.palette import MOST, extension_look
from posbench.report.figures.style import DASHES, OKABE_ITO, save
from posbench.report.records import CurvePoint

ENCODINGS = ("rope", "alibi", "sinusoidal", "fox_rope", "stick_breaking", "randomized")
EXTENSIONS = ("none", "pi", "ntk", "yarn", "rerope", "leaky_rerope", "self_extend window=32")
LENGTHS = (64, 128, 256, 512, 1024)


def point(encoding="rope", extension="none", scale="none", length=64, difference=0.1, half=0.01, **changed):
    known = {
        "protocol": "fixed_targets", "data": "pysource", "tokenizer": "bpe-1024", "train_len": 64, "setting": None, "untested": False,
        "window": None, "n_seeds": 3, "n_targets": 240, "n_units": 20, "sem_unit": "document", "bpb": 2.0, "floor": 3.0, "over": "seeds",
        "gain": 0.1, "gain_lower": 0.05, "nll": None if difference is None else 3.0 + difference, "difference": difference,
        "half_width": half, "change": None if extension == "none" or difference is None else difference - 0.5, "change_half_width": 0.02,
    }  # fmt: skip
    (made,) = labelled(
        [CurvePoint(**{**known, "encoding": encoding, "extension": extension, "scale_attention": scale, "length": length, **changed})]
    )
    return made


def grid(encodings=ENCODINGS, extensions=EXTENSIONS, scales=("none", "log_n"), lengths=LENGTHS, explode=1.0):
    """Points whose differences lie close together, gain or explode: by method, growing with length."""
    found = []
    for index, cell in enumerate(itertools.product(encodings, extensions, scales)):
        slope = (-0.03, 0.02, 0.021, 0.4, 0.41, explode)[index % 6]
        found += [point(*cell, length=length, difference=slope * (length / 64 - 1) ** 0.7) for length in lengths]
    return found


def pens_of(curve, shown):
    """Looks of each panel."""
    found, mark = [], lambda one: Mark(one.length, 0.0)
    for group in shown:
        keys = [key for key, *_ in marks_of(group.points, mark)]
        found.append({key[:2]: (one.pen.colour, one.pen.dash) for key, one in zip(keys, lines_of(group.points, curve, mark), strict=True)})
    return found


def test_panels_share_their_axes_and_an_extension_keeps_its_look():
    figure = multiples.figure(grid(lengths=(64, 512)), "t")
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    curve = grid(lengths=(64,))
    shown = groups(curve)
    assert [panel.heading for panel in shown] == ["Encodings, nothing extended", *(f"{name}: extensions" for name in sorted(ENCODINGS))]
    encodings, *looks = [{cell: look for cell, look in panel.items()} for panel in pens_of(curve, shown)]
    own = {encoding: encodings[encoding, "none"][0] for encoding in ENCODINGS}
    extended = [{extension: look for (_, extension), look in panel.items() if extension != "none"} for panel in looks]
    assert all(len(set(look.values())) == len(EXTENSIONS) - 1 for look in extended)
    for panel in looks:
        for (encoding, extension), look in panel.items():
            if extension != "none":
                colour, dash = extension_look(method_of(extension))
                kept = OKABE_ITO[colour] != own[encoding]
                assert look == (OKABE_ITO[colour], DASHES[dash]) if kept else look[0] != own[encoding], (encoding, extension)
    plain = {cell: look for panel in looks for cell, look in panel.items() if cell[1] == "none"}
    assert {cell: look[0] for cell, look in plain.items()} == {cell: look[0] for cell, look in encodings.items()}


def test_many_exploding_values_are_counted():
    cells = [(f"e{n}", scale) for n in range(MOST) for scale in ("none", "log_n", "yarn")]
    curve = [point("rope", *cell, length, 0.01 * n) for n, cell in enumerate(cells) for length in (64, 128)]
    curve = [replace(one, difference=50.0 + n) if one.length == 128 and n % 6 == 1 else one for n, one in enumerate(curve)]
    said = [text.get_text() for text in multiples.figure(curve, "t").axes[0].texts]
    assert "8 here" in said and "to +93" in said and not any(text.startswith("+") for text in said)


def numbers(figure):
    """Every text of a figure that is a number, without its marks."""
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    return [float(text.strip("^~")) for text in said if text.strip("^~")[:1] in ("+", "-")], said


def test_the_map_holds_every_number_once():
    curve = [one for one in grid(ENCODINGS[:2], explode=30.0) if (one.encoding, one.extension, one.length) != ("rope", "pi", 512)]
    curve = [replace(one, difference=None, nll=None) if (one.encoding, one.length) == ("alibi", 1024) else one for one in curve]
    figure = heatmap.figure(curve, "t")
    found, said = numbers(figure)
    known = [one.difference for one in curve if one.difference is not None]
    assert sorted(found) == pytest.approx(sorted(known), rel=0.005, abs=0.0006)
    assert said.count("nan") == 14 and any(text.startswith("^+") for text in said)
    assert any("Grey: not evaluated" in text.get_text() for text in figure.texts)


def test_what_an_interval_does_not_decide_is_marked(tmp_path):
    curve = [point(extension=name, difference=0.05, half=half) for name, half in (("a", 0.06), ("b", 0.04), ("c", None))]
    save(heatmap.figure(curve, "t"), tmp_path / "map")
    said = texts(tmp_path / "map.svg")
    assert "<image" not in (tmp_path / "map.svg").read_text()  # the page's policy lets none be shown
    assert (said.count("+0.050~"), said.count("+0.050")) == (1, 2)


@pytest.mark.parametrize(("sizes", "wanted"), [([3], [3]), ([14] * 6, [42, 42]), ([100], [34, 34, 32])])
def test_a_tall_map_is_set_side_by_side(sizes, wanted):
    rows = [(f"e{n}", index) for n, size in enumerate(sizes) for index in range(size)]
    found = heatmap.blocks(rows)
    assert [len(block) for block in found] == wanted and sum(found, []) == rows


def test_intervals_are_drawn_from_end_to_end():
    curve = grid(("rope",), ("none", "pi", "ntk"), ("none",), explode=0.5)
    figure = differences.figure(curve, "t")
    assert [axes.get_title() for axes in figure.axes] == ["2x (128)", "8x (512)", "16x (1024)"] * 2

    def bars(panels):
        drawn = [line for axes in panels for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 1.6]
        return sorted(list(line.get_xdata()) for line in drawn)

    wanted = [[one.difference - 0.01, one.difference + 0.01] for one in curve if one.length in (128, 512, 1024)]
    assert sum(bars(figure.axes[:3]), []) == pytest.approx(sum(sorted(wanted), []))
    assert len(bars(figure.axes[3:])) == 6  # none is its own reference


@pytest.mark.parametrize(("value", "ticks"), [(0.01, ["-0.05", "0", "+0.05"]), (2.0, ["0", "+0.1", "+1"])])
def test_differences_of_any_size_have_several_ticks(value, ticks):
    curve = [point(extension=name, length=length, difference=value) for name in ("none", "pi", "ntk") for length in LENGTHS]
    axes = differences.figure([replace(one, change=None) for one in curve], "t").axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ticks
