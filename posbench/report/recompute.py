"""Check of a folder of evidence: what does not follow from its rows and sums."""

import io
from pathlib import Path

import numpy as np

from posbench.common.files import read_bytes
from posbench.evaluation.protocol import known
from posbench.report.folder import texts_of
from posbench.report.report import Report, collect
from posbench.runs.evidence import read_evidence


def disagreements(folder: Path, report: Report | None = None) -> list[str]:
    """Faults of a folder of evidence, in words; its `report` is made again unless it is given.

    Each row must be the mean of its sums; curve.csv, table.md and the other tables what rows and sums give.
    """
    evaluations, _, _ = read_evidence(folder)
    found = []
    for one in evaluations:
        for row in one.rows:
            for name, column in (("nll", "nll"), ("correct", "accuracy")):
                if (sums := one.sums(row, name)) is None:  # tokens of the scripts weigh unequally
                    if getattr(known(row["protocol"]), "paired", True) and not one.further(row):
                        found.append(f"{row['run_id']} {row['protocol']} {row['length']}: {column} without sums")
                    continue
                mean = float(sums.means[0])
                if row[column] is not None and np.isfinite(mean) and not np.isclose(mean, row[column], rtol=1e-9, atol=1e-9):
                    found.append(f"{row['run_id']} {row['protocol']} {row['length']}: {column} {row[column]}, its sums {mean}")
    for name, text in texts_of(report or collect([], "again", "report.py", evidence=[folder])).items():
        kept = read_bytes(folder / name).decode() if (folder / name).is_file() and name != "table.tex" else ""
        if name.endswith(".csv") and not _alike(text, kept):
            found.append(f"{name} is not what rows and sums give")
        lines, before = set(text.splitlines()[1:]), set(kept.splitlines())
        said = {line for line in before if line.startswith(("|", "- ", "**"))}  # all but the title and notes, which may be more
        if name == "table.md" and not said <= lines <= before:
            found.append("table.md is not what rows and sums give")
    return found


def _alike(one: str, other: str) -> bool:
    """True if two CSVs have the same lines in any order, numbers to 1e-9. A file of before a column came has none of it."""
    import pandas

    tables = [pandas.read_csv(io.StringIO(text)) for text in (one, other)]
    columns = [*tables[1].columns]
    try:
        pandas.testing.assert_frame_equal(
            *(table[columns].sort_values(columns, ignore_index=True) for table in tables), rtol=1e-9, atol=1e-9, check_dtype=False
        )
    except (AssertionError, KeyError):
        return False
    return True
