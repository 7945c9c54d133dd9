"""Comparison of lines: differences of known losses, the ranking, shared seeds, floors, refusals."""

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from synthetic import DOCUMENTS, GAINS, LENGTHS, TARGETS, write_eval, write_run

from posbench.common.errors import ConfigError
from posbench.report.comparison import (
    BEST,
    BETTER,
    NO_SHARED_SEED,
    NOT_TOLD_APART,
    ONLY_MEANS,
    REFERENCE,
    WORSE,
    gate_state,
)
from posbench.report.comparison_request import (
    Request,
    groups_by_column,
    matching_names,
    requested_comparisons,
    token_length,
)
from posbench.report.comparison_tables import (
    csv_rows,
    ranking_table,
    table_by_column,
    terminal_text,
)
from posbench.report.comparison_words import BPB, PPL, TEXTS, Scale, how_compared, result_sentences
from posbench.report.records import Score
from posbench.report.report import collect_report
from posbench.runs.rows import write_csv
from posbench.statistics.over_seeds import FROM_SEEDS

T_19 = 2.093024  # 97.5 % quantile of Student's t with 19 degrees of freedom, from tables
CURVES = {
    ("rope", "none", "none"): (0.0, 0.8, 1.4, 1.7),
    ("rope", "yarn", "none"): (0.0, 0.1, 0.2, 0.3),
    ("rope", "rerope", "none"): (0.0, 0.1, 0.2, 0.3),
    ("rope", "pi", "none"): (0.0, 0.3, 0.8, 1.2),
}


def comparisons_of(reports, request):
    return requested_comparisons(reports, request).comparisons


def reports_of(root, seeds=(0, 1, 2), curves=CURVES, encodings=("rope",)):
    paths = []
    for encoding in encodings:
        for seed in seeds:
            of_encoding = {
                method: curve for method, curve in curves.items() if method[0] == encoding
            }
            paths += write_run(root, encoding, seed, of_encoding)
    return {"": collect_report(paths, "", "")}


def by_name(comparison):
    return {row.line.name: row for row in comparison.lines}


def test_the_best_stands_first_and_worse_lines_are_told_from_it(tmp_path):
    (comparison,) = comparisons_of(reports_of(tmp_path), Request(length="8x"))
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
    (comparison,) = comparisons_of({"": collect_report(paths, "", "")}, request)
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
    rows = by_name(comparisons_of(reports_of(tmp_path), request)[0])
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
    (comparison,) = comparisons_of({"": collect_report(paths, "", "")}, Request(length="8x"))
    assert comparison.common_seeds == (0, 1, 2)
    rows = by_name(comparison)
    assert set(rows["rope"].line.seeds) == {0, 1, 2, 3}
    assert set(rows["rope|pi"].line.seeds) == {0, 1, 2}


def test_holm_multiplies_p_and_none_leaves_it(tmp_path):
    reports = reports_of(tmp_path)
    (corrected,) = comparisons_of(reports, Request(length="8x"))
    (plain,) = comparisons_of(reports, Request(length="8x", correction="none"))
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
    row = by_name(comparisons_of(reports, request)[0])["alibi"]
    assert row.difference.value == pytest.approx(-0.3, abs=0.03)
    loss = by_name(
        comparisons_of(
            reports, Request(lines=("rope|yarn", "alibi"), length="8x", against="rope|yarn")
        )[0]
    )["alibi"]
    assert loss.difference.value != pytest.approx(row.difference.value, abs=0.01)


def test_units_are_ratios_of_perplexities_and_bits_per_byte(tmp_path):
    (comparison,) = comparisons_of(reports_of(tmp_path), Request(length="8x"))
    row = by_name(comparison)["rope"]
    ratio = Scale(PPL, "loss").difference(row)
    assert ratio.value == pytest.approx(math.exp(row.difference.value))
    bits = Scale(BPB, "loss").difference(row)
    assert bits.value == pytest.approx(row.difference.value / math.log(2) / 2)  # 2 bytes a target


