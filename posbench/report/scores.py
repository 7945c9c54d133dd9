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

from posbench.report import curves
from posbench.report.labels import Labels
from posbench.report.learned import LEARNED, Learned
from posbench.report.records import SECTION, SEEDS_ALIKE, Score, section_of
from posbench.report.references import Seed
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata
from posbench.statistics.clustered import student_quantile, wilson

PROTOCOL = "accuracy"
# {column: what is guessed}; evaluations name them with a space.
GUESSES = {
    "by_place": "the token behind the latest earlier place of the key",
    "by_value": "any value of the text",
}
CHOICE = " choice"  # end of the task of a row on the choice among the answers in the text


def scores(
    evaluations: Sequence[Evaluation], label: Labels, runs: Mapping[str, RunMetadata]
) -> list[Score]:
    """Scores by method, task, length and depth; `runs` by run_id. Raises RunError if two
    evaluations of one training have the same.
    """
    cells: dict[tuple, dict[int, Seed]] = defaultdict(dict)
    choices: dict[tuple, dict] = {}
    for evaluation in evaluations:
        section = section_of(evaluation)
        for row in evaluation.rows:
            if row["task"].endswith(CHOICE):
                choices[
                    row["eval_id"], row["task"].removesuffix(CHOICE), row["length"], row["depth"]
                ] = row
            else:
                key = (
                    *section,
                    row["task"],
                    *label(row),
                    evaluation.source,
                    row["length"],
                    row["depth"],
                )
                curves.add_seed(cells[key], Seed(evaluation, row), label)
    learned = Learned(evaluations, label, runs)
    return [
        _score(key, list(seeds.values()), learned, choices, label) for key, seeds in cells.items()
    ]


def _score(
    key: tuple, seeds: list[Seed], learned: Learned, choices: dict[tuple, dict], label: Labels
) -> Score:
    """Score of the seeds; `choices`: rows of the choice among the answers, by evaluation, task,
    length and depth.
    """
    shares = [learned.share(seed.evaluation, seed.row) for seed in seeds]
    passed = [
        seed for seed, share in zip(seeds, shares, strict=True) if share is None or share >= LEARNED
    ]
    shown = passed or seeds
    rows = [one.row for one in shown]
    found = [
        choices.get((row["eval_id"], row["task"], row["length"], row["depth"])) for row in rows
    ]
    low, high, over = _accuracy_interval(shown)
    return Score(
        **dict(
            zip(
                (
                    *SECTION,
                    "task",
                    "encoding",
                    "extension",
                    "scale_attention",
                    "source",
                    "length",
                    "depth",
                ),
                key,
                strict=True,
            )
        ),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        n_trained=len(seeds),
        n_texts=rows[0]["n_units"],
        n_answers=rows[0]["n_targets"],
        accuracy=fmean([row["accuracy"] for row in rows]),
        low=low,
        high=high,
        over=over,
        nll=(
            None if any(row["nll"] is None for row in rows) else fmean([row["nll"] for row in rows])
        ),
        half_width=_half_width(shown),
        choice=fmean([row["accuracy"] for row in found]) if all(found) else None,
        learned=bool(passed),
        inside=None if None in shares else fmean(shares),
        **_guesses(*shown[0][:2]),
        facts=label.facts(seeds[0].row, seeds[0].evaluation.setting),
        seeds=seeds,
        learners=shown,
    )


def _guesses(evaluation: Evaluation, row: dict) -> dict[str, float]:
    """Shares that guesses get right on the texts of a row, which are the same for every seed and
    method.
    """
    of_task = (
        (evaluation.guesses.get(str(row["length"])) or {}).get(row["task"], {})
        if row["depth"] is None
        else {}
    )
    found = {column: of_task.get(column.replace("_", " ")) for column in GUESSES}
    return {column: share for column, share in found.items() if isinstance(share, float | int)}


def _accuracy_interval(seeds: Sequence[Seed]) -> tuple[float, float, str]:
    """Ends of the 95 % interval of the mean accuracy, and its units, such as "seeds x examples". It
    ends at 0 and 1.

    One seed: Wilson's, over the texts, since the answers to one text may depend on each other.
    Several: Student's t over seeds crossed with texts, or over seeds if single answers are not
    known. Where neither seeds nor texts differ, as for shares of 0 and 1, t has no width: there it
    is Wilson's over the texts of one seed, and the units are SEEDS_ALIKE."""
    rows = [seed.row for seed in seeds]
    mean = fmean([row["accuracy"] for row in rows])
    unit = rows[0]["sem_unit"]
    by_wilson = wilson(mean, rows[0]["n_units"])
    if len(rows) == 1:
        return *by_wilson, unit
    sums = [seed.evaluation.sampled_sums(seed.row, "correct") for seed in seeds]
    _, half, over = curves.interval(
        list(zip([row["accuracy"] for row in rows], sums, strict=True)), unit
    )
    if half is None:  # a stratum of one text, whose error nobody knows
        _, half, over = curves.interval([(row["accuracy"], None) for row in rows], unit)
    if not half:
        return *by_wilson, SEEDS_ALIKE
    return max(0.0, mean - half), min(1.0, mean + half), over


def _half_width(seeds: Sequence[Seed]) -> float | None:
    """Half of the 95 % interval of the mean nll by Student's t, of one seed over its texts; None if
    not finite or unknown.
    """
    rows = [seed.row for seed in seeds]
    if any(row["nll"] is None for row in rows):
        return None
    if len(rows) == 1:
        return _half_width_over_texts(*seeds[0][:2])
    sums = [seed.evaluation.sampled_sums(seed.row) for seed in seeds]
    return curves.interval(
        list(zip([row["nll"] for row in rows], sums, strict=True)), rows[0]["sem_unit"]
    )[1]


def _half_width_over_texts(evaluation: Evaluation, row: dict) -> float | None:
    """Half of the interval of one training's nll, from the errors that rows state; texts of a task
    at several depths are in strata.
    """
    strata = evaluation.rows_by_depth(row)
    if len(strata) < 2:
        strata = [row]
    if any(stratum["n_units"] < 2 or stratum["nll_sem"] is None for stratum in strata):
        return None
    shares = [stratum["n_targets"] / row["n_targets"] for stratum in strata]
    sem = math.hypot(
        *(share * stratum["nll_sem"] for share, stratum in zip(shares, strata, strict=True))
    )
    return student_quantile(0.975, sum(stratum["n_units"] - 1 for stratum in strata)) * sem
