"""Loss against context inside the window: the numbers, where they stand, and that nothing else
moves.
"""

import math

import numpy as np
import pytest
from synthetic import DOCUMENTS, LENGTHS, TARGETS, Built, write_eval
from test_figures import texts
from test_report_html import Page

from posbench.report.figures.within_windows import edges_around
from posbench.report.records import ContextPoint, read_points
from posbench.report.tables import context_table
from posbench.statistics.clustered import student_quantile

SHAPE_C = {1: 1.5, 2: 1.0, 4: 0.7, 16: 0.3, 32: 0.12, 64: 0.0}  # loss minus that with 64 tokens
DOCUMENT = np.arange(TARGETS) % DOCUMENTS
BASE_N = np.random.default_rng(0).normal(3, 1, TARGETS)


def rung(root, context, loss_N, encoding="rope", seed=0, lengths=(128,), **changed):
    """One evaluation with `context` tokens before every target; None is the floor."""
    return write_eval(
        root,
        encoding,
        "recompute_window",
        "none",
        [loss_N] * len(lengths),
        lengths,
        seed,
        {"window": context},
        **changed,
    )


def ladder(root, encoding="rope", seed=0, shift=0.0, contexts=SHAPE_C):
    losses = {c: BASE_N + SHAPE_C[c] * (1 + shift) for c in contexts}
    return [
        rung(root, None if c == 64 else c, loss_N, encoding, seed) for c, loss_N in losses.items()
    ]


