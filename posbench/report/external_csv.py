"""CSVs of losses in a report of runs: rows.csv of another posbench, or numbers of others.

results/README.md lists the columns of a CSV of others. Such losses are drawn and listed under the
file's name, and are never paired."""

import csv
import io
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from posbench.common.csv_records import MOST_NATS, MOST_TOKENS, first_repeated
from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_bytes
from posbench.report.curves import mean_with_interval, means_over_seeds
from posbench.report.records import SECTION_COLUMNS, SEEDS_KEY, CurvePoint, grouped, read_points
from posbench.report.table_formats import METHOD_COLUMNS
from posbench.results.evaluation import Evaluation
from posbench.results.evidence import notes_on_altered_files
from posbench.results.search import ROWS
from posbench.runs.rows import SETTING, read_csv, whole_lines

STATED_COLUMNS = ("protocol", "data", "tokenizer", "train_len")
# columns that rows of one evaluation share
EVALUATION_COLUMNS = (
    "run_id",
    "eval_id",
    *STATED_COLUMNS,
)
SAME_MEAN_COLUMNS = (
    *STATED_COLUMNS,
    *METHOD_COLUMNS,
    "length",
    "window",
    "n_seeds",
    "n_targets",
    "n_units",
)
# columns of a curve.csv
COLUMNS_FROM_TARGETS = (
    "difference",
    "half_width",
    "over",
    "gain",
    "gain_lower",
    "change",
    "change_half_width",
)
# which rows of seeds give as well
COLUMNS_OF_LOSS = (
    "nll_half_width",
    "accuracy_half_width",
    "nll_over",
)
SAME_TEXT_COLUMNS = (*STATED_COLUMNS, "dtype", "position", "n_targets", "n_units", "n_bytes")
# columns of others that one point has in common
POINT_COLUMNS = (
    *STATED_COLUMNS,
    *METHOD_COLUMNS,
    "length",
)
LOSS_COLUMNS = ("nll", "floor", "low", "high")
# columns of others that are not passed over
READ_COLUMNS = {
    *POINT_COLUMNS,
    *LOSS_COLUMNS,
    "ppl",
    "seed",
    "method",
    "label",
    "run_id",
    "eval_id",
}
# groups of columns, of each of which a CSV of others needs one
NEEDED_COLUMNS = (("length",), ("nll", "ppl"), ("method", "label", "encoding"))
WAY_OUT = "give a CSV with at least the columns method, length and nll, as results/README.md says"


def read_others_csv(path: Path, source: str | None) -> tuple[list[Evaluation], list[CurvePoint]]:
    """Evaluations of a rows.csv, or points of a CSV of others; the other list is empty.

    Raises ConfigError for a file that is neither.
    """
    try:
        if path.name == ROWS:
            notes_on_altered_files(path.parent)  # raises if it was altered
        table = _csv_reader(path)
        columns = _header_names(table, path)
        if {"run_id", "eval_id"} <= set(columns):
            rows = read_csv(path)
            if rows:  # without any, an error below says so
                return _evaluations(rows, path, source), []
        _check_needed(columns, path)
        cells = _lines_by_key(table, columns, path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path} cannot be read as CSV ({error}): give text in UTF-8, with a header and a line"
            " for each loss."
        ) from error
    except RunError as error:
        raise ConfigError(str(error)) from error
    if not cells:
        raise ConfigError(f"{path} holds no line below its header: {WAY_OUT}.")
    points = [
        _mean_point(dict(zip(POINT_COLUMNS, key, strict=True)), list(by_seed.values()), source)
        for key, by_seed in cells.items()
    ]
    return [], points


def _csv_reader(path: Path) -> csv.DictReader:
    """Reader of a CSV, divided by what its header has most of."""
    text = io.StringIO(read_bytes(path).decode("utf-8-sig"), newline="")
    header = text.readline()
    text.seek(0)
    return csv.DictReader(text, delimiter=max(",;\t", key=header.count))


def _header_names(table: csv.DictReader, path: Path) -> dict[str, str]:
    """{name in lower case: name in the header}. Raises ConfigError for two of one name."""
    header = table.fieldnames or ()
    names = [str(name).strip().lower() for name in header]
    twice = first_repeated(name for name in names if name in READ_COLUMNS)
    if twice:
        raise ConfigError(
            f"{path} has two columns named {twice}: remove one, or give it another name."
        )
    return dict(zip(names, header, strict=True))


def _check_needed(columns: Mapping[str, str], path: Path) -> None:
    """Raise ConfigError if a CSV of others lacks a column that it needs."""
    lacking = [" or ".join(names) for names in NEEDED_COLUMNS if not set(names) & set(columns)]
    if lacking:
        present = printable(", ".join(columns)) or "none"
        raise ConfigError(
            f"{path} has no column {', and none '.join(lacking)}, but {present}: {WAY_OUT}."
        )


