"""Rows, and points of a report, as a pandas DataFrame, with the values behind the labels."""

import warnings
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, get_args, get_type_hints

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.report.labels import Facts
from posbench.report.records import (
    SEEDS_KEY,
    ContextPoint,
    CurvePoint,
    Score,
    SectionKey,
    StepPoint,
)
from posbench.report.report import Report, collect_report
from posbench.report.table_formats import METHOD_COLUMNS
from posbench.results.evidence import notes_on_altered_files
from posbench.results.search import ROWS, find_results, shortest_endings
from posbench.runs.columns import NEVER_EMPTY_COLUMNS, TABLE
from posbench.runs.rows import read_csv, read_eval, row_key

if TYPE_CHECKING:
    import pandas

# Int64 holds missing numbers as well
DTYPE_OF_TYPE = {
    int: "Int64",
    float: "float64",
    bool: "bool",
}
COLUMN_DTYPES = {
    column.name: DTYPE_OF_TYPE[column.kind] for column in TABLE if column.kind in DTYPE_OF_TYPE
}
COLUMN_DTYPES |= {
    name: "int64" for name in NEVER_EMPTY_COLUMNS if COLUMN_DTYPES.get(name) == "Int64"
}
RECORD_TYPES: dict[str, type[SectionKey]] = {
    "curve": CurvePoint,
    "context": ContextPoint,
    "accuracy": Score,
    "position": CurvePoint,
    "validation": StepPoint,
}
# {field of Facts: column}
FACT_COLUMNS = {
    "encoding": "encoding_name",
    "extension": "extension_name",
    "trained_in": "trained_in",
    "tuned_from": "tuned_from",
    "steps": "train_steps",
}


def read_rows(paths: str | Path | Iterable[str | Path]) -> "pandas.DataFrame":
    """DataFrame of the rows of runs, reports, bundles, CSVs or globs, each row once.

    Damaged files are skipped with a warning.
    """
    results = find_results([paths] if isinstance(paths, str | Path) else paths)
    csvs = [*results.csvs, *(folder / ROWS for folder in results.evidence)]
    files = [(read_eval, path) for path in results.eval_files()]
    files += [(_read_checked, path) for path in csvs]
    rows: dict[tuple, dict] = {}
    errors = []
    for reader, path in files:
        try:
            for row in reader(path):
                rows.setdefault(row_key(row), row)
        except RunError as error:
            errors.append(error)
    if errors and not rows:
        raise errors[0]
    for error in errors:
        warnings.warn(f"Left out: {error}", stacklevel=3)  # at the call of posbench.rows
    return row_frame(rows.values())


def _read_checked(path: Path) -> list[dict]:
    """Rows of a CSV. Raises RunError too if it is not the one that hashes beside it name."""
    if path.name == ROWS:
        notes_on_altered_files(path.parent)
    return read_csv(path)


def row_frame(rows: Iterable[dict]) -> "pandas.DataFrame":
    """DataFrame with one column for each of posbench.runs.columns.TABLE.

    A missing number is NaN, or <NA> among whole numbers.
    """
    import pandas

    columns = [column.name for column in TABLE]
    return pandas.DataFrame(list(rows), columns=columns, dtype=object).astype(COLUMN_DTYPES)


def read_frame(paths: str | Path | Iterable[str | Path], what: str = "curve") -> "pandas.DataFrame":
    """Points of runs, reports, bundles, CSVs or globs; see posbench.frame.

    Raises ConfigError for an unknown `what`, RunError for damage.
    """
    if what not in RECORD_TYPES:
        raise ConfigError(
            f"what={what!r} is not a table of a report{did_you_mean(str(what), RECORD_TYPES)}"
            f": choose from {', '.join(RECORD_TYPES)}."
        )
    report = read_report(paths)
    sections = {
        "curve": report.sections,
        "context": report.contexts,
        "accuracy": report.scores,
        "position": report.stretches.values(),
        "validation": report.validations,
    }
    points = [point for section in sections[what] for point in section]
    return record_frame(points, RECORD_TYPES[what])


def read_report(paths: str | Path | Iterable[str | Path]) -> Report:
    """Report of runs, reports, bundles, CSVs or globs, without a title."""
    results = find_results([paths] if isinstance(paths, str | Path) else paths)
    return collect_report(
        results.eval_files(),
        title="",
        command="scripts/run.py",
        csvs=results.csvs,
        skip_damaged=True,
        evidence=results.evidence,
    )


