"""Losses by position in long windows: bins for the figure, stretches for the tables, each token
paired with itself unextended.
"""

import math

import numpy as np
import pytest
from synthetic import Built, write_positions

from posbench.common.errors import RunError
from posbench.evaluation.protocols.by_position import bin_edges
from posbench.report.curves import stretch_ends
from posbench.report.records import read_points
from posbench.report.report import collect_report
from posbench.statistics.clustered import clustered_mean, student_quantile

WINDOW, TRAIN_LEN, DOCUMENT = 256, 64, np.array([3, 3, 5, 8])
rng = np.random.default_rng(0)
PLAIN = rng.exponential(2.0, (4, WINDOW)) + 4.0 * (np.arange(WINDOW) >= TRAIN_LEN)
OTHER = PLAIN + rng.normal(0.1, 0.3, PLAIN.shape) - 3.0 * (np.arange(WINDOW) >= TRAIN_LEN)


@pytest.fixture
def paths(tmp_path):
    return [
        write_positions(tmp_path, name, losses, document_N=DOCUMENT)
        for name, losses in (("none", PLAIN), ("pi", OTHER))
    ]


def only(points, extension, last):
    (match,) = [point for point in points if (point.extension, point.length) == (extension, last)]
    return match


def test_stretches_are_means_over_their_tokens_paired_with_no_extension_over_documents(
    paths, tmp_path
):
    report = Built(paths, tmp_path / "out", "t", "")
    points = read_points(tmp_path / "out" / "position.csv")
    starts, ends = [0, 16, 32, 64, 91, 128, 181], [16, 32, 64, 91, 128, 181, 256]
    assert sorted({point.length for point in points}) == ends
    for low, high in zip(starts, ends, strict=True):
        plain, other = only(points, "none", high), only(points, "pi", high)
        assert (
            plain.nll == pytest.approx(PLAIN[:, low:high].mean(), abs=1e-5) and plain.change is None
        )
        assert other.nll == pytest.approx(
            OTHER[:, low:high].mean(), abs=1e-5
        ) and other.n_targets == 4 * (high - low)
        assert other.bpb == pytest.approx(other.nll / math.log(2) / 2)
        difference = (OTHER - PLAIN)[:, low:high].ravel()
        mean, sem, n = clustered_mean(difference, np.repeat(DOCUMENT, high - low))
        assert (n, other.over) == (3, "document") and other.change == pytest.approx(mean, abs=1e-5)
        assert other.change_half_width == pytest.approx(student_quantile(0.975, 2) * sem, rel=1e-3)
    last = only(points, "pi", 256)
    assert f"| {last.change:+.3f} +- {last.change_half_width:.3f} < |" in report.markdown()
    assert "| 1 to 16 | 17 to 32 | 33 to 64 | 65 to 91 |" in report.markdown()
    assert (
        "Student's t over documents (one seed)" in report.markdown()
        and "the floor" not in report.markdown()
    )


def test_bins_cover_each_position_once_and_stretches_are_made_of_whole_bins(paths, tmp_path):
    (curve,) = collect_report(paths, "t", "").sections
    plain = [point for point in curve if point.extension == "none"]
    assert [point.length for point in plain] == bin_edges(WINDOW) and sum(
        point.n_targets for point in plain
    ) == PLAIN.size
    for train_len, window in ((64, 1024), (100, 1000), (8192, 32768), (2048, 2000), (8192, 100)):
        ends = stretch_ends(bin_edges(window), train_len)
        assert ends == sorted(set(ends)) and ends[-1] == window
        assert set(ends) <= set(bin_edges(window))
    assert stretch_ends(bin_edges(16384), 8192) == [2048, 4096, 8192, 11585, 16384]


def test_rows_alone_give_the_same_differences_without_intervals(paths, tmp_path):
    Built(paths, tmp_path / "out", "t", "")
    report = collect_report([], "t", "", [tmp_path / "out" / "rows.csv"])
    (stretches,) = report.stretches.values()
    stored = read_points(tmp_path / "out" / "position.csv")
    assert [point.length for point in stretches] == [point.length for point in stored]
    for actual, expected in zip(stretches, stored, strict=True):
        assert actual.nll == pytest.approx(expected.nll) and actual.change_half_width is None
        assert actual.change == (
            None if expected.change is None else pytest.approx(expected.change, abs=1e-5)
        )


def test_texts_of_several_lengths_have_a_table_of_the_perplexity_over_all_their_tokens(tmp_path):
    early = (
        OTHER[:, :128] + 0.5
    )  # a method whose factor follows the length reads a shorter text otherwise
    paths = [
        write_positions(tmp_path, name, losses, document_N=DOCUMENT, shorter=[short])
        for name, losses, short in (("none", PLAIN, PLAIN[:, :128]), ("pi", OTHER, early))
    ]
    report = Built(paths, tmp_path / "out", "t", "")
    texts = [
        point for point in read_points(tmp_path / "out" / "position.csv") if point.window is None
    ]
    assert [(point.extension, point.length) for point in texts] == [
        ("none", 128),
        ("none", 256),
        ("pi", 128),
        ("pi", 256),
    ]
    assert [point.nll for point in texts] == pytest.approx(
        [part.mean() for part in (PLAIN[:, :128], PLAIN, early, OTHER)], abs=1e-5
    )
    assert (
        texts[2].change == pytest.approx((early - PLAIN[:, :128]).mean(), abs=1e-5)
        and texts[2].change_half_width > 0
    )
    assert "**Perplexity over every token of texts of each length**" in report.markdown()
    assert (
        f"| rope | pi | none | {math.exp(early.mean()):#.4g} | {math.exp(OTHER.mean()):#.4g} |"
        in report.markdown()
    )
    assert (
        "Loss by position in windows of 256 tokens" in report.markdown()
        and "| 1 to 16 | 17 to 32 |" in report.markdown()
    )


def test_one_document_has_no_interval_and_the_report_says_so(tmp_path):
    alone = np.zeros(4, dtype=int)
    paths = [
        write_positions(tmp_path, name, losses, document_N=alone)
        for name, losses in (("none", PLAIN), ("pi", OTHER))
    ]
    report = collect_report(paths, "t", "")
    assert (
        " +- " not in report.markdown()
        and "one document: there is no interval" in report.markdown()
    )


def test_other_windows_are_not_paired(tmp_path):
    paths = [
        write_positions(tmp_path, name, PLAIN, document_N=DOCUMENT + k)
        for k, name in enumerate(("none", "pi"))
    ]
    with pytest.raises(RunError, match="scored different targets"):
        collect_report(paths, "t", "")
