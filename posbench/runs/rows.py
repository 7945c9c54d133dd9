"""Result rows: one set of numbers per evaluated length, with one schema for all eval jsons and CSVs.

TABLE is the only definition of the columns; results/README.md shows the same text.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.common import defuse
from posbench.common.errors import RunError
from posbench.common.files import read_bytes, read_json, write_atomic
from posbench.config.identity import without_later

SCHEMA = 1


@dataclass(frozen=True)
class Column:
    """Column of a row: its name, its type in CSV and json, its unit ("" for none) and its meaning."""

    name: str
    kind: type
    unit: str
    meaning: str


TABLE = (
    Column("schema", int, "", "version of this table"),
    Column("run_id", str, "", "the training: readable prefix + hash of its configuration and data"),
    Column("eval_id", str, "", "the evaluation: hash of run, protocol, methods, windows and targets (not of the lengths)"),
    Column("encoding", str, "", "positional encoding the model was trained with"),
    Column("encoding_args", dict, "", "its arguments"),
    Column("extension", str, "", "context-extension applied at evaluation"),
    Column("extension_args", dict, "", "its arguments"),
    Column("scale_attention", str, "", "scale-attention rule applied at evaluation, its arguments in braces where it has any"),
    Column("trained_scale", str, "", "scale-attention rule the model was trained with"),
    Column("finetune", str, "", "run_id of the parent if this run was fine-tuned from one, else empty"),
    Column("untested", bool, "", "true where the pair of methods is outside what its authors tested"),
    Column("seed", int, "", "seed of the training"),
    Column("data", str, "", "corpus"),
    Column("tokenizer", str, "", "tokenizer"),
    Column("dtype", str, "", "number format of the evaluation"),
    Column("train_len", int, "tokens", "training length (the longest, where several were mixed)"),
    Column("length", int, "tokens", "evaluated length: tokens fed for each window"),
    Column("target_len", int, "tokens", "length the extension was configured for"),
    Column("protocol", str, "", "how windows and targets were chosen"),
    Column("position", int, "tokens", "last position of the bin (protocol by_position), else empty"),
    Column("task", str, "", "name of the task, empty for text"),
    Column("depth", float, "", "where in the window the asked-for item stands, 0 start to 1 end, else empty"),
    Column("n_targets", int, "tokens", "scored tokens"),
    Column("n_bytes", int, "bytes", "text the scored tokens stand for"),
    Column("n_units", int, "", "independent units behind the standard error"),
    Column("sem_unit", str, "", "what these units are: document, else window"),
    Column("nll", float, "nats/token", "mean negative log likelihood over all scored tokens; empty where it is not finite"),
    Column("nll_sem", float, "nats/token", "standard error of nll, clustered by unit"),
    Column("ppl", float, "", "exp(nll); empty where it exceeds a double"),
    Column("bpb", float, "bits/byte", "sum of nll / ln 2 / n_bytes"),
    Column("accuracy", float, "", "share of scored tokens whose most likely token was right"),
    Column("max_distance", float, "tokens", "largest coordinate distance any scored query saw"),
    Column("seconds", float, "s", "wall time of this length"),
    Column("peak_mib", float, "MiB", "peak memory of the device, or of the process on CPU"),
    Column("commit", str, "", "commit of the code, with + appended where it was changed since"),
)
COLUMNS = tuple(column.name for column in TABLE)
VOLATILE = ("seconds", "peak_mib", "commit")  # all other columns are equal when the same evaluation runs twice
KEY = ("run_id", "eval_id", "length", "position", "task", "depth")  # columns that identify a row
STATED = ("schema", "run_id", "eval_id", "encoding", "extension", "scale_attention", "untested", "seed", "data", "tokenizer", "dtype",
          "train_len", "length", "protocol", "n_targets", "n_units", "sem_unit")  # never empty  # fmt: skip
COUNTED = ("train_len", "length", "n_targets", "n_units")  # at least 1
WIDEST = 2**64
# Columns that are equal in all rows of one eval file. A file has at most MOST rows; protocols by position have about 50 per length.
SHARED = ("run_id", "eval_id", "encoding", "extension", "scale_attention", "trained_scale", "seed", "data", "tokenizer", "train_len",
          "protocol")  # fmt: skip
MOST = 20_000
DERIVED = ("schema", "ppl", "bpb")
SETTING = "setting"  # extra column of a report and its CSV: settings of windows and targets, in words
UPGRADES: dict[int, Callable[[dict], dict]] = {}  # {schema n: function that turns its row into schema n + 1}


def key(row: dict) -> tuple:
    """Values that identify a row (KEY)."""
    return tuple(row[name] for name in KEY)


def agree(one: dict, two: dict) -> bool:
    """True if two rows are equal in all columns but VOLATILE. A missing argument of identity.LATER counts as its default."""
    return _said(one) == _said(two)


def _said(row: dict) -> dict:
    return {name: without_later(name.removesuffix("_args"), row[name]) if name.endswith("_args") and row[name] else row[name]
            for name in COLUMNS if name not in VOLATILE}  # fmt: skip


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
    """Rows of one eval json, upgraded to today's schema.

    Raises RunError when the file is damaged or was written by a newer posbench.
    """
    return eval_rows(read_json(path), path)


def eval_rows(content: dict, path: Path | str) -> list[dict]:
    """Same as `read_eval`, for the parsed content of a file."""
    schema, rows = (content.get("schema"), content.get("rows")) if isinstance(content, dict) else (None, None)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1 or not isinstance(rows, list):
        raise RunError(f"{path} is no eval file (it lacks 'schema' or 'rows'): delete it and run the same command again.")
    try:
        read = [_upgraded(row, schema, path) for row in rows[:MOST]]
        several = [name for name in SHARED if len({row[name] for row in read}) > 1]
        if several or len(rows) > MOST:
            said = f"rows of several {several[0]}s" if several else f"{len(rows):,} rows, and {MOST:,} are read"
            raise RunError(f"{path} holds {said}: delete it and evaluate again.")
        return read
    except RunError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunError(f"{path} holds rows that are none ({error}): delete it and run the same command again.") from error


def _upgraded(row: dict, schema: int, path: Path | str) -> dict:
    if schema > SCHEMA:
        raise RunError(f"{path} has row schema {schema}, this posbench reads up to {SCHEMA}: update posbench, or evaluate again.")
    for version in range(schema, SCHEMA):
        row = {**UPGRADES[version](row), "schema": version + 1}
    if set(row) != set(COLUMNS):
        raise RunError(f"{path} has other columns than schema {SCHEMA} ({sorted(set(row) ^ set(COLUMNS))}): delete it and evaluate again.")
    upgraded = {column.name: _typed(column, row[column.name]) for column in TABLE}
    empty = [name for name in STATED if upgraded[name] is None]
    small = [name for name in COUNTED if not empty and upgraded[name] < 1]
    if empty or small or any(isinstance(value, int) and abs(value) >= WIDEST for value in upgraded.values()):
        said = f"nothing in {', '.join(empty)}" if empty else f"{small[0]}={upgraded[small[0]]}" if small else "a number beyond 64 bits"
        raise RunError(f"{path} holds a row with {said}: delete it and evaluate again.")
    return upgraded


def eval_content(rows: list[dict], config: dict, machines: dict | None = None) -> dict:
    """Content of an eval json. `rows` belong to one evaluation and are not empty; `machines` is {length: machine that evaluated it}."""
    first, where = rows[0], {} if machines is None else {"machines": machines}
    return {"schema": SCHEMA, "eval_id": first["eval_id"], "run_id": first["run_id"], "config": config, **where, "rows": rows}


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


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | bool):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return repr(value) if isinstance(value, float) else defuse.cell(value) if isinstance(value, str) else str(value)


def read_csv(path: Path | str) -> list[dict]:
    """Rows of a CSV with their original types, and with `setting` if the file has that column.

    Raises RunError when the file is damaged or was written by a newer posbench.
    """
    try:
        table = list(csv.DictReader(io.StringIO(read_bytes(path).decode(), newline="")))
        settings = [{SETTING: defuse.uncell(row.pop(SETTING) or "") or None} if SETTING in row else {} for row in table]
        rows = [_upgraded({name: _parsed(name, text) for name, text in row.items()}, int(row["schema"]), path) for row in table]
        return [{**row, **setting} for row, setting in zip(rows, settings, strict=True)]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path} is not a CSV of rows ({error!r}): make it again with scripts/report.py.") from error


KINDS = {column.name: column.kind for column in TABLE}


def _parsed(name: str, text: str) -> Any:
    if text == "":
        return None
    kind = KINDS.get(name, str)
    return json.loads(text) if kind in (dict, bool) else defuse.uncell(text) if kind is str else kind(text)
