"""Comparisons of the explore page: its script gives the rows and sentences of posbench compare."""

import json
import math
import shutil
import subprocess

import numpy as np
import pytest
from conftest import CONFIGS
from synthetic import write_run

from posbench.common.errors import RunError
from posbench.common.files import nan_as_none
from posbench.report.comparison import NO_SHARED_SEED, compare_all_pairs, compare_lines
from posbench.report.comparison_request import lines_by_section
from posbench.report.comparison_words import Scale, how_compared, result_sentences
from posbench.report.explore import SCRIPTS, TEMPLATES, page_content
from posbench.report.report import collect_report
from posbench.runs.rows import write_csv
from posbench.statistics.clustered import student_cdf, student_interval
from posbench.statistics.over_seeds import FROM_SEEDS
from posbench.statistics.verdict_rules import holm

REPORTED = CONFIGS.parent / "results" / "reported"
NODE = shutil.which("node")
UNITS_OF_Y = {
    "nll": ("loss", "nats"),
    "ppl": ("loss", "ppl"),
    "bpb": ("loss", "bpb"),
    "difference": ("rise", "nats"),
    "change": ("change", "nats"),
    "accuracy": ("accuracy", "nats"),
}
COMPARE = """
globalThis.d3 = require(process.argv[1]);
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
globalThis.document = {getElementById: () => ({textContent: JSON.stringify(asked.content)})};
(0, eval)(asked.script + `
globalThis.answer = ({members, y, against, each, correction}) => {
  const of = members.map(([number, x, name]) => {
    lines[number].method = name;
    return {line: lines[number], point: lines[number].points.find(point => point.x === x)};
  });
  const reference = against === null ? null : of[against].line;
  const measure = MEASURES[y];
  const made = each
    ? compareEach(of, measure, correction)
    : [compareMembers(of, measure, reference, correction)];
  return made.filter(Boolean).map(comparison => ({
    rows: comparison.rows.map(row => ({
      line: row.line.method, value: row.mean, verdict: row.verdict,
      p: row.p ?? null, p_corrected: row.pCorrected ?? null,
      difference: row.difference?.value ?? null, half: row.difference?.half ?? null,
      documents: row.difference?.documents ?? 0, seeds: row.seeds ?? [], reason: row.reason ?? "",
    })),
    result: resultText(comparison, y),
    how: howCompared(comparison),
  }));
};`);
console.log(JSON.stringify(asked.questions.map(answer)));
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")


def of_page(report, questions):
    """Answers of the page's script to questions on the members of a section."""
    scripts = [name for name in SCRIPTS if name in ("crossed.js", "explore_points.js")]
    scripts.append("explore_compare.js")
    request = {
        "content": nan_as_none(page_content("x", {"": report})),
        "script": "\n".join((TEMPLATES / name).read_text() for name in scripts),
        "questions": questions,
    }
    command = [NODE, "-e", COMPARE, str(TEMPLATES / "vendor" / "d3.min.js")]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers_of_lines(report):
    """{(section with task, encoding, extension, scale, source): number of a line of the page}."""
    columns = ("protocol", "data", "tokenizer", "train_len", "setting", "task")
    names = ("encoding", "extension", "scale_attention", "source")
    numbers = {}
    for number, line in enumerate(page_content("x", {"": report})["lines"]):
        if line["kind"] in ("length", "task"):
            numbers[tuple(line[name] for name in (*columns, *names))] = number
    return numbers


def questions_on(report, ys, longest=None, against=None, each=False, correction="holm"):
    """(questions to the page, [(comparisons of posbench, scale)]) at the `longest` lengths."""
    numbers = numbers_of_lines(report)
    questions, answers = [], []
    for section, lengths in lines_by_section({"": report}).items():
        for length in sorted(lengths)[-longest if longest else 0 :]:
            lines = lengths[length]
            members = [
                [numbers[*section, *line.record.method], length, line.name] for line in lines
            ]
            for y in ys:
                measure, unit = UNITS_OF_Y[y]
                scale = Scale(unit, measure)
                comparisons = compared(section, length, lines, measure, against, each, correction)
                if not comparisons or any(scale.value(row) is None for row in comparisons[0].lines):
                    continue  # the page offers no unit that is not known
                question = {"members": members, "y": y, "against": against, "each": each}
                questions.append({**question, "correction": correction})
                answers.append((comparisons, scale))
    return questions, answers


def compared(section, length, lines, measure, against, each, correction):
    """Comparisons of posbench; none where fewer than two lines have the measure."""
    try:
        if each:
            return compare_all_pairs(section, length, lines, measure, correction)
        name = None if against is None else lines[against].name
        return [compare_lines(section, length, lines, measure, name, correction)]
    except RunError:
        return []


def assert_alike(report, questions, answers):
    """Numbers agree to six digits, since the page holds float32; words are the same."""
    for question, of_script, (comparisons, scale) in zip(
        questions, of_page(report, questions), answers, strict=True
    ):
        for shown, comparison in zip(of_script, comparisons, strict=True):
            for cells, row in zip(shown["rows"], comparison.lines, strict=True):
                words = (row.line.name, row.verdict, row.reason, list(row.seeds))
                assert (
                    tuple(cells[name] for name in ("line", "verdict", "reason", "seeds")) == words
                )
                assert_same_numbers(cells, row)
            rise = "y = loss minus the floor (nats/token)"
            how = [line.replace(rise, "measure=rise") for line in shown["how"]]
            assert how == how_compared(comparison)
            if question["y"] != "ppl":  # exp() of a float32 may differ in the last digit
                assert shown["result"] == result_sentences(comparison, scale)


