"""The two errors that a user sees. Each is printed as one sentence, without a traceback."""

from collections.abc import Iterable

from posbench.common.defuse import printable
from posbench.common.secret import masked


class _Told(ValueError):
    """Base of both errors, whose text may quote other people's files and answers.

    It is printed to a terminal and kept in files, so that control characters become U+FFFD, and a
    server's key "..."."""

    def __str__(self) -> str:
        return printable(masked(super().__str__()), kept="\n")


class ConfigError(_Told):
    """Configuration that cannot be carried out; the process exits 2."""


class Undescribed(ConfigError):
    """A sound description of a model that posbench's own does not have the shape of; transformers
    may.
    """


class RunError(_Told):
    """Failure of a legal job for a reason outside the code, such as a damaged file or a full disk;
    the process exits 1.
    """


def first_line(error: BaseException) -> str:
    """First line of the text of another library's error; the name of its class if it has none."""
    said = str(error).strip()
    return said.splitlines()[0] if said else type(error).__name__


def nearest(given: object, known: Iterable[str]) -> str | None:
    """The word of `known` that is closest to `given`; None if none is close."""
    import difflib

    return next(iter(difflib.get_close_matches(str(given), list(known), n=1)), None)


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Suffix for an error sentence: " (did you mean n_head?)" if a word of `known` is close to
    `given`, else "".
    """
    close = nearest(given, known)
    return f" (did you mean {close}?)" if close else ""
