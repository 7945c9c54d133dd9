"""Tables, sentences and rows of comparisons."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from posbench.report.comparison import (
    ACCURACY,
    BEST,
    BETTER,
    FROM_SEEDS,
    LOSS,
    NO_INTERVAL,
    REFERENCE,
    RISE,
    UNTOLD,
    WORSE,
    Compared,
    Comparison,
    tables_by,
)
from posbench.report.table_formats import FAILS, GAINS, LEVEL, Table, TableCell

NATS = "nats"
PPL = "ppl"
BPB = "bpb"
UNITS = (NATS, PPL, BPB)
UNIT_WORDS = {NATS: "nats/token", PPL: "perplexity", BPB: "bits/byte"}
MEASURE_WORDS = {LOSS: "loss", RISE: "loss minus the floor", ACCURACY: "accuracy"}
MARKS = {BETTER: GAINS, WORSE: FAILS, UNTOLD: LEVEL, NO_INTERVAL: LEVEL, BEST: "", REFERENCE: ""}
MOST_NAMED = 6  # lines that one sentence names


class Shown(NamedTuple):
    """A difference in a unit, with both ends of its interval; None where there is none."""

    value: float
    low: float | None
    high: float | None


class Scale(NamedTuple):
    """Scale in which a comparison is shown."""

    unit: str  # of UNITS
    measure: str

    @property
    def words(self) -> str:
        """Such as "loss (nats/token)"."""
        if self.measure == ACCURACY:
            return "accuracy"
        return f"{MEASURE_WORDS[self.measure]} ({UNIT_WORDS[self.unit]})"

    @property
    def difference_words(self) -> str:
        """Unit of differences: "nats/token", "times the perplexity"."""
        if self.measure == ACCURACY:
            return "share of answers"
        return "times the perplexity" if self.unit == PPL else UNIT_WORDS[self.unit]

    def value(self, row: Compared) -> float | None:
        """Value of a line."""
        if row.value is None or self.measure == ACCURACY:
            return row.value
        if self.unit == PPL:
            return math.exp(row.value) if row.value < MOST_NATS else None
        return row.value * self._factor(row)

    def difference(self, row: Compared) -> Shown | None:
        """Difference of a line to the reference; a perplexity is divided by that of the other."""
        if row.difference is None:
            return None
        low, high = row.difference.interval()
        ends = [row.difference.value, low, high]
        if self.measure != ACCURACY and self.unit == PPL:
            ends = [math.exp(min(end, MOST_NATS)) for end in ends]
        elif self.measure != ACCURACY:
            ends = [end * self._factor(row) for end in ends]
        value, low, high = ends
        if not math.isfinite(low):
            return Shown(value, None, None)
        return Shown(value, low, high)

    def _factor(self, row: Compared) -> float:
        """Bits per byte in one nat per token of the line's targets; 1 in nats."""
        if self.unit == NATS:
            return 1.0
        of_seed = next(iter(row.line.seeds.values())).row
        if not of_seed["n_bytes"]:
            return math.nan
        return of_seed["n_targets"] / math.log(2) / of_seed["n_bytes"]

    def number(self, value: float) -> str:
        """A difference with its sign, or a ratio."""
        is_ratio = self.unit == PPL and self.measure != ACCURACY
        return f"{value:.3f}" if is_ratio else f"{value:+z.3f}"

    def interval(self, shown: Shown) -> str:
        """Such as "+0.105 [+0.093, +0.117]"."""
        if shown.low is None:
            return f"{self.number(shown.value)} (no interval)"
        return f"{self.number(shown.value)} [{self.number(shown.low)}, {self.number(shown.high)}]"


MOST_NATS = 709.0  # exp() overflows above


def ranking_table(comparison: Comparison, scale: Scale) -> Table:
    """Lines of a comparison, the best first, with the difference of each to the reference."""
    head = _reference(comparison)
    columns = [
        "line",
        scale.words,
        f"minus {head}" if scale.unit != PPL else f"over {head}",
        _p_heading(comparison),
        "seeds",
        "gate",
    ]
    rows = []
    for row in comparison.lines:
        value = scale.value(row)
        shown = scale.difference(row)
        difference = "" if shown is None else scale.interval(shown)
        rows.append(
            [
                row.line.name,
                "-" if value is None else f"{value:.3f}",
                TableCell(difference, mark=MARKS[row.verdict]),
                "" if row.p_corrected is None else _p(row.p_corrected),
                str(len(row.seeds) or len(row.line.seeds)),
                row.line.gate,
            ]
        )
    return Table(_title(comparison), columns, rows, names=1)


