"""Numbers of a page, looked up in the files of results/reported by the expressions of its template.

    {headline: rope|pi @2x .2f}                            the difference to the floor, of curve.csv of a folder
    {headline: alibi @1x gain .2f}                         another of its columns
    {headline: fox & hybrid @2x,4x negated lowest .2f}     the lowest of several, each times -1
    {catalogue: sandwich @1x minus rope @1x nll .2f}       a value minus another
    {tasks/accuracy: mqar 8 pairs, rope|ntk @16x [] .2f}   another CSV of a folder: value [low, high]
    {headline/trainings: encoding=fox count .0f}           the lines whose columns have such values
    {headline/trainings: seconds total hours .1f}          a sum over lines, in another unit
    {ledger: stage two: C2 [] +.2f}                        an endpoint of the ledger of claims
    {newer paired: lerope minus rope @4x +- .2f}           from sums.npz, on the same targets: value +- half of the interval
    {protocols paired: rope @4x, protocol=disjoint minus rope @1x, protocol=disjoint minus rope @4x, protocol=sliding
        plus rope @1x, protocol=sliding +- .2f}            any sum of such losses, and of other protocols than fixed_targets
    {scale above floor: rope minus alibi @8x [] .2f}       the same of what each is above its own floor
    {matched by seed: alibi minus rope @1x +- .2f}         from rows.csv: differences of the seeds, the interval over them alone
    {advice/advice.json: search, name=cut, nll, 8192 .2f}  a place in a json

An expression ends in words of `WORDS` or a column, and a format of Python (`s` for text). Multiples
are of the training length."""

import csv
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.report.references import Seed
from posbench.report.report import Report, collect
from posbench.results.search import ROWS, is_evidence
from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import Sums, across, estimate

REPORTED = Path(__file__).parents[3] / "results" / "reported"
ONE_OF = {"lowest": min, "highest": max, "mean": fmean, "total": sum}  # of several values
FACTORS = {"negated": -1, "percent": 100, "hours": 1 / 3600}
ENDS = {"low": 1, "high": 2}
WORDS = {*ONE_OF, *ENDS, "+-", "[]", "count", "distinct", "seeds", *FACTORS, "nats"}
USUAL = {
    "curve": "difference",
    "accuracy": "accuracy",
    "claims": "effect",
}  # column of a CSV where none is named
HALF = {
    "difference": "half_width",
    "change": "change_half_width",
    "doubling": "doubling_half_width",
}
BOUNDS = {"accuracy": ("low", "high"), "effect": ("lower", "upper")}
LEDGER = (
    "verdict",
    "documents",
    "compared",
)  # columns that may be asked for; other names end in words of the ledger's header
STAGES = {
    None: "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
}


class Value(NamedTuple):
    """Number with both ends of its interval, if it has one."""

    value: float
    low: float = np.nan
    high: float = np.nan

    def times(self, factor: float) -> "Value":
        """The same in another unit, or of the other sign."""
        return Value(self.value * factor, *sorted((self.low * factor, self.high * factor)))


class Key(NamedTuple):
    """Conditions on lines: name of a task or claim, methods at multiples of the training length,
    and cells of columns.
    """

    name: str
    methods: list[list[str]]  # of ENCODING|EXTENSION|SCALE, the last two of which may be left out
    multiples: list[Fraction]
    cells: list[tuple[str, str, str]]  # column, = or !=, text

    @classmethod
    def read(cls, text: str, columns: Iterable[str]) -> "Key":
        """The parts of a text, with ", " between them, which may also stand in a name."""
        names, methods, multiples, cells = [], [], [], []
        for part in text.split(", "):
            cell = re.fullmatch(r"(\w+)(!?=)(.*)", part)
            if cell and cell[1] in columns:
                cells.append(cell.groups())
            elif " @" in part:
                several, _, times = part.rpartition(" @")
                methods = [
                    [*method.split("|"), "none", "none"][:3] for method in several.split(" & ")
                ]
                multiples = [Fraction(one.rstrip("x")) for one in times.split(",")]
            elif part:
                names.append(part)
        return cls(", ".join(names), methods, multiples, cells)

    def fits(self, row: Mapping) -> bool:
        """True if a line has the cells that are asked for."""
        return all((str(row[column]) == text) == (sign == "=") for column, sign, text in self.cells)


