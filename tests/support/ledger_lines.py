"""The ledger of a results folder, read as anybody may who leaves out lines that were cut short."""

import contextlib
import json
from pathlib import Path

from posbench.results.sweep_names import LEDGER


def read_ledger(folder: Path) -> list[dict]:
    """Its entries, oldest first; none without a ledger."""
    entries = []
    for line in (folder / LEDGER).read_bytes().splitlines() if (folder / LEDGER).exists() else ():
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return [values for values in entries if isinstance(values, dict)]
