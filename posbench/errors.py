"""The two kinds of failure a user meets; both end with one sentence and no traceback."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(ValueError):
    """The configuration asks for something that cannot be done; the process exits 2."""


class RunError(ValueError):
    """A job that was legal failed for a reason outside the code (damaged file, full disk); the process exits 1."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Words to put behind a refusal: " (did you mean n_head?)" where one of `known` is close to `given`, else nothing."""
    import difflib

    close = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
