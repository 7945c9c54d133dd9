"""CSVs of losses added to a report of runs: rows.csv of another posbench, or numbers that somebody
else measured.

results/README.md lists the columns of a CSV of others. Such losses are drawn and listed under the
file's name, and are never paired."""

import csv
import io
import math
import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from posbench.common.csv_records import MOST_NATS, MOST_TOKENS, repeated
from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_bytes
from posbench.report.curves import interval, means
from posbench.report.records import SECTION, CurvePoint, grouped, read_points
from posbench.results.evaluation import Evaluation
from posbench.results.evidence import check_folder
from posbench.results.search import ROWS
from posbench.runs.rows import SETTING, read_csv, whole_lines

STATED = ("protocol", "data", "tokenizer", "train_len")
OF_ONE = ("run_id", "eval_id", *STATED)  # columns that rows of one evaluation share
SAME = (
    *STATED,
    "encoding",
    "extension",
    "scale_attention",
    "length",
    "window",
    "n_seeds",
    "n_targets",
    "n_units",
)
OF_TARGETS = (
    "difference",
    "half_width",
    "over",
    "gain",
    "gain_lower",
    "change",
    "change_half_width",
)  # columns of a curve.csv
ALIKE = (*STATED, "dtype", "position", "n_targets", "n_units", "n_bytes")
KEY = (
    *STATED,
    "encoding",
    "extension",
    "scale_attention",
    "length",
)  # columns of others that one point has in common
LOSSES = ("nll", "floor", "low", "high")
READ = {
    *KEY,
    *LOSSES,
    "ppl",
    "seed",
    "method",
    "label",
    "run_id",
    "eval_id",
}  # columns of others that are not passed over
WANTED = "give a CSV with at least the columns method, length and nll, as results/README.md says"


def read_foreign(path: Path, source: str | None) -> tuple[list[Evaluation], list[CurvePoint]]:
    """Evaluations of a rows.csv, or points of a CSV of others; the other list is empty. Raises
    ConfigError for a file that is neither.
    """
    try:
        if path.name == ROWS:
            check_folder(path.parent)
        lines = io.StringIO(read_bytes(path).decode("utf-8-sig"), newline="")
        head = lines.readline()
        lines.seek(0)
        table = csv.DictReader(lines, delimiter=max(",;\t", key=head.count))
        names = [str(name).strip().lower() for name in table.fieldnames or ()]
        columns = dict(zip(names, table.fieldnames or (), strict=True))
        if name := repeated(name for name in names if name in READ):
            raise ConfigError(
                f"{path} has two columns named {name}: remove one, or give it another name."
            )
        if {"run_id", "eval_id"} <= set(columns) and (rows := read_csv(path)):
            apart = grouped(printable(rows), operator.itemgetter(*OF_ONE)).values()
            return [Evaluation(own, path, _setting(own[0]), source=source) for own in apart], []
        kinds = (("length",), ("nll", "ppl"), ("method", "label", "encoding"))
        if lacking := [" or ".join(names) for names in kinds if not set(names) & set(columns)]:
            said = (
                f"has no column {', and none '.join(lacking)}, but"
                f" {printable(', '.join(columns)) or 'none'}"
            )
            raise ConfigError(f"{path} {said}: {WANTED}.")
        cells: dict[tuple, dict[str | None, dict]] = defaultdict(dict)
        for row in whole_lines(table, path):
            try:
                line = _typed(
                    {
                        name: str(printable(str(row[column] or "").strip()))
                        for name, column in columns.items()
                    }
                )
                key = tuple(line[name] for name in KEY)
                if line["seed"] in cells[key]:
                    said = f"{' '.join(key[4:7])} at length {line['length']} appears twice"
                    raise ValueError(
                        f"{said}: distinguish the lines by method, or by a column seed"
                    )
            except ValueError as error:
                raise ConfigError(f"{path}, line {table.line_num}: {error}.") from None
            cells[key][line["seed"]] = line
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path} cannot be read as CSV ({error}): give text in UTF-8, with a header and a line"
            " for each loss."
        ) from error
    except RunError as error:
        raise ConfigError(str(error)) from error
    if not cells:
        raise ConfigError(f"{path} holds no line below its header: {WANTED}.")
    return [], [
        _mean_point(dict(zip(KEY, key, strict=True)), list(seeds.values()), source)
        for key, seeds in cells.items()
    ]


def stated(points: Iterable[CurvePoint], path: Path, source: str | None) -> list[CurvePoint]:
    """Points with the intervals and G that a curve.csv beside a rows.csv states for the same means,
    which had every target's loss.
    """
    beside = path.with_name("curve.csv")
    if path.name != ROWS or not beside.is_file():
        return list(points)
    same_as = operator.attrgetter(*SAME)
    known, found = grouped(read_points(beside), same_as), []
    for point in points:
        same = (
            known.get(same_as(point), ())
            if point.source == source and point.nll is not None
            else ()
        )
        alike = (
            one
            for one in same
            if one.nll is not None and math.isclose(point.nll, one.nll, rel_tol=1e-9)
        )
        other = next(alike, point)
        found.append(replace(point, **{name: getattr(other, name) for name in OF_TARGETS}))
    return found


