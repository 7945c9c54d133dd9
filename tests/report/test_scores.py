"""Scores of tasks: intervals against published ones, the bound of what was learned, and what tables
and figures show of it.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic import Built, write_json
from test_figures import texts
from test_rows import VALUES

from posbench.report.figures import accuracy
from posbench.report.figures.style import write_figure
from posbench.report.footnotes import UNASKED
from posbench.report.records import SEEDS_ALIKE, Score, read_points, scores_by_task
from posbench.report.report import collect_report
from posbench.results.evidence import read_evidence
from posbench.runs.rows import make_row
from posbench.runs.target_losses import part_of, save_arrays
from posbench.statistics.clustered import wilson

TEXTS, DEPTHS = 40, (0.0, 0.5, 1.0)


def write_scores(root, encoding, extension, seed, share, task="needle", beyond=None):
    """Evaluation whose answers are right in `share`[length] of the texts: rows of all depths and of
    each, and their arrays.
    """
    run, eval_id = f"{encoding}-64-s{seed}-0123456789", f"{extension}{seed}"
    random, rows, arrays = np.random.default_rng([seed, len(encoding), len(extension)]), [], {}
    for length in share:
        correct_NA = random.random((TEXTS, len(DEPTHS))) < share[length]
        nll_NA = np.where(correct_NA, 0.1, 3.0).astype(np.float32)
        columns = []
        for depth, part in (
            (None, slice(None)),
            *((depth, slice(i, i + 1)) for i, depth in enumerate(DEPTHS)),
        ):
            right, nll = correct_NA[:, part], nll_NA[:, part]
            values = {
                "nll": float(nll.mean()),
                "accuracy": float(right.mean()),
                "n_targets": right.size,
                "n_units": TEXTS,
                "nll_sem": 0.1,
            }
            facts = {
                "run_id": run,
                "eval_id": eval_id,
                "encoding": encoding,
                "extension": extension,
                "seed": seed,
                "protocol": "accuracy",
            }
            facts |= {
                "encoding_args": {},
                "extension_args": {},
                "scale_attention": "none",
                "trained_scale": "none",
                "position": None,
            }
            facts |= {
                "train_len": 64,
                "length": length,
                "task": beyond if beyond and length > 64 else task,
                "depth": depth,
                "n_bytes": 0,
                "sem_unit": "example",
            }
            rows.append(make_row(**{**VALUES, **facts, **values}))
            columns.append((nll, right, np.full((1, right.shape[1]), part_of(rows[-1]))))
        names = ("nll", "correct", "part")
        arrays[length] = {
            name: np.concatenate([column[i] for column in columns], axis=1)
            for i, name in enumerate(names)
        }
    path = root / run / "evals" / "accuracy" / f"{extension}-{eval_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, rows, {"seed": seed})
    save_arrays(
        path.with_suffix(".npz"),
        {"document": np.arange(TEXTS), "offset": np.zeros(TEXTS, int)},
        arrays,
    )
    return path, arrays


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_of_shares_are_those_of_newcombe_1998(right, n, low, high):
    """Table I of Newcombe, Statistics in Medicine 17, 857-872, method 3 (score, without continuity
    correction).
    """
    assert wilson(right / n, n) == pytest.approx((low, high), abs=6e-5)
    mirrored = wilson(1 - right / n, n)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=6e-5)


def crossed_within_depths(values_SND):
    """Mean and half of its interval over three seeds and the texts of each depth, which are other
    texts at every depth.
    """
    s, n, d = values_SND.shape
    by_seed_S = values_SND.mean((1, 2))
    within_SND = values_SND - values_SND.mean(1, keepdims=True)  # of a seed and a depth
    of_texts_ND = within_SND.mean(0)
    seeds = ((by_seed_S - by_seed_S.mean()) ** 2).sum() / (s - 1) / s
    texts = (of_texts_ND**2).sum() / (n - 1) / n / d**2
    both = ((within_SND - of_texts_ND) ** 2).sum() / (n - 1) / n / d**2 / (s - 1) / s
    variance = seeds + texts - both if both < min(seeds, texts) else max(seeds, texts)
    return values_SND.mean(), 4.302653 * variance**0.5  # Student's t of two degrees of freedom


@pytest.fixture
def scored(tmp_path):
    good = {64: 1.0, 128: 0.6}
    paths = [write_scores(tmp_path / "runs", "rope", "none", seed, good)[0] for seed in (0, 1, 2)]
    paths += [
        write_scores(tmp_path / "runs", "rope", "ntk", seed, {64: 1.0, 128: 0.8})[0]
        for seed in (0, 1, 2)
    ]
    paths += [write_scores(tmp_path / "runs", "alibi", "none", 0, {64: 0.3, 128: 0.4})[0]]
    paths += [
        write_scores(tmp_path / "runs", "none", "none", seed, {64: (1.0, 0.3)[seed], 128: 0.7})[0]
        for seed in (0, 1)
    ]
    return paths, Built(paths, tmp_path / "report", "needles", "")


def test_the_mean_is_over_seeds_that_learned_the_task_and_its_interval_is_crossed(scored):
    scores = {
        (score.encoding, score.extension, score.length, score.depth): score
        for section in scored[1].scores
        for score in section
    }
    score = scores["rope", "none", 128, None]
    by_seed = [np.load(path.with_suffix(".npz")) for path in scored[0][:3]]
    first = [
        npz["correct_128"][:, : len(DEPTHS)].astype(float) for npz in by_seed
    ]  # the first columns are those of all depths
    mean, half = crossed_within_depths(np.array(first))
    assert score.accuracy == pytest.approx(mean) and (score.low, score.high) == pytest.approx(
        (mean - half, mean + half)
    )
    assert (score.n_seeds, score.over, score.learned, score.inside) == (
        3,
        "seeds x examples",
        True,
        1.0,
    )
    mean, half = crossed_within_depths(
        np.array([npz["nll_128"][:, : len(DEPTHS)].astype(float) for npz in by_seed])
    )
    assert (score.nll, score.half_width) == pytest.approx((mean, half))
    exact = scores[
        "rope", "none", 64, None
    ]  # all seeds are right everywhere, and still the interval has a width
    assert exact.accuracy == exact.high == 1.0 and exact.low == wilson(1.0, TEXTS)[0] < 1
    assert (
        exact.over == SEEDS_ALIKE
        and "Wilson's over examples where all seeds have the same accuracy" in scored[1].markdown()
    )
    single = scores["alibi", "none", 128, None]
    assert (single.low, single.high) == wilson(single.accuracy, TEXTS) and single.over == "example"
    half = scores["none", "none", 128, None]
    assert (half.n_seeds, half.n_trained, half.learned) == (
        1,
        2,
        True,
    ) and half.inside == pytest.approx(0.65, abs=0.08)


def test_the_loss_of_answers_stands_in_a_table_of_its_own(scored):
    lines = scored[1].markdown().splitlines()
    at = lines.index("**-ln p of an answer (nats): needle**")
    rows = [line for line in lines[at + 4 : at + 8] if line.startswith("| ")]
    beyond = {
        score.method[:2]: score
        for section in scored[1].scores
        for score in section
        if (score.length, score.depth) == (128, None)
    }
    beyond_score = beyond["rope", "ntk"]
    assert beyond_score.nll > 0.1 and any(
        f"| {beyond_score.nll:.2f} +- {beyond_score.half_width:.2f} |" in row for row in rows
    ), rows
    # Of one seed and three depths of 40 texts, each with an error of 0.1: Student's t of 117
    # degrees of freedom is 1.98045 in tables.
    assert beyond["none", "none"].half_width == pytest.approx(1.98045 * 0.1 / 3**0.5, abs=1e-5)


def test_questions_outside_of_the_window_are_learned_where_the_whole_task_is(tmp_path):
    """At the training length there are none: what was learned there is asked of the task without
    the window's name.
    """
    names = {"task": "pairs", "beyond": "pairs outside 64"}
    paths = [
        write_scores(tmp_path / "runs", "rope", "none", seed, {64: 1.0, 128: 0.2}, **names)[0]
        for seed in (0, 1)
    ]
    paths += [write_scores(tmp_path / "runs", "alibi", "none", 0, {64: 0.3, 128: 0.2}, **names)[0]]
    built = collect_report(paths, "pairs", "")
    beyond = {
        score.encoding: score
        for section in built.scores
        for score in section
        if (score.task, score.depth) == ("pairs outside 64", None)
    }
    assert (beyond["rope"].learned, beyond["alibi"].learned) == (True, False)
    assert beyond["rope"].inside == 1.0 and beyond["alibi"].inside == pytest.approx(0.3, abs=0.1)
    assert UNASKED not in built.markdown()


def test_a_task_that_was_not_asked_inside_the_window_is_told(tmp_path):
    paths = [
        write_scores(tmp_path / "runs", "rope", extension, 0, {128: 0.1})[0]
        for extension in ("none", "ntk")
    ]
    paths += [write_scores(tmp_path / "runs", "alibi", "none", 0, {64: 1.0, 128: 0.1})[0]]
    text = collect_report(paths, "needles", "").markdown()
    sentence = f"{UNASKED}: needle: rope"
    assert text.count(UNASKED) == text.count(sentence) == 1 and f"{sentence}, " not in text


def test_files_hold_what_is_shown_and_evidence_pools(scored, tmp_path):
    files = {
        path.name
        for path in Built(scored[0], tmp_path / "report", "needles", "", pictures="blank").files
    }
    assert {
        "accuracy.csv",
        "accuracy.png",
        "accuracy.svg",
        "depth.png",
        "depth.svg",
        "map.png",
        "map.svg",
        "report.html",
    } <= files
    (section,) = scored[1].scores
    assert read_points(tmp_path / "report" / "accuracy.csv", Score) == section
    assert [len(cells) for cells in scores_by_task(section).values()] == [4]
    again = collect_report([], "needles", "", evidence=[tmp_path / "report"])
    assert read_evidence(tmp_path / "report")[0] and again.scores == scored[1].scores
    page = (tmp_path / "report" / "report.html").read_text()
    assert (
        "Accuracy by length and depth" in page
        and "Accuracy by method and length" in page
        and "needles" in page
    )


def test_what_guesses_get_right_is_a_line_in_the_figure_and_in_the_text_and_stays_in_evidence(
    scored, tmp_path
):
    by_place = {64: 0.95, 128: 0.7}
    guesses = {
        str(length): {"needle": {"by place": place, "by value": 0.25, "by heart": "much"}}
        for length, place in by_place.items()
    }
    for path in scored[0]:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"guesses": guesses}))
    built = Built(scored[0], tmp_path / "guessed", "needles", "")
    for scores in (
        built.scores,
        collect_report([], "needles", "", evidence=[tmp_path / "guessed"]).scores,
    ):
        guessed = {
            (score.length, score.by_place, score.by_value)
            for score in scores[0]
            if score.depth is None
        }
        assert guessed == {(64, 0.95, 0.25), (128, 0.7, 0.25)}
        assert {score.by_value for score in scores[0] if score.depth is not None} == {None}
    assert "needle: 0.950 at 64 tokens, 0.700 at 128" in built.markdown()
    drawn = [
        line.get_ydata().tolist()
        for line in accuracy.figure(built.scores[0], "").axes[0].lines
        if line.get_linestyle() == ":"
    ]
    assert drawn == [[0.95, 0.7], [0.25, 0.25]]
    named = [
        texts(write_figure(accuracy.figure(report.scores[0], ""), tmp_path / name, ["svg"])[0])
        for report, name in ((built, "with"), (scored[1], "without"))
    ]
    assert ["guess by place" in names for names in named] == [True, False]


def test_a_line_of_accuracies_is_broken_where_only_other_methods_were_asked(scored):
    rope = [
        score for score in scored[1].scores[0] if score.encoding == "rope" and score.depth is None
    ]
    at_all_lengths = [
        replace(score, length=length)
        for score in rope
        for length in (64, 128, 256)
        if score.length == 64
    ]

    def lines(scores: list[Score]) -> list[list[bool]]:
        return sorted(
            [y == y for y in line.get_ydata()]
            for line in accuracy.figure(scores, "").axes[0].lines
            if line.get_marker() != "None"
        )

    gone = [score for score in at_all_lengths if (score.extension, score.length) != ("ntk", 128)]
    assert lines(at_all_lengths) == [[True] * 3] * 2 and lines(gone) == [
        [True, False, True],
        [True] * 3,
    ]
