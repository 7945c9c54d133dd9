"""The explore page: its data are those of the frame, its intervals those of posbench, and what
strangers write is text.
"""

import base64
import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
from statistics import NormalDist

import hydra
import numpy as np
import pytest
from conftest import CONFIGS
from script_calls import call
from synthetic import LENGTHS, TARGETS, write_eval

import posbench
from posbench.config.compose import Composer, hydra_form, resolved_values
from posbench.config.defaults import resolved_config
from posbench.config.identity import eval_id, run_id
from posbench.report.explore import MOST_SUMS_BYTES, TEMPLATES, explore_page, page_content
from posbench.report.published.reproduction import _changed_words
from posbench.report.records import SECTION_COLUMNS, section_values
from posbench.report.report import collect_report
from posbench.statistics.crossed import Sums, estimate, joined_seeds, joined_strata
from posbench.tools.explore.command import lengths_of_experiment

REPORTED = CONFIGS.parent / "results" / "reported"
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
NODE = shutil.which("node")


def report_of(name, *csvs):
    return collect_report([], name, "x", csvs, evidence=[REPORTED / name])


@pytest.fixture(scope="module")
def headline():
    report = report_of("headline")
    return report, page_content("Headline", {"": report})


@pytest.mark.parametrize(
    ("name", "what", "kind", "count"),
    [("headline", "curve", "length", 240), ("tasks", "accuracy", "task", 180)],
)
def test_points_are_those_of_the_frame(name, what, kind, count):
    data, frame = page_content(name, {"": report_of(name)}), posbench.frame(REPORTED / name, what)
    shown, frame = data["points"], frame[frame.depth.isna()] if kind == "task" else frame
    lines = [data["lines"][number] for number in shown["line"]]
    indices = [i for i, line in enumerate(lines) if line["kind"] == kind]
    assert len(indices) == len(frame) == count
    for column in {
        "nll",
        "bpb",
        "accuracy",
        "floor",
        "difference",
        "half_width",
        "change",
        "low",
        "n_seeds",
        "n_units",
    } & {*frame.columns}:
        values = [np.nan if shown[column][i] is None else shown[column][i] for i in indices]
        assert frame[column].astype("float64").tolist() == pytest.approx(
            values, rel=1e-12, nan_ok=True
        ), column
    for column in ("encoding", "extension", "scale_attention", "data", "setting"):
        assert [lines[i][column] for i in indices] == frame[column].tolist()
    assert [shown["x"][i] for i in indices] == frame.length.tolist()


def test_the_page_of_headline_fits_in_three_megabytes_and_asks_for_nothing(headline):
    page = explore_page("Headline", {"": headline[0]})
    assert len(page.encode()) < 3_000_000 and not headline[1]["notes"]
    policy, scripts = re.search(r'Policy" content="(.*?)"', page)[1], re.findall(r"<script>", page)
    assert (
        policy.startswith("default-src 'none'")
        and policy.count("'sha256-") == len(scripts) == 10
        and "eval" not in policy
    )
    our_code = page.replace((TEMPLATES / "vendor" / "d3.min.js").read_text(), "").replace(
        (TEMPLATES / "vendor" / "plot.min.js").read_text(), ""
    )
    assert not re.findall(r"https?://(?!www\.w3\.org)\S*|src=(?!x)|@import", our_code)


def test_libraries_are_those_of_npm():
    """dist/d3.min.js of d3 7.9.2 and dist/plot.umd.min.js of @observablehq/plot 0.6.17."""
    hashes = {
        name: hashlib.sha256((TEMPLATES / "vendor" / f"{name}.min.js").read_bytes()).hexdigest()
        for name in ("d3", "plot")
    }
    assert hashes == {
        "d3": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
        "plot": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
    }


ESTIMATES = """
const {sums, asked} = JSON.parse(require("fs").readFileSync(0, "utf8"));
const nll = new Float32Array(Uint8Array.from(Buffer.from(sums.nll, "base64")).buffer);
const read = entry => {
  const [set, at] = sums.entries[entry];
  return Float64Array.from(nll.subarray(at, at + sums.sets[set].length));
};
const minus = (values, base) => base ? values.map((value, i) => value - base[i]) : values;
console.log(JSON.stringify(asked.map(terms => {
  const found = crossed.estimate(terms.map(([weight, own, less]) => ({
    weight,
    counts: sums.sets[sums.entries[own[0]][0]],
    totals: own.map((entry, s) => minus(read(entry), less && read(less[s]))),
  })));
  return [found.value, found.half];
})));"""