def others(root, encodings=("rope", "alibi"), seeds=(0,)):
    """Methods beyond the window, as a grid has them beside."""
    shifts = {"none": 0.5, "pi": 0.2, "ntk": -0.1}
    cells = [
        (encoding, name, shift, seed)
        for encoding in encodings
        for name, shift in shifts.items()
        for seed in seeds
    ]
    return [
        write_eval(root, encoding, name, "none", [BASE_N + shift] * 4, LENGTHS, seed)
        for encoding, name, shift, seed in cells
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(report with ladders, the same without their rungs below the half window)."""
    root = tmp_path_factory.mktemp("context")
    rest = others(root)
    rungs = [path for encoding in ("rope", "alibi") for path in ladder(root, encoding)]
    short = [
        path for encoding in ("rope", "alibi") for path in ladder(root, encoding, contexts=(32, 64))
    ]
    wide, bare = (
        Built(paths + rest, root / name, "Title", "x", pictures="drawn")
        for paths, name in ((rungs, "with"), (short, "without"))
    )
    return wide, bare, root


def step(path, **values):
    (match,) = [
        point
        for point in read_points(path, ContextPoint)
        if all(getattr(point, name) == value for name, value in values.items())
    ]
    return match


def test_one_seed_has_intervals_over_documents(tmp_path):
    # From 32 to 64 tokens half of the documents gain 0.1 and half 0.3: a standard deviation of 0.1
    # over 20 documents.
    half_N = BASE_N + np.where(DOCUMENT % 2, 0.1, 0.3)
    paths = [
        rung(tmp_path, None, BASE_N),
        rung(tmp_path, 32, half_N),
        rung(tmp_path, 16, half_N + 0.25),
    ]
    paths += [rung(tmp_path, 3, half_N + 1), rung(tmp_path, 1, half_N + 2)]
    Built(paths, tmp_path / "out", "t", "x")
    by_context = {c: step(tmp_path / "out" / "context.csv", context=c) for c in (3, 16, 32, 64)}
    width = student_quantile(0.975, 19) * math.sqrt(0.1**2 / 19)
    assert (by_context[64].doubling, by_context[64].doubling_half_width) == (
        pytest.approx(0.2),
        pytest.approx(width, rel=1e-4),
    )
    assert (by_context[32].difference, by_context[32].half_width) == (
        pytest.approx(0.2),
        pytest.approx(width, rel=1e-4),
    )
    assert (by_context[16].difference, by_context[32].doubling) == (
        pytest.approx(0.45),
        pytest.approx(0.25),
    )
    assert (
        by_context[3].doubling is by_context[16].doubling is None
    )  # 8 was not measured; 3 is not the double of 1
    assert (by_context[64].difference, by_context[64].half_width) == (0, 0)
    assert by_context[16].nll == pytest.approx(BASE_N.mean() + 0.45)
    assert by_context[16].bpb == pytest.approx(
        by_context[16].nll / math.log(2) / 2
    )  # two bytes in each target
    assert (
        by_context[16].n_seeds,
        by_context[16].n_targets,
        by_context[16].n_units,
        by_context[16].over,
    ) == (
        1,
        TARGETS,
        DOCUMENTS,
        "document",
    )


def test_several_seeds_are_crossed_with_documents(tmp_path):
    # Every document gains alike, seeds gain 0.12 x (0.9, 1, 1.1): what remains is the t interval
    # over three seeds.
    paths = [
        path
        for seed, shift in enumerate((-0.1, 0.0, 0.1))
        for path in ladder(tmp_path, seed=seed, shift=shift)
    ]
    report = Built(paths, tmp_path / "out", "t", "x")
    last = step(tmp_path / "out" / "context.csv", context=64)
    assert (last.doubling, last.n_seeds, last.over) == (pytest.approx(0.12), 3, "seeds x documents")
    assert last.doubling_half_width == pytest.approx(
        4.30265 * 0.012 / math.sqrt(3), rel=1e-3
    )  # t of 2 degrees of freedom, from a table
    assert (
        "| rope | 4." in report.markdown()
        and "| 0.120 +- 0.030 |" in report.markdown()
        and "seeds: 3;" in report.markdown()
    )


def test_the_table_stands_first_everywhere(built):
    report, _, root = built
    folder = root / "with"
    title = "Loss with exactly c tokens of context (nats/token)"
    page = Page(folder / "report.html").text
    for text in (report.markdown(), report.latex(), report.table_text(), page):
        assert 0 <= text.index(title) < text.index("Loss (nats/token)") and text.count(title) == 1
    markdown = (folder / "table.md").read_text()
    assert "| encoding | 1 | 2 | 4 | 16 | 32 | 64 | G (32 -> 64) |\n| :--- | ---: |" in markdown
    cells = " | ".join(f"{BASE_N.mean() + more:.3f}" for more in SHAPE_C.values())
    assert f"| rope | {cells} | 0.120 +- 0.000 |" in markdown and f"| alibi | {cells} |" in markdown
    names = [path.name for path in report.files]
    assert names.index("context.png") < names.index("curve.png") and {
        "context.csv",
        "context.svg",
    } <= set(names)


def test_nothing_else_moves(built):
    _, _, root = built
    for name in ("curve.csv", "curve.svg", "heatmap.svg", "differences.svg"):
        assert (root / "with" / name).read_bytes() == (root / "without" / name).read_bytes()
    full_table, rest = ((root / name / "table.md").read_text() for name in ("with", "without"))
    assert (
        full_table.endswith(rest.removeprefix("# Title\n\n")) and "G rope seed 0: 32 -> 64" in rest
    )


def test_two_windows_are_no_curve(built):
    names = {path.name for path in (built[2] / "without").iterdir()}
    assert not any(name.startswith("context") for name in names) and "curve.svg" in names
    assert "exactly c tokens" not in (built[2] / "without" / "report.html").read_text()


def test_a_window_without_its_like_is_a_method_as_before(tmp_path):
    report = Built([rung(tmp_path, 16, BASE_N, lengths=(64, 128))], tmp_path / "out", "t", "x")
    assert "| rope | recompute_window | none |" in report.markdown() and not report.contexts


def test_only_exact_contexts_up_to_the_training_length_count(tmp_path):
    paths = ladder(tmp_path, contexts=(4, 32, 64)) + [
        rung(tmp_path, 128, BASE_N - 1, lengths=(256,))
    ]
    paths.append(
        rung(tmp_path, 16, BASE_N + 9, lengths=(64,))
    )  # at the training length the first targets have less than 16 tokens
    report = Built(paths, tmp_path / "out", "t", "x")
    assert [point.context for section in report.contexts for point in section] == [4, 32, 64]
    assert "| rope | recompute_window window=128 | none |" in report.markdown()


def test_trainings_without_a_ladder_are_left_out_and_gaps_are_shown(tmp_path):
    paths = (
        ladder(tmp_path, seed=0)
        + ladder(tmp_path, seed=1, contexts=(32, 64))
        + ladder(tmp_path, "alibi", contexts=(1, 4, 32))
    )
    report = Built(paths, tmp_path / "out", "t", "x")
    assert {
        (point.encoding, point.n_seeds) for section in report.contexts for point in section
    } == {
        ("rope", 1),
        ("alibi", 1),
    }
    losses = {c: f"{BASE_N.mean() + SHAPE_C[c]:.3f}" for c in (1, 4, 32)}
    assert (
        f"| alibi | {losses[1]} | - | {losses[4]} | - | {losses[32]} | - | - |" in report.markdown()
    )


def test_an_undecided_gain_is_marked(tmp_path):
    noise_N = np.random.default_rng(1).normal(0, 1, TARGETS)
    paths = [
        rung(tmp_path, c, BASE_N + more)
        for c, more in ((None, 0), (32, noise_N - noise_N.mean() + 0.01), (4, 1))
    ]
    report = Built(paths, tmp_path / "out", "t", "x")
    (section,) = report.contexts
    cell = context_table(section).rows[0][-1]
    assert (
        cell.value == pytest.approx(0.01)
        and str(cell).startswith("0.010 +- ")
        and cell.mark == " ~"
    )
    assert float(cell.interval.removeprefix(" +- ")) > 0.01
    assert str(context_table(section).pieces(1000)[0].rows[0][-1]) == "0.010 ~"
    assert "~ zero lies inside" in report.markdown()


def test_corpora_are_never_mixed(tmp_path):
    paths = ladder(tmp_path) + [
        rung(tmp_path / "books", c, BASE_N, data="books", run_id="rope-64-s0-9876543210")
        for c in (None, 32, 8)
    ]
    report = Built(paths, tmp_path / "out", "t", "x", pictures="blank")
    assert [(section[0].data, len(section)) for section in report.contexts] == [
        ("pysource", len(SHAPE_C)),
        ("books", 3),
    ]
    assert {"context.svg", "context-2.svg"} <= {path.name for path in report.files}
    Page(tmp_path / "out" / "report.html")  # no crossed tags


def test_the_figure_says_what_was_measured(built):
    shown_texts = texts(built[2] / "with" / "context.svg")
    for part in (
        "240 targets in 20 documents for every c",
        "over 20 documents (one seed)",
        "rope 0.120 +- 0.000; alibi 0.120 +- 0.000",
    ):
        assert part in " ".join(shown_texts)
    assert shown_texts.count("rope") == shown_texts.count("alibi") == 2


@pytest.mark.parametrize(("half", "cut"), [(None, False), (0.1, False), (5.0, True)])
def test_wide_intervals_do_not_flatten_the_lines(half, cut):
    low, high, beyond = edges_around([(4.0, half), (3.0, half)])
    assert beyond is cut and 2.5 < low < 3 and 4 < high < 4.5
