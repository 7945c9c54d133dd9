"""Figure of losses by the steps of a fine-tuning: what stands in it, and when there is none."""

from dataclasses import replace

import pytest
from test_figures import texts

from posbench.common.csv_records import to_csv
from posbench.report.figures import gain, steps
from posbench.report.figures.draw import draw
from posbench.report.points import Point

PLACE = {"protocol": "fixed_targets", "data": "pysource", "tokenizer": "bpe-1024", "setting": None, "n_seeds": 3, "n_targets": 4096}
SEEN = {"n_units": 120, "sem_unit": "document", "over": "seeds x documents", "half_width": 0.02, "floor": 2.4, "untested": False}
RATES = {"none": 0.5, "pi (trained in)": 0.3, "yarn (trained in)": 0.1}


def tuned(extension="none", encoding="rope", numbers=(0, 10, 100), train_len=256, lengths=(64, 256, 1024)):
    """Children whose loss falls from 3 + its rate in proportion to 1 / (1 + steps / 10), the same at every length."""
    values = {number: 3 + RATES[extension] / (1 + number / 10) for number in numbers}
    return [
        Point(**PLACE, **SEEN, train_len=train_len, encoding=f"{encoding} tuned from rope-64 steps={number}", extension=extension,
              scale_attention="none", length=length, nll=value, difference=value - 2.4, gain=0.1)
        for number, value in values.items() for length in lengths
    ]  # fmt: skip


def test_each_method_is_a_line_over_its_steps_at_three_lengths(tmp_path):
    points = [point for extension in RATES for point in tuned(extension, lengths=(64, 128, 256, 1024))]
    cells = steps.by_steps(points)
    assert set(cells) == {("rope tuned from rope-64", extension, "none") for extension in RATES}
    made = steps.figure(points, "Fine-tuned")
    assert [axes.get_title(loc="left").split()[2] for axes in made.axes] == ["64", "256", "1024"]
    for axes in made.axes:
        lines = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_transform() == axes.transData]
        for line, (_, extension, _) in zip(lines, cells, strict=True):
            assert list(line.get_xdata()) == [0, 10, 100]
            assert list(line.get_ydata()) == pytest.approx([3 + RATES[extension] / (1 + number / 10) for number in (0, 10, 100)])
    (tmp_path / "curve.csv").write_text(to_csv(points, Point))
    (drawn,) = draw(tmp_path / "curve.csv", tmp_path, "Fine-tuned")
    assert [path.name for path in drawn["steps"]] == ["steps.png", "steps.svg"]
    shown = texts(tmp_path / "steps.svg")
    assert {"no extension", "pi (trained in)", "yarn (trained in)"} <= set(shown)
    assert any("Fine-tuned at 256 tokens; 0 steps is the same method without fine-tuning." in text for text in shown)


def test_one_number_of_steps_makes_no_curve():
    points = tuned(numbers=(30,))
    foreign = [replace(point, source="paper.csv") for point in tuned()]
    scratch = [replace(point, encoding=point.encoding.replace(" tuned from rope-64", "")) for point in tuned()]
    for found in ([], points, foreign, scratch):
        assert steps.figure(found, "Fine-tuned") is None


def test_a_child_is_no_training_of_another_length():
    scratch = [replace(point, encoding="rope", train_len=64) for point in tuned(numbers=(0,), lengths=(64, 128))]
    assert gain.at_multiple([*scratch, *tuned(lengths=(256, 512))]) == (0, {})