def in_node(script, stdin=""):
    """What the page's own code, with a script behind it, prints."""
    code = (TEMPLATES / "crossed.js").read_text() + script
    return subprocess.run(
        [NODE, "-e", code], input=stdin, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
@pytest.mark.parametrize(
    ("line_name", "other_name"),
    [
        (("rope", "yarn", "none"), ("rope", "pi", "none")),  # five seeds: the analysis of variance
        (("rope", "none", "none"), ("alibi", "none", "none")),  # three of five: clustered
        (("none", "yarn", "none"), ("fox", "none", "log_n")),
    ],
)
def test_paired_intervals_are_those_of_posbench(headline, line_name, other_name):
    report, data = headline
    shown, names = data["points"], ("encoding", "extension", "scale_attention")
    numbers = {
        tuple(line[name] for name in names): i
        for i, line in enumerate(data["lines"])
        if line["kind"] == "length"
    }
    entries = dict(zip(zip(shown["line"], shown["x"], strict=True), shown["seeds"], strict=True))
    by_line_and_seed, floors, questions, estimates = {}, report.references.floors, [], []
    for evaluation in report.evaluations:
        by_line_and_seed[report.label(evaluation.first), evaluation.first["seed"]] = evaluation
    seeds = sorted(
        {seed for name, seed in by_line_and_seed if name == line_name}
        & {seed for name, seed in by_line_and_seed if name == other_name}
    )
    for length in (64, 256, 1024):
        raw, above = [], []
        for name in (line_name, other_name):
            evaluations = [by_line_and_seed[name, seed] for seed in seeds]
            losses = [each.sums(each.row(length)) for each in evaluations]
            floor = [floors[each.key, "floor"] for each in evaluations]
            base = [each.sums(each.exact_row(length)) for each in floor]
            raw.append(joined_seeds(losses))
            above.append(
                joined_seeds([each.minus(less) for each, less in zip(losses, base, strict=True)])
            )
        places = [
            {seed: sums_of_seed for seed, *sums_of_seed in entries[numbers[name], length]}
            for name in (line_name, other_name)
        ]
        for terms, floored in ((raw, False), (above, True)):
            estimates.append(estimate([(1.0, terms[0]), (-1.0, terms[1])]))
            sums_of_lines = [
                [[place[seed][i] for seed in seeds] for i in (0, 1)] for place in places
            ]
            questions.append(
                [
                    [sign, each[0], each[1] if floored else None]
                    for sign, each in zip((1, -1), sums_of_lines, strict=True)
                ]
            )
    results = json.loads(in_node(ESTIMATES, json.dumps({"sums": data["sums"], "asked": questions})))
    assert (
        len(seeds) == (5 if line_name[0] == other_name[0] else 3)
        and max(abs(each.value) for each in estimates) > 0.1
    )
    assert [value for value, _ in results] == pytest.approx(
        [each.value for each in estimates], abs=2e-7
    )
    halves = [(high - low) / 2 for low, high in (each.interval() for each in estimates)]
    assert [half for _, half in results] == pytest.approx(halves, rel=1e-4, abs=2e-7)


STRATIFIED = """
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(terms => {
  const found = crossed.estimate(terms);
  return [found.value, found.half];
})));"""


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_intervals_within_strata_are_those_of_posbench():
    rng, questions, estimates = np.random.default_rng(5), [], []
    for s, noise in (
        (1, 1.0),
        (3, 0.1),
        (6, 0.1),
        (6, 3.0),
    ):  # with much noise one part stands alone
        counts = [rng.integers(1, 5, n) for n in (2, 3, 4)]
        values = [
            rng.normal(0, 1, (s, 1)) + rng.normal(9 * h, 2, (2, 1, len(n)))
            for h, n in enumerate(counts)
        ]
        values = [value + rng.normal(0, noise, (2, s, value.shape[-1])) for value in values]
        parts = [
            [
                Sums(np.arange(len(n)), n, n * value[i])
                for value, n in zip(values, counts, strict=True)
            ]
            for i in (0, 1)
        ]
        terms = list(zip((1.0, -1.0), map(joined_strata, parts), strict=True))
        estimates.append(estimate(terms))
        questions.append(
            [
                {
                    "weight": w,
                    **{
                        name: getattr(sums, name).tolist()
                        for name in ("counts", "totals", "strata")
                    },
                }
                for w, sums in terms
            ]
        )
    results = json.loads(in_node(STRATIFIED, json.dumps(questions)))
    halves = [(high - low) / 2 for low, high in (estimated.interval() for estimated in estimates)]
    assert results == [
        pytest.approx([estimated.value, half], rel=1e-9)
        for estimated, half in zip(estimates, halves, strict=True)
    ]


def test_needles_carry_their_depths_as_strata_and_other_lines_have_none(headline):
    sums = page_content("needles", {"": report_of("needles")})["sums"]
    texts_of_two = [strata for strata in sums["strata"] if len(strata) == 10]
    assert texts_of_two and all(strata == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] for strata in texts_of_two)
    assert not any(headline[1]["sums"]["strata"])


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_quantiles_are_those_of_closed_forms():
    """Student's t at 0.975: with one degree of freedom a tangent, with two 0.95 sqrt(2 / (1 -
    0.95^2)), with many the normal's.
    """
    expected = [
        math.tan(0.475 * math.pi),
        0.95 * math.sqrt(2 / (1 - 0.95**2)),
        NormalDist().inv_cdf(0.975),
    ]
    assert json.loads(
        in_node("console.log(JSON.stringify([1, 2, 2000].map(crossed.quantile)))")
    ) == pytest.approx(expected, rel=1e-12)


