"""Scores: the share of right answers to the questions of a task, from the rows of protocol
accuracy.

A training that has not learned the task (posbench/report/learned.py) shows nothing of a method
beyond the window, and is left out of the means of its method. If no seed has learned it, the method
is reported as never learned. If no length inside the window was evaluated, or a fine-tuned training
fails whose parent was not asked, a line below the tables says that this is unknown."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from posbench.report.curves import add_seed, mean_with_interval
from posbench.report.labels import Labels
from posbench.report.learned import LEAST_LEARNED_SHARE, Learned
from posbench.report.records import SEEDS_ALIKE, SEEDS_KEY, Score, section_values
from posbench.report.references import Seed
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata
from posbench.statistics.clustered import student_quantile, wilson

TASK_PROTOCOL = "accuracy"
# {column: what is guessed}; evaluations name them with a space.
GUESS_WORDS = {
    "by_place": "the token behind the latest earlier place of the key",
    "by_value": "any value of the text",
}
CHOICE_ENDING = " choice"  # end of the task of a row on the choice among the answers in the text


class ScoreKey(NamedTuple):
    """Columns that the seeds of a score have in common."""

    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str
    task: str
    encoding: str
    extension: str
    scale_attention: str
    source: str | None
    length: int
    depth: float | None


class Questions(NamedTuple):
    """Key of the rows of one evaluation on the same questions."""

    eval_id: str
    task: str
    length: int
    depth: float | None


def task_scores(
    evaluations: Sequence[Evaluation], label: Labels, runs: Mapping[str, RunMetadata]
) -> list[Score]:
    """Scores by method, task, length and depth; `runs` by run_id. Raises RunError if two
    evaluations of one training have the same.
    """
    seeds: dict[ScoreKey, dict[int, Seed]] = defaultdict(dict)  # {score: {seed: its row}}
    choices: dict[Questions, dict] = {}  # rows of the choice among the answers
    for evaluation in evaluations:
        common = section_values(evaluation)
        for row in evaluation.rows:
            length, depth = row["length"], row["depth"]
            if row["task"].endswith(CHOICE_ENDING):
                task = row["task"].removesuffix(CHOICE_ENDING)
                choices[Questions(row["eval_id"], task, length, depth)] = row
            else:
                method = label(row)
                key = ScoreKey(*common, row["task"], *method, evaluation.source, length, depth)
                add_seed(seeds[key], Seed(evaluation, row), label)
    learned = Learned(evaluations, label, runs)
    return [
        _mean_score(key, list(by_seed.values()), learned, choices, label)
        for key, by_seed in seeds.items()
    ]


def _mean_score(
    key: ScoreKey,
    seeds: list[Seed],
    learned: Learned,
    choices: dict[Questions, dict],
    label: Labels,
) -> Score:
    """Score of the seeds that have learned the task, or of all if none has."""
    # Of right answers inside the window.
    learned_shares = [learned.share(seed.evaluation, seed.row) for seed in seeds]
    passed = [
        seed
        for seed, share in zip(seeds, learned_shares, strict=True)
        # A seed of which nobody knows what it learned is not left out.
        if share is None or share >= LEAST_LEARNED_SHARE
    ]
    learners = passed or seeds
    rows = [seed.row for seed in learners]
    choice_rows = [
        choices.get(Questions(row["eval_id"], key.task, key.length, key.depth)) for row in rows
    ]
    low, high, over = _accuracy_interval(learners)
    return Score(
        **key._asdict(),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        n_trained=len(seeds),
        n_texts=rows[0]["n_units"],
        n_answers=rows[0]["n_targets"],
        accuracy=_mean_or_none([row["accuracy"] for row in rows]),
        low=low,
        high=high,
        over=over,
        nll=_mean_or_none([row["nll"] for row in rows]),
        half_width=_loss_half_width(learners),
        choice=_mean_or_none([row and row["accuracy"] for row in choice_rows]),
        learned=bool(passed),
        # Of all seeds, whether they have learned the task or not.
        inside=_mean_or_none(learned_shares),
        **_guess_shares(learners[0]),
        facts=label.facts(seeds[0].row, seeds[0].evaluation.setting),
        seeds=seeds,
        learners=learners,
        by_seed={
            SEEDS_KEY: tuple(row["seed"] for row in rows),
            "accuracy": tuple(row["accuracy"] for row in rows),
        },
    )


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    """Mean; None if a value is not known."""
    return None if None in values else fmean(values)


def _guess_shares(seed: Seed) -> dict[str, float]:
    """{column of GUESS_WORDS: share} that guesses get right on the texts of a row, which are the
    same for every seed and method; {} for a row of one depth, since they are kept over all.
    """
    row = seed.row
    if row["depth"] is not None:
        return {}
    of_length = seed.evaluation.guesses.get(str(row["length"])) or {}
    of_task = of_length.get(row["task"], {})
    shares = {column: of_task.get(column.replace("_", " ")) for column in GUESS_WORDS}
    return {column: share for column, share in shares.items() if isinstance(share, float | int)}


class AccuracyInterval(NamedTuple):
    """Ends of a 95 % interval, inside 0 to 1, and its units, such as "seeds x examples"."""

    low: float
    high: float
    over: str


def _accuracy_interval(seeds: Sequence[Seed]) -> AccuracyInterval:
    """Interval of the mean accuracy.

    One seed: Wilson's, over the texts, since the answers to one text may depend on each other.
    Several: Student's t over seeds crossed with texts, or over seeds if single answers are not
    known. Where neither seeds nor texts differ, as for shares of 0 and 1, t has no width: there it
    is Wilson's over the texts of one seed, and the units are SEEDS_ALIKE."""
    first = seeds[0].row
    accuracies = [seed.row["accuracy"] for seed in seeds]
    mean = fmean(accuracies)
    by_wilson = wilson(mean, first["n_units"])
    if len(seeds) == 1:
        return AccuracyInterval(*by_wilson, first["sem_unit"])
    sums = [seed.evaluation.sampled_sums(seed.row, "correct") for seed in seeds]
    by_t = mean_with_interval(list(zip(accuracies, sums, strict=True)), first["sem_unit"])
    if by_t.half_width is None:  # a stratum of one text, whose error nobody knows
        by_t = mean_with_interval([(accuracy, None) for accuracy in accuracies], first["sem_unit"])
    if not by_t.half_width:
        return AccuracyInterval(*by_wilson, SEEDS_ALIKE)
    low = max(0.0, mean - by_t.half_width)
    high = min(1.0, mean + by_t.half_width)
    return AccuracyInterval(low, high, by_t.over)