def test_sentences_name_the_best_and_those_not_told_from_it(tmp_path):
    (comparison,) = comparisons_of(reports_of(tmp_path), Request(length="8x"))
    text = result_sentences(comparison, Scale("nats", "loss"))
    untold = [row.line.name for row in comparison.lines if row.verdict == NOT_TOLD_APART]
    assert comparison.lines[0].line.name in text and "8 times the training length" in text
    assert all(name in text for name in untold)


def test_rows_have_every_line_of_every_length(tmp_path):
    comparisons = comparisons_of(reports_of(tmp_path), Request(by="length"))
    rows = [
        row for comparison in comparisons for row in csv_rows([comparison], Scale("nats", "loss"))
    ]
    assert {row["length"] for row in rows} == set(LENGTHS)
    assert len(rows) == len(LENGTHS) * len(CURVES)


def test_lengths_are_tokens_or_multiples():
    assert token_length("1.5x", 64) == 96 and token_length("100", 64) == 100


def losses_of_seeds(root, rng, extensions, n_seeds=3):
    """(eval files, float64 losses [extension, seed, target] at the longest length) of one
    encoding.
    """
    losses = rng.exponential(3.0, (len(extensions), n_seeds, TARGETS))
    losses += rng.normal(0, 0.4, (1, n_seeds, 1)) + 0.25 * np.arange(len(extensions))[:, None, None]
    losses = losses.astype(np.float32)
    paths = []
    for extension, of_seeds in zip(extensions, losses, strict=True):
        for seed, loss_T in enumerate(of_seeds):
            paths.append(write_eval(root, "rope", extension, "none", [loss_T], LENGTHS[-1:], seed))
    return paths, losses.astype(np.float64)


def two_way_clustered(difference_ST):
    """(mean, standard error) of Cameron, Gelbach and Miller by loops over seeds and documents."""
    n_seeds, n_targets = difference_ST.shape
    mean = difference_ST.mean()
    by_seed = [0.0] * n_seeds
    by_document = [0.0] * DOCUMENTS
    by_both = {}
    for seed in range(n_seeds):
        for target in range(n_targets):
            residual = (difference_ST[seed, target] - mean) / (n_seeds * n_targets)
            document = target % DOCUMENTS
            by_seed[seed] += residual
            by_document[document] += residual
            by_both[seed, document] = by_both.get((seed, document), 0.0) + residual
    parts = []
    for groups in (by_seed, by_document, list(by_both.values())):
        parts.append(len(groups) / (len(groups) - 1) * sum(total**2 for total in groups))
    variance = max(parts[0] + parts[1] - parts[2], *parts)
    return mean, math.sqrt(variance)


def test_p_intervals_and_holm_are_those_of_loops_over_targets(tmp_path):
    """Three seeds, three lines: t with two degrees of freedom, whose cdf is algebraic."""
    names = ["none", "pi", "yarn"]
    paths, losses = losses_of_seeds(tmp_path, np.random.default_rng(3), names)
    (comparison,) = comparisons_of({"": collect_report(paths, "", "")}, Request())
    rows = by_name(comparison)
    order = sorted(range(3), key=lambda index: losses[index].mean())
    assert comparison.lines[0].line.record.extension == names[order[0]]
    ps = []
    for index in order[1:]:
        mean, sem = two_way_clustered(losses[index] - losses[order[0]])
        t = abs(mean) / sem
        p = 1 - t / math.sqrt(2 + t * t)  # two-sided, of two degrees of freedom
        row = rows["rope" if names[index] == "none" else f"rope|{names[index]}"]
        assert row.difference.value == pytest.approx(mean, abs=1e-9)
        assert row.difference.interval()[1] == pytest.approx(mean + 4.302652729911275 * sem)
        assert row.p == pytest.approx(p, rel=1e-9)
        ps.append((p, row.p_corrected))
    (small, small_corrected), (large, large_corrected) = sorted(ps)
    assert small_corrected == pytest.approx(2 * small)
    assert large_corrected == pytest.approx(max(2 * small, large))


