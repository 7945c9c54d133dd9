"""Escaping of text from other people's files.

Spreadsheets run some cells as formulas, Markdown viewers render some words as HTML, and terminals
obey control characters."""

import re

FORMULA = re.compile(r"'*[=+\-@\t\r]")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def cell(value: object) -> object:
    """Value for a CSV cell: an apostrophe before text that a spreadsheet would read as a formula.

    >>> cell("=1+1"), cell("rope"), cell(-0.5)
    ("'=1+1", 'rope', -0.5)
    """
    if isinstance(value, str) and FORMULA.match(value):
        return f"'{value}"
    return value


def uncell(text: str) -> str:
    """Inverse of `cell`: the original text."""
    if text.startswith("'") and FORMULA.match(text):
        return text[1:]
    return text


def markdown(text: str) -> str:
    """Markdown with the < of every HTML tag escaped. A < before a space or a number stays."""
    return TAG.sub("&lt;", text)


def printable(value: object, allowed: str = "") -> object:
    """`value` with U+FFFD for every unprintable character in its strings and keys.

    Characters of `allowed` stay.
    """
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c if c.isprintable() or c in allowed else "\ufffd" for c in value)
    if isinstance(value, dict):
        return {printable(key, allowed): printable(item, allowed) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item, allowed) for item in value]
    return value
