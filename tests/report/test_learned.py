"""What a training had learned is asked of its parent too, so that a method that broke it is not
left out of its own mean.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from conftest import CONFIGS
from test_rows import VALUES

from posbench.report.footnotes import PARENT_UNASKED, unlearned_lines
from posbench.report.report import collect_report
from posbench.runs.rows import eval_content, make_row, read_csv

FINETUNE = CONFIGS.parent / "results" / "reported" / "finetune"
PI = {"_target_": "posbench.extensions.pi.Pi", "mode": "fixed", "target_len": 256}
EVALUATE = {
    "windows": 512,
    "targets": None,
    "max_length": None,
    "split": "test",
    "dtype": "fp32",
    "seed": 0,
}


def write_answers(root, seed, accuracies, finetune=None, scaling=None, steps=None, train_len=64):
    """Eval json of one training, and its configuration if it is a child; accuracies: {length:
    share}.
    """
    kind = f"rope{'+pi' if scaling else ''}-64{'to256' if finetune else ''}"
    run = root / f"{kind}-s{seed}-{steps or 0:010d}"
    row = {
        **VALUES,
        "run_id": run.name,
        "eval_id": f"{seed:016x}",
        "extension": "none",
        "extension_args": {},
        "seed": seed,
    }
    row |= {
        "encoding_args": {"base": 10000.0, "scaling": scaling},
        "train_len": train_len,
        "protocol": "accuracy",
        "task": "mqar",
    }
    row |= {"finetune": finetune, "sem_unit": "example", "n_bytes": 0}
    rows = [
        make_row(**{**row, "length": length, "accuracy": share})
        for length, share in accuracies.items()
    ]
    path = run / "evals" / "accuracy" / "none.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(eval_content(rows, {"evaluate": EVALUATE})))
    if finetune:
        config = {
            "train": {
                "steps": steps,
                "length": train_len,
                "parent": {"run_id": finetune, "reach": 64},
            }
        }
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def child(root, seed, accuracies, scaling=None, steps=0):
    return write_answers(root, seed, accuracies, f"rope-64-s{seed}-{0:010d}", scaling, steps, 256)


def of_pi(paths, length=1024):
    """Score of PI over all seeds, and the text of the report."""
    report = collect_report(paths, "finetune", "")
    (score,) = [
        point
        for section in report.scores
        for point in section
        if point.extension == "pi (trained in)" and point.length == length
    ]
    return score, report.markdown()


BROKEN = {64: 0.3, 256: 0.2, 1024: 0.1}
SOUND = {64: 0.9, 256: 0.8, 1024: 0.7}


@pytest.mark.parametrize("learner", ["the parent", "a child of no steps"])
def test_a_seed_that_its_method_broke_counts_if_its_parent_had_learned_the_task(tmp_path, learner):
    paths = [
        child(tmp_path, seed, values, PI) for seed, values in enumerate((SOUND, SOUND, BROKEN))
    ]
    for seed in range(3):
        if learner == "the parent":
            paths.append(write_answers(tmp_path, seed, {64: 0.99, 1024: 0.2}))
        else:
            paths.append(child(tmp_path, seed, {32: 0.3, 64: 0.99, 256: 0.4, 1024: 0.2}))
    score, text = of_pi(paths)
    assert (score.n_seeds, score.n_trained, score.learned) == (3, 3, True)
    assert score.accuracy == pytest.approx(0.5) and score.inside == pytest.approx(0.99)
    assert "left out of the means" not in text and PARENT_UNASKED not in text


def test_a_child_of_a_parent_that_had_not_learned_the_task_is_left_out_unless_it_learned_it_itself(
    tmp_path,
):
    paths = [
        child(tmp_path, seed, values, PI, steps=100)
        for seed, values in enumerate((SOUND, SOUND, BROKEN))
    ]
    paths += [
        write_answers(tmp_path, seed, {64: share}) for seed, share in enumerate((0.99, 0.3, 0.3))
    ]
    score, text = of_pi(paths)
    assert (score.n_seeds, score.n_trained, score.accuracy) == (2, 3, pytest.approx(0.7))
    assert (
        "left out of the means (accuracy at the longest length inside the window below 0.5, the"
        " parent's too): mqar: " in text
    )
    never, text = of_pi([paths[2], paths[5]])
    assert not never.learned and "| never learned |" in text


def test_a_child_that_fails_counts_and_is_named_if_nobody_asked_its_parent(tmp_path):
    paths = [
        child(tmp_path, seed, values, PI, steps=100) for seed, values in enumerate((SOUND, BROKEN))
    ]
    paths += [child(tmp_path, 1, {64: 0.99}, steps=30)]  # has other weights than the parent
    score, text = of_pi(paths)
    assert (score.n_seeds, score.inside) == (2, None) and score.accuracy == pytest.approx(0.4)
    assert f"{PARENT_UNASKED}: mqar: " in text
    sound, text = of_pi(paths[:1])
    assert sound.inside == pytest.approx(0.8) and PARENT_UNASKED not in text


def test_a_line_on_a_task_that_was_not_learned_is_not_repeated_for_its_parts():
    facts = SimpleNamespace(trained_in=False, tuned_from=None)
    score = SimpleNamespace(
        encoding="rope", extension="none", label_facts=facts, depth=None, inside=0.2, learned=False,
        n_trained=1, n_seeds=0, task="mqar",
    )  # fmt: skip
    inside = SimpleNamespace(**{**vars(score), "task": "mqar inside 64"})
    of_other = SimpleNamespace(**{**vars(score), "task": "mqar inside 64", "encoding": "alibi"})
    assert unlearned_lines([score, inside]) == unlearned_lines([score])
    assert len(unlearned_lines([inside])) == 1  # its whole task was not asked
    assert len(unlearned_lines([score, inside, of_other])) == 2


@pytest.fixture(scope="module")
def finetune():
    return collect_report([], "finetune", "", evidence=[FINETUNE])


def by_hand(length):
    """Shares of right answers [seeds, texts] of PI without fine-tuning at MQAR with 8 pairs, from
    the committed files alone.
    """
    stored = np.load(FINETUNE / "sums.npz")
    shares = {}
    for number, row in enumerate(read_csv(FINETUNE / "rows.csv")):
        trained_in = str((row["encoding_args"].get("scaling") or {}).get("_target_"))
        if trained_in.endswith("Pi") and (row["task"], row["length"]) == ("mqar 8 pairs", length):
            entries = stored["row"] == number
            shares[row["run_id"], row["seed"]] = (
                stored["correct"][entries] / stored["n_targets"][entries]
            )
    lines = [json.loads(line) for line in (FINETUNE / "configs.jsonl").read_text().splitlines()]
    untuned = {line["run_id"] for line in lines if line["config"]["train"]["steps"] == 0}
    return np.stack(
        [
            share
            for (run, seed), share in sorted(shares.items(), key=lambda item: item[0][1])
            if run in untuned
        ]
    )


@pytest.mark.parametrize(
    ("length", "mean", "low", "high"), [(1024, 0.598, 0.448, 0.748), (64, 0.710, 0.532, 0.889)]
)
def test_the_mean_of_pi_before_fine_tuning_has_all_five_seeds(length, mean, low, high, finetune):
    """Seed 14 answers 0.44 of the questions with PI at 256 tokens; the same weights without PI
    answer 0.9998 of them at 64.
    """
    share_SC = by_hand(length)
    s, c = share_SC.shape
    grand = share_SC.mean()
    of_seeds = c * ((share_SC.mean(1) - grand) ** 2).sum() / (s - 1)
    of_texts = s * ((share_SC.mean(0) - grand) ** 2).sum() / (c - 1)
    rest_SC = share_SC - share_SC.mean(0) - share_SC.mean(1, keepdims=True) + grand
    of_both = (rest_SC**2).sum() / (s - 1) / (c - 1)
    error = ((of_seeds + of_texts - of_both) / (s * c)) ** 0.5
    (score,) = [
        point
        for section in finetune.scores
        for point in section
        if (point.task, point.extension, point.length, point.label_facts.steps)
        == ("mqar 8 pairs", "pi (trained in)", length, 0)
    ]
    assert (s, score.n_seeds, score.n_trained) == (5, 5, 5)
    assert score.accuracy == pytest.approx(grand) and round(grand, 3) == mean
    assert (round(score.low, 3), round(score.high, 3)) == (low, high)
    assert (
        2.57 < (score.high - score.accuracy) / error < 2.78
    )  # Student's t of 4 to 5 degrees of freedom: seeds decide
