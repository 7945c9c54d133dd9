"""Figures of reports: colours that stay, panels of few lines, numbers that are the table's and can
be read, intervals in their place.
"""

import itertools
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from conftest import choices
from labelled import labelled, method_of
from matplotlib.patches import Rectangle

from posbench.report.figures import accuracy, differences, loss_curves
from posbench.report.figures.captions import curve_caption
from posbench.report.figures.lines import Mark, Panel, spread_apart
from posbench.report.figures.method_lines import lines_of_methods, marked_lines, panel_groups
from posbench.report.figures.palette import (
    ENCODING_COLOURS,
    EXTENSION_LOOKS,
    NAMES_IN_PANEL,
    distinct_looks,
    encoding_look,
    extension_look,
    pens_of_methods,
    shades,
    yaml_names,
)
from posbench.report.figures.style import (
    DASHES,
    OKABE_ITO,
    colour_distance,
    luminance,
    write_figure,
)
from posbench.report.figures.uncertainty import BARS, bars_line
from posbench.report.records import CurvePoint

SIX = ("rope", "alibi", "sinusoidal", "fox_rope", "stick_breaking", "randomized")
SEVEN = ("none", "pi", "ntk", "yarn", "rerope", "leaky_rerope", "self_extend window=32")
LENGTHS = (64, 128, 256, 512, 1024)


