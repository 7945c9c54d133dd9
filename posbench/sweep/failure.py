"""Failure of a job: one sentence, and failure.txt in the run's directory with the end of its output."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
from collections.abc import Collection

from posbench.common.errors import RunError
from posbench.common.files import write_atomic
from posbench.sweep.jobs import Result

TAIL = 200  # lines of a job's output that are kept
NO_MEMORY = re.compile("out of memory|OutOfMemory|MemoryError|allocate memory|bad_alloc", re.I)


def reason(code: int, tail: Collection[str]) -> str:
    """Reason why a child ended without outcomes: the signal (code 128 + n), the exception it raised, or its exit code."""
    if code > 128:
        name = signal.Signals(code - 128).name if code - 128 in signal.valid_signals() else f"signal {code - 128}"
        hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"ended by {name}{hint}; the same command goes on from its last checkpoint"
    lines = list(tail)
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback ")]
    raised = [line for line in lines[starts[-1] + 1 :] if line.strip() and not line.startswith(" ")] if starts else []
    if not raised:
        return f"ended with exit code {code} before it was done"
    return f"out of memory: {raised[0]}" if any(map(NO_MEMORY.search, raised)) else raised[0]


def keep(result: Result, tail: Collection[str], command: str) -> None:
    """Write failure.txt for a failed job and name it in the result. After a success, delete that of an earlier attempt.

    The file does not belong to the results and is written without the run's lock. If that fails, one line on stderr says so.
    """
    path = result.job.run.failure
    try:
        if result.failures:
            said = [*(outcome.reason for outcome in result.failures), f"command: {command}", "", *tail]
            write_atomic(path, "\n".join(said) + "\n")
            result.file = path
        elif result.code == 0:
            path.unlink(missing_ok=True)
    except (OSError, RunError) as error:
        print(f"{path} was not written: {error}", file=sys.stderr, flush=True)


def table(results: list[Result], width: int | None) -> list[str]:
    """Table of all failures: run, cell and reason, with the file below. `width` is that of the terminal, or None."""
    failed = [(result, outcome) for result in results for outcome in result.failures]
    whats = [outcome.label or ("evaluation" if result.job.run.finished else "training") for result, outcome in failed]
    runs = [result.job.run.id for result, _ in failed]
    wide, wider = (max(map(len, [title, *column])) for title, column in (("failed", runs), ("what", whats)))
    lines = [f"{'failed':{wide}}  {'what':{wider}}  reason and file"]
    for run, what, (result, outcome) in zip(runs, whats, failed, strict=True):
        room = max(40, width - wide - wider - 5) if width else sys.maxsize
        first, *more = textwrap.wrap(outcome.reason, room, break_long_words=False) or [""]
        lines.append(f"{run:{wide}}  {what:{wider}}  {first}")
        lines += [" " * (wide + wider + 4) + text for text in [*more, *([str(result.file)] if result.file else [])]]
    return lines