def test_what_a_results_folder_says_is_data(tmp_path):
    path = write_eval(tmp_path, "rope", "none", "none", [np.full(TARGETS, 3.0)] * 4, LENGTHS)
    text = json.loads(path.read_text())
    for row in text["rows"]:
        row.update(encoding=EVIL, data=EVIL, commit=EVIL, scale_attention="=1+1")
    path.write_text(json.dumps(text))
    page = explore_page(EVIL, {EVIL: collect_report([path], EVIL, "x")})
    assert EVIL not in page and "<img" not in page and page.count("<script") == 11
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert (
        data["lines"][0]["encoding"] == EVIL
        and data["lines"][0]["source"] == EVIL
        and data["title"] == EVIL
    )


def test_sums_and_points_beyond_the_limits_are_left_out_and_said(headline, monkeypatch):
    monkeypatch.setattr("posbench.report.explore.MOST_SUMS_BYTES", 100_000)
    few = page_content("Headline", {"": headline[0]})
    assert len(few["sums"]["nll"]) < 110_000 and MOST_SUMS_BYTES > 100_000
    assert re.search(
        r"^\d+ of 282 points are compared by the means of their seeds: their sums take more than"
        r" the 0.1 MB",
        few["notes"][0],
    )
    monkeypatch.setattr("posbench.report.explore.MOST_POINTS", 100)
    few = page_content("Headline", {"": headline[0]})
    assert len(few["points"]["nll"]) == 100 and few["notes"][0].startswith(
        "182 of 282 points are left out"
    )


def test_sums_with_more_right_targets_than_the_page_can_store_are_left_out(headline, monkeypatch):
    assert page_content("Headline", {"": headline[0]})["sums"]["entries"]
    monkeypatch.setattr("posbench.report.explore.MOST_RIGHT_TARGETS", 0)
    content = page_content("Headline", {"": headline[0]})
    assert not content["sums"]["entries"]
    assert "282 of 282 points" in content["notes"][0] and "more than 0 right" in content["notes"][0]


def test_null_is_a_word_where_the_yaml_has_a_value_but_not_in_a_setting():
    assert _changed_words("encoding", {"window": None}, {"window": 32}) == ["encoding.window=null"]
    assert _changed_words("encoding", {"window": None}, {"window": None}) == []
    assert _changed_words("evaluate", {"windows": None}, {"windows": 256}) == []


