"""results/reported/leaderboard.md: the methods that hold longest, of every folder of evidence, by their usable length."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

from posbench.common.defuse import markdown, printable
from posbench.report.page_numbers import csv_lines
from posbench.report.records import CurvePoint, grouped, methods, read_points, sections
from posbench.report.tables import markdown_row
from posbench.runs.search import ROWS, is_evidence

PROTOCOL = "fixed_targets"  # the same targets at every length
MARGIN = 0.05  # nats per token
FEWEST = 3  # lengths from the training length on
SHOWN = 10  # lines of a table
COLUMNS = ("encoding", "extension", "scale", "holds to", "perhaps to", "loss minus floor there", "cost at 1x", "seeds", "measured in",
           "commit")  # fmt: skip
TEMPLATE = Path(__file__).parents[2] / "results" / "reported" / "leaderboard.template.md"  # what stands before the tables


@dataclass(frozen=True)
class Line:
    """One method in one folder: lengths as multiples of the training length, differences to the floor in nats/token."""

    corpus: tuple[str, str, int]  # text, tokenizer, training length
    method: tuple[str, str, str]
    folder: Path
    surely: float  # the longest measured length up to which it demonstrably holds; 0: not even at the training length
    perhaps: float
    longest: float
    there: CurvePoint  # at the length that it surely holds to, else at the training length
    first: CurvePoint  # at the training length
    runs: frozenset[str]
    commits: tuple[str, ...]

    def cells(self) -> list[str]:
        reached = [f"{length:g}x{'+' * (length == self.longest)}" if length else "-" for length in (self.surely, self.perhaps)]
        commits = ", ".join(self.commits) if len(self.commits) < 3 else f"{self.commits[0]} and {len(self.commits) - 1} others"
        costs = [f"{point.difference:+.3f} +- {point.half_width:.3f}" for point in (self.there, self.first)]
        return [*self.method, *reached, *costs, str(self.there.n_seeds), f"[{self.folder.name}]({self.folder.name})", commits]


def folders(reported: Path) -> list[Path]:
    """Folders of evidence in results/reported."""
    return sorted(path for path in reported.iterdir() if is_evidence(path))


def lines_of(folder: Path) -> list[Line]:
    """Lines of a folder, from its curve.csv; only methods whose interval at the training length is known."""
    runs = grouped(csv_lines(folder / "trainings.csv"), lambda row: row.get("encoding", ""))
    commits, found = defaultdict(dict), []
    for row in csv_lines(folder / ROWS):
        commits[row["run_id"]][row["commit"][:7] + "+" * row["commit"].endswith("+") or "outside git"] = None
    for section in sections(read_points(folder / "curve.csv")):
        for method, by_length in methods(section).items():
            grid = {n: point for n, point in by_length.items() if n >= point.train_len and point.difference is not None}
            first = grid.get(section[0].train_len)
            if section[0].protocol != PROTOCOL or method[3] or len(grid) < FEWEST or first is None or first.half_width is None:
                continue
            # Without an interval a method does not surely hold there, and perhaps it does.
            ends = [(n, one.difference, math.nan if one.half_width is None else one.half_width) for n, one in sorted(grid.items())]
            surely = max((n for n, *_ in itertools.takewhile(lambda end: end[1] + end[2] <= MARGIN, ends)), default=0)
            perhaps = max((n for n, *_ in itertools.takewhile(lambda end: not end[1] - end[2] > MARGIN, ends)), default=0)
            corpus = first.data, first.tokenizer, first.train_len
            lengths = (n / first.train_len for n in (surely, perhaps, max(grid)))
            own = frozenset(row["run_id"] for row in runs.get(method[0], ()))
            known = tuple(dict.fromkeys(commit for run in sorted(own) for commit in commits[run]))
            found.append(Line(corpus, method[:3], folder, *lengths, grid.get(surely, first), first, own, known))
    return found


def kept(lines: Iterable[Line]) -> list[Line]:
    """Lines by rank, without those of which another line of the same method has all trainings, or several seeds instead of one."""
    chosen: list[Line] = []
    for line in sorted(lines, key=lambda line: (-len(line.runs), -line.longest, -(line.first.n_targets or 0), line.folder.name)):
        same = (one for one in chosen if (one.corpus, one.method) == (line.corpus, line.method) and one.longest >= line.longest)
        if not any(line.runs <= one.runs or line.first.n_seeds == 1 < one.first.n_seeds for one in same):
            chosen.append(line)
    return sorted(chosen, key=lambda line: (-line.surely, -line.perhaps, line.there.difference, line.method, line.folder.name))


def tables(lines: Iterable[Line]) -> str:
    """Markdown: a table for each corpus and training length; text of others cannot end a cell."""
    parts = []
    for (text, tokenizer, train_len), found in sorted(grouped(kept(lines), lambda line: line.corpus).items()):
        beyond = [line for line in found if line.surely > 1]
        parts.append(f"## {_plain(f'{text} ({tokenizer})')}, trained on {train_len:,} tokens\n")
        parts.append(f"{len(beyond)} of {len(found)} methods hold beyond the training length.\n")
        rows = [[_plain(cell) for cell in line.cells()] for line in beyond[:SHOWN]]
        parts.append("".join(f"{markdown_row(row)}\n" for row in [COLUMNS, [":---"] * len(COLUMNS), *rows]) if rows else "")
    return "\n".join(part for part in parts if part)


def leaderboard(reported: Path) -> str:
    """Text of the page."""
    introduction = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(margin=MARGIN, shown=SHOWN, fewest=FEWEST)
    return f"{introduction}\n{tables(line for folder in folders(reported) for line in lines_of(folder))}"


def _plain(text: str) -> str:
    return markdown(str(printable(text)))
