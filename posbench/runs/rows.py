"""Result rows: one set of numbers per evaluated length, with one schema for all eval jsons and CSVs."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from posbench.common import defuse
from posbench.common.csv_records import MOST_NATS, MOST_TOKENS, repeated
from posbench.common.errors import RunError
from posbench.common.files import read_bytes, read_json, write_atomic
from posbench.config.identity import without_later
from posbench.runs.columns import COLUMNS, COUNTED, DERIVED, KEY, SHARED, STATED, TABLE, VOLATILE, Column

SCHEMA = 1
MOST = 20_000  # rows of one eval json; protocols by position have about 50 per length
SETTING = "setting"  # extra column of a report and its CSV: settings of windows and targets, in words
LARGEST = {"tokens": MOST_TOKENS, "bytes": MOST_TOKENS, "nats/token": MOST_NATS}  # value of a column, by its unit
KINDS = {column.name: column.kind for column in TABLE}


def key(row: dict) -> tuple:
    """Values that identify a row (KEY)."""
    return tuple(row[name] for name in KEY)


def agree(one: dict, two: dict) -> bool:
    """True if two rows are equal in all columns but VOLATILE. A missing argument of identity.LATER counts as its default."""

    def said(row: dict) -> dict:
        args = {group: row[f"{group}_args"] for group in ("encoding", "extension")}
        given = {f"{group}_args": own and without_later(group, own) for group, own in args.items()}
        return {**{name: row[name] for name in COLUMNS if name not in VOLATILE}, **given}

    return said(one) == said(two)


def make_row(**values: Any) -> dict:
    """Complete row in the order of TABLE, from all columns but `schema`, `ppl` and `bpb`, which are derived.

    numpy numbers become Python numbers. Numbers that are not finite become None, so that json, CSV and memory agree.
    Raises TypeError for a missing, unknown or wrongly typed column, and ValueError for a mean over targets that were not all scored
    (nan): both are errors of the code, not of the user.
    """
    missing = [name for name in COLUMNS if name not in values and name not in DERIVED]
    unknown = [name for name in values if name not in COLUMNS or name in DERIVED]
    if missing or unknown:
        raise TypeError(f"a row lacks {missing or 'nothing'} and may not be given {unknown or 'anything else'}")
    if any(values[name] is not None and math.isnan(values[name]) for name in ("nll", "accuracy")):
        raise ValueError(f"nll={values['nll']} and accuracy={values['accuracy']} are means over targets that were not all scored")
    row = {column.name: _typed(column, values[column.name]) for column in TABLE if column.name not in DERIVED}
    nll, n_bytes = row["nll"], row["n_bytes"]
    row["schema"] = SCHEMA
    row["ppl"] = None if nll is None or nll > 709.0 else math.exp(nll)
    row["bpb"] = nll * row["n_targets"] / math.log(2) / n_bytes if nll is not None and n_bytes else None
    return {name: row[name] for name in COLUMNS}


def _typed(column: Column, value: Any) -> Any:
    value = value.item() if hasattr(value, "item") and not isinstance(value, dict) else value
    if value is None or value == "":
        return None
    if column.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, column.kind) or (column.kind is int and isinstance(value, bool)):
        raise TypeError(f"column {column.name} takes {column.kind.__name__}, not {value!r}")
    return json.loads(json.dumps(value, sort_keys=True)) if column.kind is dict else value


def read_eval(path: Path | str) -> list[dict]:
    """Rows of one eval json. Raises RunError when the file is damaged or was written by a newer posbench."""
    return eval_rows(read_json(path), path)


def eval_rows(content: dict, path: Path | str) -> list[dict]:
    """Same as `read_eval`, for the parsed content of a file."""
    try:
        rows = [_checked(row, content["schema"], path) for row in content["rows"][:MOST]]
        if several := [name for name in SHARED if len({row[name] for row in rows}) > 1]:
            raise ValueError(f"rows of several {several[0]}s")
        if (count := len(content["rows"])) > MOST:
            raise ValueError(f"{count:,} rows, and {MOST:,} are read")
        return rows
    except RunError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunError(f"{path} has invalid rows ({error}): delete it and run the same command again.") from error


def _checked(row: dict, schema: int, path: Path | str) -> dict:
    """Row of checked types. Raises RunError for a newer schema, ValueError, TypeError, KeyError or AttributeError for what is no row."""
    if schema > SCHEMA:
        raise RunError(f"{path} has row schema {schema}, this posbench reads up to {SCHEMA}: update posbench, or evaluate again.")
    if set(row) != set(COLUMNS):
        raise ValueError(f"columns that differ from schema {SCHEMA}: {sorted(set(row) ^ set(COLUMNS))}")
    typed = {column.name: _typed(column, row[column.name]) for column in TABLE}
    for name in STATED:
        if typed[name] is None or name in COUNTED and typed[name] < 1:
            raise ValueError(f"{name}={typed[name]}")
    for column in TABLE:
        value = typed[column.name]
        most = LARGEST.get(column.unit)
        if most is not None and value is not None and abs(value) > most:
            raise ValueError(f"{column.name}={value:g}, and at most {most:g} is possible")
    return typed


def eval_content(rows: list[dict], config: dict, **by_length: dict) -> dict:
    """Content of an eval json. `rows` belong to one evaluation and are not empty; each of `by_length` is {length: what is known of it}."""
    first = rows[0]
    return {"schema": SCHEMA, "eval_id": first["eval_id"], "run_id": first["run_id"], "config": config, **by_length, "rows": rows}


def write_csv(rows: Iterable[dict], path: Path | str) -> None:
    """Write rows as CSV, with a last column `setting` if any row has one.

    None becomes an empty cell, dicts become compact JSON, floats keep every digit.
    """
    rows, text = list(rows), io.StringIO()
    names = COLUMNS + (SETTING,) * any(SETTING in row for row in rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    write_atomic(path, text.getvalue())


def _cell(value: Any) -> Any:
    if isinstance(value, dict | bool):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return defuse.cell(value)


def read_csv(path: Path | str) -> list[dict]:
    """Rows of a CSV with their original types, and with `setting` if the file has that column.

    Raises RunError when the file is damaged or was written by a newer posbench.
    """
    try:
        lines = csv.DictReader(io.StringIO(read_bytes(path).decode(), newline=""))
        if "schema" not in (lines.fieldnames or ()):
            raise RunError(f"{path} has no column schema, which rows have: give a report's rows.csv.")
        if name := repeated(lines.fieldnames):
            raise RunError(f"{path} has two columns named {defuse.printable(name)}: remove one, or make the file again.")
        table = list(whole_lines(lines, path))
        settings = [{SETTING: defuse.uncell(row.pop(SETTING) or "") or None} if SETTING in row else {} for row in table]
        rows = [_checked({name: _parsed(name, text) for name, text in row.items()}, int(row["schema"]), path) for row in table]
        return [{**row, **setting} for row, setting in zip(rows, settings, strict=True)]
    except RunError:
        raise
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunError(f"{path} is not a CSV of rows ({error!r}): recreate it with scripts/report.py.") from error


def whole_lines(table: csv.DictReader, path: Path | str) -> Iterator[dict]:
    """Yield the lines of a CSV. Raises RunError for one that ends before the last column."""
    for row in table:
        if lacking := [defuse.printable(name) for name, text in row.items() if text is None]:
            more = ", nor any after it" if len(lacking) > 1 else ""
            raise RunError(f"{path}, line {table.line_num}, has no column {lacking[0]}{more}: complete the line, or make the file again.")
        yield row


def _parsed(name: str, text: str) -> Any:
    kind = KINDS.get(name, str)
    if text == "":
        return None
    return json.loads(text) if kind in (dict, bool) else defuse.uncell(text) if kind is str else kind(text)