def _reference(comparison: Comparison) -> str:
    best = comparison.lines[0]
    return "the best" if best.verdict == BEST else comparison.lines[0].against


def _p_heading(comparison: Comparison) -> str:
    return "p, by Holm" if comparison.correction == "holm" else "p"


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _title(comparison: Comparison) -> str:
    section = comparison.section
    task = f", {section.task}" if section.task else ""
    return (
        f"{section.data}{task}, trained at {section.train_len:,} tokens, {section.protocol}: at"
        f" {comparison.multiple:g}x ({comparison.length:,} tokens)"
    )


def table_by(comparisons: Sequence[Comparison], column: str, scale: Scale) -> Table:
    """Differences of lines to the reference by length, training length or data."""
    by_line = tables_by(comparisons, column)
    references = list(dict.fromkeys(comparison.lines[0].against for comparison in comparisons))
    names = [*(name for name in references if name in by_line), *by_line]
    keys = sorted({key for cells in by_line.values() for key in cells})
    rows = []
    for name in dict.fromkeys(names):
        rows.append([name, *(_cell(by_line[name].get(key), scale) for key in keys)])
    headings = [f"{key:,}" if isinstance(key, int) else str(key) for key in keys]
    reference = references[0] if len(references) == 1 else "the best of each column"
    title = f"{scale.words}: {'over' if scale.unit == PPL else 'minus'} {reference} (in brackets)"
    section = comparisons[0].section
    if column == "length":
        title += f", {section.data}, trained at {section.train_len:,} tokens"
    return Table(title, ["line", *headings], rows, names=1)


def _cell(row: Compared | None, scale: Scale) -> TableCell | str:
    """Difference with half of its interval; of the reference its value in brackets."""
    if row is None:
        return "-"
    shown = scale.difference(row)
    if shown is None:
        value = scale.value(row)
        return "-" if value is None else f"({value:.3f})"
    interval = "" if shown.low is None else f" +- {(shown.high - shown.low) / 2:.3f}"
    return TableCell(scale.number(shown.value), shown.value, interval, MARKS[row.verdict])


def sentences(comparison: Comparison, scale: Scale) -> list[str]:
    """Result of a comparison in sentences for a paper, then how it was made."""
    first = comparison.lines[0]
    place = f"At {comparison.multiple:g} times the training length ({comparison.length:,} tokens)"
    lowest = "highest accuracy" if comparison.measure == ACCURACY else "lowest loss"
    if comparison.measure == RISE:
        lowest = "smallest loss minus its floor"
    value = scale.value(first)
    parts = [f"{place}, {first.line.name} has the {lowest} ({value:.3f} {_unit(scale)})."]
    if len(comparison.lines) > 1:
        parts += _told_apart(comparison, scale)
    return [" ".join(parts), *how_compared(comparison)]


def _unit(scale: Scale) -> str:
    return "of the answers" if scale.measure == ACCURACY else UNIT_WORDS[scale.unit]


