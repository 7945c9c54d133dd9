"""Result rows: one set of numbers per evaluated length, with one schema for all eval jsons and
CSVs.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from posbench.common import defuse
from posbench.common.csv_records import MOST_NATS, MOST_TOKENS, first_repeated
from posbench.common.errors import RunError
from posbench.common.files import nan_as_none, read_bytes, read_json, sha256_json, write_atomic
from posbench.config.identity import without_new_defaults
from posbench.runs.columns import (
    COLUMNS,
    DERIVED_COLUMNS,
    KEY_COLUMNS,
    NEVER_EMPTY_COLUMNS,
    SCHEMA,
    SHARED_COLUMNS,
    TABLE,
    VOLATILE_COLUMNS,
    Column,
    completed_row,
)

MOST_ROWS = 20_000  # rows of one eval json; protocols by position have about 50 per length
# Extra column of a report and its CSV: settings of windows and targets, in words.
SETTING = "setting"
# {unit: largest value of a column}
LARGEST_VALUES = {"tokens": MOST_TOKENS, "bytes": MOST_TOKENS, "nats/token": MOST_NATS}
LARGEST_EXPONENT = 709.0  # exp() of more exceeds a double
DIGEST_KEY = "digest"  # key of an eval json: SHA-256 of all else in it
TYPE_OF_COLUMN = {column.name: column.kind for column in TABLE}


def row_key(row: dict) -> tuple:
    """Values that identify a row (KEY_COLUMNS)."""
    return tuple(row[name] for name in KEY_COLUMNS)


def same_values(row: dict, other: dict) -> bool:
    """True if two rows are equal in all columns but VOLATILE_COLUMNS. A missing argument of
    identity.FIELDS_ADDED_LATER counts as its default.
    """
    return _repeatable_values(row) == _repeatable_values(other)


def _repeatable_values(row: dict) -> dict:
    """Values of a row that are equal when the same evaluation runs twice."""
    values = {name: row[name] for name in COLUMNS if name not in VOLATILE_COLUMNS}
    for group in ("encoding", "extension"):
        arguments = row[f"{group}_args"]
        if arguments:
            values[f"{group}_args"] = without_new_defaults(group, arguments)
    return values


def make_row(**values: Any) -> dict:
    """Complete row in the order of TABLE, from all columns but `schema`, `ppl` and `bpb`, which are
    derived.

    numpy numbers become Python numbers. Numbers that are not finite become None, so that json, CSV
    and memory agree. Raises TypeError for a missing, unknown or wrongly typed column, and
    ValueError for a mean over targets that were not all scored (nan): both are errors of the code,
    not of the user."""
    missing = [name for name in COLUMNS if name not in values and name not in DERIVED_COLUMNS]
    unknown = [name for name in values if name not in COLUMNS or name in DERIVED_COLUMNS]
    if missing or unknown:
        raise TypeError(
            f"a row lacks {missing or 'nothing'} and may not be given {unknown or 'anything else'}"
        )
    if any(values[name] is not None and math.isnan(values[name]) for name in ("nll", "accuracy")):
        raise ValueError(
            f"nll={values['nll']} and accuracy={values['accuracy']} are means over targets that"
            " were not all scored"
        )
    row = {}
    for column in TABLE:
        if column.name not in DERIVED_COLUMNS:
            row[column.name] = _typed_value(column, values[column.name])
    row |= {"schema": SCHEMA, "ppl": perplexity(row), "bpb": bits_per_byte(row)}
    return {name: row[name] for name in COLUMNS}


def perplexity(row: dict) -> float | None:
    """exp(nll) of a row; None without nll, or where it exceeds a double."""
    nll = row["nll"]
    if nll is None or nll > LARGEST_EXPONENT:
        return None
    return math.exp(nll)


def bits_per_byte(row: dict) -> float | None:
    """nll of a row in bits per byte of its targets; None without nll or bytes.

    >>> bits_per_byte({"nll": 2 * math.log(2), "n_targets": 10, "n_bytes": 40})
    0.5
    """
    if row["nll"] is None or not row["n_bytes"]:
        return None
    return row["nll"] * row["n_targets"] / math.log(2) / row["n_bytes"]


def _typed_value(column: Column, value: Any) -> Any:
    """Value in the column's type, None for an empty one. Raises TypeError for another type."""
    if hasattr(value, "item"):
        value = value.item()  # of numpy
    if value is None or value == "":
        return None
    is_bool = isinstance(value, bool)
    if column.kind is float and isinstance(value, int | float) and not is_bool:
        return float(value) if math.isfinite(value) else None  # json has no nan or inf
    if not isinstance(value, column.kind) or (column.kind is int and is_bool):
        raise TypeError(f"column {column.name} takes {column.kind.__name__}, not {value!r}")
    if column.kind is dict:  # as a file gives it back: tuples as lists, keys in order
        return json.loads(json.dumps(value, sort_keys=True))
    return value