def test_without_sums_the_interval_is_that_of_paired_seeds(tmp_path):
    paths, losses = losses_of_seeds(tmp_path / "runs", np.random.default_rng(4), ["none", "pi"])
    write_csv(collect_report(paths, "", "").rows, tmp_path / "rows.csv")
    report = collect_report([], "", "", [tmp_path / "rows.csv"])
    (comparison,) = comparisons_of({"": report}, Request(against="rope"))
    row = by_name(comparison)["rope|pi"]
    by_seed = (losses[1] - losses[0]).mean(1)
    half = 4.302652729911275 * by_seed.std(ddof=1) / math.sqrt(3)
    assert row.difference.interval() == pytest.approx(
        (by_seed.mean() - half, by_seed.mean() + half), abs=1e-6
    )
    assert row.interval_source == FROM_SEEDS
    assert TEXTS["from_seeds"].format(lines=TEXTS["every"]) in how_compared(comparison)


def test_each_line_with_each_other_one_is_corrected_for_all_pairs(tmp_path):
    tables = comparisons_of(reports_of(tmp_path), Request(length="8x", against="each"))
    names = [table.reference.line.name for table in tables]
    cells = {(row.line.name, row.against): row for table in tables for row in table.lines}
    ps = []
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            assert cells[name, other].difference.value == pytest.approx(
                -cells[other, name].difference.value
            )
            assert cells[name, other].p_corrected == cells[other, name].p_corrected
            ps.append(cells[name, other].p)
    assert len(ps) == 6 and {table.n_corrected for table in tables} == {6}
    smallest = next(row for row in cells.values() if row.p == min(ps))
    assert smallest.p_corrected == pytest.approx(min(1.0, 6 * min(ps)))


def test_what_is_missing_is_said(tmp_path):
    """A line of other seeds, one of a CSV, and one that was not measured at this length."""
    paths = write_run(tmp_path, "rope", 0, CURVES)
    paths += write_run(tmp_path, "alibi", 1, {("alibi", "none", "none"): (0.0, 0.1, 0.1, 0.1)})
    losses = np.full((1, TARGETS), 3.0)
    paths.append(write_eval(tmp_path, "rope", "ntk", "none", losses, LENGTHS[:1], 0))
    csv = tmp_path / "paper.csv"
    csv.write_text("method,length,nll,train_len\nours,512,2.0,64\n")
    (comparison,) = comparisons_of({"": collect_report(paths, "", "", [csv])}, Request(length="8x"))
    rows = by_name(comparison)
    assert comparison.lines[0].line.name == "paper.csv: ours"
    assert comparison.lines[0].reason == ONLY_MEANS
    assert comparison.reference.line.seeds and comparison.reference.verdict == BEST
    reasons = {row.reason for row in comparison.lines if row.line.record.encoding != "ours"}
    assert NO_SHARED_SEED in reasons
    assert comparison.absent == ("rope|ntk",)
    text = " ".join(how_compared(comparison))
    assert all(part in text for part in ("paper.csv: ours", NO_SHARED_SEED, "rope|ntk"))
    assert rows["paper.csv: ours"].p is None


