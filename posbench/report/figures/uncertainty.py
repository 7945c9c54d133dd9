"""Bars of figures: the interval of what is drawn, or its seeds, and the words that say which.

Columns are those of records: nll, difference, change and accuracy of a curve; nll, difference and
doubling by context; accuracy of tasks."""

from collections.abc import Iterable, Sequence
from statistics import median

from posbench.common.errors import ConfigError, did_you_mean
from posbench.report.figures.lines import Mark
from posbench.report.records import (
    SEEDS_ALIKE,
    SEEDS_KEY,
    CurvePoint,
    Score,
    SectionKey,
    StepPoint,
    grouped,
    range_text,
)

INTERVAL = "interval"
SEED_LINES = "seeds"
NO_BARS = "none"
# {word for bars: what is drawn}
BARS = {
    INTERVAL: "95 % intervals, over seeds and documents where the loss of every target is known",
    SEED_LINES: "a thin line for each seed behind the mean",
    NO_BARS: "nothing",
}
HALF_WIDTH_COLUMNS = {  # {column: half of its interval}
    "nll": "nll_half_width",
    "difference": "half_width",
    "change": "change_half_width",
    "accuracy": "accuracy_half_width",
    "doubling": "doubling_half_width",
}
UNPAIRED_COLUMNS = ("nll", "accuracy")
COLUMN_WORDS = {"nll": "the loss", "accuracy": "the accuracy"}
ONE_SEED_NO_TARGETS = (
    "one seed, and the losses of its targets are not in these files, or do not weigh alike: give"
    " the folders of runs, which have them, or train more seeds (seed=0,1,2)"
)
NOT_STATED = (
    "these files state none of it: give the folders of runs, or rows.csv, which has every seed"
)
ONE_SEED_ONE_UNIT = "one seed on one {}: train more seeds (seed=0,1,2), or evaluate more texts"
ONE_SEED = "one seed: train more (seed=0,1,2), or choose bars=interval"
COMPARE_PAIRED = (
    "Lines share their texts, so their paired difference, as compare.py gives it, is known better"
    " than their bars say."
)


TOO_WIDE = "No bars: losses differ more from text to text than from line to line."
BARS_TOO_WIDE = (
    f"{TOO_WIDE} All lines read the same texts, so compare their paired differences (compare.py)."
)


def checked_bars(word: str) -> str:
    """The word for bars. Raises ConfigError for one that is not in BARS."""
    if word not in BARS:
        raise ConfigError(
            f"bars={word} is unknown{did_you_mean(str(word), BARS)}: choose from {', '.join(BARS)}."
        )
    return word


def interval_of(record: SectionKey, column: str) -> tuple[float, float] | None:
    """Both ends of the 95 % interval of a column of a record; None if it is not known.

    That of a loss from somebody else's CSV is the one that the file states."""
    if isinstance(record, Score):  # which always has one
        return record.low, record.high
    stated_interval = _stated_interval(record, column)
    if stated_interval is not None:
        return stated_interval
    value = getattr(record, column)
    half = getattr(record, HALF_WIDTH_COLUMNS[column], None)
    if value is None or half is None:
        return None
    return value - half, value + half


def _stated_interval(record: SectionKey, column: str) -> tuple[float, float] | None:
    """Interval that somebody else's CSV states for a loss, or for a loss minus its floor; None if
    it states none.
    """
    low = getattr(record, "low", None)
    high = getattr(record, "high", None)
    if low is None or high is None:
        return None
    if column == "nll":
        return low, high
    if column == "difference" and record.floor is not None:
        return low - record.floor, high - record.floor
    return None


def bars_hide_lines(records: Iterable[SectionKey], column: str, height: float) -> bool:
    """True if most intervals of a loss or accuracy take over half of an axis of that height, and
    there are several lines, which they would hide.
    """
    records = list(records)
    if column not in UNPAIRED_COLUMNS or len({record.method for record in records}) < 2:
        return False
    ends = filter(None, (interval_of(record, column) for record in records))
    widths = [high - low for low, high in ends]
    return bool(widths) and median(widths) > height / 2


def value_by_seed(record: SectionKey, column: str) -> dict[object, float]:
    """{seed: value of a column} of a mean over several seeds; {} for one seed, or where they are
    not known.
    """
    seeds = (record.by_seed or {}).get(SEEDS_KEY) or ()
    return value_of_any_seed(record, column) if len(seeds) > 1 else {}


def value_of_any_seed(record: SectionKey, column: str) -> dict[object, float]:
    """{seed: value of a column}, also of a single seed; {} where they are not known."""
    by_seed = record.by_seed or {}
    values = by_seed.get(column) or ()
    seeds = by_seed.get(SEEDS_KEY) or ()
    if len(values) != len(seeds):
        return {}
    pairs = zip(seeds, values, strict=True)
    return {seed: value for seed, value in pairs if value is not None}


