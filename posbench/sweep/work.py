"""Work of jobs in the units that dry=true, the beginning and the end of a command share."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from posbench.common.errors import RunError
from posbench.common.quantities import plural
from posbench.sweep.cells import RECOMPUTE, EvaluationCell
from posbench.sweep.jobs import Job


class Work(NamedTuple):
    """Numbers of what jobs make. Floor windows are the evaluations that others are compared with:
    the floor, and the half of the window."""

    trainings: int = 0
    checkpoints: int = 0
    evaluations: int = 0
    floor_windows: int = 0

    def __str__(self) -> str:
        """Text such as "2 trainings, 4 evaluations and 4 floor windows"; "" for nothing.

        >>> str(Work(trainings=2, evaluations=1))
        '2 trainings and 1 evaluation'
        """
        counts = [plural(n, noun) for n, noun in zip(self, NOUNS_OF_FIELDS, strict=True) if n]
        if len(counts) < 2:
            return "".join(counts)
        return f"{', '.join(counts[:-1])} and {counts[-1]}"


NOUNS_OF_FIELDS = ("training", "checkpoint", "evaluation", "floor window")


def is_floor_window(cell: EvaluationCell) -> bool:
    """True for an evaluation that the user did not ask for and others are compared with."""
    return cell.reference and cell.extension.get("_target_") == RECOMPUTE


def count_cells(cells: Iterable[EvaluationCell]) -> Work:
    """Numbers of evaluations and floor windows."""
    are_floors = [is_floor_window(cell) for cell in cells]
    return Work(evaluations=are_floors.count(False), floor_windows=are_floors.count(True))


def unfinished(jobs: Iterable[Job], among: Collection[Path] | None = None) -> set[Path]:
    """Paths of the runs and evaluations of jobs that are not finished, or damaged.

    `among`: the paths that are looked at, since each file is read; None: all."""
    paths = set()
    for job in jobs:
        if not job.run.finished:
            paths.add(job.run.path)
        for cell in job.cells:
            if (among is None or cell.path in among) and lacks_lengths(cell):
                paths.add(cell.path)
    return paths


def lacks_lengths(cell: EvaluationCell) -> bool:
    """True for an evaluation that lacks a length, or whose file is damaged."""
    try:
        return bool(cell.missing_lengths())
    except RunError:
        return True


def count_work(jobs: Iterable[Job], paths: Collection[Path]) -> Work:
    """Numbers of what jobs make in these paths, as `unfinished` has them."""
    total = Work()
    for job in jobs:
        counted = count_cells(cell for cell in job.cells if cell.path in paths)
        if job.run.path in paths:
            unit = "trainings" if job.config.trains else "checkpoints"
            counted = counted._replace(**{unit: 1})
        total = Work(*map(sum, zip(total, counted, strict=True)))  # field by field
    return total


def missing_parents(jobs: Collection[Job]) -> list[Job]:
    """Jobs of the unfinished trainings that those of `jobs` begin from, each once.

    Parents that are among `jobs` are left out.
    """
    paths = {job.run.path for job in jobs}
    parents = {}
    for job in jobs:
        parent = job.parent
        if parent and not parent.run.finished and parent.run.path not in paths:
            parents[parent.run.path] = parent
    return list(parents.values())


def all_paths(jobs: Iterable[Job]) -> set[Path]:
    """Paths of all runs and evaluations of jobs."""
    paths = set()
    for job in jobs:
        paths |= {job.run.path, *(cell.path for cell in job.cells)}
    return paths
