"""Points of a table or a figure, and the CSV that holds them. Plot code reads nothing else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from posbench.common.csv_records import from_csv
from posbench.common.errors import ConfigError
from posbench.report.labels import Facts
from posbench.runs.evaluation import Evaluation
from posbench.statistics.clustered import student_quantile

if TYPE_CHECKING:
    from posbench.report.context_loss import Step

MOST = {"encodings": 300, "methods": 1_000, "lengths or positions": 1_000, "tables of different data, protocols or settings": 500}


@dataclass(frozen=True)
class SectionKey:
    """Columns that must be equal within a table or figure; `what` names the records of a CSV in errors."""

    what: ClassVar[str]
    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str | None  # windows, targets and number format in words

    @property
    def section(self) -> tuple:
        """Values of these columns, as `section_of` returns them for an evaluation."""
        return tuple(getattr(self, name) for name in SECTION)

    @property
    def behind(self) -> Facts:
        """Values behind the labels; of a record that was read from a CSV the labels themselves."""
        return self.facts or Facts.stated(self.encoding, getattr(self, "extension", "none"))


SECTION = tuple(column.name for column in fields(SectionKey))
UNWRITTEN = {"default": None, "compare": False, "repr": False, "metadata": {"column": False}}  # no column of a CSV
One = TypeVar("One", bound=SectionKey)


@dataclass(frozen=True, kw_only=True)
class Point(SectionKey):
    """One method at one length. Losses are in nats/token; `half_width` is half of the 95 % interval of `difference`."""

    what: ClassVar[str] = "curve points"
    encoding: str
    extension: str
    scale_attention: str
    untested: bool
    length: int  # tokens fed, or the position in `window` for a protocol by position
    window: int | None = None
    n_seeds: int
    n_targets: int | None = None  # this and the next two are None if the source is somebody else's CSV
    n_units: int | None = None
    sem_unit: str | None = None
    nll: float | None = None
    bpb: float | None = None
    floor: float | None = None  # loss with exactly train_len tokens of context
    difference: float | None = None  # nll - floor: about 0 holds, above fails, below gains from text beyond the training length
    half_width: float | None = None
    over: str | None = None  # units of the intervals: "seeds x documents", the sem_unit for one seed, "seeds" if only means are known
    gain: float | None = None  # G of the encoding, mean over seeds
    gain_lower: float | None = None  # the lowest of the seeds' lower 95 % bounds of G
    change: float | None = None  # nll - the loss of the same trainings at this length without an extension
    change_half_width: float | None = None  # of its 95 % interval
    low: float | None = None  # the interval of nll as somebody else's CSV states it
    high: float | None = None
    accuracy: float | None = None  # share of targets whose most likely token was right
    source: str | None = None  # the CSV that the losses were read from; None if the report is of that file alone, or of runs
    facts: Facts | None = field(**UNWRITTEN)

    @property
    def method(self) -> tuple[str, str, str, str | None]:
        """Key of a line of a figure and of a row of a table."""
        return self.encoding, self.extension, self.scale_attention, self.source

    @property
    def foreign(self) -> bool:
        """True if the loss is from somebody else's CSV, which tells nothing about targets and documents."""
        return self.n_units is None


def over_words(unit: str) -> str:
    """A point's `over` in words."""
    return f"over {unit.replace(' x ', ' crossed with ')}" if unit.startswith("seeds") else f"over {unit}s (one seed)"


def two_seeds(found: "Iterable[Point | Step]") -> list[str]:
    """Note on intervals over two seeds; an empty list without any."""
    if not any(one.n_seeds == 2 and (one.over or "").startswith("seeds") for one in found):
        return []
    two, three = (student_quantile(0.975, df) for df in (1, 2))
    return [f"two seeds leave one degree of freedom: Student's t is {two:.1f}, and {three:.1f} with a third seed"]


def sections(found: Iterable[One]) -> list[list[One]]:
    """Group points (or others that are `SectionKey`) by protocol, data, tokenizer, training length and setting."""
    apart: dict[tuple, list[One]] = {}
    for one in found:
        apart.setdefault(one.section, []).append(one)
    return list(apart.values())


def section_of(evaluation: Evaluation) -> tuple:
    """Values of the columns of `SectionKey` for an evaluation. Evaluations with equal values share a table."""
    return (*(evaluation.first[name] for name in SECTION[:-1]), evaluation.words)


def span(counts: Iterable[int]) -> str:
    """Range of counts as text: 3 to 5, or 3 if all are equal."""
    low, high = (counts := sorted(counts))[0], counts[-1]
    return str(low) if low == high else f"{low} to {high}"


def methods(curve: Iterable[Point]) -> dict[tuple, dict[int, Point]]:
    """Points by method and length, both in the given order."""
    found: dict[tuple, dict[int, Point]] = {}
    for point in curve:
        found.setdefault(point.method, {})[point.length] = point
    return found


def marked(lengths: Iterable[int]) -> list[int]:
    """Lengths that get a tick or a column: all of up to ten, of more the powers of two and the last."""
    lengths = sorted(set(lengths))
    return lengths if len(lengths) <= 10 else [n for n in lengths if n & (n - 1) == 0 or n == lengths[-1]]


def check_size(sections: Sequence[Sequence[Point]]) -> None:
    """Raise ConfigError for more encodings, methods, lengths or sections than a report can show.

    Beyond MOST drawing would take hours, and nobody could read it.
    """
    points = [point for section in sections for point in section]
    counted = (
        len({point.encoding for point in points}),
        len({(point.encoding, point.extension, point.scale_attention) for point in points}),
        max((len({point.length for point in section}) for section in sections), default=0),
        len(sections),
    )
    for (what, most), count in zip(MOST.items(), counted, strict=True):
        if count > most:
            raise ConfigError(f"These runs hold {count:,} {what}, and a report shows at most {most:,}: name fewer with runs=.")


def read_points(path: Path | str, kind: type[One] = Point) -> list[One]:
    """Read the points of a CSV (or others that are `SectionKey`). Raises RunError for another file."""
    return from_csv(path, kind, f"a CSV of {kind.what}", "scripts/report.py")
