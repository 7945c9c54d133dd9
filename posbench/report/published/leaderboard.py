"""results/reported/leaderboard.md: the methods that hold longest, of every folder of evidence, by
their usable length.

What a folder measured and is not ranked stands below the tables, with the reason.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import NamedTuple

from posbench.common.defuse import markdown, printable
from posbench.report.published.readme_numbers import csv_lines
from posbench.report.records import CurvePoint, grouped, methods, read_points, sections
from posbench.report.tables import markdown_row
from posbench.results.search import ROWS, is_evidence

PROTOCOL = "fixed_targets"  # the same targets at every length
MARGIN = 0.05  # nats per token
OTHER_MARGINS = (0.03, 0.02)
FEWEST = 3  # lengths from the training length on
SHOWN = 10  # lines of a table, beside all that hold to the longest length
COLUMNS = ("encoding", "extension", "scale", "holds to", "perhaps to", "loss there", "loss minus floor there", "cost at 1x", "seeds",
           "measured in", "commit")  # fmt: skip
TEMPLATE = (
    Path(__file__).parents[3] / "results" / "reported" / "leaderboard.template.md"
)  # what stands before the tables
ONE_SEED = (
    "With one seed: the intervals are over documents alone and say nothing of other trainings."
)

Corpus = tuple[str, str, int]  # text, tokenizer, training length in tokens
Method = tuple[str, str, str]  # encoding, extension, scale


@dataclass(frozen=True)
class Line:
    """One method in one folder: lengths as multiples of the training length, differences to the
    floor in nats/token.
    """

    corpus: Corpus
    method: Method
    folder: Path
    # the longest measured length up to which it demonstrably holds; 0: not even at the training
    # length
    surely: float
    perhaps: float
    longest: float
    there: CurvePoint  # at the length that it surely holds to, else at the training length
    first: CurvePoint  # at the training length
    uppers: tuple[
        float, ...
    ]  # upper ends of the intervals from the training length on; nan without one
    runs: frozenset[str]
    commits: tuple[str, ...]

    @property
    def n_seeds(self) -> int:
        """Trainings behind the weaker of its two means."""
        return min(self.there.n_seeds, self.first.n_seeds)

    def holds_beyond(self, margin: float) -> bool:
        """True if it holds, with this margin, at the training length and at the next measured
        one.
        """
        return all(upper <= margin for upper in self.uppers[:2])

    @property
    def to_the_end(self) -> bool:
        """True if it holds at every length that was measured."""
        return self.surely == self.longest

    def cells(self) -> list[str]:
        reached = [
            f"{length:g}x{'+' if length == self.longest else ''}" if length else "-"
            for length in (self.surely, self.perhaps)
        ]
        commits = (
            ", ".join(self.commits)
            if len(self.commits) < 3
            else f"{self.commits[0]} and {len(self.commits) - 1} others"
        )
        difference = f"{self.there.difference:+.3f} +- {self.there.half_width:.3f}"
        seeds = str(self.there.n_seeds)
        folder = f"[{self.folder.name}]({self.folder.name})"
        return [
            *self.method,
            *reached,
            f"{self.there.nll:.3f}",
            difference,
            self.cost(),
            seeds,
            folder,
            commits,
        ]

    def cost(self) -> str:
        """Loss at the training length minus that of the same trainings without extension; "-" for
        these themselves, or if unknown.
        """
        change, half_width = self.first.change, self.first.change_half_width
        if change is None or half_width is None:
            return "-"
        return f"{change:+.3f} +- {half_width:.3f}"


class Exclusion(NamedTuple):
    """A method of a folder that is not ranked, and why."""

    corpus: Corpus
    method: Method
    folder: Path
    reason: str


class Read(NamedTuple):
    """Lines of a folder on the leaderboard, and its methods that are not ranked."""

    lines: list[Line]
    exclusions: list[Exclusion]


def folders(reported: Path) -> list[Path]:
    """Folders of evidence in results/reported."""
    return sorted(path for path in reported.iterdir() if is_evidence(path))


def lines_of(folder: Path) -> list[Line]:
    """Lines of a folder, from its curve.csv, as `read_folder` ranks them."""
    return read_folder(folder).lines


def read_folder(folder: Path) -> Read:
    """Lines of a folder, from its curve.csv, and the methods that are not ranked."""
    runs = grouped(csv_lines(folder / "trainings.csv"), lambda row: row.get("encoding", ""))
    commits: dict[str, dict[str, None]] = defaultdict(dict)
    for row in csv_lines(folder / ROWS):
        commits[row["run_id"]][
            row["commit"][:7] + "+" * row["commit"].endswith("+") or "outside git"
        ] = None
    lines, exclusions = [], []
    for section in sections(read_points(folder / "curve.csv")):
        if section[0].protocol != PROTOCOL:
            continue
        for (*method, source), by_length in methods(section).items():
            point = next(iter(by_length.values()))
            corpus = point.data, point.tokenizer, point.train_len
            grid = {
                n: point
                for n, point in sorted(by_length.items())
                if n >= point.train_len and point.difference is not None
            }
            if reason := "numbers of somebody else's CSV" if source else _fault(by_length, grid):
                exclusions.append(Exclusion(corpus, tuple(method), folder, reason))
                continue
            run_ids = frozenset(row["run_id"] for row in runs.get(method[0], ()))
            known = tuple(
                dict.fromkeys(commit for run in sorted(run_ids) for commit in commits[run])
            )
            lines.append(_line(corpus, tuple(method), folder, grid, run_ids, known))
    return Read(lines, exclusions)


def _fault(by_length: Mapping[int, CurvePoint], grid: Mapping[int, CurvePoint]) -> str:
    """Reason why a method cannot be ranked, "" if it can. `grid`: its points that have a floor,
    from the training length on.
    """
    point = next(iter(by_length.values()))
    train_len, gain = point.train_len, point.gain_lower
    if gain is not None and not gain > 0:
        return (
            f"gate failed: G of {point.encoding} is {point.gain:.3f}, its lowest bound {gain:+.3f}"
        )
    if all(one.difference is None for one in by_length.values()):
        return "no floor was measured at its lengths"
    if gain is None:
        return "gate unknown: G was not measured"
    if train_len not in grid:
        return "not measured at the training length"
    if len(grid) < FEWEST:
        return (
            f"measured at {len(grid)} length{'s' if len(grid) != 1 else ''} from the training"
            f" length on, and {FEWEST} are needed"
        )
    if grid[train_len].half_width is None:
        return "no interval at the training length"
    return ""


def _line(
    corpus: Corpus,
    method: Method,
    folder: Path,
    grid: Mapping[int, CurvePoint],
    runs: frozenset[str],
    commits: tuple[str, ...],
) -> Line:
    """Line of a method by its points from the training length on, in the order of their lengths."""
    train_len = corpus[2]
    # Without an interval a method does not surely hold there, and perhaps it does.
    ends = [
        (n, one.difference, math.nan if one.half_width is None else one.half_width)
        for n, one in grid.items()
    ]
    surely = max(
        (n for n, *_ in itertools.takewhile(lambda end: end[1] + end[2] <= MARGIN, ends)), default=0
    )
    perhaps = max(
        (n for n, *_ in itertools.takewhile(lambda end: not end[1] - end[2] > MARGIN, ends)),
        default=0,
    )
    first = grid[train_len]
    multiples = (n / train_len for n in (surely, perhaps, max(grid)))
    uppers = tuple(difference + half_width for _, difference, half_width in ends)
    return Line(
        corpus, method, folder, *multiples, grid.get(surely, first), first, uppers, runs, commits
    )


def kept(lines: Iterable[Line]) -> Read:
    """Lines by rank; excluded are those of which another line of the same method has all trainings,
    or several seeds instead of one.
    """
    chosen: list[Line] = []
    exclusions = []
    for line in sorted(
        lines,
        key=lambda line: (
            -len(line.runs),
            -line.longest,
            -(line.first.n_targets or 0),
            line.folder.name,
        ),
    ):
        same = [
            one
            for one in chosen
            if (one.corpus, one.method) == (line.corpus, line.method)
            and one.longest >= line.longest
        ]
        whole = next((one for one in same if line.runs <= one.runs), None)
        several = next((one for one in same if line.first.n_seeds == 1 < one.first.n_seeds), None)
        if whole:
            reason = f"{whole.folder.name} has all its trainings"
        elif several:
            reason = f"one seed, and {several.folder.name} has several"
        else:
            chosen.append(line)
            continue
        exclusions.append(Exclusion(line.corpus, line.method, line.folder, reason))
    ranked = sorted(
        chosen,
        key=lambda line: (
            -line.surely,
            -line.perhaps,
            line.there.difference,
            line.method,
            line.folder.name,
        ),
    )
    return Read(ranked, exclusions)


def tables(reads: Iterable[Read]) -> str:
    """Markdown: for each corpus and training length the lines of several seeds, those of one, and
    what is not ranked.

    Text of others cannot end a cell.
    """
    reads = list(reads)
    ranked = kept(line for read in reads for line in read.lines)
    lines = grouped(ranked.lines, lambda line: line.corpus)
    every = [exclusion for read in (*reads, ranked) for exclusion in read.exclusions]
    exclusions = grouped(every, lambda exclusion: exclusion.corpus)
    parts = []
    for corpus in sorted({*lines, *exclusions}):
        text, tokenizer, train_len = corpus
        own = lines.get(corpus, [])
        parts.append(f"## {_plain(f'{text} ({tokenizer})')}, trained on {train_len:,} tokens\n")
        beyond = [line for line in own if line.surely > 1]
        counted = (
            f"{len(beyond)} of {len(own)} ranked methods hold beyond the training length."
            if own
            else "No method is ranked."
        )
        parts.append(f"{counted}\n")
        parts += _table([line for line in beyond if line.n_seeds > 1])
        of_one_seed = [line for line in beyond if line.n_seeds == 1]
        if of_one_seed:
            parts += [f"{ONE_SEED}\n", *_table(of_one_seed)]
        parts += _not_ranked(exclusions.get(corpus, []))
    return "\n".join(parts)


def _table(lines: list[Line]) -> list[str]:
    """Table of lines that hold beyond the training length: all that hold to the end, others up to
    SHOWN; and how many more there are.
    """
    shown = [line for place, line in enumerate(lines) if place < SHOWN or line.to_the_end]
    if not shown:
        return []
    rows = [[_plain(cell) for cell in line.cells()] for line in shown]
    table = "".join(f"{markdown_row(row)}\n" for row in [COLUMNS, [":---"] * len(COLUMNS), *rows])
    more = len(lines) - len(shown)
    return (
        [table, f"And {more} more, which fail before their longest length.\n"] if more else [table]
    )


def _not_ranked(exclusions: list[Exclusion]) -> list[str]:
    """List of what is not ranked, by folder and reason."""
    if not exclusions:
        return []
    lines = []
    by_reason = grouped(exclusions, lambda exclusion: (exclusion.folder.name, exclusion.reason))
    for (folder, reason), same in sorted(by_reason.items()):
        names = ", ".join(_name(exclusion.method) for exclusion in same)
        lines.append(f"- [{folder}]({folder}): {_plain(reason)}: {_plain(names)}")
    return ["Not ranked:\n", "\n".join(lines) + "\n"]


def _name(method: Method) -> str:
    """Name of a method, such as `rope + yarn + log_n`; of one without extension and scale its
    encoding.
    """
    encoding, *others = method
    return " + ".join([encoding, *(part for part in others if part != "none")])


def leaderboard(reported: Path) -> str:
    """Text of the page."""
    reads = [read_folder(folder) for folder in folders(reported)]
    words = {"margin": MARGIN, "shown": SHOWN, "fewest": FEWEST, "counts": _counts(reads)}
    introduction = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(words)
    return f"{introduction}\n{tables(reads)}"


def _counts(reads: Iterable[Read]) -> str:
    """Number of ranked methods that hold beyond the training length, by margin: "33 with 0.05, 30
    with 0.03".
    """
    ranked = kept(line for read in reads for line in read.lines).lines
    parts = []
    for margin in (MARGIN, *OTHER_MARGINS):
        parts.append(f"{sum(line.holds_beyond(margin) for line in ranked)} with {margin:g}")
    return ", ".join(parts)


def _plain(text: str) -> str:
    return markdown(str(printable(text)))