def _evaluations(rows: list[dict], path: Path, source: str | None) -> list[Evaluation]:
    """Evaluations of the rows of a rows.csv."""
    parts = grouped(printable(rows), operator.itemgetter(*EVALUATION_COLUMNS)).values()
    return [Evaluation(part, path, _setting_words(part[0]), source=source) for part in parts]


def _lines_by_key(
    table: csv.DictReader, columns: Mapping[str, str], path: Path
) -> dict[tuple, dict[str | None, dict]]:
    """{values of POINT_COLUMNS: {seed: line}}. Raises ConfigError, with its number, for a faulty
    line.
    """
    cells: dict[tuple, dict[str | None, dict]] = defaultdict(dict)
    for row in whole_lines(table, path):
        texts = {
            name: str(printable(str(row[column] or "").strip())) for name, column in columns.items()
        }
        try:
            line = _typed_line(texts)
            by_seed = cells[tuple(line[name] for name in POINT_COLUMNS)]
            if line["seed"] in by_seed:
                method = " ".join(line[name] for name in METHOD_COLUMNS)
                raise ValueError(
                    f"{method} at length {line['length']} appears twice: distinguish the lines by"
                    " method, or by a column seed"
                )
        except ValueError as error:
            raise ConfigError(f"{path}, line {table.line_num}: {error}.") from None
        by_seed[line["seed"]] = line
    return cells


def with_stated_intervals(
    points: Iterable[CurvePoint], path: Path, source: str | None
) -> list[CurvePoint]:
    """Points with the intervals and G that a curve.csv beside a rows.csv states for the same means.

    The report that wrote both had every target's loss, which rows.csv has not.
    """
    beside = path.with_name("curve.csv")
    if path.name != ROWS or not beside.is_file():
        return list(points)
    same_as = operator.attrgetter(*SAME_MEAN_COLUMNS)
    in_curve = grouped(read_points(beside), same_as)
    completed = []
    for point in points:
        twin = point
        if point.source == source and point.nll is not None:
            same_losses = (
                other
                for other in in_curve.get(same_as(point), ())
                if other.nll is not None and math.isclose(point.nll, other.nll, rel_tol=1e-9)
            )
            twin = next(same_losses, point)
        columns = {name: getattr(twin, name) for name in COLUMNS_FROM_TARGETS}
        # A curve.csv of an earlier version has none of these: the point's, over seeds, stay.
        if twin.nll_half_width is not None:
            columns |= {name: getattr(twin, name) for name in COLUMNS_OF_LOSS}
        completed.append(replace(point, **columns))
    return completed


def _setting_words(row: dict) -> str:
    """Setting of a row in words; its targets and units in front, since a CSV may say no more."""
    units = f"{row['n_units']} {row['sem_unit']}s, {row['dtype']}"
    # A row by position counts the targets of its own bin, and these words are of all bins.
    counts = units if row["position"] else f"{row['n_targets']} targets in {units}"
    setting = row.get(SETTING)
    if setting and setting.startswith(counts):
        return setting
    return f"{counts}; {setting or 'a CSV says no more'}"


def with_matching_setting(evaluation: Evaluation, others: Iterable[Evaluation]) -> Evaluation:
    """A CSV's evaluation with the setting of the first of `others` on the same text, so that both
    stand in one table; unchanged if it states another setting.
    """
    for other in others:
        alike = any(
            all(evaluation.first[name] == row[name] for name in SAME_TEXT_COLUMNS)
            for row in other.rows
        )
        if alike and evaluation.first.get(SETTING) in (None, other.setting_in_words):
            return replace(evaluation, setting=other.setting)
    return evaluation


def _typed_line(texts: Mapping[str, str]) -> dict:
    """{column: value} of a line of a CSV of others, losses in nats per token; None for no value.

    Raises ValueError, in words.
    """
    line: dict = dict.fromkeys((*POINT_COLUMNS, "seed", *LOSS_COLUMNS))
    line |= {name: text or None for name, text in texts.items()}
    line["length"] = _tokens_or_none("length", texts.get("length"))
    line["train_len"] = _tokens_or_none("train_len", texts.get("train_len"))
    in_nats = "nll" in texts
    for name in LOSS_COLUMNS:
        line[name] = _nats_or_none(name, texts.get(name), in_nats)
    # Without losses in nats all are perplexities, which become losses; so "ppl" holds one, too.
    line["ppl"] = _nats_or_none("ppl", texts.get("ppl"), in_nats)
    if not in_nats:
        line["nll"] = line["ppl"]
    method = line.get("method") or line.get("label")
    encoding = line["encoding"]
    if not method and not encoding:
        raise ValueError("there is no method: each line needs one")
    if line["length"] is None:
        raise ValueError("there is no length: each line needs one")
    _check_interval(line, texts)
    line["encoding"] = encoding or method
    # A method beside an encoding is its extension.
    line["extension"] = line["extension"] or (method if method and encoding else "none")
    line["scale_attention"] = line["scale_attention"] or "none"
    return line


