"""Rows as a pandas DataFrame, from result files."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import RunError
from posbench.runs.columns import STATED, TABLE
from posbench.runs.directory import Run
from posbench.runs.rows import key, read_csv, read_eval
from posbench.runs.search import ROWS, find_results

if TYPE_CHECKING:
    import pandas

KINDS = {int: "Int64", float: "float64", bool: "bool"}  # Int64 holds missing numbers as well
DTYPES = {column.name: KINDS[column.kind] for column in TABLE if column.kind in KINDS}
DTYPES |= {name: "int64" for name in STATED if DTYPES.get(name) == "Int64"}


def read_rows(paths: str | Path | Iterable[str | Path]) -> "pandas.DataFrame":
    """DataFrame of the rows of run directories, folders of them, folders or bundles of reports, CSVs or globs, each row once.

    Damaged files are skipped with a warning. Raises ConfigError for a path without runs, RunError when every file is damaged.
    """
    named = find_results([paths] if isinstance(paths, str | Path) else paths)
    files = [(read_eval, path) for run in named.runs for path in Run(run).eval_files()]
    files += [(read_csv, path) for path in (*named.csvs, *(folder / ROWS for folder in named.evidence))]
    found: dict[tuple, dict] = {}
    damaged = []
    for reader, path in files:
        try:
            for row in reader(path):
                found.setdefault(key(row), row)
        except RunError as error:
            damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    for error in damaged:
        warnings.warn(f"Left out: {error}", stacklevel=3)
    return frame(found.values())


def frame(rows: Iterable[dict]) -> "pandas.DataFrame":
    """DataFrame with one column for each of posbench.runs.columns.TABLE. A missing number is NaN, or <NA> among whole numbers."""
    import pandas

    return pandas.DataFrame(list(rows), columns=[column.name for column in TABLE], dtype=object).astype(DTYPES)
