"""Rows, and points of a report, as a pandas DataFrame: the numbers of its tables and figures, with
the values behind the labels.
"""

import warnings
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, get_args, get_type_hints

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.report.labels import Facts
from posbench.report.records import ContextPoint, CurvePoint, Score, SectionKey
from posbench.report.report import collect
from posbench.report.table_formats import METHOD
from posbench.results.evidence import check_folder
from posbench.results.search import ROWS, find_results, shortest_endings
from posbench.runs.columns import NEVER_EMPTY, TABLE
from posbench.runs.rows import key, read_csv, read_eval

if TYPE_CHECKING:
    import pandas

KINDS = {int: "Int64", float: "float64", bool: "bool"}  # Int64 holds missing numbers as well
DTYPES = {column.name: KINDS[column.kind] for column in TABLE if column.kind in KINDS}
DTYPES |= {name: "int64" for name in NEVER_EMPTY if DTYPES.get(name) == "Int64"}
RECORDS: dict[str, type[SectionKey]] = {
    "curve": CurvePoint,
    "context": ContextPoint,
    "accuracy": Score,
    "position": CurvePoint,
}
BEHIND = {
    "encoding": "encoding_name",
    "extension": "extension_name",
    "trained_in": "trained_in",
    "tuned_from": "tuned_from",
}
BEHIND |= {"steps": "train_steps"}


def read_rows(paths: str | Path | Iterable[str | Path]) -> "pandas.DataFrame":
    """DataFrame of the rows of runs, reports, bundles, CSVs or globs, each row once. Damaged files
    are skipped with a warning.
    """
    named = find_results([paths] if isinstance(paths, str | Path) else paths)
    files = [(read_eval, path) for path in named.eval_files()]
    files += [
        (_read_checked, path)
        for path in (*named.csvs, *(folder / ROWS for folder in named.evidence))
    ]
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
    return row_frame(found.values())


def _read_checked(path: Path) -> list[dict]:
    """Rows of a CSV. Raises RunError too if it is not the one that a list of hashes beside it
    names.
    """
    if path.name == ROWS:
        check_folder(path.parent)
    return read_csv(path)


def row_frame(rows: Iterable[dict]) -> "pandas.DataFrame":
    """DataFrame with one column for each of posbench.runs.columns.TABLE. A missing number is NaN,
    or <NA> among whole numbers.
    """
    import pandas

    return pandas.DataFrame(
        list(rows), columns=[column.name for column in TABLE], dtype=object
    ).astype(DTYPES)


def read(paths: str | Path | Iterable[str | Path], what: str = "curve") -> "pandas.DataFrame":
    """Points of runs, reports, bundles, CSVs or globs; see posbench.frame. ConfigError for an
    unknown `what`, RunError for damage.
    """
    if what not in RECORDS:
        raise ConfigError(
            f"what={what!r} is not a table of a report{did_you_mean(str(what), RECORDS)}: choose"
            f" from {', '.join(RECORDS)}."
        )
    named = find_results([paths] if isinstance(paths, str | Path) else paths)
    report = collect(
        named.eval_files(),
        "",
        "scripts/run.py",
        named.csvs,
        skip_damaged=True,
        evidence=named.evidence,
    )
    sections = {
        "curve": report.sections,
        "context": report.contexts,
        "accuracy": report.scores,
        "position": report.stretches.values(),
    }
    return frame([one for section in sections[what] for one in section], RECORDS[what])


def frame(records: Iterable[SectionKey], kind: type[SectionKey]) -> "pandas.DataFrame":
    """DataFrame of records, with a column for each of a CSV of `kind` and for each of BEHIND. A
    missing number is <NA> or NaN.
    """
    import pandas

    hints = get_type_hints(kind)
    columns = {
        one.name: _column_dtype(hints[one.name])
        for one in fields(kind)
        if one.metadata.get("column", True)
    }
    behind = {
        BEHIND[one.name]: _column_dtype(get_type_hints(Facts)[one.name])
        for one in fields(Facts)
        if one.name in BEHIND
    }
    table = [
        [*(getattr(one, name) for name in columns), *(getattr(one.behind, name) for name in BEHIND)]
        for one in records
    ]
    return pandas.DataFrame(table, columns=[*columns, *behind], dtype=object).astype(
        columns | behind
    )


def records(table: "pandas.DataFrame") -> list[CurvePoint] | list[Score]:
    """The points, or scores of tasks, that a frame was made of, in its order. What it has no column
    for is unknown.
    """
    import pandas

    kind = Score if "task" in table else CurvePoint
    names = [one.name for one in fields(kind) if one.metadata.get("column", True)]
    filled = table.reindex(columns=[*names, *BEHIND.values()]).astype(object)
    found = []
    for line in filled.where(pandas.notna(filled), None).to_dict("records"):
        label = {name: line[name] or "none" for name in METHOD} | {
            "untested": bool(line["untested"])
        }
        facts = {name: line.pop(column) for name, column in BEHIND.items()}
        known = {
            **facts,
            "encoding": facts["encoding"] or label["encoding"],
            "extension": facts["extension"] or label["extension"],
        }
        found.append(kind(**line | label, facts=Facts(**known, line=label["encoding"])))
    return found


def by_source(paths: Iterable[str | Path], what: str = "curve") -> "pandas.DataFrame":
    """Frame of several sweeps, the folder of each in `source`, CSVs beside the first. Those without
    rows are in attrs["empty"].
    """
    import pandas

    sweeps: dict[Path, list[Path]] = {}
    csvs: list[Path] = []
    for named in (find_results([path]) for path in paths):
        reports = [*named.evidence, *(path for path in named.csvs if path.name == ROWS)]
        for path in [*named.runs, *reports]:
            folder = path.parent if path in named.runs or path.name == ROWS else path
            sweeps.setdefault(folder.resolve(), []).append(path)
        csvs += [path for path in named.csvs if path.name != ROWS]
    tables = {}
    for folder, name in shortest_endings(list(sweeps)).items():
        table = read([*sweeps[folder], *([] if tables else csvs)], what)
        tables[name] = table.assign(source=table.source.fillna(name))
    known = [table for table in tables.values() if len(table)] or list(tables.values())[:1]
    found = pandas.concat(known, ignore_index=True) if known else read(csvs, what)
    found.attrs["empty"] = [name for name, table in tables.items() if not len(table)]
    return found


def _column_dtype(hint: object) -> str:
    return KINDS.get(
        next(one for one in get_args(hint) or (hint,) if one is not NoneType), "object"
    )