def test_folders_with_the_same_training_have_lines_of_their_own(tmp_path, capfd):
    shutil.copytree(REPORTED / "demo", tmp_path / "other")
    (tmp_path / "paper.csv").write_text("method,length,nll,train_len\n=cmd,64,2.9,64\n")
    done = call(
        capfd, tmp_path, "explore", str(REPORTED / "demo"), "other", "paper.csv", "out=page.html"
    )
    assert done.returncode == 0 and "page.html" in done.stdout
    data = json.loads(
        re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text(), re.S)[1]
    )
    assert {line["source"] for line in data["lines"]} == {"demo", "other", "paper.csv"}
    assert "3 trainings are in more than one of them" in data["notes"][0]


def test_an_experiment_is_its_runs_or_else_what_is_committed(tmp_path, capfd, monkeypatch):
    def lines():
        done = call(capfd, tmp_path, "explore", "demo")
        assert done.returncode == 0, done.stderr
        return json.loads(
            re.search(r'id="data">(.*?)</script>', (tmp_path / "explore.html").read_text(), re.S)[1]
        )["lines"]

    assert len(lines()) == 12 and lines()[0]["from"] == ["reported/demo"]
    (tmp_path / "results" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    path = next(path for path in lengths_of_experiment("demo") if "rope" in path.parts[2])
    written = write_eval(tmp_path, "rope", "none", "none", [np.full(TARGETS, 3.0)] * 4, LENGTHS)
    written.parents[2].rename(tmp_path / path.parents[2])
    (tmp_path / path.parents[2] / "evals" / "fixed_targets" / written.name).rename(tmp_path / path)
    assert [(line["encoding"], line["from"]) for line in lines()] == [("rope", ["results/runs"])]


@pytest.mark.parametrize(
    ("name", "seed", "every"), [("headline", 2, 5), ("newer", 0, 1), ("scale", 23, 4)]
)
def test_the_command_of_a_line_makes_the_same_runs_and_evaluations(name, seed, every):
    """Composed again, the words give the ids of the committed rows."""
    report = report_of(name)
    evaluations = {
        (section_values(evaluation), report.label(evaluation.first)): evaluation
        for evaluation in report.evaluations
        if evaluation.first["seed"] == seed
    }
    configs = map(json.loads, (REPORTED / name / "configs.jsonl").read_text().splitlines())
    fingerprints = {line["run_id"]: line["provenance"]["data_fingerprint"] for line in configs}
    lines = [
        line for line in page_content(name, {"": report})["lines"] if line["kind"] == "length"
    ][::every]
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composer = Composer()
        for line in lines:
            words = [
                re.sub(r"^seed=.*", f"seed={seed}", word)
                for word in shlex.split(line["command"])[2:]
                if word != "-m"
            ]
            cfg = resolved_config(
                resolved_values(composer.values([hydra_form(word) for word in words]))
            ).as_dict()
            section = tuple(line[column] for column in SECTION_COLUMNS)
            row = evaluations[
                section, (line["encoding"], line["extension"], line["scale_attention"])
            ].first
            assert run_id(cfg, fingerprints[row["run_id"]]) == row["run_id"], line["command"]
            assert (
                eval_id(
                    row["protocol"],
                    cfg["extension"],
                    cfg["scale_attention"],
                    cfg["evaluate"],
                    row["run_id"],
                )
                == row["eval_id"]
            )
    assert len(lines) >= 10


def test_sums_of_answers_are_those_of_the_mean():
    data, summed = page_content("tasks", {"": report_of("tasks")}), 0
    sums, right = (
        data["sums"],
        np.frombuffer(
            base64.b64decode(data["sums"]["correct"]), f"<u{data['sums']['correct_bytes']}"
        ),
    )
    for number, value, seeds in zip(
        *(data["points"][name] for name in ("line", "accuracy", "seeds")), strict=True
    ):
        if data["lines"][number]["kind"] == "task" and seeds:
            parts = [
                (at, sums["sets"][of])
                for of, at in (sums["entries"][entry] for _, entry, *_ in seeds)
            ]
            means = [right[at : at + len(counts)].sum() / sum(counts) for at, counts in parts]
            assert np.mean(means) == pytest.approx(value)
            summed += 1
    assert summed > 20
