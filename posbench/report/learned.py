"""Trainings that have learned a task: a rule on the share of right answers at the longest length
inside the window.

A training that is right in less than LEAST_LEARNED_SHARE of them has not learned the task, and
beyond its window it shows nothing of a method. A fine-tuned training is asked together with its
parent, in the parent's window: what the parent knew, a method or the fine-tuning has broken, and
that counts. The parent's answers are those of its own evaluation, or of a child of zero steps
without an extension, which is the same model under another name."""

import re
from collections.abc import Iterable, Mapping

from posbench.report.labels import STEPS_KEY, Labels
from posbench.report.references import is_plain
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata

# share of right answers at the longest length inside the window below which a task was not learned
LEAST_LEARNED_SHARE = 0.5
PARENT_WINDOW_KEY = "train.parent.reach"  # tokens of the parent's window
# end of the task of a row on the questions inside or outside of a window alone
INSIDE_OR_OUTSIDE = re.compile(r" (inside|outside) \d+$")


def task_that_shows_learning(task: str) -> str:
    """Task whose accuracy inside the window says if a task was learned.

    >>> task_that_shows_learning("mqar 4 pairs outside 64")
    'mqar 4 pairs'
    """
    return INSIDE_OR_OUTSIDE.sub("", task)


class Learned:
    """Knowledge of trainings inside their windows, from evaluations of protocol accuracy and the
    metadata of their runs by run_id.
    """

    def __init__(
        self, evaluations: Iterable[Evaluation], label: Labels, runs: Mapping[str, RunMetadata]
    ):
        self.parents: dict[str, str] = {}  # {run_id: run_id of its parent}
        # accuracy by run_id, protocol, setting, evaluation (None without extension) and task
        self.shares: dict[tuple, float] = {}
        for evaluation in evaluations:
            first = evaluation.first
            run_id, *setting = evaluation.key
            method = None if is_plain(first) else first["eval_id"]
            if first["finetune"]:
                self.parents[run_id] = first["finetune"]
            shares_inside = _shares_inside(evaluation, first["train_len"])
            for task, share in shares_inside.items():
                self.shares[run_id, *setting, method, task] = share
            config = runs[run_id].config if run_id in runs else {}
            if method is None and _is_parent_itself(label, first, config):
                # Its answers inside the parent's window stand for the parent's own,
                # unless it was asked itself.
                shares_inside = _shares_inside(evaluation, config[PARENT_WINDOW_KEY])
                for task, share in shares_inside.items():
                    self.shares.setdefault((first["finetune"], *setting, None, task), share)

    def share(self, evaluation: Evaluation, row: dict) -> float | None:
        """Share of right answers by which the training of a row has learned its task: the largest
        of its own and its ancestors'.

        None if it is unknown: none of these was asked inside its window, or the model before any
        fine-tuning was not, and the others have not LEAST_LEARNED_SHARE."""
        run_id, *setting = evaluation.key
        task = task_that_shows_learning(row["task"])
        # None: without an extension, which shows what the training learned; only where that was
        # not asked the evaluation's own answers count.
        of_run = self.shares.get((run_id, *setting, None, task))
        if of_run is None:
            of_run = self.shares.get((run_id, *setting, row["eval_id"], task))
        of_ancestors = [
            self.shares.get((ancestor, *setting, None, task))
            for ancestor in self._ancestors(run_id)
        ]
        shares = [share for share in (of_run, *of_ancestors) if share is not None]
        # The last ancestor is the model before any fine-tuning.
        first_unasked = bool(of_ancestors) and of_ancestors[-1] is None
        if not shares:
            return None
        largest = max(shares)
        return None if first_unasked and largest < LEAST_LEARNED_SHARE else largest

    def _ancestors(self, run_id: str) -> list[str]:
        """Ids of the parent, its parent and so on, as far as they are known."""
        names: list[str] = []
        while (run_id := self.parents.get(run_id, "")) and run_id not in names:
            names.append(run_id)
        return names


def _shares_inside(evaluation: Evaluation, window: int) -> dict[str, float]:
    """{task: share of right answers over all depths} at the longest length inside a window of so
    many tokens.
    """
    rows = [row for row in evaluation.rows if row["length"] <= window and row["depth"] is None]
    rows.sort(key=lambda row: row["length"])
    return {row["task"]: row["accuracy"] for row in rows}  # the last of a task, the longest, stays


def _is_parent_itself(label: Labels, row: dict, config: Mapping[str, object]) -> bool:
    """True if a fine-tuned training is its parent under another name: no step, no extension and no
    other encoding or scale.
    """
    facts = label.facts(row)
    same_methods = facts.keeps_encoding and not facts.trained_in
    unscaled = row["trained_scale"] in (None, "none")
    return (
        same_methods
        and unscaled
        and config.get(STEPS_KEY) == 0
        # Its answers count inside the parent's window, which older and damaged files lack.
        and isinstance(config.get(PARENT_WINDOW_KEY), int)
    )
