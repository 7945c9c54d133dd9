"""Figures of trainings of several lengths or steps, and of fine-tunings by steps: what stands in
them, and when there are none.
"""

import itertools
from dataclasses import replace

import pytest
from blank_pictures import blank_pictures
from labelled import labelled
from test_figures import texts

from posbench.report.figures import trainings
from posbench.report.records import CurvePoint, Score, grouped_by_section
from posbench.report.write_report import draw_sections

PLACE = {
    "protocol": "fixed_targets",
    "data": "pysource",
    "tokenizer": "bpe-1024",
    "setting": None,
    "scale_attention": "none",
}
SEEN = {
    "n_seeds": 3,
    "n_targets": 4096,
    "n_units": 120,
    "sem_unit": "document",
    "over": "seeds x documents",
    "half_width": 0.02,
    "untested": False,
    "floor": 2.4,
}
G = {32: 0.2, 64: 0.1, 128: 0.05}
RATES = {"none": 0.5, "pi (trained in)": 0.3, "yarn (trained in)": 0.1}


def trained(
    encoding="rope", extension="none", lengths=(32, 64, 128), multiples=(1, 2, 4), steps=(1500,)
):
    """Points of one method on trainings of several lengths; the difference is G times the multiple,
    so that every value is known.
    """
    points = []
    for train_len, count, multiple in itertools.product(lengths, steps, multiples):
        gain = G[train_len] * count / 1500
        point = CurvePoint(
            **PLACE,
            **SEEN,
            train_len=train_len,
            encoding=encoding if count == 1500 else f"{encoding} train.steps={count}",
            extension=extension,
            length=multiple * train_len,
            nll=2.5,
            gain=gain,
            difference=multiple * G[train_len] * count / 1500,
        )
        points.append(point)
    return points


def test_points_stand_at_the_largest_multiple_that_every_training_was_read_at_in_the_order_of_g():
    points = (
        trained(steps=(500, 1500))
        + trained(extension="yarn", multiples=(2, 4, 8))
        + trained("alibi", multiples=(1, 2))
    )
    multiple, cells = trainings.at_common_multiple(labelled(points))
    assert multiple == 2 and set(cells) == {
        ("rope", "none", "none"),
        ("rope", "yarn", "none"),
        ("alibi", "none", "none"),
    }
    assert [point.gain for point in cells["rope", "none", "none"]] == pytest.approx(
        sorted([*G.values(), *(gain / 3 for gain in G.values())])
    )
    assert all(point.length == 2 * point.train_len for point in sum(cells.values(), []))


def test_trainings_of_one_length_and_several_numbers_of_steps_stand_against_these(tmp_path):
    points = trained(lengths=(64,), steps=(500, 3000)) + trained(
        extension="pi", lengths=(64,), steps=(500, 3000)
    )
    points += [
        replace(point, encoding="rope n_layer=1 steps=3000", gain=0.01)
        for point in trained(lengths=(64,), steps=(3000,))
    ]
    multiple, cells = trainings.at_common_multiple(labelled(points), trainings.STEPS_KNOB)
    assert multiple == 4 and set(cells) == {
        ("rope", "none", "none"),
        ("rope", "pi", "none"),
        ("rope n_layer=1", "none", "none"),
    }
    with blank_pictures("png"):
        draw_sections(grouped_by_section(labelled(points)), tmp_path, "Steps")
    shown_texts = texts(tmp_path / "gain.svg")
    assert {
        "Against G (nats/token)",
        "Against the steps of training",
        "rope + pi",
        "rope n_layer=1",
    } <= set(shown_texts)
    assert "disc 500, diamond 3000 steps" in " ".join(shown_texts)


def test_lines_join_what_only_the_knob_or_the_training_changes():
    def joined(points):
        panels = trainings.gain_figure(labelled(points), "t").axes
        drawn = [
            [
                line
                for line in axes.lines
                if line.get_zorder() == 3 and line.get_linestyle() != "None"
            ]
            for axes in panels
        ]
        return [sorted(len(line.get_xdata()) for line in lines) for lines in drawn]

    assert joined(trained(steps=(500, 1500))) == [
        [2, 2, 2],
        [3, 3],
    ]  # against G those of one length, against the length those of one name
    assert joined(trained(lengths=(64,), steps=(500, 1000, 3000))) == [[3], [3]]
    slopes = [
        replace(point, encoding=f"alibi slope={point.train_len}") for point in trained("alibi")
    ]
    assert joined(trained() + trained(lengths=(64,), steps=(500,))) == [
        [1, 1, 2],
        [3],
    ]  # 500 steps at one length are no line
    assert joined(slopes) == [
        [1, 1, 1],
        [3],
    ]  # an argument that follows the length is the same method
    assert joined(
        trained() + [replace(point, encoding="rope base=2.0") for point in trained()]
    ) == [
        [2, 2, 2],
        [3, 3],
    ]


