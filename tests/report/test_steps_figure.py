"""Figures of losses and accuracies by the steps of a fine-tuning: what stands in them, and when there are none."""

from dataclasses import replace

import pytest
from labelled import labelled
from test_figures import texts

from posbench.report.figures import steps, trainings
from posbench.report.figures.draw import draw
from posbench.report.records import CurvePoint, Score, sections

PLACE = {"protocol": "fixed_targets", "data": "pysource", "tokenizer": "bpe-1024", "setting": None, "n_seeds": 3, "n_targets": 4096}
SEEN = {"n_units": 120, "sem_unit": "document", "over": "seeds x documents", "half_width": 0.02, "floor": 2.4, "untested": False}
RATES = {"none": 0.5, "pi (trained in)": 0.3, "yarn (trained in)": 0.1}


def tuned(extension="none", encoding="rope", numbers=(0, 10, 100), train_len=256, lengths=(64, 256, 1024)):
    """Children whose loss falls from 3 + its rate in proportion to 1 / (1 + steps / 10), the same at every length."""
    values = {number: 3 + RATES[extension] / (1 + number / 10) for number in numbers}
    return [
        CurvePoint(**PLACE, **SEEN, train_len=train_len, encoding=f"{encoding} tuned from rope-64 steps={number}", extension=extension,
              scale_attention="none", length=length, nll=value, difference=value - 2.4, gain=0.1)
        for number, value in values.items() for length in lengths
    ]  # fmt: skip


def test_each_method_is_a_line_over_its_steps_at_three_lengths(tmp_path):
    points = [point for extension in RATES for point in tuned(extension, lengths=(64, 128, 256, 1024))]
    cells = steps.by_steps(labelled(points))
    assert set(cells) == {("rope tuned from rope-64", extension, "none") for extension in RATES}
    made = steps.figure(labelled(points), "Fine-tuned")
    assert [axes.get_title(loc="left").split()[2] for axes in made.axes] == ["64", "256", "1024"]
    for axes in made.axes:
        lines = curves(axes)
        for line, (_, extension, _) in zip(lines, cells, strict=True):
            assert list(line.get_xdata()) == [0, 10, 100]
            assert list(line.get_ydata()) == pytest.approx([3 + RATES[extension] / (1 + number / 10) for number in (0, 10, 100)])
    (drawn,) = draw(sections(labelled(points)), tmp_path, "Fine-tuned")
    assert [path.name for path in drawn["steps"]] == ["steps.png", "steps.svg"]
    shown = texts(tmp_path / "steps.svg")
    assert {"no extension", "pi (trained in)", "yarn (trained in)"} <= set(shown)


def curves(axes):
    return [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_transform() == axes.transData]


def rules(axes):
    """Heights of the lines across a panel."""
    return [float(line.get_ydata()[0]) for line in axes.lines if line.get_transform() == axes.get_yaxis_transform(which="grid")]


def test_the_model_before_the_fine_tuning_is_a_line_at_its_own_length():
    points = [point for extension in RATES for point in tuned(extension)]
    first, *others = steps.figure(labelled(points), "Fine-tuned").axes
    assert rules(first) == [3.5] and not any(map(rules, others))  # no extension, 0 steps
    bare = [point for point in points if point.extension != "none"]
    dropped = tuned(encoding="none")  # 0 steps is then no longer the model that was trained
    for found in (bare, dropped):
        assert not any(rules(axes) for axes in steps.figure(labelled(found), "Fine-tuned").axes)


def asked(extension, numbers=(0, 10, 100), tasks=("copy",), depths=(None, 0.5), learned=2):
    """Children whose accuracy rises with the steps, in a task and a share of it."""
    shared = {key: value for key, value in PLACE.items() if key not in ("n_targets", "n_seeds")}
    shared |= {"protocol": "accuracy", "train_len": 256, "n_texts": 50, "n_answers": 400, "over": "seeds x examples", "n_seeds": learned}
    return [
        Score(**shared, task=task, encoding=f"rope tuned from rope-64 steps={number}", extension=extension, scale_attention="none",
              untested=False, length=length, depth=depth, n_trained=2, accuracy=number / 200, low=number / 250, high=number / 150,
              nll=1.0, choice=None, learned=bool(number), inside=number / 200)
        for number in numbers for task in tasks for length in (64, 256) for depth in depths
    ]  # fmt: skip


def test_accuracy_has_a_row_of_panels_for_each_part_of_a_task(tmp_path):
    scores = [score for extension in ("none", "yarn (trained in)") for score in asked(extension, tasks=("copy", "copy last"))]
    made = steps.score_figure(labelled(scores), "Fine-tuned")
    assert [axes.get_title(loc="left") for axes in made.axes] == [
        f"{task}: accuracy at {length} tokens (share of answers)" for task in ("copy", "copy last") for length in (64, 256)
    ]
    for axes in made.axes:
        assert [(list(line.get_xdata()), list(line.get_ydata())) for line in curves(axes)] == [([0, 10, 100], [0, 0.05, 0.5])] * 2
        (bars, _) = axes.collections
        ends = [value for segment in bars.get_segments() for value in segment[:, 1]]
        assert ends == pytest.approx([0, 0, 0.04, 10 / 150, 0.4, 100 / 150])
    (drawn,) = draw(sections(labelled(scores)), tmp_path, "Fine-tuned")
    assert [path.name for path in drawn["accuracy_steps"]] == ["accuracy_steps.png", "accuracy_steps.svg"]
    assert "Means leave out seeds" not in " ".join(texts(tmp_path / "accuracy_steps.svg"))
    some = steps.score_figure(labelled([replace(score, n_seeds=1) for score in scores]), "Fine-tuned")
    assert "Means leave out seeds" in " ".join(text.get_text() for text in some.texts)


def test_scores_without_steps_make_no_curve():
    assert steps.score_figure(labelled(asked("none", numbers=(30,))), "Fine-tuned") is None
    assert steps.score_figure([replace(score, encoding="rope") for score in asked("none")], "Fine-tuned") is None


def test_one_number_of_steps_makes_no_curve():
    points = tuned(numbers=(30,))
    foreign = [replace(point, source="paper.csv") for point in tuned()]
    scratch = [replace(point, encoding=point.encoding.replace(" tuned from rope-64", "")) for point in tuned()]
    for found in ([], points, foreign, scratch):
        assert steps.figure(labelled(found), "Fine-tuned") is None


def test_a_child_is_no_training_of_another_length():
    scratch = [replace(point, encoding="rope", train_len=64) for point in tuned(numbers=(0,), lengths=(64, 128))]
    assert trainings.at_multiple([*scratch, *tuned(lengths=(256, 512))]) == (0, {})