def mark_with_bar(
    record: SectionKey, x: float, column: str, bars: str = INTERVAL, marker: str | None = None
) -> Mark | None:
    """Mark of a column of a record with its bar or its seeds; None for no value."""
    value = getattr(record, column)
    if value is None:
        return None
    if bars == SEED_LINES:
        return Mark(x, value, marker=marker, seeds=value_by_seed(record, column))
    ends = interval_of(record, column) if bars == INTERVAL else None
    low, high = ends or (None, None)
    return Mark(x, value, low, high, marker)


def bars_line(records: Iterable[SectionKey], column: str, bars: str = INTERVAL) -> str:
    """Sentence on the bars of a column of records, with the numbers of seeds and documents.

    Such as "Bars: 95 % t interval of the paired difference, over 3 to 5 seeds crossed with 291
    documents."; "" for bars that nobody asked for."""
    records = [record for record in records if getattr(record, column) is not None]
    if bars == NO_BARS or not records:
        return ""
    if bars == SEED_LINES:
        return _seeds_line(records, column)
    if isinstance(records[0], StepPoint):
        return _shade_line(records)
    barred = [record for record in records if interval_of(record, column)]
    bare = [record for record in records if not interval_of(record, column)]
    if not barred:
        return f"No bars: {_why_no_interval(bare)}."
    line = f"Bars: {interval_words(barred, column)}."
    if bare:
        line += f" Without a bar: {_why_no_interval(bare)}."
    has_lines = len({record.method for record in barred}) > 1
    if column in UNPAIRED_COLUMNS and has_lines and share_texts(barred):
        line += f" {COMPARE_PAIRED}"
    return line


def share_texts(records: Iterable[SectionKey]) -> bool:
    """True if records read the same texts: their set-ups differ in the training length at most."""
    texts = {(record.protocol, record.data, record.tokenizer, record.setting) for record in records}
    return len(texts) == 1


def _seeds_line(records: Sequence[SectionKey], column: str) -> str:
    several = [record for record in records if value_by_seed(record, column)]
    if not several:
        return f"No lines of seeds: {ONE_SEED}."
    counts = range_text(len(value_by_seed(record, column)) for record in several)
    return f"Thin lines: the {counts} seeds of each mean."


def _shade_line(records: Sequence[StepPoint]) -> str:
    """Sentence on the shade behind losses by step of training."""
    several = [record.n_seeds for record in records if record.low is not None]
    if not several:
        return "No shade: one seed."
    return f"Shade: from the lowest to the highest of {range_text(several)} seeds."


def _why_no_interval(records: Sequence[SectionKey]) -> str:
    """Reason why no interval of records is known, with the way out."""
    if all(getattr(record, "foreign", False) for record in records):
        sources = sorted({record.source for record in records if record.source})
        return f"{' and '.join(sources) or 'the file'} states none"
    measured = [record for record in records if not getattr(record, "foreign", False)]
    # Several seeds have an interval, which only a CSV of their mean can have lost.
    if any(record.n_seeds is None or record.n_seeds > 1 for record in measured):
        return NOT_STATED
    for record in measured:
        if record.n_units == 1:
            return ONE_SEED_ONE_UNIT.format(record.sem_unit)
    return ONE_SEED_NO_TARGETS


def interval_words(records: Iterable[SectionKey], column: str) -> str:
    """Words on the intervals of a column, with their units and numbers; "" without any.

    Such as "95 % t interval of the loss, over 203 documents (one seed)"."""
    barred = [record for record in records if interval_of(record, column)]
    measured = [record for record in barred if not getattr(record, "foreign", False)]
    foreign = [record for record in barred if getattr(record, "foreign", False)]
    parts = []
    if measured:
        by_units = grouped(measured, lambda record: _interval_units(record, column))
        units = [units_with_numbers(over, by_units[over]) for over in sorted(by_units)]
        measured_words = COLUMN_WORDS.get(column, "the paired difference")
        # Of scores some are Wilson's. All records of a section are of one class.
        kind = "95 % interval" if isinstance(measured[0], Score) else "95 % t interval"
        parts.append(f"{kind} of {measured_words}, over {' or over '.join(units)}")
    if foreign:
        sources = sorted({record.source or "the file" for record in foreign})
        parts.append(f"as {' and '.join(sources)} states them")
    return "; ".join(parts)


def _interval_units(record: SectionKey, column: str) -> str:
    """Units of the interval of a column."""
    if isinstance(record, CurvePoint) and column in UNPAIRED_COLUMNS:
        return record.nll_over or ""
    return record.over or ""


def units_with_numbers(over: str, records: Sequence[SectionKey]) -> str:
    """Units of intervals with their numbers.

    "seeds x documents" gives "3 to 5 seeds crossed with 291 documents"."""
    seeds = f"{range_text(record.n_seeds for record in records)} seeds"
    if over == "seeds":
        return f"{seeds} alone"
    is_task = isinstance(records[0], Score)
    n_units = [record.n_texts if is_task else record.n_units for record in records]
    # None: of somebody else's CSV, which does not state their number.
    units = range_text(n_units) if None not in n_units else ""
    if over.startswith("seeds x "):
        return f"{seeds} crossed with {units} {over.removeprefix('seeds x ')}"
    if over == SEEDS_ALIKE:
        return f"{units} examples (seeds alike)"  # alike in their accuracy
    return f"{units} {over}s (one seed)"
