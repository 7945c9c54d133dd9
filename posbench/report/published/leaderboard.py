"""results/reported/leaderboard.md: the methods that hold longest, of every folder of evidence, by
their usable length.

What a folder measured and is not ranked stands below the tables, with the reason.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import NamedTuple

from posbench.common.defuse import markdown, printable
from posbench.common.quantities import plural
from posbench.report.method_words import parts_joined
from posbench.report.published.readme_numbers import csv_lines
from posbench.report.records import (
    CurvePoint,
    grouped,
    grouped_by_section,
    read_points,
    records_by_method,
)
from posbench.report.table_formats import markdown_row
from posbench.report.tables import plus_minus
from posbench.results.search import ROWS, is_evidence

RANKED_PROTOCOL = "fixed_targets"  # the same targets at every length
MARGIN = 0.05  # nats per token
OTHER_MARGINS = (0.03, 0.02)
FEWEST_LENGTHS = 3  # lengths from the training length on
MOST_OTHER_LINES = 10  # lines of a table, beside all that hold to the longest length
COLUMNS = (
    *("encoding", "extension", "scale", "holds to", "perhaps to", "loss there"),
    *("loss minus floor there", "cost at 1x", "seeds", "measured in", "commit"),
)
INTRODUCTION = Path(__file__).parents[3] / "results" / "reported" / "leaderboard.template.md"
ONE_SEED_SENTENCE = (
    "With one seed: the intervals are over documents alone and say nothing of other trainings."
)

Corpus = tuple[str, str, int]  # text, tokenizer, training length in tokens
Method = tuple[str, str, str]  # encoding, extension, scale


@dataclass(frozen=True)
class Line:
    """One method in one folder. Lengths are multiples of the training length."""

    corpus: Corpus
    method: Method
    folder: Path
    # The longest measured length up to which it demonstrably holds; 0: not at the training length.
    holds_to: float
    perhaps_holds_to: float
    longest: float
    last_held: CurvePoint  # at the length that it surely holds to, else at the training length
    at_training: CurvePoint
    # Upper ends of the intervals of loss minus floor (nats/token) from the training length on, nan
    # without one.
    uppers: tuple[float, ...]
    runs: frozenset[str]
    commits: tuple[str, ...]

    @property
    def n_seeds(self) -> int:
        """Trainings behind the weaker of its two means."""
        return min(self.last_held.n_seeds, self.at_training.n_seeds)

    @property
    def to_the_end(self) -> bool:
        """True if it holds at every length that was measured."""
        return self.holds_to == self.longest

    @property
    def rank(self) -> tuple:
        """Sort key of the tables: the longest that a method holds first."""
        difference = self.last_held.difference
        return -self.holds_to, -self.perhaps_holds_to, difference, self.method, self.folder.name

    def holds_beyond(self, margin: float) -> bool:
        """True if it holds, with this margin, at the training length and the next measured one."""
        return all(upper <= margin for upper in self.uppers[:2])

    def cells(self) -> list[str]:
        """Cells of its row, in the order of COLUMNS."""
        folder = self.folder.name
        return [
            *self.method,
            self._multiple(self.holds_to),
            self._multiple(self.perhaps_holds_to),
            f"{self.last_held.nll:.3f}",
            f"{self.last_held.difference:+.3f}{plus_minus(self.last_held.half_width)}",
            self.cost(),
            str(self.last_held.n_seeds),
            f"[{folder}]({folder})",
            self._commits(),
        ]

    def _multiple(self, length: float) -> str:
        """Text of a length: 4x, 16x+ for the longest one, - for none."""
        if not length:
            return "-"
        return f"{length:g}x+" if length == self.longest else f"{length:g}x"

    def _commits(self) -> str:
        if len(self.commits) < 3:
            return ", ".join(self.commits)
        return f"{self.commits[0]} and {len(self.commits) - 1} others"

    def cost(self) -> str:
        """Loss at the training length minus that of the same trainings without extension; "-" for
        these themselves, or if unknown.
        """
        change = self.at_training.change
        half_width = self.at_training.change_half_width
        if change is None or half_width is None:
            return "-"
        return f"{change:+.3f}{plus_minus(half_width)}"


class Exclusion(NamedTuple):
    """A method of a folder that is not ranked, and why."""

    corpus: Corpus
    method: Method
    folder: Path
    reason: str


class Ranking(NamedTuple):
    """Lines on the leaderboard, and the methods that are not ranked."""

    lines: list[Line]
    exclusions: list[Exclusion]


def evidence_folders(reported: Path) -> list[Path]:
    """Folders of evidence in results/reported."""
    return sorted(path for path in reported.iterdir() if is_evidence(path))


def read_folder(folder: Path) -> Ranking:
    """Lines of a folder, from its curve.csv, and the methods that are not ranked."""
    runs: dict[str, set[str]] = defaultdict(set)  # {encoding: run ids}
    for row in csv_lines(folder / "trainings.csv"):
        runs[row.get("encoding", "")].add(row["run_id"])
    commits = _commits_of_runs(folder)
    ranking = Ranking([], [])
    for section in grouped_by_section(read_points(folder / "curve.csv")):
        if section[0].protocol != RANKED_PROTOCOL:
            continue
        corpus = section[0].data, section[0].tokenizer, section[0].train_len
        # {(encoding, extension, scale, source): {length: point}}
        for (*method, source), by_length in records_by_method(section).items():
            grid = _from_training_length(by_length)
            reason = (
                "numbers of somebody else's CSV" if source else _why_not_ranked(by_length, grid)
            )
            if reason:
                ranking.exclusions.append(Exclusion(corpus, tuple(method), folder, reason))
                continue
            run_ids = frozenset(runs[method[0]])
            ordered = dict.fromkeys(commit for run in sorted(run_ids) for commit in commits[run])
            line = _line_of_method(corpus, tuple(method), folder, grid, run_ids, tuple(ordered))
            ranking.lines.append(line)
    return ranking


def _commits_of_runs(folder: Path) -> dict[str, list[str]]:
    """{run id: short hashes of the commits that evaluated it}, with + for changes beside one."""
    commits: dict[str, list[str]] = defaultdict(list)
    for row in csv_lines(folder / ROWS):
        commit = row["commit"][:7] or "outside git"
        if row["commit"].endswith("+"):  # the code had changes that were not committed
            commit += "+"
        if commit not in commits[row["run_id"]]:
            commits[row["run_id"]].append(commit)
    return commits


def _from_training_length(by_length: Mapping[int, CurvePoint]) -> dict[int, CurvePoint]:
    """Points that have a floor, from the training length on, the shortest first."""
    return {
        length: point
        for length, point in sorted(by_length.items())
        if length >= point.train_len and point.difference is not None
    }


def _why_not_ranked(by_length: Mapping[int, CurvePoint], grid: Mapping[int, CurvePoint]) -> str:
    """Reason why a method cannot be ranked, "" if it can. `grid`: its points that have a floor,
    from the training length on.
    """
    point = next(iter(by_length.values()))
    lower_gain = point.gain_lower
    if lower_gain is not None and not lower_gain > 0:  # nan fails too
        return (
            f"gate failed: G of {point.encoding} is {point.gain:.3f}, its lowest bound"
            f" {lower_gain:+.3f}"
        )
    if all(point.difference is None for point in by_length.values()):
        return "no floor was measured at its lengths"
    if point.gain is None:
        return "gate unknown: G was not measured"
    if lower_gain is None:
        return f"gate unknown: G of {point.encoding} is {point.gain:.3f}, without an interval"
    if point.train_len not in grid:
        return "not measured at the training length"
    if len(grid) < FEWEST_LENGTHS:
        measured = plural(len(grid), "length")
        return (
            f"measured at {measured} from the training length on, and {FEWEST_LENGTHS} are needed"
        )
    if grid[point.train_len].half_width is None:
        return "no interval at the training length"
    return ""


def _line_of_method(
    corpus: Corpus,
    method: Method,
    folder: Path,
    grid: Mapping[int, CurvePoint],
    runs: frozenset[str],
    commits: tuple[str, ...],
) -> Line:
    """Line of a method by its points from the training length on, in the order of their lengths."""
    _, _, train_len = corpus
    surely, perhaps = 0, 0  # lengths; 0: not at the training length
    uppers = []
    holds_surely, holds_perhaps = True, True  # at all lengths so far
    for length, point in grid.items():
        # Without an interval a method does not surely hold there, and perhaps it does.
        half_width = math.nan if point.half_width is None else point.half_width
        uppers.append(point.difference + half_width)
        holds_surely = holds_surely and uppers[-1] <= MARGIN
        holds_perhaps = holds_perhaps and not point.difference - half_width > MARGIN
        if holds_surely:
            surely = length
        if holds_perhaps:
            perhaps = length
    at_training = grid[train_len]
    return Line(
        corpus,
        method,
        folder,
        holds_to=surely / train_len,
        perhaps_holds_to=perhaps / train_len,
        longest=max(grid) / train_len,
        last_held=grid.get(surely, at_training),
        at_training=at_training,
        uppers=tuple(uppers),
        runs=runs,
        commits=commits,
    )


def ranked_lines(lines: Iterable[Line]) -> Ranking:
    """Lines by rank. A line is excluded if another one has its method and either all its trainings,
    or several seeds where it has one.
    """
    chosen: list[Line] = []
    exclusions = []
    # The largest first, so that a line is covered only by one that is in the tables already.
    for line in sorted(lines, key=_size_key):
        reason = _why_covered(line, chosen)
        if reason:
            exclusions.append(Exclusion(line.corpus, line.method, line.folder, reason))
        else:
            chosen.append(line)
    return Ranking(sorted(chosen, key=lambda line: line.rank), exclusions)


def _size_key(line: Line) -> tuple:
    """Sort key of lines: the most trainings, lengths and targets first."""
    n_targets = line.at_training.n_targets or 0
    return -len(line.runs), -line.longest, -n_targets, line.folder.name


def _why_covered(line: Line, others: Iterable[Line]) -> str:
    """Reason why another line shows what this one does, "" if none does."""
    same_method = [
        other
        for other in others
        if (other.corpus, other.method) == (line.corpus, line.method)
        and other.longest >= line.longest
    ]
    for other in same_method:
        if line.runs <= other.runs:
            return f"{other.folder.name} has all its trainings"
    # One seed is not shown beside several, even if its training is not among theirs.
    for other in same_method:
        if line.at_training.n_seeds == 1 < other.at_training.n_seeds:
            return f"one seed, and {other.folder.name} has several"
    return ""


def leaderboard_tables(rankings: Iterable[Ranking]) -> str:
    """Markdown: for each corpus and training length the lines of several seeds, those of one, and
    what is not ranked.

    Text of others cannot end a cell.
    """
    rankings = list(rankings)
    together = ranked_lines(line for ranking in rankings for line in ranking.lines)
    lines = grouped(together.lines, lambda line: line.corpus)
    every = [exclusion for ranking in (*rankings, together) for exclusion in ranking.exclusions]
    exclusions = grouped(every, lambda exclusion: exclusion.corpus)
    parts = []
    for corpus in sorted({*lines, *exclusions}):
        text, tokenizer, train_len = corpus
        parts.append(
            f"## {_markdown_text(f'{text} ({tokenizer})')}, trained on {train_len:,} tokens\n"
        )
        parts += _tables_of_corpus(lines.get(corpus, []))
        parts += _not_ranked_lines(exclusions.get(corpus, []))
    return "\n".join(parts)


def _tables_of_corpus(lines: list[Line]) -> list[str]:
    """Number of lines that hold beyond the training length, and tables of these."""
    if not lines:
        return ["No method is ranked.\n"]
    beyond = [line for line in lines if line.holds_to > 1]
    several_seeds = [line for line in beyond if line.n_seeds > 1]
    one_seed = [line for line in beyond if line.n_seeds == 1]
    parts = [
        f"{len(beyond)} of {len(lines)} ranked methods hold beyond the training length.\n",
        *_table_and_rest(several_seeds),
    ]
    if one_seed:
        parts += [f"{ONE_SEED_SENTENCE}\n", *_table_and_rest(one_seed)]
    return parts


def _table_and_rest(lines: list[Line]) -> list[str]:
    """Table of ranked lines that hold beyond the training length: the first MOST_OTHER_LINES, and
    of those behind them the ones that hold to the end; and how many more there are.
    """
    shown = [
        line for place, line in enumerate(lines) if place < MOST_OTHER_LINES or line.to_the_end
    ]
    if not shown:
        return []
    rows = [[_markdown_text(cell) for cell in line.cells()] for line in shown]
    table = "".join(f"{markdown_row(row)}\n" for row in [COLUMNS, [":---"] * len(COLUMNS), *rows])
    more = len(lines) - len(shown)
    if not more:
        return [table]
    return [table, f"And {more} more, which fail before their longest length.\n"]


def _not_ranked_lines(exclusions: list[Exclusion]) -> list[str]:
    """Markdown list of what is not ranked, by folder and reason; [] if all is."""
    if not exclusions:
        return []
    lines = []
    by_reason = grouped(exclusions, lambda exclusion: (exclusion.folder.name, exclusion.reason))
    for (folder, reason), same in sorted(by_reason.items()):
        names = ", ".join(parts_joined(*exclusion.method) for exclusion in same)
        lines.append(f"- [{folder}]({folder}): {_markdown_text(reason)}: {_markdown_text(names)}")
    return ["Not ranked:\n", "\n".join(lines) + "\n"]


def leaderboard(reported: Path) -> str:
    """Text of the page."""
    rankings = [read_folder(folder) for folder in evidence_folders(reported)]
    values = {
        "margin": MARGIN,
        "shown": MOST_OTHER_LINES,
        "fewest": FEWEST_LENGTHS,
        "counts": _counts_by_margin(rankings),
    }
    introduction = Template(INTRODUCTION.read_text(encoding="utf-8")).substitute(values)
    return f"{introduction}\n{leaderboard_tables(rankings)}"


def _counts_by_margin(rankings: Iterable[Ranking]) -> str:
    """Number of ranked methods that hold beyond the training length, by margin: "33 with 0.05, 30
    with 0.03".
    """
    lines = ranked_lines(line for ranking in rankings for line in ranking.lines).lines
    parts = []
    for margin in (MARGIN, *OTHER_MARGINS):  # of the same lines
        parts.append(f"{sum(line.holds_beyond(margin) for line in lines)} with {margin:g}")
    return ", ".join(parts)


def _markdown_text(text: str) -> str:
    return markdown(str(printable(text)))