def test_a_line_that_is_better_over_more_seeds_is_named_beside_the_best(tmp_path):
    """Seed 0 has all three lines; over the seeds that two of them share, the order is another."""
    paths = write_run(tmp_path, "sinusoidal", 0, {("sinusoidal", "none", "none"): (0,) * 4})
    for seed in range(10):
        of_rope = 0.5 if seed else 0.0
        paths += write_run(tmp_path, "rope", seed, {("rope", "none", "none"): (of_rope,) * 4})
        paths += write_run(tmp_path, "alibi", seed, {("alibi", "none", "none"): (0.0,) * 4})
    request = Request(length="8x", correction="none")
    (comparison,) = comparisons_of({"": collect_report(paths, "", "")}, request)
    assert comparison.common_seeds == (0,) and comparison.reference.line.name == "rope"
    better = [row.line.name for row in comparison.lines if row.verdict == BETTER]
    text = result_sentences(comparison, Scale("nats", "loss"))
    for name in better:
        assert name == "alibi" and name in text
    assert bool(better) == (TEXTS["over_common_seeds"] in text) and better


def test_the_best_of_known_seeds_is_not_said_to_beat_a_lower_mean_of_a_csv(tmp_path):
    csv = tmp_path / "paper.csv"
    csv.write_text("method,length,nll,train_len\nours,512,2.0,64\n")
    paths = write_run(tmp_path / "runs", "rope", 0, CURVES)
    (comparison,) = comparisons_of({"": collect_report(paths, "", "", [csv])}, Request(length="8x"))
    assert TEXTS["of_known_seeds"] in result_sentences(comparison, Scale("nats", "loss"))
    assert TEXTS["foreign"].format(lines="paper.csv: ours") in how_compared(comparison)


def test_no_line_is_the_best_of_equal_ones(tmp_path):
    lines = [f"{name},128,3.0,64" for name in "abc"]
    csv = tmp_path / "s.csv"
    csv.write_text("\n".join(["method,length,nll,train_len", *lines, ""]))
    (comparison,) = comparisons_of({"": collect_report([], "", "", [csv])}, Request())
    text = result_sentences(comparison, Scale("nats", "loss"))
    assert text == TEXTS["level"].format(
        place="At 2 times the training length (128 tokens)",
        measure="loss",
        value="3.000 nats/token",
    )


def test_a_length_without_the_reference_is_named(tmp_path):
    csv = tmp_path / "s.csv"
    lines = [f"{name},{length},3.0,64" for name in "bc" for length in (128, 256)]
    csv.write_text("\n".join(["method,length,nll,train_len", "a,128,3.0,64", *lines, ""]))
    report = collect_report([], "", "", [csv])
    request = Request(lines=("a", "b", "c")).completed()
    comparisons, left_out = requested_comparisons({"": report}, request)
    assert [comparison.length for comparison in comparisons] == [128]
    assert len(left_out) == 1 and "256" in left_out[0]


def test_the_gate_of_a_single_document_fails_and_of_an_unasked_task_is_unknown(tmp_path):
    point = reports_of(tmp_path)[""].sections[0][0]
    assert gate_state(point) == "passed"
    assert gate_state(replace(point, gain=0.1, gain_lower=None)) == "failed"
    assert gate_state(replace(point, gain=None, gain_lower=None)) == ""
    score = mock.create_autospec(Score, instance=True, inside=None, learned=True)
    assert gate_state(score) == ""
    score.inside = 0.9
    assert gate_state(score) == "passed"


def test_failed_gates_are_said(tmp_path, monkeypatch):
    monkeypatch.setitem(GAINS, "alibi", -0.05)
    curves = CURVES | {("alibi", "none", "none"): (0.0, 0.1, 0.1, 0.1)}
    curves |= {("alibi", "pi", "none"): (0.0, 0.1, 0.2, 0.3)}
    reports = reports_of(tmp_path, (0, 1), curves, ("rope", "alibi"))
    (comparison,) = comparisons_of(reports, Request(length="8x"))
    gates = {name: row.line.gate for name, row in by_name(comparison).items()}
    assert gates["rope|yarn"] == "passed" and gates["alibi"] == gates["alibi|pi"] == "failed"
    sentence = TEXTS["gate_failed"].format(lines="alibi and alibi|pi")
    assert sentence in how_compared(comparison)
    request = Request(lines=("alibi", "alibi|pi"), length="8x")
    assert TEXTS["gates_failed"] in how_compared(comparisons_of(reports, request)[0])


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("rope yarn", ["rope|yarn"]),
        ("rope + yarn", ["rope|yarn"]),
        ("rope|yarn|none", ["rope|yarn"]),
        ("alibi", ["alibi steps=5", "b: alibi steps=9"]),
        ("b: alibi steps=9", ["b: alibi steps=9"]),
        ("none", ["none"]),
        ("none|yarn", ["none|yarn"]),
        ("yarn", []),
    ],
)
def test_lines_are_named_as_tables_and_figures_name_them(name, names):
    lines = ["rope", "rope|yarn", "rope|none|log_n", "alibi steps=5", "b: alibi steps=9", "none"]
    assert matching_names(name, [*lines, "none|yarn"]) == names