def fill(source: str, text: str) -> str:
    """Text in place of the expression {source: text}. Raises ConfigError if the files hold no such
    number, or several.
    """
    *words, form = text.split()
    path, kind = _file(source)
    columns = (
        LEDGER
        if source == "ledger"
        else csv_lines(path)[0].keys()
        if path.suffix == ".csv" and not kind
        else ()
    )
    taken = []
    while words and (words[-1] in WORDS or words[-1] in columns):
        taken.append(words.pop())
    column = next((word for word in taken if word not in WORDS), USUAL.get(path.stem, ""))
    terms = [" ".join(words)] if source == "ledger" else " ".join(words).split(" minus ")
    if " @" in terms[-1] and " @" not in terms[0]:
        terms[0] += " @" + terms[-1].rpartition(" @")[2]
    if kind:
        if kind == "by seed":
            whole, *each = _by_seed(path.parent, terms)
        else:
            whole, *each = _sum_of_losses(path.parent, " ".join(words), kind == "above floor")
        values = each if "seeds" in taken else [whole]
    elif path.suffix == ".json":
        values = _minus([[_place(path, term)] for term in terms])
    else:
        rows = [_rows(path, term) for term in terms]
        if "count" in taken:
            return f"{len(rows[0]):{form}}"
        if "distinct" in taken:
            return f"{len({row[column] for row in rows[0]}):{form}}"
        if form == "s":
            return _one(rows[0])[column]
        values = _minus([[_value(row, column, "nats" in taken) for row in found] for found in rows])
    return _shown(
        [one.times(math.prod(FACTORS.get(word, 1) for word in taken)) for one in values],
        taken,
        form,
    )


def _file(source: str) -> tuple[Path, str]:
    """The file of a source, and how two methods are compared in it ("" for values as they stand
    there).
    """
    place, _, kind = source.partition(" ")
    if kind not in ("", "paired", "above floor", "by seed"):
        raise ConfigError(f"{kind} is not a comparison: use paired, above floor or by seed")
    folder, _, name = ("claims/claims" if place == "ledger" else place).partition("/")
    path = REPORTED / folder / (name if name.endswith(".json") else f"{name or 'curve'}.csv")
    if not path.exists():
        raise ConfigError(f"results/reported has no {path.relative_to(REPORTED)}")
    return path, kind


def _shown(values: list[Value], words: list[str], form: str) -> str:
    numbers = [one[next((ENDS[word] for word in words if word in ENDS), 0)] for one in values]
    for word in ONE_OF.keys() & {*words}:
        return f"{ONE_OF[word](numbers):{form}}"
    if "seeds" in words:
        return f"{', '.join(f'{one:{form}}' for one in numbers[:-1])} and {numbers[-1]:{form}}"
    _, low, high = _one(values)
    form, _, ends = form.partition("/")
    ends = ends or form
    if math.isnan(low) and {"+-", "[]"} & {*words}:
        raise ConfigError("it has no interval")
    half = f" +- {(high - low) / 2:{ends.lstrip('+')}}"
    return f"{numbers[0]:{form}}" + (
        half if "+-" in words else f" [{low:{ends}}, {high:{ends}}]" if "[]" in words else ""
    )


def _one(found: list[Any]) -> Any:
    if len(found) != 1:
        raise ConfigError(f"{len(found) or 'no'} lines fit, and it takes one")
    return found[0]


def _minus(values: list[list[Value]]) -> list[Value]:
    return values[0] if len(values) == 1 else [Value(_one(values[0]).value - _one(values[1]).value)]


