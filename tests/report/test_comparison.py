"""Comparison of lines: differences of known losses, the ranking, shared seeds, floors, refusals."""

import math

import numpy as np
import pytest
from synthetic import DOCUMENTS, LENGTHS, TARGETS, write_eval, write_run

from posbench.common.errors import ConfigError
from posbench.report.comparison import (
    BEST,
    BETTER,
    REFERENCE,
    UNTOLD,
    WORSE,
    Request,
    comparisons,
    token_length,
)
from posbench.report.comparison_tables import BPB, PPL, Scale, rows_of, sentences
from posbench.report.report import collect

T_19 = 2.093024  # 97.5 % quantile of Student's t with 19 degrees of freedom, from tables
CURVES = {
    ("rope", "none", "none"): (0.0, 0.8, 1.4, 1.7),
    ("rope", "yarn", "none"): (0.0, 0.1, 0.2, 0.3),
    ("rope", "rerope", "none"): (0.0, 0.1, 0.2, 0.3),
    ("rope", "pi", "none"): (0.0, 0.3, 0.8, 1.2),
}


def reports_of(root, seeds=(0, 1, 2), curves=CURVES, encodings=("rope",)):
    paths = []
    for encoding in encodings:
        for seed in seeds:
            own = {method: curve for method, curve in curves.items() if method[0] == encoding}
            paths += write_run(root, encoding, seed, own)
    return {"": collect(paths, "", "")}


def by_name(comparison):
    return {row.line.name: row for row in comparison.lines}


def test_the_best_stands_first_and_worse_lines_are_told_from_it(tmp_path):
    (comparison,) = comparisons(reports_of(tmp_path), Request(length="8x"))
    assert comparison.length == 512 and comparison.multiple == 8
    names = [row.line.name for row in comparison.lines]
    assert set(names[:2]) == {"rope|yarn", "rope|rerope"} and names[2:] == ["rope|pi", "rope"]
    best = comparison.lines[0]
    assert best.verdict == BEST and best.difference is None and best.rank == 1
    rows = by_name(comparison)
    assert rows["rope"].verdict == WORSE
    assert rows["rope"].difference.value == pytest.approx(1.4, abs=0.05)
    assert rows["rope"].seeds == (0, 1, 2)


def test_an_interval_is_that_of_the_paired_differences(tmp_path):
    """One seed: t over the means of documents, which hold equally many targets."""
    rng = np.random.default_rng(0)
    losses = rng.exponential(3.0, (2, len(LENGTHS), TARGETS))
    losses[1] += 0.2
    paths = [
        write_eval(tmp_path, "rope", extension, "none", losses[index], LENGTHS)
        for index, extension in enumerate(("none", "yarn"))
    ]
    request = Request(lines=("rope", "rope|yarn"), length="128", against="rope")
    (comparison,) = comparisons({"": collect(paths, "", "")}, request)
    difference = by_name(comparison)["rope|yarn"].difference
    at_128 = (losses[1] - losses[0])[LENGTHS.index(128)].astype(np.float32).astype(np.float64)
    means_C = at_128.reshape(-1, DOCUMENTS).mean(0)
    half = T_19 * means_C.std(ddof=1) / math.sqrt(DOCUMENTS)
    assert difference.value == pytest.approx(means_C.mean(), abs=1e-5)
    assert difference.interval() == pytest.approx(
        (means_C.mean() - half, means_C.mean() + half), abs=1e-5
    )
    excludes_zero = abs(means_C.mean()) > half
    assert (by_name(comparison)["rope|yarn"].p < 0.05) == excludes_zero


def test_against_a_line_the_others_are_better_or_worse(tmp_path):
    request = Request(lines=("rope|pi", "rope|yarn", "rope"), length="8x", against="rope|pi")
    rows = by_name(comparisons(reports_of(tmp_path), request)[0])
    assert rows["rope|pi"].verdict == REFERENCE
    assert rows["rope|yarn"].verdict == BETTER and rows["rope"].verdict == WORSE
    assert rows["rope|yarn"].difference.value < 0 < rows["rope"].difference.value


