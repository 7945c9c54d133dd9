"""Figure of new distances and too many keys: its panels and lines, when there is none, and that every figure has a title on the page."""

from dataclasses import replace

import pytest
from test_figures import texts
from test_gain_figure import PLACE, SEEN

from posbench.common.csv_records import to_csv
from posbench.report import page
from posbench.report.figures import causes
from posbench.report.figures.draw import draw
from posbench.report.folder import DRAWN
from posbench.report.points import Point

NORM, LOG_N = " model.qk_norm=key_l2", ' trained with log_n {"clamp":false}'
RISES = {"none": 0.4, "random_keys": 0.2, "rerope": 0.1, "random_keys clamp=true": -0.02}  # by each doubling


def measured(encoding="rope", scale="none", lengths=(64, 256, 1024), arms=tuple(RISES)):
    """Points whose difference grows by the same with each doubling of the length."""
    return [
        Point(**PLACE, **SEEN, train_len=64, encoding=encoding, extension=arm, scale_attention=scale, length=length,
              difference=RISES[arm] * (length // 64).bit_length() - RISES[arm])
        for arm in arms for length in lengths
    ]  # fmt: skip


def test_each_training_and_scale_has_a_panel_with_all_four_lines():
    whole = [measured("rope", "log_n"), measured(f"rope{LOG_N}{NORM}"), measured(f"rope{NORM}"), measured(f"rope{LOG_N}"), measured()]
    other = [replace(point, extension="random_keys draw=1") for point in measured(arms=["random_keys"])]
    found = causes.panels([point for own in [*whole, other] for point in own])
    assert list(found) == [("rope", "none"), ("rope", "log_n"), (f"rope{LOG_N}", "none"), (f"rope{NORM}", "none"),
                           (f"rope{LOG_N}{NORM}", "none")]  # fmt: skip
    assert all(list(arms) == list(causes.ARMS) for arms in found.values())
    last = {arm: own[-1].difference for arm, own in found["rope", "none"].items()}
    assert last == pytest.approx({arm: 4 * rise for arm, rise in RISES.items()})


def test_without_all_four_beyond_the_training_length_there_is_no_figure():
    three = measured(arms=("none", "rerope", "random_keys"))
    for found in ([], three, measured(lengths=(64,)), [replace(point, difference=None) for point in measured()]):
        assert causes.figure(found, "t") is None


def test_it_is_drawn_with_every_cause_named_and_the_page_has_a_title_for_it(tmp_path):
    points = measured() + measured("rope", "log_n") + measured(f"rope{NORM}")
    (tmp_path / "curve.csv").write_text(to_csv(points, Point))
    drawn = draw(tmp_path / "curve.csv", tmp_path, "Two causes")
    assert [path.name for path in drawn[0]["causes"]] == ["causes.png", "causes.svg"]
    said = texts(tmp_path / "causes.svg")
    for text in ("rope", "rope + log_n", f"rope{NORM}", *(name for name, _, _ in causes.ARMS.values())):
        assert text in said, text
    assert "minus the floor" in " ".join(said)


def test_every_figure_has_a_title_on_the_page_and_is_removed_with_its_report(tmp_path):
    long = [replace(point, train_len=256) for point in measured(lengths=(256, 1024))]
    (tmp_path / "curve.csv").write_text(to_csv([replace(point, gain=0.1) for point in measured() + long], Point))
    found = {name: paths for part in draw(tmp_path / "curve.csv", tmp_path, "t") for name, paths in part.items()}
    assert {"curve", "causes", "gain", "frontier"} <= set(found) <= set(page.FIGURES)
    assert all(DRAWN.fullmatch(path.name) for paths in found.values() for path in paths)
