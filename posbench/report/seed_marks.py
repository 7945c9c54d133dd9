"""Marks of means over other seeds than most means of a table: [seed 0] beside means over seeds 0, 1
and 2.

Trainings differ, so a mean over one seed above a mean over three seeds may be the worse method on
the seed that both have."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from posbench.common.quantities import plural
from posbench.report.records import Record, Score, records_by_method, scores_by_task

MARK_PATTERN = re.compile(r" \[(?:seeds? [^\]]*|\d+ seeds?)\]")  # as `Seeds.mark` writes it
MOST_LISTED_SEEDS = 6  # seeds that are listed; of more, only a gapless range is named


@dataclass(frozen=True)
class Seeds:
    """Seeds of a mean."""

    count: int
    numbers: tuple[int, ...] | None  # None where a file states their count alone

    @classmethod
    def of(cls, record: Record) -> "Seeds":
        return cls(record.n_seeds, record.averaged_seeds)

    def equals(self, other: "Seeds") -> bool:
        """True if both are the same seeds, or equally many where it is not known which."""
        if self.numbers is None or other.numbers is None:
            return self.count == other.count
        return self.numbers == other.numbers

    def __str__(self) -> str:
        """Text such as `seed 0`, `seeds 0, 2`, `seeds 0 to 4`, or `3 seeds`."""
        if not self.numbers:
            return plural(self.count, "seed")
        if self.count == 1:
            return f"seed {self.numbers[0]}"
        first, last = self.numbers[0], self.numbers[-1]
        if self.count > 2 and last - first == self.count - 1:
            return f"seeds {first} to {last}"
        if self.count > MOST_LISTED_SEEDS:
            return f"{self.count} seeds"
        return f"seeds {', '.join(map(str, self.numbers))}"

    @property
    def mark(self) -> str:
        return f" [{self}]"


def usual_seeds(cells: Iterable[dict[int, Record]]) -> Seeds | None:
    """Seeds that most methods of a table have; of several that equally many have, the most seeds.
    None without methods.

    `cells`: the records of each method by length.
    """
    counts: Counter[Seeds] = Counter()
    for cell in cells:
        if cell:
            [(most_frequent, _)] = Counter(map(Seeds.of, cell.values())).most_common(1)
            counts[most_frequent] += 1
    return max(counts, key=lambda seeds: (counts[seeds], seeds.count), default=None)


def row_mark(cell: dict[int, Record], usual: Seeds) -> str:
    """Mark of a method whose records all have the same other seeds than usual; "" for others."""
    first, *others = map(Seeds.of, cell.values())
    if first.equals(usual) or not all(other.equals(first) for other in others):
        return ""
    return first.mark


def record_mark(record: Record, cell: dict[int, Record], usual: Seeds) -> str:
    """Mark of a record whose seeds are not the usual ones, "" where its whole row has one."""
    seeds = Seeds.of(record)
    return "" if seeds.equals(usual) or row_mark(cell, usual) else seeds.mark


def mark_lines(section: Sequence[Record]) -> list[str]:
    """Lines below the tables of a section that explain their marks; an empty list where all means
    are over the same seeds.
    """
    if isinstance(section[0], Score):
        by_table = list(scores_by_task(section).values())
    else:
        by_table = [records_by_method(section)]
    lines: dict[str, None] = {}
    for cells in by_table:
        usual = usual_seeds(cells.values())
        others: dict[str, None] = {}  # texts such as "seed 0"
        for cell in cells.values():
            for seeds in map(Seeds.of, cell.values()):
                if not seeds.equals(usual):
                    others[str(seeds)] = None
        if others:
            marks = ", ".join(f"[{seeds}]" for seeds in others)
            line = (
                f"{marks}: a mean over these seeds; unmarked means are over {usual}. Other seeds"
                " are other trainings, so compare a marked mean only with means over the same"
                " seeds"
            )
            lines[line] = None
    return list(lines)
