"""Mean reciprocal rank of methods over tasks and lengths: one number for each method, as in
Kazemnejad et al. 2023 (arXiv 2305.19466).

A cell is a task at a length beyond training. In each, the methods that learned the task are ranked
by accuracy: 1 is the best, and alike ones share the mean of their ranks. A method's number is the
mean of 1 / rank over its cells. Cells in which all methods are alike say nothing, such as those
where none is ever right, and are left out. So are questions that another task of the table holds
already (inside or outside of a window). A method that never learned a task has no rank in it:
`unlearned` counts these tasks.

The number depends on which methods are compared and on which lengths were read, and it has no
interval: it sums up a table, and it tests nothing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from posbench.report.learned import task_that_shows_learning
from posbench.report.records import Score, scores_by_task
from posbench.report.table_formats import METHOD_COLUMNS, Table, TableCell

FEWEST_TASKS, FEWEST_METHODS = 2, 3  # fewer are read more easily in their own tables
RANKS_LINE = (
    "1 / rank by accuracy among the methods that learned a task, the mean over tasks and lengths"
    " beyond training; alike ones share the mean of their ranks, and cells in which all are alike"
    " are left out"
)


@dataclass(frozen=True)
class MethodRank:
    """Line of ranks.csv: a method and its mean reciprocal rank."""

    encoding: str
    extension: str
    scale_attention: str
    reciprocal_rank: float | None  # None without a cell
    cells: int  # tasks x lengths in which it has a rank
    first: int  # of these: no method is better
    tasks: int  # tasks that it was asked
    unlearned: int  # of these: no training learned it


def method_ranks(sections: Iterable[Sequence[Score]]) -> list[MethodRank]:
    """Ranks of all methods of a report, the best first; empty for too few tasks or methods to need
    them.
    """
    tasks = []  # [{method: {length: score}}]
    for section in sections:
        # recompute_window is the floor: what dropping the earlier text gives, and no competitor.
        compared = [score for score in section if score.extension != "recompute_window"]
        for task, cells in scores_by_task(compared).items():
            # Parts of a task, inside and outside of a window, hold questions of the whole again.
            if task_that_shows_learning(task) == task:
                tasks.append(cells)
    methods = dict.fromkeys(method for cells in tasks for method in cells)
    if len(tasks) < FEWEST_TASKS or len(methods) < FEWEST_METHODS:
        return []
    reciprocal: dict[tuple, list[float]] = {method: [] for method in methods}
    n_best = Counter()  # {method: cells in which no method is better}
    for cells in tasks:
        for ranks in _ranks_by_length(cells):
            best_rank = min(ranks.values())
            n_best.update(method for method, rank in ranks.items() if rank == best_rank)
            for method, rank in ranks.items():
                reciprocal[method].append(1 / rank)
    lines = []
    for method, values in reciprocal.items():
        of_method = [cells[method] for cells in tasks if method in cells]
        encoding, extension, scale_attention, *_ = method  # without the source
        line = MethodRank(
            encoding,
            extension,
            scale_attention,
            reciprocal_rank=fmean(values) if values else None,
            cells=len(values),
            first=n_best[method],
            tasks=len(of_method),
            unlearned=sum(_never_learned(scores) for scores in of_method),
        )
        lines.append(line)
    return sorted(lines, key=lambda line: -(line.reciprocal_rank or 0))


def _never_learned(scores: dict[int, Score]) -> bool:
    return not any(score.learned for score in scores.values())


def _ranks_by_length(cells: dict[tuple, dict[int, Score]]) -> list[dict[tuple, float]]:
    """{method: rank} for each length beyond training at which the methods that learned the task
    differ.
    """
    accuracies: dict[int, dict[tuple, float]] = defaultdict(dict)  # {length: {method: accuracy}}
    for method, scores in cells.items():
        for length, score in scores.items():
            if score.learned and length > score.train_len:
                accuracies[length][method] = score.accuracy
    return [
        _ranks_with_ties(accuracies[length])
        for length in sorted(accuracies)
        if len({*accuracies[length].values()}) > 1
    ]


def _ranks_with_ties(accuracies: dict[tuple, float]) -> dict[tuple, float]:
    """Ranks from 1, the most accurate; alike ones share the mean of their ranks.

    >>> _ranks_with_ties({"rope": 0.5, "alibi": 0.75, "fox": 0.5})
    {'rope': 2.5, 'alibi': 1.0, 'fox': 2.5}
    """
    values = list(accuracies.values())
    # 1, those above, and half of the others that are alike.
    return {
        method: 0.5 + sum(other > accuracy for other in values) + 0.5 * values.count(accuracy)
        for method, accuracy in accuracies.items()
    }


def rank_table(ranks: Sequence[MethodRank]) -> Table:
    """Table of a report's ranks."""
    columns = [
        *METHOD_COLUMNS,
        "mean reciprocal rank",
        "best in",
        "of cells",
        "tasks never learned",
    ]
    rows = []
    for line in ranks:
        value = "-" if line.reciprocal_rank is None else f"{line.reciprocal_rank:.2f}"
        names = [TableCell(name) for name in (line.encoding, line.extension, line.scale_attention)]
        counts = [
            TableCell(str(count), count) for count in (line.first, line.cells, line.unlearned)
        ]
        rows.append([*names, TableCell(value, line.reciprocal_rank), *counts])
    return Table("Mean reciprocal rank beyond the training length", columns, rows)
