"""The two kinds of failure a user meets; both end with one sentence and no traceback."""

from __future__ import annotations

from collections.abc import Iterable


class _Told(ValueError):
    """Its text may hold words of somebody else's files: what a terminal would obey is shown as a question mark box."""

    def __str__(self) -> str:
        said = super().__str__()
        return said if said.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in said)


class ConfigError(_Told):
    """The configuration asks for something that cannot be done; the process exits 2."""


class RunError(_Told):
    """A job that was legal failed for a reason outside the code (damaged file, full disk); the process exits 1."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Words to put behind a refusal: " (did you mean n_head?)" where one of `known` is close to `given`, else nothing."""
    import difflib

    close = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