def read_at(extension="none", lengths=(32, 64, 256), read=(32, 64, 128, 256)):
    """Points whose loss is 2 + length / train_len / 100, and whose floor is 1.9 + 1 / train_len."""
    return [
        CurvePoint(
            **PLACE,
            **SEEN | {"floor": 1.9 + 1 / train_len},
            train_len=train_len,
            encoding="rope",
            extension=extension,
            length=length,
            nll=2 + length / train_len / 100,
        )
        for train_len, length in itertools.product(lengths, read)
    ]


def test_all_trainings_stand_at_the_longest_length_that_they_were_read_at():
    length, cells = trainings.at_common_length(
        read_at() + read_at("yarn", lengths=(32, 64)) + read_at("none", read=(512,), lengths=(64,))
    )
    assert length == 256 and set(cells) == {
        ("rope", "none", "none"),
        ("rope", "yarn", "none"),
        trainings.FLOOR_LINE,
    }
    assert {train_len: point.nll for train_len, point in cells["rope", "none", "none"].items()} == {
        32: 2.08,
        64: 2.04,
        256: 2.01,
    }
    assert set(cells["rope", "yarn", "none"]) == {32, 64} and set(cells[trainings.FLOOR_LINE]) == {
        32,
        64,
        256,
    }


def tuned(extension="none", encoding="rope", numbers=(0, 10, 100), lengths=(64, 256, 1024)):
    """Children whose loss falls from 3 + its rate in proportion to 1 / (1 + steps / 10), the same
    at every length.
    """
    return [
        CurvePoint(
            **PLACE,
            **SEEN,
            train_len=256,
            encoding=f"{encoding} tuned from rope-64 steps={number}",
            extension=extension,
            length=length,
            nll=3 + RATES[extension] / (1 + number / 10),
            difference=0.6 + RATES[extension] / (1 + number / 10),
            gain=0.1,
        )
        for number, length in itertools.product(numbers, lengths)
    ]


def curves(axes):
    return [
        line
        for line in axes.lines
        if len(line.get_xdata()) == 3 and line.get_transform() == axes.transData
    ]


def rules(axes):
    """Heights of the lines across a panel."""
    return [
        float(line.get_ydata()[0])
        for line in axes.lines
        if line.get_transform() == axes.get_yaxis_transform(which="grid")
    ]


def test_each_fine_tuned_method_is_a_line_over_its_steps_and_the_model_before_a_level():
    points = labelled(
        [point for extension in RATES for point in tuned(extension, lengths=(64, 128, 256, 1024))]
    )
    figure = trainings.steps_figure(points, "Fine-tuned")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"Loss minus before at {length} tokens" for length in (64, 256, 1024)
    ]
    before = RATES["none"]  # above 3, without an extension, after 0 steps
    for axes in figure.axes:
        for line, rate in zip(curves(axes), RATES.values(), strict=True):
            assert list(line.get_xdata()) == [0, 10, 100]
            assert list(line.get_ydata()) == pytest.approx(
                [rate / (1 + number / 10) - before for number in (0, 10, 100)]
            )
    names = [{text.get_text() for text in axes.texts} for axes in figure.axes]
    assert names[:2] == [set(), set()] and names[2] == {"no extension", "pi", "yarn"}
    assert list(map(rules, figure.axes)) == [[0.0], [0.0], [0.0]]
    bare = [point for point in points if point.extension != "none"]
    dropped = labelled(
        tuned(encoding="none")
    )  # 0 steps is then no longer the model that was trained
    for selected in (bare, dropped):
        assert not any(rules(axes) for axes in trainings.steps_figure(selected, "Fine-tuned").axes)


def tuned_scores(extension, numbers=(0, 10, 100), tasks=("copy",), depths=(None, 0.5), learned=2):
    """Children whose accuracy rises with the steps, in a task and a share of it."""
    shared = PLACE | {
        "protocol": "accuracy",
        "train_len": 256,
        "n_texts": 50,
        "n_answers": 400,
        "over": "seeds x examples",
    }
    return [
        Score(
            **shared,
            task=task,
            encoding=f"rope tuned from rope-64 steps={number}",
            extension=extension,
            untested=False,
            length=length,
            depth=depth,
            n_seeds=learned,
            n_trained=2,
            accuracy=number / 200,
            low=number / 250,
            high=number / 150,
            nll=1.0,
            choice=None,
            learned=bool(number),
            inside=number / 200,
        )
        for number, task, length, depth in itertools.product(numbers, tasks, (64, 256), depths)
    ]