@cache
def csv_lines(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV, as text."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _rows(path: Path, text: str) -> list[dict[str, str]]:
    """Lines of a CSV that fit a key."""
    rows = csv_lines(path)
    key = Key.read(text, rows[0])
    if key.name and path.stem == "claims":
        stage, name = re.fullmatch(r"(?:stage (\w+): )?(.*)", key.name).groups()
        rows = [
            row
            for row in rows
            if (row["stage"], f"{row['claim']} {row['endpoint']}".strip()) == (STAGES[stage], name)
        ]
    elif key.name:
        rows = [row for row in rows if row.get("task") in key.name.split(" & ")]
    if key.methods:
        rows = [
            row
            for row in rows
            if [row["encoding"], row["extension"], row["scale_attention"]] in key.methods
        ]
        rows = [
            row
            for row in rows
            if Fraction(int(row["length"]), int(row["train_len"])) in key.multiples
            and not row.get("depth")
        ]
        rows = [row for row in rows if path.stem != "curve" or row["protocol"] == "fixed_targets"]
    return [row for row in rows if key.fits(row)]


def _value(row: Mapping[str, str], column: str, nats: bool) -> Value:
    of = (
        "half_width" if column == "nll" and "task" in row else HALF.get(column, "")
    )  # of accuracy.csv it is that of nll
    value, half = float(row[column]), row.get(of)
    ends = (
        [value - float(half), value + float(half)]
        if half
        else [float(row[end]) for end in BOUNDS.get(column, ()) if row.get(end)]
    )
    return Value(value, *ends).times(float(row["nats"]) if nats else 1)


def _place(path: Path, text: str) -> Value:
    """A number, or [value, low, high], of a json: fields from the outermost on, and key=value for
    the element of a list.
    """
    found = read_json(path)
    for part in text.split(", "):
        name, _, value = part.partition("=")
        if value:
            found = [one for one in found if str(one[name]) == value]
        else:
            found = (_one(found) if isinstance(found, list) else found)[part]
    return Value(*found) if isinstance(found, list) else Value(found)


def _sum_of_losses(folder: Path, text: str, above_floor: bool) -> list[Value]:
    """Sum of the losses in "A minus B plus C" over the seeds that all have, and then that of each
    seed.

    With `above_floor` each loss is what it is above its own floor.
    """
    first, *rest = re.split(r" (minus|plus) ", text)
    terms = [(1.0, first)]
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        terms.append((-1.0 if sign == "minus" else 1.0, term))
    multiple = terms[-1][1].rpartition(" @")[2]
    losses = []
    for weight, term in terms:
        losses.append((weight, _seeds(folder, term if " @" in term else f"{term} @{multiple}")))
    seeds = sorted(set.intersection(*(set(by_seed) for _, by_seed in losses)))
    sums = []
    for weight, by_seed in losses:
        sums.append((weight, across([_sums(by_seed[seed], above_floor) for seed in seeds])))
    result = estimate(sums)
    return [Value(result.value, *result.interval()), *map(Value, result.by_seed)]


def _by_seed(folder: Path, terms: list[str]) -> list[Value]:
    """Difference of two methods over the seeds that both have, of their rows alone, and then that
    of each seed.
    """
    one, other = (_seeds(folder, text) for text in terms)
    seeds = sorted(one.keys() & other.keys())
    differences = [_one(one[seed]).row["nll"] - _one(other[seed]).row["nll"] for seed in seeds]
    mean, half, _ = student_interval(differences)
    return [Value(mean, mean - half, mean + half), *map(Value, differences)]


@cache
def _report(folder: Path) -> Report:
    found = {"evidence": [folder]} if is_evidence(folder) else {"csvs": [folder / ROWS]}
    return collect([], folder.name, folder.name, **found)


def _seeds(folder: Path, text: str) -> dict[int, list[Seed]]:
    """{seed: what it has at the length of a key}. A method is named as in a table or in
    trainings.csv.
    """
    key = Key.read(text, ("data", "train_len", "protocol"))
    report, found = _report(folder), defaultdict(list)
    listed = {row["run_id"]: row.get("encoding") for row in csv_lines(folder / "trainings.csv")}
    protocol_named = any(column == "protocol" for column, *_ in key.cells)
    for point in itertools.chain(*(report.scores if key.name else report.sections)):
        if key.name:
            asked = point.task == key.name and point.depth is None
        else:
            asked = protocol_named or point.protocol == "fixed_targets"
        if asked and point.length == key.multiples[0] * point.train_len and key.fits(vars(point)):
            for one in point.seeds:
                names = (point.encoding, listed.get(one.row["run_id"]))
                if any(
                    [name, point.extension, point.scale_attention] in key.methods for name in names
                ):
                    found[one.row["seed"]].append(one)
    return found or _one([])


def _sums(points: list[Seed], above_floor: bool) -> Sums:
    """Sums over documents of the losses of a seed, or of what they are above its floor."""
    seed = _one(points)
    return seed.against_floor.sums if above_floor else seed.evaluation.sampled_sums(seed.row)
