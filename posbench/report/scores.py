"""Scores: the share of right answers to the questions of a task, from the rows of protocol accuracy.

A training that is right in less than LEARNED of its answers at the longest length inside the window has not learned the task: beyond the
window it shows nothing of a method, and it is left out of the means of its method. If no seed has learned it, the method is reported as
never learned. If no length inside the window was evaluated, a line below the tables says that this is unknown.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from posbench.report import curves
from posbench.report.labels import Labels
from posbench.report.records import SECTION, Score, section_of
from posbench.report.references import Seed, plain
from posbench.runs.evaluation import Evaluation
from posbench.statistics.clustered import student_quantile, wilson

PROTOCOL = "accuracy"
LEARNED = 0.5  # accuracy at the longest length inside the window below which a task was not learned
# {column: what is guessed}; evaluations name them with a space.
GUESSES = {"by_place": "the token behind the latest earlier place of the key", "by_value": "any value of the text"}
APART = re.compile(r" (inside|outside) \d+$")  # end of the task of a row on the questions inside or outside of a window alone
CHOICE = " choice"  # end of the task of a row on the choice among the answers in the text


def scores(evaluations: Sequence[Evaluation], label: Labels) -> list[Score]:
    """Scores by method, task, length and depth. Raises RunError if two evaluations of one training have the same."""
    cells: dict[tuple, dict[int, Seed]] = defaultdict(dict)
    choices: dict[tuple, dict] = {}
    for evaluation in evaluations:
        section = section_of(evaluation)
        for row in evaluation.rows:
            if row["task"].endswith(CHOICE):
                choices[row["eval_id"], row["task"].removesuffix(CHOICE), row["length"], row["depth"]] = row
            else:
                key = (*section, row["task"], *label(row), evaluation.source, row["length"], row["depth"])
                curves.add_seed(cells[key], Seed(evaluation, row), label)
    within = [(one, row) for one in evaluations for row in one.rows if row["length"] <= row["train_len"] and row["depth"] is None]
    inside = {  # the longest length last
        (one.key, None if plain(row) else row["eval_id"], row["task"]): row["accuracy"]
        for one, row in sorted(within, key=lambda pair: pair[1]["length"])
    }
    return [_score(key, list(seeds.values()), inside, choices, label) for key, seeds in cells.items()]


def learned_by(task: str) -> str:
    """Task whose accuracy inside the window says if a task was learned: "mqar 4 pairs" of "mqar 4 pairs outside 64"."""
    return APART.sub("", task)


def _score(key: tuple, seeds: list[Seed], inside: dict[tuple, float], choices: dict[tuple, dict], label: Labels) -> Score:
    """Score of the seeds; `inside`: accuracy inside the window by key of a training, evaluation (None without extension) and task."""
    task = learned_by(seeds[0].row["task"])
    own = [inside.get((one.key, None, task), inside.get((one.key, row["eval_id"], task))) for one, row, *_ in seeds]
    passed = [seed for seed, share in zip(seeds, own, strict=True) if share is None or share >= LEARNED]
    shown = passed or seeds
    rows = [one.row for one in shown]
    found = [choices.get((row["eval_id"], row["task"], row["length"], row["depth"])) for row in rows]
    low, high, over = _accuracy_interval(shown)
    known = [share for share in own if share is not None]
    return Score(
        **dict(zip((*SECTION, "task", "encoding", "extension", "scale_attention", "source", "length", "depth"), key, strict=True)),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        n_trained=len(seeds),
        n_texts=rows[0]["n_units"],
        n_answers=rows[0]["n_targets"],
        accuracy=fmean([row["accuracy"] for row in rows]),
        low=low,
        high=high,
        over=over,
        nll=None if any(row["nll"] is None for row in rows) else fmean([row["nll"] for row in rows]),
        half_width=_half_width(shown),
        choice=fmean([row["accuracy"] for row in found]) if all(found) else None,
        learned=bool(passed),
        inside=fmean(known) if known else None,
        **_guesses(*shown[0][:2]),
        facts=label.facts(seeds[0].row, seeds[0].evaluation.setting),
        seeds=seeds,
    )


def _guesses(evaluation: Evaluation, row: dict) -> dict[str, float]:
    """Shares that guesses get right on the texts of a row, which are the same for every seed and method."""
    of_task = (evaluation.guesses.get(str(row["length"])) or {}).get(row["task"], {}) if row["depth"] is None else {}
    found = {column: of_task.get(column.replace("_", " ")) for column in GUESSES}
    return {column: share for column, share in found.items() if isinstance(share, float | int)}


def _accuracy_interval(seeds: Sequence[Seed]) -> tuple[float, float, str]:
    """Ends of the 95 % interval of the mean accuracy, and its units.

    One seed: Wilson's, over the texts, since the answers to one text may depend on each other. Several: t over seeds crossed with texts, or
    over seeds if single answers are not known; Wilson's over the texts where all seeds gave the same answers. It ends at 0 and 1.
    """
    rows = [one.row for one in seeds]
    mean, unit = fmean([row["accuracy"] for row in rows]), rows[0]["sem_unit"]
    if len(rows) > 1:
        _, half, over = curves.interval([(row["accuracy"], one.sums(row, "correct")) for one, row, *_ in seeds], unit)
        if half:
            return max(0.0, mean - half), min(1.0, mean + half), over
    return *wilson(mean, rows[0]["n_units"]), unit


def _half_width(seeds: Sequence[Seed]) -> float | None:
    """Half of the 95 % interval of the mean nll, over the units of `interval`, here by Student's t for one seed too; None if not finite."""
    rows = [one.row for one in seeds]
    if any(row["nll"] is None for row in rows):
        return None
    if len(rows) > 1:
        return curves.interval([(row["nll"], one.sums(row)) for one, row, *_ in seeds], rows[0]["sem_unit"])[1]
    (row,) = rows
    many = row["n_units"] > 1 and row["nll_sem"] is not None
    return student_quantile(0.975, row["n_units"] - 1) * row["nll_sem"] if many else None
