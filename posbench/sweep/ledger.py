"""Records of the outcomes of jobs: the ledger of a results folder, and failure.txt with the end of
the output of a failed job.

The ledger has one line per outcome of every job of every command. Lines are appended and never
changed. Each is a JSON object: time (UTC), command, run_id, cell (protocol, extension and scale;
empty for the job as a whole), status, reason (one sentence, or empty), seconds (wall time of the
job's process, shared by all its cells), file (end of the output of a failed job, or null) and name
(of the sweep, or null).
status is ok, failed, skipped (already there), noop, refused or interrupted."""

import signal
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import append_lines, write_atomic
from posbench.common.outcome import unforeseen_reason
from posbench.results.sweep_names import LEDGER
from posbench.sweep.jobs import Result

TAIL = 200  # lines of a job's output that are kept

# {status of an outcome: its word in the ledger}; the other statuses are words of it already
LEDGER_WORDS = {"done": "ok", "exists": "skipped"}


def record(results: list[Result], command: str, tail: Collection[str] = ()) -> None:
    """Append the results of jobs to the ledgers of their results folders, and keep the `tail` of
    their output if they failed.

    A write error prints one line and stops nothing.
    """
    lines: dict[str, list[dict]] = {}
    for result in results:
        keep(result, tail, command)
        lines.setdefault(result.job.config.results_dir, []).extend(
            {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": command,
                "run_id": result.job.run.id,
                "cell": outcome.label,
                "status": LEDGER_WORDS.get(outcome.status, outcome.status),
                "reason": outcome.reason,
                "seconds": round(result.seconds, 3),
                "file": str(result.file) if result.file else None,
                "name": result.job.config.name,
            }
            for outcome in result.outcomes
        )
    for folder, entries in lines.items():
        try:
            append_lines(Path(folder) / LEDGER, entries, sync=True)
        except RunError as error:
            print(f"{Path(folder) / LEDGER} was not written: {error}", file=sys.stderr, flush=True)


def keep(result: Result, tail: Collection[str], command: str) -> None:
    """Write failure.txt for a failed job and name it in the result. After a success, delete that of
    an earlier attempt.

    The file does not belong to the results and is written without the run's lock. If that fails,
    one line on stderr says so."""
    path = result.job.run.failure
    try:
        if result.failures:
            reasons = [outcome.reason for outcome in result.failures]
            text = "\n".join([*reasons, f"command: {command}", "", *tail])
            write_atomic(path, f"{text}\n")
            result.file = path
        elif result.code == 0:
            path.unlink(missing_ok=True)
    except (OSError, RunError) as error:
        print(f"{path} was not written: {error}", file=sys.stderr, flush=True)


def why_ended(code: int, tail: Collection[str]) -> str:
    """Reason why a child ended without outcomes: its signal (code 128 + n), exception or exit code.

    >>> why_ended(3, ["step 1", "step 2"])
    'ended with exit code 3 before it was done'
    """
    if code > 128:
        number = code - 128
        is_named = number in signal.valid_signals()
        name = signal.Signals(number).name if is_named else f"signal {number}"
        hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"ended by {name}{hint}; the same command goes on from its last checkpoint"
    lines = list(tail)
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback ")]
    reason = unforeseen_reason(lines[starts[-1] + 1 :]) if starts else ""
    return reason or f"ended with exit code {code} before it was done"


def failure_lines(results: list[Result]) -> list[str]:
    """Lines with all failures: run, cell and reason, and the file below."""
    lines = ["failed, with reason and file:"]
    for result in results:
        for outcome in result.failures:
            stage = "evaluation" if result.job.run.finished else "training"
            lines.append(f"  {result.job.run.id}  {outcome.label or stage}: {outcome.reason}")
            if result.file:
                lines.append(f"    {result.file}")
    return lines
