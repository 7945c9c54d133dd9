"""Records of the outcomes of jobs: the ledger of a results folder, and failure.txt with the end of
the output of a failed job.

The ledger has one line per outcome of every job of every command. Lines are appended and never
changed. Each is a JSON object: time (UTC), command, run_id, cell (protocol, extension and scale;
empty for the job as a whole), status, reason (one sentence, or empty), seconds (wall time of the
job's process, shared by all its cells) and file (end of the output of a failed job, or null).
status is ok, failed, skipped (already there), noop, refused or interrupted."""

import re
import signal
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import append_lines, write_atomic
from posbench.sweep.jobs import Result

NAME = "ledger.jsonl"
TAIL = 200  # lines of a job's output that are kept
NO_MEMORY = re.compile("out of memory|OutOfMemory|MemoryError|allocate memory|bad_alloc", re.I)
STATUS = {"done": "ok", "exists": "skipped"}  # statuses of outcomes that have another name here


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
                "status": STATUS.get(outcome.status, outcome.status),
                "reason": outcome.reason,
                "seconds": round(result.seconds, 3),
                "file": str(result.file) if result.file else None,
            }
            for outcome in result.outcomes
        )
    for folder, found in lines.items():
        try:
            append_lines(Path(folder) / NAME, found, sync=True)
        except RunError as error:
            print(f"{Path(folder) / NAME} was not written: {error}", file=sys.stderr, flush=True)


def keep(result: Result, tail: Collection[str], command: str) -> None:
    """Write failure.txt for a failed job and name it in the result. After a success, delete that of
    an earlier attempt.

    The file does not belong to the results and is written without the run's lock. If that fails,
    one line on stderr says so."""
    path = result.job.run.failure
    try:
        if result.failures:
            said = [
                *(outcome.reason for outcome in result.failures),
                f"command: {command}",
                "",
                *tail,
            ]
            write_atomic(path, "\n".join(said) + "\n")
            result.file = path
        elif result.code == 0:
            path.unlink(missing_ok=True)
    except (OSError, RunError) as error:
        print(f"{path} was not written: {error}", file=sys.stderr, flush=True)


def why_ended(code: int, tail: Collection[str]) -> str:
    """Reason why a child ended without outcomes: the signal (code 128 + n), the exception it
    raised, or its exit code.
    """
    if code > 128:
        name = (
            signal.Signals(code - 128).name
            if code - 128 in signal.valid_signals()
            else f"signal {code - 128}"
        )
        hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"ended by {name}{hint}; the same command goes on from its last checkpoint"
    lines = list(tail)
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback ")]
    raised = (
        [line for line in lines[starts[-1] + 1 :] if line.strip() and not line.startswith(" ")]
        if starts
        else []
    )
    if not raised:
        return f"ended with exit code {code} before it was done"
    return f"out of memory: {raised[0]}" if any(map(NO_MEMORY.search, raised)) else raised[0]


def failure_lines(results: list[Result]) -> list[str]:
    """Lines with all failures: run, cell and reason, and the file below."""
    lines = ["failed, with reason and file:"]
    for result in results:
        for outcome in result.failures:
            what = outcome.label or ("evaluation" if result.job.run.finished else "training")
            lines += [
                f"  {result.job.run.id}  {what}: {outcome.reason}",
                *([f"    {result.file}"] if result.file else []),
            ]
    return lines
