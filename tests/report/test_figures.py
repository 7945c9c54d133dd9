from dataclasses import replace
from xml.etree import ElementTree

import pytest
from synthetic import CURVES, Built, write_run

from posbench.report.figures import intervals
from posbench.report.figures.captions import caption
from posbench.report.figures.lines import spread
from posbench.report.figures.style import save
from posbench.report.records import read_points


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A report of the demo's shape; one seed is enough for its figure."""
    root = tmp_path_factory.mktemp("demo")
    curves = {**CURVES, ("rope", "pi", "none"): (0.004, 0.258, 5.5, 9.25)}
    Built(
        [path for encoding in ("rope", "alibi", "sinusoidal") for path in write_run(root, encoding, curves=curves)],
        root,
        "Title & more",
        "x",
    )
    return root


def texts(svg):
    """What an svg says: matplotlib keeps every string as a comment beside its outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(svg, parser)
    return [element.text.strip() for element in tree.iter() if element.tag is ElementTree.Comment]


def test_a_name_with_a_dot_in_it_is_kept(tmp_path):
    from matplotlib.figure import Figure

    assert [path.name for path in save(Figure((1, 1)), tmp_path / "rope.v2")] == ["rope.v2.png", "rope.v2.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rope.v2.png", "rope.v2.svg"]


def test_changes_at_lengths_that_are_not_shown_draw_no_panels(drawn):
    """Of many lengths the first, the middle and the last are shown; a change at another is no reason for a panel without values."""
    once = {point.method: point for point in read_points(drawn / "curve.csv") if point.length == 128}
    many = [replace(one, length=64 + 4 * n, change=0.1 if n == 2 else None) for one in once.values() for n in range(1, 13)]
    assert intervals.figure(many, "Title") is not None


def test_a_clipped_value_is_printed(drawn):
    said = texts(drawn / "curve.svg")
    points = [point for point in read_points(drawn / "curve.csv") if point.extension == "pi" and point.scale_attention == "none"]
    beyond = [f"{point.difference:+.2f}" for point in points if point.difference > 4]
    assert len(beyond) == 2 and set(beyond) <= set(said)


@pytest.mark.parametrize("wanted", [[5.0, 5.0, 5.0], [0.0, 100.0, 50.0], [99.0, 98.0, 100.0, 3.0], [1.0], [], [-40.0, 140.0]])
def test_labels_do_not_overlap_and_keep_their_order(wanted):
    placed = spread(wanted, gap=10.0, low=0.0, high=100.0)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    ascending = [placed[index] for index in order]
    assert all(b - a >= 10.0 - 1e-9 for a, b in zip(ascending, ascending[1:], strict=False))
    assert all(-1e-9 <= place <= 100.0 + 1e-9 for place in placed)


def test_the_caption_says_which_gate_failed(drawn):
    points = [point for point in read_points(drawn / "curve.csv") if point.extension == "none" and point.scale_attention == "none"]
    points = [replace(point, gain_lower=-0.01 if point.encoding == "alibi" else 0.1) for point in points]
    (line,) = [line for line in caption(points, relative=True) if "gate failed" in line]
    assert [("gate failed" in part, part.split()[0]) for part in line.split("): ")[1].split("; ")] == [
        (False, "rope"), (True, "alibi"), (False, "sinusoidal")]  # fmt: skip
