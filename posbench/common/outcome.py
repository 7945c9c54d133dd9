"""Outcomes of jobs and commands: what an error means, as an exit code and a status with its reason.

Exit codes: 0 done, 1 failed, 2 refused, 75 busy, 128 + n ended by signal n."""

import re
import signal
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from posbench.common.errors import ConfigError, RunError
from posbench.common.signals import Stopped

BUSY = 75  # exit code of a job whose run another process holds (EX_TEMPFAIL)
NO_MEMORY = re.compile("out of memory|OutOfMemory|MemoryError|allocate memory|bad_alloc", re.I)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one evaluation, with the reason: done, exists, noop, refused, failed, interrupted.

    Before it was made: legal, untested or own.
    """

    label: str
    status: str
    reason: str = ""


class Ending(NamedTuple):
    """End of a job or a command by an error: exit code, and outcome; None if the work was saved."""

    code: int
    outcome: Outcome | None


def outcome_of(error: BaseException) -> Ending:
    """Exit code and outcome of what ended with an error.

    >>> outcome_of(ConfigError("no such key"))
    Ending(code=2, outcome=Outcome(label='', status='refused', reason='no such key'))
    >>> outcome_of(ZeroDivisionError("division by zero")).outcome.reason
    'ZeroDivisionError: division by zero'
    """
    if isinstance(error, ConfigError):
        return Ending(2, Outcome(label="", status="refused", reason=str(error)))
    if isinstance(error, RunError):
        return Ending(1, Outcome(label="", status="failed", reason=str(error)))
    # After a signal the work is saved, so there is no outcome to tell.
    if isinstance(error, Stopped):
        return Ending(error.code, outcome=None)
    if isinstance(error, KeyboardInterrupt):
        number = error.args[0] if error.args else signal.SIGINT
        return Ending(128 + number, outcome=None)  # as shells write the end by a signal
    text = "".join(traceback.format_exception_only(error))
    reason = unforeseen_reason(text.splitlines())
    return Ending(1, Outcome(label="", status="failed", reason=reason))


def unforeseen_reason(lines: Iterable[str]) -> str:
    """Sentence of an error that nobody foresaw; "" if there is none.

    `lines`: its traceback below the heading, or the end of that.

    >>> unforeseen_reason(["  File 'a.py'", "MemoryError: 3 GiB", "more"])
    'out of memory: MemoryError: 3 GiB'
    """
    # Lines of frames are indented. The first other line is the error, later ones are its notes.
    raised = [line for line in lines if line.strip() and not line.startswith(" ")]
    if not raised:
        return ""
    out_of_memory = any(NO_MEMORY.search(line) for line in raised)
    return f"out of memory: {raised[0]}" if out_of_memory else raised[0]


def error_of(outcome: Outcome, place: str) -> ConfigError | RunError:
    """Error that says an outcome; `place` names what has no label."""
    error = ConfigError if outcome.status == "refused" else RunError
    return error(f"{outcome.label or place}: {outcome.reason}")
