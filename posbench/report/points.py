"""The points of a table or a figure, and the CSV that keeps them: plot code reads nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from posbench.common.csv_records import from_csv, to_csv
from posbench.common.files import write_atomic
from posbench.statistics.clustered import student_quantile

if TYPE_CHECKING:
    from posbench.report.context_loss import Step


@dataclass(frozen=True)
class Placed:
    """What no table or figure may mix."""

    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str | None  # how windows and targets were asked for, and in which number format

    @property
    def section(self) -> tuple:
        """The values of these columns, as `section_of` a row gives them."""
        return tuple(getattr(self, name) for name in SECTION)


SECTION = tuple(column.name for column in fields(Placed))
One = TypeVar("One", bound=Placed)


@dataclass(frozen=True)
class Point(Placed):
    """One method at one length. Losses in nats/token; `half_width` is that of the 95 % interval of `difference`."""

    encoding: str
    extension: str
    scale_attention: str
    untested: bool
    length: int  # tokens fed, or the position in `window` where the protocol goes by position
    window: int | None
    n_seeds: int
    n_targets: int | None  # this and the next two: None where somebody else's CSV is the source
    n_units: int | None
    sem_unit: str | None
    nll: float | None
    bpb: float | None
    floor: float | None  # loss with exactly train_len tokens of context
    difference: float | None  # nll - floor: about 0 holds, above fails, below gains from what lies beyond the training length
    half_width: float | None
    over: str | None  # what the interval is over: "seeds x documents", the sem_unit of one seed, "seeds" where means are all that is known
    gain: float | None  # G of the encoding, mean over seeds
    gain_lower: float | None  # the lowest of its seeds' lower 95 % bounds
    change: float | None = None  # nll - the loss of the same trainings at this length without an extension
    change_half_width: float | None = None  # of its 95 % interval
    low: float | None = None  # the interval of nll as somebody else's CSV states it
    high: float | None = None
    accuracy: float | None = None  # share of targets whose most likely token was right
    source: str | None = None  # the CSV that the losses were read from, where the report is of more than that file

    @property
    def method(self) -> tuple[str, str, str, str | None]:
        """What a line of a figure or a row of a table is for."""
        return self.encoding, self.extension, self.scale_attention, self.source

    @property
    def foreign(self) -> bool:
        """Whether somebody else's CSV states the loss, with nothing known of targets and documents."""
        return self.n_units is None


def among(setting: str | None) -> str:
    """Which documents were chosen by name, in brackets, where a setting says so."""
    named = re.search("in documents (`.+?`), ", setting or "")
    return f" ({named[1]})" if named else ""


def over_words(unit: str) -> str:
    """A point's `over` in words."""
    return f"over {unit.replace(' x ', ' crossed with ')}" if unit.startswith("seeds") else f"over {unit}s (one seed)"


def two_seeds(found: Iterable[Point | Step]) -> list[str]:
    """What is to be said of intervals over two seeds, where there are any."""
    if not any(one.n_seeds == 2 and (one.over or "").startswith("seeds") for one in found):
        return []
    two, three = (student_quantile(0.975, df) for df in (1, 2))
    return [f"two seeds leave one degree of freedom: Student's t is {two:.1f}, and {three:.1f} with a third seed"]


def sections(found: Iterable[One]) -> list[list[One]]:
    """Points, or what else is placed, apart by protocol, data, tokenizer, training length and setting."""
    apart: dict[tuple, list[One]] = {}
    for one in found:
        apart.setdefault(one.section, []).append(one)
    return list(apart.values())


def section_of(row: dict) -> tuple:
    """The values of `Placed` in a row: rows of equal ones stand in one table."""
    return tuple(row[name] for name in SECTION)


def span(counts: Iterable[int]) -> str:
    """One number, or from the lowest to the highest: 3 to 5."""
    low, high = (counts := sorted(counts))[0], counts[-1]
    return str(low) if low == high else f"{low} to {high}"


def methods(curve: Iterable[Point]) -> dict[tuple, dict[int, Point]]:
    """Method -> length -> point, both in the order given."""
    found: dict[tuple, dict[int, Point]] = {}
    for point in curve:
        found.setdefault(point.method, {})[point.length] = point
    return found


def marked(lengths: Iterable[int]) -> list[int]:
    """Lengths that get a tick or a column: all of a few, the powers of two and the last of many."""
    lengths = sorted(set(lengths))
    return lengths if len(lengths) <= 10 else [n for n in lengths if n & (n - 1) == 0 or n == lengths[-1]]


def write_points(curve: list[Point], path: Path | str) -> None:
    """Write what is drawn as CSV, so that a figure can be made again from this file alone."""
    write_atomic(path, to_csv(curve, Point))


def read_points(path: Path | str) -> list[Point]:
    """Points of a CSV. Raises RunError when it is not one."""
    return from_csv(path, Point, "a CSV of curve points", "scripts/report.py")