def _setting(row: dict) -> str:
    """Setting of a row in words, counting its targets and units in front, since a CSV may say no
    more.
    """
    targets = "" if row["position"] else f"{row['n_targets']} targets in "
    counted, said = (
        f"{targets}{row['n_units']} {row['sem_unit']}s, {row['dtype']}",
        row.get(SETTING),
    )
    return (
        said if said and said.startswith(counted) else f"{counted}; {said or 'a CSV says no more'}"
    )


def match_setting(evaluation: Evaluation, own: Iterable[Evaluation]) -> Evaluation:
    """A CSV's evaluation with the setting of one of `own` on equal text, tokens and numbers, if it
    states no other: they share a table.
    """
    for other in own:
        alike = any(
            all(evaluation.first[name] == row[name] for name in ALIKE) for row in other.rows
        )
        if alike and evaluation.first.get(SETTING) in (None, other.words):
            return replace(evaluation, setting=other.setting)
    return evaluation


def _typed(cells: dict[str, str]) -> dict:
    """Values of a line of a CSV of others by name, losses in nats per token; None where it has
    none. Raises ValueError, in words.
    """
    line: dict = dict.fromkeys((*KEY, "seed", *LOSSES)) | {
        name: text or None for name, text in cells.items()
    }
    for name in ("length", "train_len", *LOSSES, "ppl"):
        text, whole = cells.get(name) or "nan", name in ("length", "train_len")
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{name}={text} is not a number: write it like 3.52") from None
        if whole and cells.get(name) and not (value >= 1 and value % 1 == 0):
            raise ValueError(
                f"{name}={text} is not a number of tokens: give a whole number above 0"
            )
        if whole and MOST_TOKENS < value < math.inf:
            raise ValueError(
                f"{name}={text} is more than the {MOST_TOKENS:,} tokens that are read: give a"
                " length in tokens"
            )
        if not whole and MOST_NATS < abs(value) < math.inf and (name != "ppl" and "nll" in cells):
            raise ValueError(
                f"{name}={text} is no loss in nats per token: give a number up to {MOST_NATS:g}"
            )
        if not whole and "nll" not in cells and value <= 0:
            raise ValueError(f"{name}={value:g} is not a perplexity: give a number above 0")
        value = math.log(value) if not whole and "nll" not in cells else value
        line[name] = (int(value) if whole else value) if math.isfinite(value) else None
    line["nll"] = line["nll"] if "nll" in cells else line["ppl"]
    method = line.get("method") or line.get("label")
    if not (method or line["encoding"]) or line["length"] is None:
        raise ValueError(
            f"there is no {'length' if method or line['encoding'] else 'method'}: each line"
            " needs one"
        )
    low, high = (
        -math.inf if line["low"] is None else line["low"],
        math.inf if line["high"] is None else line["high"],
    )
    if not low <= high or line["nll"] is not None and not low <= line["nll"] <= high:
        raise ValueError(
            f"the loss lies outside of its interval, low={cells.get('low')} to"
            f" high={cells.get('high')}: correct one"
        )
    line["extension"] = line["extension"] or (method if method and line["encoding"] else "none")
    return line | {
        "encoding": line["encoding"] or method,
        "scale_attention": line["scale_attention"] or "none",
    }


def _mean_point(key: dict, seeds: list[dict], source: str | None) -> CurvePoint:
    """Mean over seeds, with the interval that the file states for one seed, or Student's t over
    several.
    """
    nll, half, _ = interval(
        [(math.nan if one["nll"] is None else one["nll"], None) for one in seeds], ""
    )
    floor = means(seeds, ("floor",))["floor"]
    low, high = (
        (seeds[0]["low"], seeds[0]["high"])
        if len(seeds) == 1
        else (None, None)
        if half is None
        else (nll - half, nll + half)
    )
    difference = None if floor is None or nll is None else nll - floor
    losses = {"nll": nll, "floor": floor, "difference": difference, "low": low, "high": high}
    return CurvePoint(
        **key, setting=None, untested=False, n_seeds=len(seeds), source=source, **losses
    )


def place(
    points: Iterable[CurvePoint], own: list[list[CurvePoint]], csv_path: Path | None
) -> list[list[CurvePoint]]:
    """Add each point to every section of `own` that its stated columns do not contradict; the rest
    get sections of their own.
    """
    result = [list(curve) for curve in own]
    for point in sorted(points, key=lambda point: point.train_len is None):
        by_length = [curve for curve in result if curve[0].window is None]
        fitting = [
            curve
            for curve in by_length
            if all(getattr(point, name) in (None, getattr(curve[0], name)) for name in STATED)
        ]
        if not fitting:
            if point.train_len is None:
                raise ConfigError(
                    f"{point.source or csv_path} does not state the training length of its models,"
                    " and no other result here does: add the column train_len."
                )
            fitting = [[]]
            result += fitting
        unstated = " ".join(name for name in STATED if getattr(point, name) is None) or None
        for curve in fitting:
            said = {name: getattr(curve[0] if curve else point, name) for name in SECTION}
            placed = {
                name: value or ("not stated" if name in STATED else None)
                for name, value in said.items()
            }
            curve.append(replace(point, **placed, unstated=unstated))
    return result