def read_eval(path: Path | str) -> list[dict]:
    """Rows of one eval json. Raises RunError when the file is damaged, was changed, or was written
    by a newer posbench.
    """
    content = read_json(path)
    rows = eval_rows(content, path)
    check_digest(content, path)
    return rows


def check_digest(content: dict, path: Path | str) -> None:
    """Raise RunError if the content of an eval json was changed after it was written. Earlier
    versions wrote no digest.
    """
    if DIGEST_KEY in content and content[DIGEST_KEY] != _digest(content):
        raise RunError(
            f"{path} was changed after it was written: restore it, or delete it and run the same"
            " command again."
        )


def _digest(content: dict) -> str:
    return sha256_json(
        nan_as_none({key: value for key, value in content.items() if key != DIGEST_KEY})
    )


def eval_rows(content: dict, path: Path | str) -> list[dict]:
    """Rows of the parsed content of an eval json. Raises RunError when it is damaged or was written
    by a newer posbench.
    """
    try:
        # Checked before they are counted, so that a newer schema is told as one; the rows beyond
        # MOST_ROWS only take time.
        rows = [_checked_row(row, content["schema"], path) for row in content["rows"][:MOST_ROWS]]
        for name in SHARED_COLUMNS:
            if len({row[name] for row in rows}) > 1:
                raise ValueError(f"rows of several {name}s")
        count = len(content["rows"])
        if count > MOST_ROWS:
            raise ValueError(f"{count:,} rows, and {MOST_ROWS:,} are read")
        return rows
    except RunError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunError(
            f"{path} has invalid rows ({error}): delete it and run the same command again."
        ) from error


def _checked_row(row: dict, schema: int, path: Path | str) -> dict:
    """Row of checked types and all columns. Raises RunError for a newer schema, ValueError,
    TypeError, KeyError or AttributeError for what is no row.
    """
    if schema > SCHEMA:
        raise RunError(
            f"{path} has row schema {schema}, this posbench reads up to {SCHEMA}: update posbench,"
            " or evaluate again."
        )
    row = completed_row(row, schema, TABLE)
    typed = {column.name: _typed_value(column, row[column.name]) for column in TABLE}
    typed["schema"] = SCHEMA
    for name in NEVER_EMPTY_COLUMNS:
        if typed[name] is None:
            raise ValueError(f"{name}={typed[name]}")
    for column in TABLE:
        if typed[column.name] is not None:
            _check_range(column, typed[column.name])
    for name, derive in (("ppl", perplexity), ("bpb", bits_per_byte)):
        if not same_number(typed[name], derive(typed), 1e-6):
            raise ValueError(
                f"{name}={typed[name]} does not follow from nll={typed['nll']}, which gives"
                f" {derive(typed)}"
            )
    return typed


def _check_range(column: Column, value: Any) -> None:
    """Raise ValueError for a number that the column cannot hold."""
    if column.least is not None and value < column.least:
        raise ValueError(f"{column.name}={value}")
    most = LARGEST_VALUES.get(column.unit)
    if most is not None and abs(value) > most:
        raise ValueError(f"{column.name}={value:g}, and at most {most:g} is possible")


