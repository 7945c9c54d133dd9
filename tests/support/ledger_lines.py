"""The ledger of a results folder, read as anybody may who leaves out lines that were cut short."""

import contextlib
import json
from pathlib import Path

from posbench.sweep.ledger import NAME


def read_ledger(folder: Path) -> list[dict]:
    """Its entries, oldest first; none without a ledger."""
    found = []
    for line in (folder / NAME).read_bytes().splitlines() if (folder / NAME).exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [values for values in found if isinstance(values, dict)]