def test_accuracy_has_a_row_of_panels_for_each_part_of_a_task(tmp_path):
    scores = labelled(
        [
            score
            for extension in ("none", "yarn (trained in)")
            for score in tuned_scores(extension, tasks=("copy", "copy last"))
        ]
    )
    full_figure = trainings.accuracy_steps_figure(scores, "Fine-tuned")
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in full_figure.axes] == [
        f"{task}: accuracy at {length} tokens (share of answers)"
        for task in ("copy", "copy last")
        for length in (64, 256)
    ]
    for axes in full_figure.axes:
        assert [(list(line.get_xdata()), list(line.get_ydata())) for line in curves(axes)] == [
            ([0, 10, 100], [0, 0.05, 0.5])
        ] * 2
        bars, _ = axes.collections
        ends = [value for segment in bars.get_segments() for value in segment[:, 1]]
        assert ends == pytest.approx([0, 0, 0.04, 10 / 150, 0.4, 100 / 150])
    with blank_pictures("png"):
        (drawn,) = draw_sections(grouped_by_section(scores), tmp_path, "Fine-tuned")
    assert [path.name for path in drawn["accuracy_steps"]] == [
        "accuracy_steps.png",
        "accuracy_steps.svg",
    ]
    some = trainings.accuracy_steps_figure(
        [replace(score, n_seeds=1) for score in scores], "Fine-tuned"
    )
    assert [
        any("Means leave out seeds" in text.get_text() for text in figure.texts)
        for figure in (full_figure, some)
    ] == [False, True]


def test_without_trainings_or_fine_tunings_that_differ_there_is_no_figure():
    def from_file(points):
        return [replace(point, source="paper.csv") for point in points]

    apart = [
        point for point in trained() if point.length == {32: 64, 64: 256, 128: 256}[point.train_len]
    ]  # no multiple in common
    unknown = [replace(point, gain=None) for point in trained()]
    child = [
        replace(tuned_point, encoding="rope", train_len=64)
        for tuned_point in tuned(numbers=(0,), lengths=(64, 128))
    ] + tuned(lengths=(256, 512))
    for records in (
        [],
        trained(lengths=(64,)) + trained("alibi", lengths=(128,)),
        unknown,
        from_file(trained()),
        apart,
        child,
    ):
        assert trainings.gain_figure(labelled(records), "t") is None
    short = read_at(read=(32, 64, 128))  # shorter than the longest training
    other = [replace(point, setting=f"{point.train_len // 8} targets") for point in read_at()]
    children = [replace(point, encoding="rope tuned from rope") for point in read_at()]
    for records in ([], read_at(lengths=(64,)), short, other, children, from_file(read_at())):
        assert trainings.frontier_figure(labelled(records), "t") is None
    scratch = [
        replace(point, encoding=point.encoding.replace(" tuned from rope-64", ""))
        for point in tuned()
    ]
    for records in ([], tuned(numbers=(30,)), from_file(tuned()), scratch):
        assert trainings.steps_figure(labelled(records), "t") is None
    for records in (
        tuned_scores("none", numbers=(30,)),
        [replace(score, encoding="rope") for score in tuned_scores("none")],
    ):
        assert trainings.accuracy_steps_figure(labelled(records), "t") is None


def test_loss_and_floor_stand_beside_each_other_over_the_steps_of_one_length():
    both = trained(lengths=(64,), steps=(500, 3000)) + trained(
        extension="pi", lengths=(64,), steps=(500, 3000)
    )
    points = labelled(
        [
            replace(point, nll=4.0 + point.difference - number / 9, floor=3.0 + number / 7)
            for number, point in enumerate(both)
        ]
    )
    figure = trainings.floors_figure(points, "t")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["rope", "rope + pi"]
    for axes, extension in zip(figure.axes, ("none", "pi"), strict=True):
        last = [point for point in points if point.extension == extension and point.length == 256]
        nll, floor = (
            line
            for line in axes.lines
            if line.get_transform() == axes.transData and len(line.get_xdata()) == 2
        )
        assert list(nll.get_ydata()) == [point.nll for point in last] and list(
            floor.get_ydata()
        ) == [point.floor for point in last]
    assert trainings.floors_figure(labelled(trained()), "t") is None  # lengths differ, and no steps