def test_unequal_seeds_are_compared_on_those_that_both_have(tmp_path):
    reports = reports_of(tmp_path, seeds=(0, 1, 2))
    few = {("rope", "yarn", "none"): CURVES["rope", "yarn", "none"]}
    more = write_run(
        tmp_path / "more",
        "rope",
        3,
        {**few, ("rope", "none", "none"): CURVES["rope", "none", "none"]},
    )
    paths = [evaluation.path for evaluation in reports[""].evaluations] + list(more)
    (comparison,) = comparisons({"": collect(paths, "", "")}, Request(length="8x"))
    assert comparison.common_seeds == (0, 1, 2)
    rows = by_name(comparison)
    assert set(rows["rope"].line.seeds) == {0, 1, 2, 3}
    assert set(rows["rope|pi"].line.seeds) == {0, 1, 2}


def test_holm_multiplies_p_and_none_leaves_it(tmp_path):
    reports = reports_of(tmp_path)
    (corrected,) = comparisons(reports, Request(length="8x"))
    (plain,) = comparisons(reports, Request(length="8x", correction="none"))
    smallest = min(row.p for row in corrected.lines if row.p is not None)
    row = next(row for row in corrected.lines if row.p == smallest)
    assert row.p_corrected == pytest.approx(min(1.0, 3 * smallest))
    assert all(row.p == row.p_corrected for row in plain.lines)


def test_a_rise_is_the_loss_minus_the_lines_own_floor(tmp_path):
    curves = CURVES | {("alibi", "none", "none"): (0.0, 0.0, 0.0, 0.0)}
    reports = reports_of(tmp_path, curves=curves, encodings=("rope", "alibi"))
    request = Request(
        lines=("rope|yarn", "alibi"), length="8x", against="rope|yarn", measure="rise"
    )
    row = by_name(comparisons(reports, request)[0])["alibi"]
    assert row.difference.value == pytest.approx(-0.3, abs=0.03)
    loss = by_name(
        comparisons(
            reports, Request(lines=("rope|yarn", "alibi"), length="8x", against="rope|yarn")
        )[0]
    )["alibi"]
    assert loss.difference.value != pytest.approx(row.difference.value, abs=0.01)


def test_units_are_ratios_of_perplexities_and_bits_per_byte(tmp_path):
    (comparison,) = comparisons(reports_of(tmp_path), Request(length="8x"))
    row = by_name(comparison)["rope"]
    ratio = Scale(PPL, "loss").difference(row)
    assert ratio.value == pytest.approx(math.exp(row.difference.value))
    bits = Scale(BPB, "loss").difference(row)
    assert bits.value == pytest.approx(row.difference.value / math.log(2) / 2)  # 2 bytes a target


def test_sentences_name_the_best_and_those_not_told_from_it(tmp_path):
    (comparison,) = comparisons(reports_of(tmp_path), Request(length="8x"))
    text = " ".join(sentences(comparison, Scale("nats", "loss")))
    untold = [row.line.name for row in comparison.lines if row.verdict == UNTOLD]
    assert comparison.lines[0].line.name in text and "8 times the training length" in text
    assert all(name in text for name in untold)


def test_rows_have_every_line_of_every_length(tmp_path):
    made = comparisons(reports_of(tmp_path), Request(by="length"))
    rows = [row for comparison in made for row in rows_of([comparison], Scale("nats", "loss"))]
    assert {row["length"] for row in rows} == set(LENGTHS)
    assert len(rows) == len(LENGTHS) * len(CURVES)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (Request(lines=("rop|yarn", "rope")), "did you mean rope|yarn?"),
        (Request(length="7x"), "choose from 1x (64), 2x (128), 4x (256), 8x (512)"),
        (Request(length="far"), "such as length=512 or length=8x"),
        (Request(lines=("rope|pi",), length="8x"), "There is nothing to compare"),
        (Request(against="fox"), "fox is no line of these results"),
    ],
    ids=["line", "length", "no length", "one line", "against"],
)
def test_what_cannot_be_compared_is_refused_with_what_can(tmp_path, request_, part):
    reports = reports_of(tmp_path, seeds=(0,))
    with pytest.raises(ConfigError) as refused:
        comparisons(reports, request_)
    assert part in str(refused.value)


def test_lengths_are_tokens_or_multiples():
    assert token_length("1.5x", 64) == 96 and token_length("100", 64) == 100