def _loss_half_width(seeds: Sequence[Seed]) -> float | None:
    """Half of the 95 % interval of the mean nll by Student's t, of one seed over its texts; None if
    not finite or unknown.
    """
    losses = [seed.row["nll"] for seed in seeds]
    if None in losses:
        return None
    if len(seeds) == 1:
        return _loss_half_width_over_texts(seeds[0])
    sums = [seed.evaluation.sampled_sums(seed.row) for seed in seeds]
    unit = seeds[0].row["sem_unit"]
    return mean_with_interval(list(zip(losses, sums, strict=True)), unit).half_width


def _loss_half_width_over_texts(seed: Seed) -> float | None:
    """Half of the interval of one training's nll, from the errors that rows state; texts of a task
    at several depths are in strata. None if a stratum has one text, or states no error.
    """
    row = seed.row
    strata = seed.evaluation.rows_by_depth(row)
    if len(strata) < 2:
        strata = [row]
    if any(stratum["n_units"] < 2 or stratum["nll_sem"] is None for stratum in strata):
        return None
    errors = [stratum["n_targets"] / row["n_targets"] * stratum["nll_sem"] for stratum in strata]
    degrees_of_freedom = sum(stratum["n_units"] - 1 for stratum in strata)
    return student_quantile(0.975, degrees_of_freedom) * math.hypot(*errors)