def same_number(number: float | None, other: float | None, tolerance: float) -> bool:
    """True for two numbers that differ by at most this part of them (near zero, by this), and for
    None twice.
    """
    if number is None or other is None:
        return number is other
    return math.isclose(number, other, rel_tol=tolerance, abs_tol=tolerance)


def eval_content(rows: list[dict], config: dict, **by_length: dict) -> dict:
    """Content of an eval json. `rows` belong to one evaluation and are not empty; each of
    `by_length` is {length: what is known of it}.
    """
    first = rows[0]
    ids = {"schema": SCHEMA, "eval_id": first["eval_id"], "run_id": first["run_id"]}
    content = {**ids, "config": config, **by_length, "rows": rows}
    return {**content, DIGEST_KEY: _digest(content)}


def write_csv(rows: Iterable[dict], path: Path | str) -> None:
    """Write rows as CSV, with a last column `setting` if any row has one.

    None becomes an empty cell, dicts become compact JSON, floats keep every digit.
    """
    rows = list(rows)
    names = [*COLUMNS]
    if any(SETTING in row for row in rows):
        names.append(SETTING)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_cell(row.get(name)) for name in names] for row in rows)
    write_atomic(path, text.getvalue())


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | bool):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return defuse.cell(value)


def read_csv(path: Path | str) -> list[dict]:
    """Rows of a CSV with their original types, and with `setting` if the file has that column.

    Raises RunError when the file is damaged or was written by a newer posbench.
    """
    try:
        # -sig: spreadsheets mark UTF-8 by a first character.
        lines = csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""))
        if "schema" not in (lines.fieldnames or ()):
            raise RunError(
                f"{path} has no column schema, which rows have: give a report's rows.csv."
            )
        repeated_name = first_repeated(lines.fieldnames)
        if repeated_name:
            raise RunError(
                f"{path} has two columns named {defuse.printable(repeated_name)}: remove one, or"
                " make the file again."
            )
        return [_row_of_line(line, path) for line in whole_lines(lines, path)]
    except RunError:
        raise
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunError(
            f"{path} is not a CSV of rows ({error!r}): recreate it with scripts/report.py."
        ) from error


def _row_of_line(line: dict[str, str], path: Path | str) -> dict:
    """Row of a line of a CSV, with its setting if the file has that column."""
    values = {name: _parsed_cell(name, text) for name, text in line.items() if name != SETTING}
    row = _checked_row(values, int(line["schema"]), path)
    if SETTING in line:
        row[SETTING] = defuse.uncell(line[SETTING] or "") or None
    return row


def whole_lines(table: csv.DictReader, path: Path | str) -> Iterator[dict]:
    """Yield the lines of a CSV. Raises RunError for one that ends before the last column, and for
    one that goes on behind it, as 2,5 does where a comma divides cells.
    """
    for line in table:
        further = line.pop(None, [])  # cells behind the last column
        if any(further):
            raise RunError(
                f"{path}, line {table.line_num}, goes on behind the last column with"
                f" {defuse.printable(','.join(further))}: remove this, or put quotation marks"
                " around text with a comma, and a point in numbers."
            )
        lacking = [defuse.printable(name) for name, text in line.items() if text is None]
        if lacking:
            more = ", nor any after it" if len(lacking) > 1 else ""
            raise RunError(
                f"{path}, line {table.line_num}, has no column {lacking[0]}{more}: complete the"
                " line, or make the file again."
            )
        yield line


def _parsed_cell(name: str, text: str) -> Any:
    """Value of a cell in the type of its column."""
    kind = TYPE_OF_COLUMN.get(name, str)
    if text == "":
        return None
    if kind in (dict, bool):
        return json.loads(text)
    if kind is str:
        return defuse.uncell(text)  # without the apostrophe that keeps a spreadsheet from formulas
    return kind(text)
