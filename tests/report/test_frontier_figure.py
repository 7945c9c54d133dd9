"""Figure of the loss at one length by training length: which points stand in it, and when there is none."""

from dataclasses import replace

from labelled import labelled
from test_gain_figure import PLACE, SEEN

from posbench.report.figures import frontier
from posbench.report.records import CurvePoint


def trained(extension="none", scale="none", lengths=(32, 64, 256), read=(32, 64, 128, 256), encoding="rope"):
    """Points whose loss is 2 + length / train_len / 100, and whose floor is 1.9 + 1 / train_len."""
    return [
        CurvePoint(**PLACE, **{**SEEN, "nll": 2 + length / train_len / 100, "floor": 1.9 + 1 / train_len}, train_len=train_len,
              encoding=encoding, extension=extension, scale_attention=scale, length=length)
        for train_len in lengths for length in read
    ]  # fmt: skip


def test_all_trainings_stand_at_the_longest_length_that_they_were_read_at():
    length, cells = frontier.at_length(trained() + trained("yarn", lengths=(32, 64)) + trained("none", read=(512,), lengths=(64,)))
    assert length == 256 and set(cells) == {("rope", "none", "none"), ("rope", "yarn", "none"), frontier.FLOOR}
    assert {train_len: point.nll for train_len, point in cells["rope", "none", "none"].items()} == {32: 2.08, 64: 2.04, 256: 2.01}
    assert set(cells["rope", "yarn", "none"]) == {32, 64} and set(cells[frontier.FLOOR]) == {32, 64, 256}


def test_without_one_length_of_the_same_targets_there_is_no_figure():
    short = trained(read=(32, 64, 128))  # shorter than the longest training
    other = [replace(point, setting=f"{point.train_len // 8} targets") for point in trained()]
    tuned = [replace(point, encoding="rope tuned from rope") for point in trained()]
    for found in ([], trained(lengths=(64,)), short, other, tuned, [replace(point, source="paper.csv") for point in trained()]):
        assert frontier.figure(labelled(found), "t") is None
