"""scripts/compare.py on committed results: tables, sentences, files and refusals."""

import csv

import pytest
from conftest import CONFIGS
from script_calls import call

DEMO = str(CONFIGS.parent / "results" / "reported" / "demo")


@pytest.fixture
def script(tmp_path, capfd):
    return lambda *words: call(capfd, tmp_path, "compare", *words)


def test_lines_are_ranked_at_a_length(script):
    done = script(DEMO, "length=8x")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    ranked = [line.split()[0] for line in lines if line.startswith((" rope", " alibi", " sinus"))]
    assert ranked[0] == "rope|leaky_rerope|log_n" and ranked[-1] == "sinusoidal"
    assert "rope|leaky_rerope|log_n has the lowest loss (2.918 nats/token)" in done.stdout
    assert "p is Holm's for 11 differences" in done.stdout


def test_named_lines_are_compared_with_the_first_at_each_length(script):
    done = script(DEMO, "rope|rerope", "rope", "alibi", "unit=ppl")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith((" rope ", " alibi "))]
    assert len(rows) == 2 and all(row.count("[") == 5 for row in rows)
    assert "perplexity over that of rope|rerope" in done.stdout
    assert "At 16 times the training length (1,024 tokens), rope|rerope has the" in done.stdout


def test_each_line_is_compared_with_each_other_one(script):
    done = script(DEMO, "rope", "rope yarn", "alibi", "against=each", "length=8x")
    assert done.returncode == 2 and "did you mean rope" in done.stderr  # the demo has no yarn
    done = script(DEMO, "rope", "rope rerope", "alibi", "against=each", "length=8x")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith((" rope", " alibi "))]
    assert [row.count("+-") for row in rows] == [2, 2, 2]
    assert "p is Holm's for 3 differences" in done.stdout


def test_files_hold_the_table_and_the_figure(script, tmp_path):
    done = script(DEMO, "length=16x", "unit=bpb", "out=made")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "made" / "compare.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["unit"] for row in rows} == {"bpb"} and {row["length"] for row in rows} == {"1024"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))
    assert "\\begin{tabular}" in (tmp_path / "made" / "compare.tex").read_text()
    assert (tmp_path / "made" / "compare.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([DEMO, "unit=nat"], "did you mean nats?"),
        ([DEMO, "lenght=8x"], "did you mean length?"),
        ([DEMO, "rop|rerope"], "did you mean rope|rerope?"),
        ([DEMO, "length=3x"], "was not measured for two of these lines"),
        (["rope"], "rope names no results"),
        ([DEMO, "length="], "length= has no value"),
        ([DEMO, "unit=ppl", "measure=accuracy", "length=8x"], "leave unit= out"),
        ([DEMO, "rope"], "name a second one"),
        ([DEMO, "out=x.csv"], "out=x.csv is the name of a file"),
        ([DEMO, "rope steps=10", "alibi"], "rope steps=10 is no line of these results"),
        ([DEMO, "length=1.5"], "such as length=512 or length=8x"),
        ([DEMO, "rope", "alibi", "measure=change"], "measure=change is known of fewer than two"),
        ([DEMO, "measure=rise", "unit=ppm"], "unit=ppm must be one of nats, ppl, bpb"),
    ],
)
def test_words_that_compare_nothing_are_refused(script, words, part):
    done = script(*words)
    assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1
