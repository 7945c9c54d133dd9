"""The two errors that a user sees. Each is printed as one sentence, without a traceback."""

from collections.abc import Iterable

from posbench.common.defuse import printable
from posbench.common.secret import masked


class _UserError(ValueError):
    """Base of both errors, whose text may quote other people's files and answers.

    It is printed to a terminal and kept in files, so control characters become U+FFFD, and a
    server's key becomes "..."."""

    def __str__(self) -> str:
        return printable(masked(super().__str__()), allowed="\n")


class ConfigError(_UserError):
    """Configuration that cannot be carried out; the process exits 2."""


class Undescribed(ConfigError):
    """A sound description of a model whose shape posbench's own lacks; transformers may have it."""


class RunError(_UserError):
    """Failure of a legal job for a reason outside the code, such as a full disk.

    The process exits 1.
    """


def first_line(error: BaseException) -> str:
    """First line of the text of another library's error; the name of its class if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def nearest(word: object, choices: Iterable[str]) -> str | None:
    """The choice that is closest to `word`; None if none is close."""
    import difflib

    close = difflib.get_close_matches(str(word), list(choices), n=1)
    return close[0] if close else None


def did_you_mean(word: object, choices: Iterable[str], meant: str | None = None) -> str:
    """Suffix for an error sentence about a word: `meant` if that is known, else the closest choice;
    "" if none is close.

    >>> did_you_mean("n_heads", ["n_layer", "n_head"])
    ' (did you mean n_head?)'
    """
    choice = meant or nearest(word, choices)
    return f" (did you mean {choice}?)" if choice else ""