def assert_same_numbers(cells, row):
    assert cells["value"] == pytest.approx(row.value, rel=1e-6, abs=1e-6)
    if row.difference is None:
        assert cells["difference"] is None
        return
    low, high = row.difference.interval()
    half = None if math.isnan(low) else (high - low) / 2
    assert cells["difference"] == pytest.approx(row.difference.value, abs=1e-6)
    assert cells["half"] == (half if half is None else pytest.approx(half, rel=1e-4, abs=1e-6))
    assert cells["documents"] == row.difference.n_documents
    for name in ("p", "p_corrected"):
        p = getattr(row, name)
        assert cells[name] == (p if p is None else pytest.approx(p, abs=2e-3))


@pytest.mark.parametrize(
    ("name", "ys", "options"),
    [
        ("headline", ("nll", "ppl", "bpb", "difference", "accuracy"), {"longest": 1}),
        ("headline", ("nll",), {"longest": 2, "against": 3, "correction": "none"}),
        ("demo", ("nll", "change"), {"longest": 2, "each": True}),  # one seed
        ("tasks", ("accuracy",), {"longest": 3}),  # seeds that did not learn are left out
        ("needles", ("accuracy", "nll"), {}),  # strata
        ("algorithms", ("accuracy",), {}),  # lines that are all alike
    ],
)
def test_rows_and_sentences_are_those_of_compare(name, ys, options):
    report = collect_report([], name, "x", evidence=[REPORTED / name])
    questions, answers = questions_on(report, ys, **options)
    assert len(questions) >= len(ys)
    assert_alike(report, questions, answers)


def test_without_sums_the_seeds_decide_and_what_is_missing_is_said(tmp_path):
    """Unequal seeds and no sums, beside a line of a CSV, and one of another length."""
    write_csv(runs_of(tmp_path).rows, tmp_path / "rows.csv")
    (tmp_path / "paper.csv").write_text("method,length,nll,train_len\nours,512,2.0,64\n")
    report = collect_report([], "x", "x", [tmp_path / "rows.csv", tmp_path / "paper.csv"])
    questions, answers = questions_on(report, ("nll", "difference"), longest=1)
    assert any(
        row.interval_source == FROM_SEEDS
        for comparisons, _ in answers
        for row in comparisons[0].lines
    )
    assert_alike(report, questions, answers)


def test_lines_of_other_seeds_have_no_interval(tmp_path):
    report = runs_of(tmp_path)
    questions, answers = questions_on(report, ("nll",))
    reasons = {row.reason for comparisons, _ in answers for row in comparisons[0].lines}
    assert NO_SHARED_SEED in reasons
    assert_alike(report, questions, answers)


def runs_of(tmp_path):
    """Report of RoPE and YaRN with seeds 0 and 1, PI with seed 0, ALiBi with seed 2."""
    both = {("rope", "none", "none"): (0.0, 0.8, 1.4, 1.7)}
    both |= {("rope", "yarn", "none"): (0.0, -0.4, -0.4, -0.3)}
    pi_alone = {("rope", "pi", "none"): (0.0, 0.1, 0.2, 0.3)}
    paths = write_run(tmp_path / "runs", "rope", 0, both | pi_alone)
    paths += write_run(tmp_path / "runs", "rope", 1, both)
    paths += write_run(tmp_path / "runs", "alibi", 2)
    return collect_report(paths, "x", "x")


def test_student_and_holm_are_those_of_posbench():
    """Differences of 2, 3 and 9 seeds, and p of large and broken degrees of freedom."""
    script = """
    const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
    const means = asked.values.map(crossed.ofValues).map(({value, half}) => [value, half]);
    console.log(JSON.stringify([means, asked.ps.map(crossed.pOf), crossed.holm(asked.family)]));"""
    rng = np.random.default_rng(7)
    values = [rng.normal(0.3, 1.0, n).tolist() for n in (2, 3, 9)]
    ps = [
        {"value": value, "sem": 0.5, "df": df}
        for value in (0.0, 0.1, -1.2, 4.0)
        for df in (1, 2, 7.3, 40, 290, 2000)
    ]
    family = [0.04, 0.01, 0.03, 0.5, 0.01]
    request = json.dumps({"values": values, "ps": ps, "family": family})
    code = (TEMPLATES / "crossed.js").read_text() + script
    done = subprocess.run([NODE, "-e", code], input=request, capture_output=True, text=True)
    means, p_values, adjusted = json.loads(done.stdout)
    assert means == [pytest.approx(student_interval(sample)[:2]) for sample in values]
    expected_ps = [2 * student_cdf(-abs(p["value"]) / p["sem"], p["df"]) for p in ps]
    assert p_values == pytest.approx(expected_ps, abs=1e-5)  # 71 nodes, coarse for 2,000 degrees
    assert p_values[:4] + p_values[6:10] == pytest.approx(
        expected_ps[:4] + expected_ps[6:10], abs=1e-9
    )
    assert adjusted == pytest.approx(holm(family))
