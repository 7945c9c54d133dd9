"""The ledger of a results folder: one line for whatever became of each job of each command, appended and never changed.

Each line is a JSON object: time (UTC), command, run_id, cell (protocol, extension and scale; empty for the job as a whole), status,
reason (one sentence, empty where nothing is to be said), seconds (wall time of the job's process, which all its cells share) and
file (the end of what a failed job said, or null). status is ok, failed, skipped (there already), noop, refused or interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.appending import opened_log, write_line
from posbench.common.errors import RunError
from posbench.common.files import opened

if TYPE_CHECKING:
    from posbench.sweep.jobs import Result

NAME = "ledger.jsonl"
STATUS = {"done": "ok", "exists": "skipped"}  # of an outcome; the other words are the same


def record(results: list[Result], command: str) -> None:
    """Write what became of these jobs into the ledgers of their results folders; one that cannot be written ends nothing."""
    lines: dict[str, list[dict]] = {}
    for result in results:
        lines.setdefault(result.job.cfg["results_dir"], []).extend(entries(result, command))
    for folder, found in lines.items():
        try:
            append(folder, found)
        except (OSError, RunError) as error:
            print(f"{Path(folder) / NAME} was not written: {error}", file=sys.stderr, flush=True)


def entries(result: Result, command: str) -> list[dict]:
    """The lines of one job: one for each of its cells, or one for all of it."""
    return [
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
            "run_id": result.job.run.id,
            "cell": outcome.label,
            "status": STATUS.get(outcome.status, outcome.status),
            "reason": outcome.reason,
            "seconds": round(result.seconds, 3),
            "file": str(result.file) if result.file else None,
        }
        for outcome in result.outcomes
    ]


def append(folder: Path | str, lines: Iterable[dict]) -> None:
    """Add lines to the ledger of a results folder, each in one write: lines of several processes never mix.

    Raises OSError when the folder cannot be written or the disk is full, RunError when the ledger is a link or a device.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with opened_log(Path(folder) / NAME) as ledger:
        for values in lines:
            size = os.fstat(ledger).st_size
            torn = size and os.pread(ledger, 1, size - 1) != b"\n"  # a machine died in the middle of a line: it costs no second one
            write_line(ledger, b"\n" * bool(torn) + json.dumps(values).encode())
        os.fsync(ledger)


def read(folder: Path | str) -> list[dict]:
    """All entries of a results folder's ledger, oldest first; empty without one. Lines that are not whole are left out.

    Raises RunError when the ledger is no regular file.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return []
    with opened(path) as ledger:
        found = [_entry(line) for line in ledger.read().splitlines()]
    return [values for values in found if values]


def _entry(line: bytes) -> dict | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