def texts(svg):
    """What an svg says: matplotlib keeps every string as a comment beside its outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(svg, parser)
    return [element.text.strip() for element in tree.iter() if element.tag is ElementTree.Comment]


def point(
    encoding="rope", extension="none", scale="none", length=64, difference=0.1, half=0.01, **changed
):
    change = None if extension == "none" or difference is None else difference - 0.5
    usual = {
        "protocol": "fixed_targets", "data": "pysource", "tokenizer": "bpe-1024", "train_len": 64,
        "setting": None, "untested": False, "window": None, "n_seeds": 3, "n_targets": 240,
        "n_units": 20, "sem_unit": "document", "over": "seeds", "bpb": 2.0, "floor": 3.0,
        "gain": 0.1, "gain_lower": 0.05, "nll": None if difference is None else 3.0 + difference,
        "difference": difference, "half_width": half, "change": change, "change_half_width": 0.02,
    }  # fmt: skip
    (labelled_point,) = labelled(
        [
            CurvePoint(
                **{
                    **usual,
                    "encoding": encoding,
                    "extension": extension,
                    "scale_attention": scale,
                    "length": length,
                    **changed,
                }
            )
        ]
    )
    return labelled_point


def grid(encodings=SIX, extensions=SEVEN, scales=("none", "log_n"), lengths=LENGTHS, explode=1.0):
    """Points whose differences lie close together, gain or explode: by method, growing with
    length.
    """
    points = []
    for index, cell in enumerate(itertools.product(encodings, extensions, scales)):
        slope = (-0.03, 0.02, 0.021, 0.4, 0.41, explode)[index % 6]
        points += [
            point(*cell, length=length, difference=slope * (length / 64 - 1) ** 0.7)
            for length in lengths
        ]
    return points


def pens_of(curve):
    """{(encoding, extension): (colour, dash)} of each panel."""
    pens, mark = [], lambda record: Mark(record.length, 0.0)
    for group in panel_groups(curve):
        keys = [key for key, *_ in marked_lines(group.points, mark)]
        pens.append(
            {
                key[:2]: (line.pen.colour, line.pen.dash)
                for key, line in zip(keys, lines_of_methods(group.points, curve, mark), strict=True)
            }
        )
    return pens


def family(colour):
    """The colour that this is a shade of."""
    (number,) = [n for n in range(len(OKABE_ITO)) if colour in shades(n)]
    return OKABE_ITO[number]


def shown_texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_methods_with_a_colour_of_their_own_exist_and_extensions_differ():
    assert set(ENCODING_COLOURS) <= {*choices("encoding"), "as_trained"} and set(
        EXTENSION_LOOKS
    ) <= set(choices("extension"))
    assert len(set(EXTENSION_LOOKS.values())) == len(EXTENSION_LOOKS) and all(
        dash for _, dash in EXTENSION_LOOKS.values()
    )


def test_a_method_keeps_its_colour_in_every_panel_of_every_report():
    encodings = (
        "alibi",
        "fire",
        "rope",
        "my_own",
        "sinusoidal",
        "t5 max_distance=128",
        "fire threshold=512.0",
    )
    seen: dict = {}
    for order in (encodings, encodings[::-1], encodings[2:4]):
        for extensions in (
            ("none",),
            ("none", "pi", "ntk", "yarn beta=10.0", "mine"),
            ("mine", "none", "yarn", "pi"),
        ):
            for cell, (colour, _) in (
                method_and_pen
                for pens in pens_of(grid(order, extensions, ("none",)))
                for method_and_pen in pens.items()
            ):
                if len(order) * len(extensions) <= 6 and cell[1] != "none":
                    continue  # in one panel of several encodings colour is the encoding's
                of_encoding, key = (
                    encoding_look(method_of(cell[0]))[0],
                    method_of(cell[0] if cell[1] == "none" else cell[1]),
                )
                if cell[1] != "none" and extension_look(key)[0] == of_encoding:
                    assert OKABE_ITO[of_encoding] != colour, (
                        "the line without an extension has that colour"
                    )
                    continue
                seen.setdefault((cell[1] == "none", key), set()).add(family(colour))
    assert all(len(colours) == 1 for colours in seen.values()) and len(seen) == 6 + 4
    assert seen[True, "rope"] == {OKABE_ITO[0]} and seen[True, "fire"] != seen[True, "rope"]


@pytest.mark.parametrize("kind", ["encodings", "extensions"])
def test_no_panel_has_two_methods_of_one_colour_and_others_are_grey(kind):
    """Twenty methods, some with other arguments: each is drawn once, and stands in grey behind the
    others of its heading.
    """
    names = (
        choices("encoding")[:18]
        if kind == "encodings"
        else [name for name in choices("extension") if name != "none"][:18]
    )
    names += [f"{names[0]} base=1.0", f"{names[1]} a=1", f"{names[1]} a=2"]
    curve = (
        grid(names, ("none",), ("none",))
        if kind == "encodings"
        else grid(("rope",), ("none", *names), ("none",))
    )
    shown, at = panel_groups(curve), 0 if kind == "encodings" else 1
    drawn = [
        list(
            dict.fromkeys(
                (drawn_point.encoding, drawn_point.extension) for drawn_point in panel.points
            )
        )
        for panel in shown
    ]
    assert len(shown) > 2 and all(
        panel.heading.endswith(f"({n} of {len(shown)})") for n, panel in enumerate(shown, start=1)
    )
    listed = [
        cell for panel in drawn for cell in panel if cell != ("rope", "none") or kind == "encodings"
    ]
    assert sorted(cell[at] for cell in listed) == sorted(names)
    for panel, pens in zip(shown, pens_of(curve), strict=True):
        looks = {
            cell: look for cell, look in pens.items() if kind == "encodings" or cell[1] != "none"
        }
        methods = {method_of(cell[at]) for cell in looks}
        families = {family(colour) for colour, _ in looks.values()}
        assert len(families) == len(methods) and len(looks) <= NAMES_IN_PANEL
        assert len({str(look) for look in pens.values()}) == len(
            pens
        )  # variants of one method by their dashes
        assert len(panel.points) + len(panel.others) == len(curve)
    axes = loss_curves.figure(curve, "t").axes[0]
    grey = [line for line in axes.lines if line.get_color() == "#cfcfcf"]
    assert len(grey) == len(names) - len([cell for cell in drawn[0] if cell in listed])


def test_lines_of_one_family_are_shades_with_dashes_and_marks_of_their_own():
    names = {name: name for name in ("rope", "hybrid", "none", *EXTENSION_LOOKS)}
    extended = [("rope", name, "none") for name in ("pi", "ntk", "yarn", "rerope", "dca")]
    methods = [("rope", "none", "none"), *extended, ("hybrid", "none", "none")]
    pens = pens_of_methods(methods, names)
    family_of_rope = [pens[method] for method in methods[:-1]]
    assert pens[methods[0]].colour == OKABE_ITO[0] and {
        family(pen.colour) for pen in family_of_rope
    } == {OKABE_ITO[0]}
    for kind in ("colour", "dash", "marker"):
        assert len({str(getattr(pen, kind)) for pen in family_of_rope}) == len(family_of_rope)
    alone = pens_of_methods([methods[1], methods[-1]], names)
    assert alone[methods[1]].colour == OKABE_ITO[0]


@pytest.mark.parametrize("number", range(len(OKABE_ITO)))
def test_shades_differ_in_lightness_and_can_be_read(number):
    of_colour = shades(number)
    levels = sorted(luminance(colour) for colour in of_colour)
    assert of_colour[0] == OKABE_ITO[number] and len(of_colour) == len(DASHES)
    assert all(1.05 / (level + 0.05) > 2.2 for level in levels)
    # 5 of 100 steps of CIELAB's lightness, cube roots of a luminance by 1.16
    roots = [116 * level ** (1 / 3) for level in levels]
    assert all(after - before > 4.5 for before, after in itertools.pairwise(roots))
    assert colour_distance("#62a8d0", OKABE_ITO[5]) < 0.06 < 0.3 < colour_distance("#000", "#777")


def test_a_shade_is_not_the_colour_of_another_family():
    names = {name: name for name in ("rope", "hybrid", "none", "yarn", "streaming")}
    methods = [("rope", name, "none") for name in ("none", "yarn", "streaming")]
    with_sky = pens_of_methods([*methods, ("hybrid", "none", "none")], names)
    sky = with_sky["hybrid", "none", "none"].colour
    distances = [colour_distance(with_sky[method].colour, sky) for method in methods]
    assert min(distances) > 0.12 and len({with_sky[method].colour for method in methods}) == 3


def test_extensions_are_never_solid_and_a_method_comes_before_its_arguments():
    usual_looks = {
        name: extension_look("ntk")
        for name in ("ntk multiplier=2.0", "ntk", *(f"ntk a={n}" for n in range(4)))
    }
    looks = distinct_looks(usual_looks, {name: "ntk" for name in usual_looks})
    assert (
        looks["ntk"] == EXTENSION_LOOKS["ntk"]
        and len(set(looks.values())) == 6
        and all(dash for _, dash in looks.values())
    )


def test_an_extension_takes_another_colour_than_an_encoding_of_the_same_figure_has():
    methods = [
        ("rope", "none", "none"),
        ("fox", "none", "none"),
        ("rope", "yarn", "none"),
        ("rope", "rerope", "log_n"),
    ]
    names = {name: name for name in ("rope", "fox", "none", "yarn", "rerope")}
    pens = pens_of_methods(methods, names, by_extension=True)
    assert (
        EXTENSION_LOOKS["rerope"][0] == ENCODING_COLOURS["fox"]
        and len({pen.colour for pen in pens.values()}) == 4
    )
    alone = pens_of_methods(methods[2:], names, by_extension=True)
    assert alone["rope", "rerope", "log_n"].colour == OKABE_ITO[EXTENSION_LOOKS["rerope"][0]]


def test_the_floor_behind_losses_by_context_is_no_name_of_none():
    plain = point("none")
    assert (
        yaml_names([replace(plain, facts=replace(plain.facts, extension="recompute_window"))])[
            "none"
        ]
        == "none"
    )


def test_each_encoding_has_a_panel_and_panels_share_their_axes():
    figure = loss_curves.figure(grid(lengths=(64, 512)), "t")
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    headings = ["Encodings, nothing extended", *(f"{name}: extensions" for name in sorted(SIX))]
    assert [axes.get_title("left") for axes in figure.axes] == headings


def test_panels_of_encodings_that_differ_in_a_number_are_in_its_order():
    encodings = ["rope steps=100", "rope steps=30", "rope x=0.5", "rope x=0.25"]
    headings = [group.heading for group in panel_groups(grid(encodings, SEVEN))]
    order = [
        heading.removesuffix(": extensions") for heading in headings if ": extensions" in heading
    ]
    assert order == ["rope steps=30", "rope steps=100", "rope x=0.25", "rope x=0.5"]


def bars(axes):
    """[(x in points, bottom, top)] of every interval."""
    from matplotlib.collections import LineCollection

    segments = [
        part
        for lines in axes.collections
        if isinstance(lines, LineCollection)
        for part in lines.get_segments()
    ]
    place = axes.transData.transform
    return [(place(part[0])[0] * 72 / axes.figure.dpi, part[0][1], part[1][1]) for part in segments]


@pytest.mark.parametrize("lines", [1, 2, 8])
def test_intervals_at_one_length_stand_side_by_side(lines):
    names = ["none", *(f"e{n}" for n in range(lines - 1))]
    curve = [
        point(extension=name, length=length, difference=0.05, half=0.03)
        for name in names
        for length in LENGTHS
    ]
    (axes,) = loss_curves.figure(curve, "t").axes
    xs = sorted(x for x, *_ in bars(axes))
    assert len(xs) == lines * len(LENGTHS)
    apart = 2.1 if lines < 4 else 0.8  # a bar is 2 wide; many are closer, to stay at their length
    assert all(after - before > apart for before, after in itertools.pairwise(xs))
    tick = [axes.transData.transform((length, 0))[0] * 72 / axes.figure.dpi for length in LENGTHS]
    assert [
        sum(xs[n * lines : (n + 1) * lines]) / lines for n in range(len(LENGTHS))
    ] == pytest.approx(tick, abs=0.1)
    assert tick[0] - xs[0] <= (tick[1] - tick[0]) / 19  # 64 stands between 62 and 66


def test_an_interval_that_overlaps_no_other_stands_at_its_length():
    heights = {"none": 0.05, "pi": 0.06, "yarn": 0.3}
    curve = [
        point(extension=name, length=length, difference=high, half=0.02)
        for name, high in heights.items()
        for length in LENGTHS
    ]
    (axes,) = loss_curves.figure(curve, "t").axes
    ticks = [axes.transData.transform((length, 0))[0] * 72 / axes.figure.dpi for length in LENGTHS]
    placed = {
        high: sorted(x for x, low, top in bars(axes) if low < high < top) for high in (0.05, 0.3)
    }
    assert placed[0.3] == pytest.approx(ticks) and not any(
        x == pytest.approx(tick) for x, tick in zip(placed[0.05][::2], ticks, strict=True)
    )


def test_exploding_values_are_printed_and_many_are_counted():
    cells = [(f"e{n}", scale) for n in range(NAMES_IN_PANEL) for scale in ("none", "log_n", "yarn")]
    curve = [
        point("rope", *cell, length, 0.01 * n)
        for n, cell in enumerate(cells)
        for length in (64, 128)
    ]
    many = [
        replace(drawn_point, difference=50.0 + n)
        if drawn_point.length == 128 and n % 6 == 1
        else drawn_point
        for n, drawn_point in enumerate(curve)
    ]
    printed = shown_texts(loss_curves.figure(many, "t"))
    assert (
        "8 here" in printed
        and "to +93" in printed
        and not any(text.startswith("+") for text in printed)
    )
    assert "+57" in shown_texts(
        loss_curves.figure([*curve[:-1], replace(curve[-1], difference=57.0)], "t")
    )


@pytest.mark.parametrize(
    "heights",
    [[5.0, 5.0, 5.0], [0.0, 100.0, 50.0], [99.0, 98.0, 100.0, 3.0], [1.0], [], [-40.0, 140.0]],
)
def test_labels_do_not_overlap_and_keep_their_order(heights):
    placed = spread_apart(heights, gap=10.0, low=0.0, high=100.0)
    ascending = [
        placed[index] for index in sorted(range(len(heights)), key=lambda index: heights[index])
    ]
    assert all(b - a >= 10.0 - 1e-9 for a, b in itertools.pairwise(ascending))
    assert all(-1e-9 <= place <= 100.0 + 1e-9 for place in placed)


def test_the_caption_says_which_gate_failed():
    points = [
        point(name, gain_lower=-0.01 if name == "alibi" else 0.1)
        for name in ("rope", "alibi", "sinusoidal")
    ]
    (line,) = [line for line in curve_caption(points, relative=True) if "gate failed" in line]
    parts = line.split("): ")[1].split("; ")
    assert [part.split()[0] for part in parts] == ["rope", "alibi", "sinusoidal"]
    assert ["gate failed" in part for part in parts] == [False, True, False]


def test_the_map_holds_every_number_once():
    curve = [
        drawn_point
        for drawn_point in grid(SIX[:2], explode=30.0)
        if (drawn_point.encoding, drawn_point.extension, drawn_point.length) != ("rope", "pi", 512)
    ]
    curve = [
        (
            replace(drawn_point, difference=None, nll=None)
            if (drawn_point.encoding, drawn_point.length) == ("alibi", 1024)
            else drawn_point
        )
        for drawn_point in curve
    ]
    figure = differences.heatmap(curve, "t")
    printed = [
        float(text.strip("^~"))
        for text in shown_texts(figure)
        if text.strip("^~")[:1] in ("+", "-")
    ]
    expected = [
        drawn_point.difference for drawn_point in curve if drawn_point.difference is not None
    ]
    assert sorted(printed) == pytest.approx(sorted(expected), rel=0.005, abs=0.0006)
    assert shown_texts(figure).count("nan") == 14 and any(
        text.startswith("^+") for text in shown_texts(figure)
    )
    assert any("Hatched: not evaluated" in text.get_text() for text in figure.texts)
    # the cell that was left out for each scale, and the legend
    hatched = [patch for patch in figure.findobj(Rectangle) if patch.get_hatch()]
    assert len(hatched) == 2 + 1 and "not evaluated" in shown_texts(figure)
    full_map = differences.heatmap(grid(SIX[:2]), "t")
    assert not [patch for patch in full_map.findobj(Rectangle) if patch.get_hatch()]


def test_bars_of_a_report_are_intervals_seeds_or_none():
    seeds = {"seeds": (3, 5), "difference": (0.04, 0.06)}
    curve = [point(length=length, difference=0.05, half=0.03) for length in LENGTHS]
    curve = [replace(drawn_point, by_seed=seeds) for drawn_point in curve]
    figures = {kind: loss_curves.figure(curve, "t", bars=kind) for kind in BARS}
    assert {kind: len(bars(figure.axes[0])) for kind, figure in figures.items()} == {
        "interval": 5,
        "seeds": 0,
        "none": 0,
    }
    thin = {
        kind: [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linewidth() == 0.6]
        for kind, figure in figures.items()
    }
    assert thin == {"interval": [], "seeds": [0.04, 0.06], "none": []}
    captions = {
        kind: figure.texts[-1].get_text().replace("\n", " ") for kind, figure in figures.items()
    }
    assert "over 3 seeds alone" in captions["interval"]
    assert "Thin lines: the 2 seeds of each mean" in captions["seeds"]
    assert "ars:" not in captions["none"]
    assert all("x logarithmic; y linear to 0.1" in text for text in captions.values())


def test_what_an_interval_does_not_decide_is_marked(tmp_path):
    curve = [
        point(extension=name, difference=0.05, half=half)
        for name, half in (("a", 0.06), ("b", 0.04), ("c", None))
    ]
    files = write_figure(differences.heatmap(curve, "t"), tmp_path / "map.v2")
    assert (
        [path.name for path in files]
        == ["map.v2.png", "map.v2.svg"]
        == sorted(path.name for path in tmp_path.iterdir())
    )
    assert "<image" not in files[1].read_text()  # the page's policy lets none be shown
    assert (texts(files[1]).count("+0.050~"), texts(files[1]).count("+0.050")) == (1, 2)


@pytest.mark.parametrize(
    ("sizes", "expected_sizes"), [([3], [3]), ([14] * 6, [42, 42]), ([50, 10], [50, 10])]
)
def test_a_tall_map_is_set_side_by_side(sizes, expected_sizes):
    rows = [(f"e{n}", index) for n, size in enumerate(sizes) for index in range(size)]
    blocks = differences.blocks_of_rows(rows)
    assert [len(block) for block in blocks] == expected_sizes and sum(blocks, []) == rows


def test_intervals_are_drawn_from_end_to_end():
    curve = grid(("rope",), ("none", "pi", "ntk"), ("none",), explode=0.5)
    figure = differences.intervals(curve, "t")
    assert [axes.get_title() for axes in figure.axes] == ["2x (128)", "8x (512)", "16x (1024)"] * 2

    def drawn(panels):
        lines = [
            line
            for axes in panels
            for line in axes.lines
            if len(line.get_xdata()) == 2 and line.get_linewidth() == 1.6
        ]
        return sorted(list(line.get_xdata()) for line in lines)

    expected_ends = [
        [drawn_point.difference - 0.01, drawn_point.difference + 0.01]
        for drawn_point in curve
        if drawn_point.length in (128, 512, 1024)
    ]
    assert sum(drawn(figure.axes[:3]), []) == pytest.approx(sum(sorted(expected_ends), []))
    assert len(drawn(figure.axes[3:])) == 6  # none is its own reference
    rare = [
        replace(drawn_point, change=drawn_point.change if drawn_point.length == 256 else None)
        for drawn_point in curve
    ]
    assert len(differences.intervals(rare, "t").axes) == 3  # a change at a length that is not shown


@pytest.mark.parametrize(
    ("value", "ticks"), [(0.01, ["-0.05", "0", "+0.05"]), (2.0, ["0", "+0.1", "+1"])]
)
def test_differences_of_any_size_have_several_ticks(value, ticks):
    curve = [
        point(extension=name, length=length, difference=value)
        for name in ("none", "pi", "ntk")
        for length in LENGTHS
    ]
    axes = differences.intervals(
        [replace(drawn_point, change=None) for drawn_point in curve], "t"
    ).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ticks


@pytest.mark.parametrize(
    ("n_tasks", "n_panels", "in_rows"),
    [(4, 1, [2, 2]), (3, 2, [2, 2, 2]), (2, 4, [4, 4]), (1, 6, [3, 3]), (2, 9, [3] * 6)],
)
def test_panels_of_a_task_stay_in_one_row_unless_it_is_too_wide(n_tasks, n_panels, in_rows):
    panels_by_task = [
        [Panel(f"{task} {number}", ()) for number in range(n_panels)] for task in range(n_tasks)
    ]
    rows = accuracy._rows_of_tasks(panels_by_task)
    assert [len(row) for row in rows] == in_rows
    titles = [panel.title for panel in itertools.chain(*rows)]
    assert titles == [panel.title for panel in itertools.chain(*panels_by_task)]


def test_lines_of_other_texts_are_not_said_to_share_theirs():
    """The lines of a plot of one run may be read on the validation and on the test split."""
    bar = {"nll_half_width": 0.1, "nll_over": "seeds x documents"}
    rope = point(setting="8 targets, test split", **bar)
    same = point("alibi", setting="8 targets, test split", **bar)
    other = point("alibi", setting="8 targets, validation split", **bar)
    assert "Lines share their texts" in bars_line([rope, same], "nll")
    line = bars_line([rope, other], "nll")
    assert line.startswith("Bars: 95 %") and "share" not in line