def record_frame(records: Iterable[SectionKey], kind: type[SectionKey]) -> "pandas.DataFrame":
    """DataFrame of records, with a column for each of a CSV of `kind`, for each of FACT_COLUMNS,
    and for the values of seeds (`seed_columns`), which are tuples.

    A missing number is <NA> or NaN.
    """
    import pandas

    types = get_type_hints(kind)
    types_of_facts = get_type_hints(Facts)
    dtypes = {name: _column_dtype(types[name]) for name in _csv_columns(kind)}
    dtypes_of_facts = {
        column: _column_dtype(types_of_facts[name]) for name, column in FACT_COLUMNS.items()
    }
    table = []
    for record in records:
        values = [getattr(record, name) for name in dtypes]
        values += [getattr(record.label_facts, name) for name in FACT_COLUMNS]
        values += [(record.by_seed or {}).get(name) for name in seed_columns(kind).values()]
        table.append(values)
    columns = [*dtypes, *dtypes_of_facts, *seed_columns(kind)]
    return pandas.DataFrame(table, columns=columns, dtype=object).astype(dtypes | dtypes_of_facts)


def seed_columns(kind: type[SectionKey]) -> dict[str, str]:
    """{column of a frame: key in `by_seed` of its records}.

    >>> seed_columns(Score)
    {'seeds': 'seeds', 'accuracy_by_seed': 'accuracy'}
    """
    return {SEEDS_KEY: SEEDS_KEY} | {f"{name}_by_seed": name for name in kind.BY_SEED}


def _csv_columns(kind: type[SectionKey]) -> list[str]:
    """Columns of a CSV of these records."""
    return [field.name for field in fields(kind) if field.metadata.get("column", True)]


def records_of_frame(table: "pandas.DataFrame") -> list[CurvePoint] | list[Score] | list[StepPoint]:
    """The points, scores of tasks, or losses by step that a frame was made of, in its order.

    What it has no column for is unknown.
    """
    import pandas

    kind = CurvePoint
    if "task" in table:
        kind = Score
    elif "step" in table:
        kind = StepPoint
    of_seeds = seed_columns(kind)
    columns = [*_csv_columns(kind), *FACT_COLUMNS.values(), *of_seeds]
    filled = table.reindex(columns=columns).astype(object)
    points = []
    for line in filled.where(pandas.notna(filled), None).to_dict("records"):
        facts = {name: line.pop(column) for name, column in FACT_COLUMNS.items()}
        by_seed = {name: line.pop(column) for column, name in of_seeds.items()}
        for name in METHOD_COLUMNS:
            line[name] = line[name] or "none"
        line["untested"] = bool(line["untested"])
        facts["encoding"] = facts["encoding"] or line["encoding"]
        facts["extension"] = facts["extension"] or line["extension"]
        values = by_seed if by_seed[SEEDS_KEY] else None
        points.append(
            kind(**line, facts=Facts(**facts, encoding_label=line["encoding"]), by_seed=values)
        )
    return points


def frame_by_source(paths: Iterable[str | Path], what: str = "curve") -> "pandas.DataFrame":
    """Frame of several sweeps, the folder of each in `source`, CSVs beside the first.

    Those without rows are in attrs["empty"].
    """
    import pandas

    sweeps: dict[Path, list[Path]] = {}  # {folder: runs or reports in it}
    csvs: list[Path] = []
    for path in paths:
        results = find_results([path])
        for run in results.runs:
            sweeps.setdefault(run.parent.resolve(), []).append(run)
        for folder in results.evidence:  # folders of reports
            sweeps.setdefault(folder.resolve(), []).append(folder)
        for file in results.csvs:
            if file.name == ROWS:  # of a report: its folder is a sweep
                sweeps.setdefault(file.parent.resolve(), []).append(file)
            else:
                csvs.append(file)
    tables = {}  # {short name of the sweep: frame}
    for folder, name in shortest_endings(list(sweeps)).items():
        beside = [] if tables else csvs  # CSVs of other places are read once, with the first sweep
        table = read_frame([*sweeps[folder], *beside], what)
        tables[name] = table.assign(source=table.source.fillna(name))
    # Where none has rows, one empty frame gives the columns.
    with_rows = [table for table in tables.values() if len(table)] or list(tables.values())[:1]
    joined = pandas.concat(with_rows, ignore_index=True) if with_rows else read_frame(csvs, what)
    joined.attrs["empty"] = [name for name, table in tables.items() if not len(table)]
    return joined


def _column_dtype(hint: object) -> str:
    """Dtype of a column by the type of its values, which may be None.

    >>> _column_dtype(int | None), _column_dtype(str)
    ('Int64', 'object')
    """
    options = get_args(hint) or (hint,)
    value_type = next(option for option in options if option is not NoneType)
    return DTYPE_OF_TYPE.get(value_type, "object")