def _told_apart(comparison: Comparison, scale: Scale) -> list[str]:
    """Sentences on the lines that are not told from the reference, and on the next that is."""
    reference = _reference(comparison)
    untold = [row for row in comparison.lines if row.verdict in (UNTOLD, NO_INTERVAL)]
    parts = []
    if untold:
        names = [row.line.name for row in untold[:MOST_NAMED]]
        if len(untold) > MOST_NAMED:
            names.append(f"{len(untold) - MOST_NAMED} more")
        verb = "is" if len(untold) == 1 else "are"
        after = " after Holm's correction" if comparison.correction == "holm" else ""
        parts.append(f"{_listed(names)} {verb} not told apart from {reference}{after}.")
    worse = [row for row in comparison.lines if row.verdict == WORSE]
    if worse:
        row = worse[0]
        interval = scale.interval(scale.difference(row))
        each = "The only other line" if len(comparison.lines) == 2 else "The next that is worse"
        parts.append(f"{each}, {row.line.name}, differs by {interval} {scale.difference_words}.")
    return parts


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def how_compared(comparison: Comparison) -> list[str]:
    """Lines on the targets, the seeds, the interval and the correction of a comparison."""
    compared = [row for row in comparison.lines if row.difference is not None]
    lines = [_measure_line(comparison)]
    if any(row.source == FROM_SEEDS for row in compared):
        lines.append(
            "Intervals are of means over seeds alone, since sums over documents are not there for"
            " all lines: Student's t, 95 %."
        )
    elif compared:
        n_documents = max(row.difference.n_documents for row in compared)
        lines.append(
            f"Intervals are of paired differences, 95 %, over seeds crossed with {n_documents}"
            " documents; over documents alone where there is one seed."
        )
    seeds = {tuple(sorted(row.line.seeds)) for row in comparison.lines}
    if len(seeds) > 1 and comparison.common_seeds:
        shared = ", ".join(map(str, comparison.common_seeds))
        lines.append(
            f"Lines have different seeds: means are over those that all have ({shared}), and a"
            " difference is over those that both have."
        )
    elif len(seeds) > 1:
        lines.append("No seed is shared by all lines: a difference is over those that both have.")
    if comparison.correction == "holm" and len(compared) > 1:
        lines.append(
            f"p is Holm's for {len(compared)} differences. The best was chosen by the same losses;"
            " nothing corrects for that choice."
        )
    elif len(compared) > 1:
        lines.append(f"p is not corrected for {len(compared)} differences (correction=none).")
    failed = [row.line.name for row in comparison.lines if row.line.gate == "failed"]
    if failed:
        lines.append(
            f"Gate failed, so nothing shows that these use their window: {_listed(failed)}."
        )
    return lines


def _measure_line(comparison: Comparison) -> str:
    encodings = {row.line.record.encoding for row in comparison.lines}
    if comparison.measure == RISE:
        return (
            "Compared is each loss minus its own floor, the loss of the same targets with exactly"
            " the training length of context."
        )
    if comparison.measure == ACCURACY:
        return "Compared are shares of right answers on the same questions."
    if len(encodings) > 1:
        return (
            "Compared are losses on the same targets, which also count how good each model is"
            " within its window; measure=rise compares each loss minus its own floor."
        )
    return "Compared are losses on the same targets."


def rows_of(comparisons: Iterable[Comparison], scale: Scale) -> list[dict]:
    """Rows of a comparison's CSV and DataFrame, in the unit that is shown."""
    rows = []
    for comparison in comparisons:
        for row in comparison.lines:
            record = row.line.record
            shown = scale.difference(row)
            rows.append(
                {
                    **comparison.section._asdict(),
                    "length": comparison.length,
                    "rank": row.rank,
                    "line": row.line.name,
                    "encoding": record.encoding,
                    "extension": record.extension,
                    "scale_attention": record.scale_attention,
                    "measure": comparison.measure,
                    "unit": "share" if comparison.measure == ACCURACY else scale.unit,
                    "value": scale.value(row),
                    "against": row.against,
                    "difference": None if shown is None else shown.value,
                    "low": None if shown is None else shown.low,
                    "high": None if shown is None else shown.high,
                    "p": row.p,
                    "p_corrected": row.p_corrected,
                    "correction": comparison.correction,
                    "verdict": row.verdict,
                    "seeds": " ".join(map(str, row.seeds or sorted(row.line.seeds))),
                    "n_documents": row.difference.n_documents if row.difference else None,
                    "interval_of": row.source,
                    "gate": row.line.gate,
                }
            )
    return rows


def terminal_text(tables: Sequence[Table], lines: Sequence[str], width: int | None = None) -> str:
    """Tables, then lines of text, for a terminal of `width` characters; without colours if None."""
    from rich.console import Console

    console = Console(width=width or 200, highlight=False, no_color=width is None)
    with console.capture() as captured:
        for table in tables:
            console.print(table.rich())
        for line in lines:
            console.print(line, markup=False, soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
