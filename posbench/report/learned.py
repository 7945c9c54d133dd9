"""Trainings that have learned a task: a rule on the share of right answers at the longest length
inside the window.

A training that is right in less than LEARNED of them has not learned the task, and beyond its
window it shows nothing of a method. A fine-tuned training is asked together with its parent, in the
parent's window: what the parent knew, a method or the fine-tuning has broken, and that counts. The
parent's answers are those of its own evaluation, or of a child of zero steps without an extension,
which is the same model under another name."""

import re
from collections.abc import Iterable, Iterator, Mapping

from posbench.report.labels import STEPS, Labels
from posbench.report.references import plain
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata

# share of right answers at the longest length inside the window below which a task was not learned
LEARNED = 0.5
REACH = "train.parent.reach"  # tokens of the parent's window
APART = re.compile(
    r" (inside|outside) \d+$"
)  # end of the task of a row on the questions inside or outside of a window alone


def learned_by(task: str) -> str:
    """Task whose accuracy inside the window says if a task was learned: "mqar 4 pairs" of "mqar 4
    pairs outside 64".
    """
    return APART.sub("", task)


class Learned:
    """Knowledge of trainings inside their windows, from evaluations of protocol accuracy and the
    metadata of their runs by run_id.
    """

    def __init__(
        self, evaluations: Iterable[Evaluation], label: Labels, runs: Mapping[str, RunMetadata]
    ):
        self.parents: dict[str, str] = {}  # {run_id: run_id of its parent}
        self.shares: dict[
            tuple,
            float,
            # accuracy by run_id, protocol, setting, evaluation (None without extension) and task
        ] = {}
        for evaluation in evaluations:
            first = evaluation.first
            run_id, *setting = evaluation.key
            method = None if plain(first) else first["eval_id"]
            if first["finetune"]:
                self.parents[run_id] = first["finetune"]
            for row in _inside(evaluation, first["train_len"]):
                self.shares[run_id, *setting, method, row["task"]] = row["accuracy"]
            config = runs[run_id].config if run_id in runs else {}
            if method is None and _is_parent(label, first, config):
                for row in _inside(evaluation, config[REACH]):
                    self.shares.setdefault(
                        (first["finetune"], *setting, None, row["task"]), row["accuracy"]
                    )

    def share(self, evaluation: Evaluation, row: dict) -> float | None:
        """Share of right answers by which the training of a row has learned its task: the largest
        of its own and its ancestors'.

        None if it is unknown: nobody was asked inside a window, or the parent was not, and the
        fine-tuned training has not LEARNED."""
        run_id, *setting = evaluation.key
        task = learned_by(row["task"])
        own = self.shares.get((run_id, *setting, None, task))
        if own is None:
            own = self.shares.get((run_id, *setting, row["eval_id"], task))
        ancestors = [
            self.shares.get((name, *setting, None, task)) for name in self._ancestors(run_id)
        ]
        known = [share for share in (own, *ancestors) if share is not None]
        asked_parent = not ancestors or ancestors[-1] is not None
        if not known or not asked_parent and max(known) < LEARNED:
            return None
        return max(known)

    def _ancestors(self, run_id: str) -> list[str]:
        """Ids of the parent, its parent and so on, as far as they are known."""
        names: list[str] = []
        while (run_id := self.parents.get(run_id, "")) and run_id not in names:
            names.append(run_id)
        return names


def _inside(evaluation: Evaluation, window: int) -> Iterator[dict]:
    """Rows over all depths of the lengths inside a window of so many tokens, the longest last."""
    rows = [row for row in evaluation.rows if row["length"] <= window and row["depth"] is None]
    yield from sorted(rows, key=lambda row: row["length"])


def _is_parent(label: Labels, row: dict, config: Mapping[str, object]) -> bool:
    """True if a fine-tuned training is its parent under another name: no step, no extension and no
    other encoding or scale.
    """
    facts = label.facts(row)
    unchanged = (
        facts.keeps_encoding and not facts.trained_in and row["trained_scale"] in (None, "none")
    )
    return unchanged and config.get(STEPS) == 0 and isinstance(config.get(REACH), int)