def test_folders_without_overlap_say_how_they_differ(tmp_path):
    first = write_run(tmp_path / "a", "rope", 0, {("rope", "none", "none"): (0,) * 4})
    other = write_run(tmp_path / "b", "alibi", 0, {("alibi", "none", "none"): (0,) * 4})
    for path in other:
        text = path.read_text().replace('"data": "pysource"', '"data": "books"')
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"differ in data \(pysource and books\)"):
        comparisons_of(
            {"a": collect_report(first, "", ""), "b": collect_report(other, "", "")}, Request()
        )


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_number_of_a_ranking_is_cut_on_a_narrow_terminal(tmp_path, width):
    (comparison,) = comparisons_of(reports_of(tmp_path), Request(length="8x"))
    scale = Scale("nats", "loss")
    text = terminal_text([ranking_table(comparison, scale)], [], width)
    assert max(len(line) for line in text.splitlines()) <= width
    for row in comparison.lines:
        assert f"{row.value:.3f}" in text
        if row.difference is not None and width >= 80:
            assert scale.interval(scale.difference(row)) in text


def test_a_line_alone_and_lines_without_a_common_length_are_refused_with_the_reason(tmp_path):
    losses = np.full((1, TARGETS), 3.0)
    alone = write_eval(tmp_path, "rope", "none", "none", losses, LENGTHS[:1])
    with pytest.raises(ConfigError, match="rope is the only line"):
        comparisons_of({"": collect_report([alone], "", "")}, Request())
    other = write_eval(tmp_path, "rope", "pi", "none", losses, LENGTHS[1:2])
    reports = {"": collect_report([alone, other], "", "")}
    with pytest.raises(ConfigError, match=r"two of them \(rope at 64; rope\|pi at 128\)"):
        comparisons_of(reports, Request())


def test_columns_of_a_table_differ_in_one_thing_alone(tmp_path):
    """Two texts and two protocols: a table for each protocol, a column for each text."""
    losses = np.full((1, TARGETS), 3.0)
    paths = []
    for data in ("books", "pysource"):
        for protocol in ("fixed_targets", "sliding"):
            for extension in ("none", "pi"):
                root = tmp_path / data / protocol
                changed = {"data": data, "protocol": protocol, "run_id": f"rope-64-s0-{data}"}
                changed["eval_id"] = f"{data}{protocol}{extension}"
                paths.append(
                    write_eval(root, "rope", extension, "none", losses, LENGTHS[:1], **changed)
                )
    comparisons = comparisons_of({"": collect_report(paths, "", "")}, Request(by="data"))
    groups = groups_by_column(comparisons, "data")
    columns = [[comparison.section.data for comparison in group] for group in groups]
    assert columns == [["books", "pysource"]] * 2
    protocols = [{comparison.section.protocol for comparison in group} for group in groups]
    assert protocols == [{"fixed_targets"}, {"sliding"}]
    table = table_by_column(groups[0], "data", Scale("nats", "loss"))
    assert table.columns == ["line", "books", "pysource"] and len(table.rows) == 2
