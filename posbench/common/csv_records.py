"""Dataclass records to CSV and back, one line each.

Floats keep every digit, so that the file reproduces tables and figures.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType
from typing import TypeVar, get_args, get_type_hints

from posbench.common import defuse
from posbench.common.errors import RunError
from posbench.common.files import read_bytes

Record = TypeVar("Record")
MOST_TOKENS = 10**12  # in a text; numbers beyond it are no lengths, and no axis or array takes them
MOST_NATS = 1e9  # in a loss
READERS = {str: defuse.uncell, int: int, float: float, bool: lambda text: text == "True"}


def first_repeated(names: Iterable[str]) -> str | None:
    """First name that stands twice in a header; None if all differ. Empty names may repeat.

    >>> first_repeated(["loss", "", "", "length", "loss"])
    'loss'
    """
    seen = set()
    for name in filter(None, names):
        if name in seen:
            return name
        seen.add(name)
    return None


def to_csv(records: Iterable[Record], kind: type[Record]) -> str:
    """CSV text: a header, then one line per record of the dataclass `kind`. An empty cell is None.

    A field with the metadata {"column": False} is left out, one with {"sparse": True} where no
    record has a value of it."""
    records = list(records)
    names = [field.name for field in fields(kind) if _is_column(field, records)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        writer.writerow([defuse.cell(getattr(record, name)) for name in names])
    return text.getvalue()


def _is_column(field: Field, records: list) -> bool:
    """True if the file has a column of this field of the records."""
    if not field.metadata.get("column", True):
        return False
    if not field.metadata.get("sparse"):
        return True
    return any(getattr(record, field.name) is not None for record in records)


def from_csv(path: Path | str, kind: type[Record], what: str, script: str) -> list[Record]:
    """Records read from a file that `to_csv` wrote. Raises RunError for any other file.

    `what` names the expected content and `script` the command that makes the file again; both stand
    in the error."""
    # The types of each column: `float | None` has two
    types = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}

    def value(name: str, text: str | None) -> object:
        # An empty cell is None in a column that may hold it.
        if not text and NoneType in types[name]:
            return None
        return READERS[types[name][0]](text or "")

    try:
        table = csv.DictReader(io.StringIO(read_bytes(path).decode(), newline=""))
        if name := first_repeated(table.fieldnames or ()):
            raise ValueError(f"two columns named {name}")
        return [kind(**{name: value(name, text) for name, text in row.items()}) for row in table]
    except (KeyError, TypeError, ValueError, AttributeError, csv.Error) as error:
        raise RunError(f"{path} is not {what} ({error!r}): recreate it with {script}.") from error
