"""Ledger of a results folder: one line per outcome of every job of every command. Lines are appended and never changed.

Each line is a JSON object: time (UTC), command, run_id, cell (protocol, extension and scale; empty for the job as a whole), status,
reason (one sentence, or empty), seconds (wall time of the job's process, shared by all its cells) and file (end of the output of a
failed job, or null). status is ok, failed, skipped (already there), noop, refused or interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

from posbench.common.appending import opened_log, write_line
from posbench.common.errors import RunError
from posbench.sweep.failure import keep
from posbench.sweep.jobs import Result

NAME = "ledger.jsonl"
STATUS = {"done": "ok", "exists": "skipped"}  # statuses of outcomes that have another name here


def record(results: list[Result], command: str, tail: Collection[str] = ()) -> None:
    """Append the results of jobs to the ledgers of their results folders, and keep the `tail` of their output if they failed.

    A write error prints one line and stops nothing.
    """
    lines: dict[str, list[dict]] = {}
    for result in results:
        keep(result, tail, command)
        lines.setdefault(result.job.cfg["results_dir"], []).extend(entries(result, command))
    for folder, found in lines.items():
        try:
            append(folder, found)
        except (OSError, RunError) as error:
            print(f"{Path(folder) / NAME} was not written: {error}", file=sys.stderr, flush=True)


def entries(result: Result, command: str) -> list[dict]:
    """Ledger entries of one job: one per cell, or one for the whole job."""
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
    """Append entries to the ledger of a results folder, each in one write, so that lines of several processes never mix.

    Raises OSError when the folder cannot be written or the disk is full, RunError when the ledger is a link or a device.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with opened_log(Path(folder) / NAME) as ledger:
        for values in lines:
            size = os.fstat(ledger).st_size
            torn = size and os.pread(ledger, 1, size - 1) != b"\n"  # the last line was cut short: do not join the next one to it
            write_line(ledger, b"\n" * bool(torn) + json.dumps(values).encode())
        os.fsync(ledger)
