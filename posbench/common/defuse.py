"""Text of others made harmless for whoever opens it: a spreadsheet takes some cells for formulas, a Markdown viewer some words for HTML."""

from __future__ import annotations

import re

FORMULA = re.compile(r"'*[=+\-@\t\r]")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def cell(text: str) -> str:
    """Text for a CSV, with an apostrophe before what a spreadsheet would compute; numbers do not come here."""
    return f"'{text}" if FORMULA.match(text) else text


def uncell(text: str) -> str:
    """The text that `cell` was given."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def markdown(text: str) -> str:
    """Markdown in which no tag begins; a < before a space or a number stays."""
    return TAG.sub("&lt;", text)