def _number_or_nan(name: str, text: str | None) -> float:
    """Number of a cell, nan of an empty one. Raises ValueError, in words, for anything else."""
    try:
        return float(text or "nan")
    except ValueError:
        raise ValueError(f"{name}={text} is not a number: write it like 3.52") from None


def _tokens_or_none(name: str, text: str | None) -> int | None:
    """Number of tokens of a cell; None of an empty one. Raises ValueError, in words."""
    value = _number_or_nan(name, text)  # nan of an empty cell
    if text and not (value >= 1 and value % 1 == 0):
        raise ValueError(f"{name}={text} is not a number of tokens: give a whole number above 0")
    if value > MOST_TOKENS:  # not of nan
        raise ValueError(
            f"{name}={text} is more than the {MOST_TOKENS:,} tokens that are read: give a length"
            " in tokens"
        )
    return None if math.isnan(value) else int(value)


def _nats_or_none(name: str, text: str | None, in_nats: bool) -> float | None:
    """Loss of a cell in nats, or of a perplexity unless `in_nats`; None if it is not finite.

    Raises ValueError, in words. A perplexity beside losses in nats is not checked.
    """
    value = _number_or_nan(name, text)
    if not in_nats:
        if value <= 0:
            raise ValueError(f"{name}={value:g} is not a perplexity: give a number above 0")
        value = math.log(value)
    elif name != "ppl" and MOST_NATS < abs(value) < math.inf:
        raise ValueError(
            f"{name}={text} is no loss in nats per token: give a number up to {MOST_NATS:g}"
        )
    return value if math.isfinite(value) else None


def _check_interval(line: Mapping, texts: Mapping[str, str]) -> None:
    """Raise ValueError if the loss of a line lies outside of its interval."""
    low = -math.inf if line["low"] is None else line["low"]
    high = math.inf if line["high"] is None else line["high"]
    loss_is_outside = line["nll"] is not None and not low <= line["nll"] <= high
    if low > high or loss_is_outside:
        raise ValueError(
            f"the loss lies outside of its interval, low={texts.get('low')} to"
            f" high={texts.get('high')}: correct one"
        )


def _mean_point(key: dict, lines: list[dict], source: str | None) -> CurvePoint:
    """Mean over the lines of seeds.

    Its interval is that which the file states for one seed, or Student's t over several.
    """
    losses = [math.nan if line["nll"] is None else line["nll"] for line in lines]
    # A CSV has means of seeds alone: no sums over documents, so their unit has no name.
    seeds = [(loss, None) for loss in losses]
    nll, half, _ = mean_with_interval(seeds, unit="")
    low = high = None
    if len(lines) == 1:
        low = lines[0]["low"]
        high = lines[0]["high"]
    elif half is not None:
        low = nll - half
        high = nll + half
    floor = means_over_seeds(lines, ("floor",))["floor"]
    return CurvePoint(
        **key,
        setting=None,
        untested=False,
        n_seeds=len(lines),
        source=source,
        nll=nll,
        floor=floor,
        difference=None if floor is None or nll is None else nll - floor,
        low=low,
        high=high,
        by_seed={SEEDS_KEY: tuple(line["seed"] for line in lines), "nll": tuple(losses)},
    )


def in_sections(
    points: Iterable[CurvePoint], sections: list[list[CurvePoint]], csv_path: Path | None
) -> list[list[CurvePoint]]:
    """Sections, and each point in every one that its stated columns do not contradict.

    The rest get sections of their own.
    """
    result = [list(section) for section in sections]
    # First those that state a training length, since the others go into their sections too.
    for point in sorted(points, key=lambda point: point.train_len is None):
        fitting = [section for section in result if _fits_section(point, section)]
        if not fitting:
            if point.train_len is None:
                raise ConfigError(
                    f"{point.source or csv_path} does not state the training length of its models,"
                    " and no other result here does: add the column train_len."
                )
            result.append([])
            fitting = [result[-1]]
        for section in fitting:
            section.append(_with_section_columns(point, section[0] if section else point))
    return result


def _fits_section(point: CurvePoint, section: list[CurvePoint]) -> bool:
    """True for a section by length that a point's stated columns do not contradict."""
    first = section[0]
    return first.window is None and all(
        getattr(point, name) in (None, getattr(first, name)) for name in STATED_COLUMNS
    )


def _with_section_columns(point: CurvePoint, first: CurvePoint) -> CurvePoint:
    """Point with the columns of the first of its section, and the names of those not stated."""
    columns = {name: getattr(first, name) for name in SECTION_COLUMNS}
    for name in STATED_COLUMNS:
        columns[name] = columns[name] or "not stated"
    unstated = " ".join(name for name in STATED_COLUMNS if getattr(point, name) is None)
    return replace(point, **columns, unstated=unstated or None)
