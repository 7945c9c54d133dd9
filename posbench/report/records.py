"""Records of a report: points of curves and of contexts, and scores of tasks, each a line of a CSV;
and how they are grouped.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from posbench.common.csv_records import from_csv
from posbench.common.errors import ConfigError
from posbench.report.labels import Facts
from posbench.report.references import Seed
from posbench.results.evaluation import Evaluation
from posbench.statistics.clustered import student_quantile

SECTION_COLUMNS = ("protocol", "data", "tokenizer", "train_len", "setting")
NOT_A_COLUMN = {
    "default": None,
    "kw_only": True,
    "compare": False,
    "repr": False,
    "metadata": {"column": False},
}  # no column of a CSV
# units of Wilson's interval over the texts of one seed, where all have the same accuracy
SEEDS_ALIKE = "examples (seeds alike)"
SEEDS_KEY = "seeds"  # key of the numbers of the seeds in `SectionKey.by_seed`
MOST_TICKS = 10
MOST = {
    "encodings": 300,
    "methods": 1_000,
    "lengths or positions": 1_000,
    "tables of different data, protocols or settings": 500,
}


@dataclass(frozen=True)
class SectionKey:
    """Columns that must be equal within a table or figure; `what` names the records of a CSV in
    errors.
    """

    what: ClassVar[str]
    BY_SEED: ClassVar[tuple[str, ...]]  # columns with a value for each seed
    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str | None  # windows, targets and number format in words
    # Both are unknown of a record that was read from a CSV.
    facts: Facts | None = field(**NOT_A_COLUMN)
    seeds: Sequence[Seed] | None = field(**NOT_A_COLUMN)
    # {column of BY_SEED: its value for each seed}, and SEEDS_KEY: their numbers. A frame keeps it.
    by_seed: Mapping[str, tuple] | None = field(**NOT_A_COLUMN)

    @property
    def averaged_seeds(self) -> tuple[int, ...] | None:
        """Seeds that the record is a mean over, ascending; None for a record that was read from a
        CSV, which has their number alone.
        """
        return _seed_numbers(self.seeds)

    @property
    def section(self) -> tuple:
        """Values of these columns, as `section_values` returns them for an evaluation."""
        return tuple(getattr(self, name) for name in SECTION_COLUMNS)

    @property
    def method(self) -> tuple[str, str, str, str | None]:
        """Key of a line of a figure and of a row of a table: encoding, extension, scale, and the
        CSV that they were read from.
        """
        return self.encoding, self.extension, self.scale_attention, self.source

    @property
    def typed_method(self) -> str:
        """Method as users type it: encoding|extension|scale."""
        return f"{self.encoding}|{self.extension}|{self.scale_attention}"

    @property
    def label_facts(self) -> Facts:
        """Values behind the labels; of a record that was read from a CSV the labels themselves."""
        return self.facts or Facts(self.encoding, self.extension, encoding_label=self.encoding)


Record = TypeVar("Record", bound=SectionKey)
Item = TypeVar("Item")


def _seed_numbers(seeds: Sequence[Seed] | None) -> tuple[int, ...] | None:
    return tuple(sorted(seed.row["seed"] for seed in seeds)) if seeds else None


@dataclass(frozen=True, kw_only=True)
class CurvePoint(SectionKey):
    """One method at one length. Losses are in nats/token; `half_width` is half of the 95 % interval
    of `difference`.
    """

    what: ClassVar[str] = "curve points"
    BY_SEED: ClassVar[tuple[str, ...]] = ("nll", "difference", "change", "accuracy")
    encoding: str
    extension: str
    scale_attention: str
    untested: bool
    length: int  # tokens fed, or the position in `window` for a protocol by position
    window: int | None = None
    n_seeds: int
    # These three are None if the source is somebody else's CSV.
    n_targets: int | None = None
    n_units: int | None = None
    sem_unit: str | None = None
    nll: float | None = None
    bpb: float | None = None
    floor: float | None = None  # loss with exactly train_len tokens of context
    # nll - floor: about 0 holds, above fails, below gains from text beyond the training length
    difference: float | None = None
    half_width: float | None = None
    # Units of the intervals: "seeds x documents", the sem_unit for one seed, "seeds" if only means
    # are known.
    over: str | None = None
    gain: float | None = None  # G of the encoding, mean over seeds
    gain_lower: float | None = None  # the lowest of the seeds' lower 95 % bounds of G
    # nll - the loss of the same trainings at this length without an extension
    change: float | None = None
    change_half_width: float | None = None  # of its 95 % interval
    low: float | None = None  # the interval of nll as somebody else's CSV states it
    high: float | None = None
    accuracy: float | None = None  # share of targets whose most likely token was right
    # The CSV that the losses were read from; None if the report is of that file alone, or of runs.
    source: str | None = None
    # Columns of a section that somebody else's CSV lacks, with spaces between: those of its table
    # stand there.
    unstated: str | None = field(default=None, metadata={"sparse": True})
    nll_half_width: float | None = None  # of the 95 % interval of nll itself, which is not paired
    accuracy_half_width: float | None = None  # of that of accuracy; None by position
    nll_over: str | None = None  # units of both, as `over`

    @property
    def foreign(self) -> bool:
        """True if the loss is from somebody else's CSV, which tells nothing about targets and
        documents.
        """
        return self.n_units is None

    @property
    def passes_gate(self) -> bool:
        """True if every training demonstrably gains from the second half of its window; False also
        for a single document, which gives G without a bound.
        """
        return self.gain_lower is not None and self.gain_lower > 0


@dataclass(frozen=True)
class ContextPoint(SectionKey):
    """Means over seeds for one encoding with exactly `context` tokens before every target: losses
    in nats/token, 95 % half widths.
    """

    what: ClassVar[str] = "loss against context"
    BY_SEED: ClassVar[tuple[str, ...]] = ("nll", "difference", "doubling")
    extension: ClassVar[str] = "none"
    scale_attention: ClassVar[str] = "none"
    untested: ClassVar[bool] = False
    encoding: str
    context: int
    n_seeds: int
    n_targets: int
    n_units: int
    sem_unit: str
    nll: float | None
    bpb: float | None
    difference: float | None  # nll - the loss with train_len tokens
    half_width: float | None
    # The loss with context // 2 tokens - nll: the gain by doubling; G if context is train_len.
    doubling: float | None
    doubling_half_width: float | None
    over: str | None  # units of the intervals, as in `CurvePoint`
    source: str | None = None  # as in `CurvePoint`

    @property
    def length(self) -> int:
        """Tokens that every target is predicted from."""
        return self.context


@dataclass(frozen=True, kw_only=True)
class StepPoint(SectionKey):
    """Loss of a model after a step of its training, at one length: mean over seeds in nats/token,
    and the lowest and the highest of several seeds.
    """

    what: ClassVar[str] = "losses by step of training"
    BY_SEED: ClassVar[tuple[str, ...]] = ("nll",)
    # A figure may ask any point for these.
    bpb: ClassVar[None] = None
    difference: ClassVar[None] = None
    change: ClassVar[None] = None
    accuracy: ClassVar[None] = None
    over: ClassVar[None] = None
    encoding: str
    extension: str
    scale_attention: str = "none"
    untested: bool = False
    length: int  # tokens fed
    step: int = 0
    n_seeds: int = 0
    n_targets: int
    nll: float | None = None
    low: float | None = None
    high: float | None = None
    source: str | None = None  # as in `CurvePoint`

    @property
    def tokens(self) -> int:
        """`length`, by which lines of one method are told apart."""
        return self.length


@dataclass(frozen=True)
class Score(SectionKey):
    """Accuracy of one method at one length, on one part of a task, with both ends of its 95 %
    interval.
    """

    what: ClassVar[str] = "scores"
    BY_SEED: ClassVar[tuple[str, ...]] = ("accuracy",)
    task: str
    encoding: str
    extension: str
    scale_attention: str
    untested: bool
    length: int
    depth: float | None  # where in the text the asked-for item stands; None: all
    n_seeds: int  # trainings in the mean: those that learned the task, or all if none did
    n_trained: int
    n_texts: int
    n_answers: int
    accuracy: float
    low: float
    high: float
    # Units of the interval: "seeds x examples" or SEEDS_ALIKE, "example" for one seed, "seeds" if
    # only means are known.
    over: str
    nll: float | None  # -ln p(answer) in nats per answer
    choice: float | None  # share of answers that were likelier than all other choices in the text
    learned: bool  # a training of this method learned the task
    # Accuracy inside the window, of a fine-tuned training or its parent, mean over all seeds; None
    # if unknown.
    inside: float | None
    half_width: float | None = None  # of the 95 % interval of nll; None in CSVs of earlier versions
    source: str | None = None  # as in `CurvePoint`
    # Share that the token behind the latest earlier place of what asks gets right, if it is known.
    by_place: float | None = None
    by_value: float | None = None  # share that any of the choices in the text gets right
    learners: Sequence[Seed] | None = field(**NOT_A_COLUMN)  # of `seeds`, those in the mean

    @property
    def averaged_seeds(self) -> tuple[int, ...] | None:
        return _seed_numbers(self.learners)

    @property
    def shown(self) -> bool:
        """True where the score says something of the method."""
        return self.learned or self.length <= self.train_len


def as_stated(record: SectionKey, column: str) -> str:
    """Value of a column of `SECTION_COLUMNS` in words; "data not stated" for one that the record's
    CSV does not state.
    """
    unstated = (getattr(record, "unstated", None) or "").split()
    value = getattr(record, column)
    if column in unstated or value is None:
        return f"{column} not stated"
    return f"protocol {value}" if column == "protocol" else str(value)


def interval_units(units: Iterable[str]) -> str:
    """Units of intervals, `over` of several records, in words; "" for none.

    >>> interval_units(["seeds x documents", "document"])
    'over documents (one seed) or over seeds crossed with documents'
    """
    words = []
    for unit in sorted({*units}):
        if unit.startswith("seeds"):
            words.append(f"over {unit.replace(' x ', ' crossed with ')}")
        else:
            words.append(f"over {unit}s (one seed)")
    return " or ".join(words)


def two_seeds_note(points: Iterable[CurvePoint | ContextPoint]) -> list[str]:
    """Note on intervals over two seeds; an empty list without any."""
    if not any(point.n_seeds == 2 and (point.over or "").startswith("seeds") for point in points):
        return []
    of_two, of_three = (student_quantile(0.975, df) for df in (1, 2))
    return [
        f"two seeds leave one degree of freedom: Student's t is {of_two:.1f}, and {of_three:.1f}"
        " with a third seed"
    ]


def grouped_by_section(records: Iterable[Record]) -> list[list[Record]]:
    """Group records by protocol, data, tokenizer, training length and setting."""
    return list(grouped(records, lambda record: record.section).values())


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Hashable, list[Item]]:
    """Items by a key, in the order of the first of each.

    >>> grouped(["ab", "c", "de"], len)
    {2: ['ab', 'de'], 1: ['c']}
    """
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def section_values(evaluation: Evaluation) -> tuple:
    """Values of the columns of `SectionKey` for an evaluation. Evaluations with equal values share
    a table.
    """
    return (*(evaluation.first[name] for name in SECTION_COLUMNS[:-1]), evaluation.setting_in_words)


def range_text(counts: Iterable[int]) -> str:
    """Range of counts as text.

    >>> range_text([5, 3]), range_text([3, 3])
    ('3 to 5', '3')
    """
    counts = sorted(counts)
    low, high = counts[0], counts[-1]
    return str(low) if low == high else f"{low} to {high}"


def records_by_method(records: Iterable[Record]) -> dict[tuple, dict[int, Record]]:
    """{method: {length: record}}, both in the order of the records."""
    by_method: dict[tuple, dict[int, Record]] = {}
    for record in records:
        by_method.setdefault(record.method, {})[record.length] = record
    return by_method


def scores_by_task(section: Iterable[Score]) -> dict[str, dict[tuple, dict[int, Score]]]:
    """{task: {method: {length: score over all depths}}}, in the order of the scores."""
    over_depths = [score for score in section if score.depth is None]
    tasks = grouped(over_depths, lambda score: score.task)
    return {task: records_by_method(of_task) for task, of_task in tasks.items()}


def tick_lengths(lengths: Iterable[int], train_len: int) -> list[int]:
    """Lengths that get a tick or a column: all of up to MOST_TICKS, of more the training length
    times powers of two and the last. Where these are fewer than three, some at equal steps.

    >>> tick_lengths(range(96, 1153, 96), train_len=96)
    [96, 192, 384, 768, 1152]
    """
    lengths = sorted(set(lengths))
    if len(lengths) <= MOST_TICKS:
        return lengths
    octaves = [length for length in lengths[:-1] if _are_octaves_apart(length, train_len)]
    if len(octaves) >= 2:
        return [*octaves, lengths[-1]]
    step = -(-len(lengths) // MOST_TICKS)
    return lengths[::-step][::-1]  # the last is among them


def _are_octaves_apart(length: int, other: int) -> bool:
    """True if one length is the other times a power of two."""
    ratio, rest = divmod(max(length, other), min(length, other))
    return rest == 0 and ratio.bit_count() == 1


def check_size(sections: Sequence[Sequence[CurvePoint]]) -> None:
    """Raise ConfigError for more encodings, methods, lengths or sections than MOST, which would
    take hours to draw.
    """
    points = [point for section in sections for point in section]
    counts = {
        "encodings": len({point.encoding for point in points}),
        "methods": len({(p.encoding, p.extension, p.scale_attention) for p in points}),
        "lengths or positions": max(
            (len({point.length for point in section}) for section in sections), default=0
        ),
        "tables of different data, protocols or settings": len(sections),
    }
    for noun, count in counts.items():
        if count > MOST[noun]:
            raise ConfigError(
                f"These runs hold {count:,} {noun}, and a report shows at most {MOST[noun]:,}:"
                " name fewer with runs=."
            )


def read_points(path: Path | str, kind: type[Record] = CurvePoint) -> list[Record]:
    """Read the records of a CSV. Raises RunError for another file."""
    return from_csv(path, kind, f"a CSV of {kind.what}", "scripts/report.py")
