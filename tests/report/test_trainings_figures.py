"""Figures of trainings of several lengths or steps, by G, length and steps: what stands in them, and when there are none."""

from dataclasses import replace

import pytest
from labelled import labelled
from test_figures import texts

from posbench.report.figures import trainings
from posbench.report.figures.draw import draw
from posbench.report.records import CurvePoint, sections

PLACE = {"protocol": "fixed_targets", "data": "pysource", "tokenizer": "bpe-1024", "setting": None, "n_seeds": 3, "n_targets": 4096}
SEEN = {"n_units": 120, "sem_unit": "document", "over": "seeds x documents", "untested": False}
SEEN |= {"half_width": 0.02, "nll": 2.5, "floor": 2.4}
G = {32: 0.2, 64: 0.1, 128: 0.05}


def trained(encoding="rope", extension="none", scale="none", lengths=(32, 64, 128), multiples=(1, 2, 4), steps=(1500,)):
    """Points of one method on trainings of several lengths; the difference is G times the multiple, so that every value is known."""
    return [
        CurvePoint(**PLACE, **SEEN, train_len=train_len, encoding=encoding if count == 1500 else f"{encoding} train.steps={count}",
              extension=extension, scale_attention=scale, length=multiple * train_len, gain=G[train_len] * count / 1500,
              difference=multiple * G[train_len] * count / 1500)
        for train_len in lengths for count in steps for multiple in multiples
    ]  # fmt: skip


def test_points_stand_at_the_largest_multiple_that_every_training_was_read_at_in_the_order_of_g():
    points = trained(steps=(500, 1500)) + trained(extension="yarn", multiples=(2, 4, 8)) + trained("alibi", multiples=(1, 2))
    multiple, cells = trainings.at_multiple(labelled(points))
    assert multiple == 2 and set(cells) == {("rope", "none", "none"), ("rope", "yarn", "none"), ("alibi", "none", "none")}
    assert [point.gain for point in cells["rope", "none", "none"]] == pytest.approx(sorted([*G.values(), *(one / 3 for one in G.values())]))
    assert all(point.length == 2 * point.train_len for point in sum(cells.values(), []))


def test_trainings_of_one_length_and_several_numbers_of_steps_stand_against_these(tmp_path):
    points = trained(lengths=(64,), steps=(500, 3000)) + trained(extension="pi", lengths=(64,), steps=(500, 3000))
    points += [replace(one, encoding="rope n_layer=1 steps=3000", gain=0.01) for one in trained(lengths=(64,), steps=(3000,))]
    multiple, cells = trainings.at_multiple(labelled(points), trainings.STEPS)
    assert multiple == 4 and set(cells) == {("rope", "none", "none"), ("rope", "pi", "none"), ("rope n_layer=1", "none", "none")}
    draw(sections(labelled(points)), tmp_path, "Steps")
    said = texts(tmp_path / "gain.svg")
    assert {"Against G (nats/token)", "Against the steps of training", "rope + pi", "rope n_layer=1"} <= set(said)
    assert "disc 500, diamond 3000 steps" in " ".join(said)


def test_lines_join_what_only_the_knob_or_the_training_changes():
    def joined(points):
        panels = trainings.gain(labelled(points), "t").axes
        drawn = [[line for line in axes.lines if line.get_zorder() == 3 and line.get_linestyle() != "None"] for axes in panels]
        return [sorted(len(line.get_xdata()) for line in lines) for lines in drawn]

    assert joined(trained(steps=(500, 1500))) == [[2, 2, 2], [3, 3]]  # against G those of one length, against the length those of one name
    assert joined(trained(lengths=(64,), steps=(500, 1000, 3000))) == [[3], [3]]
    slopes = [replace(one, encoding=f"alibi slope={one.train_len}") for one in trained("alibi")]
    assert joined(trained() + trained(lengths=(64,), steps=(500,))) == [[1, 1, 2], [3]]  # 500 steps at one length are no line
    assert joined(slopes) == [[1, 1, 1], [3]]  # an argument that follows the length is the same method
    assert joined(trained() + [replace(one, encoding="rope base=2.0") for one in trained()]) == [[2, 2, 2], [3, 3]]


def test_without_an_encoding_of_several_lengths_or_steps_there_is_no_figure():
    points = trained(lengths=(64,)) + trained("alibi", lengths=(128,))
    unknown = [replace(point, gain=None) for point in trained()]
    apart = [point for point in trained() if point.length == {32: 64, 64: 256, 128: 256}[point.train_len]]  # no multiple in common
    for found in ([], points, unknown, [replace(point, source="paper.csv") for point in trained()], apart):
        assert trainings.gain(labelled(found), "t") is None


def read_at(extension="none", scale="none", lengths=(32, 64, 256), read=(32, 64, 128, 256), encoding="rope"):
    """Points whose loss is 2 + length / train_len / 100, and whose floor is 1.9 + 1 / train_len."""
    return [
        CurvePoint(**PLACE, **{**SEEN, "nll": 2 + length / train_len / 100, "floor": 1.9 + 1 / train_len}, train_len=train_len,
              encoding=encoding, extension=extension, scale_attention=scale, length=length)
        for train_len in lengths for length in read
    ]  # fmt: skip


def test_all_trainings_stand_at_the_longest_length_that_they_were_read_at():
    length, cells = trainings.at_length(read_at() + read_at("yarn", lengths=(32, 64)) + read_at("none", read=(512,), lengths=(64,)))
    assert length == 256 and set(cells) == {("rope", "none", "none"), ("rope", "yarn", "none"), trainings.FLOOR}
    assert {train_len: point.nll for train_len, point in cells["rope", "none", "none"].items()} == {32: 2.08, 64: 2.04, 256: 2.01}
    assert set(cells["rope", "yarn", "none"]) == {32, 64} and set(cells[trainings.FLOOR]) == {32, 64, 256}


def test_without_one_length_of_the_same_targets_there_is_no_figure():
    short = read_at(read=(32, 64, 128))  # shorter than the longest training
    other = [replace(point, setting=f"{point.train_len // 8} targets") for point in read_at()]
    tuned = [replace(point, encoding="rope tuned from rope") for point in read_at()]
    for found in ([], read_at(lengths=(64,)), short, other, tuned, [replace(point, source="paper.csv") for point in read_at()]):
        assert trainings.frontier(labelled(found), "t") is None
