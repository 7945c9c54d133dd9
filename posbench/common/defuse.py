"""Escaping of text from other people's files.

Spreadsheets run some cells as formulas, Markdown viewers render some words as HTML, and terminals
obey control characters."""

import re

FORMULA = re.compile(r"'*[=+\-@\t\r]")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def cell(value: object) -> object:
    """Value for a CSV cell: text with an apostrophe in front if a spreadsheet would read it as a
    formula, all else as it is.
    """
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def uncell(text: str) -> str:
    """Inverse of `cell`: the original text."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def markdown(text: str) -> str:
    """Markdown with the < of every HTML tag escaped. A < before a space or a number stays."""
    return TAG.sub("&lt;", text)


def printable(value: object, kept: str = "") -> object:
    """`value` with U+FFFD for every unprintable character in its strings and keys, but for those in
    `kept`.
    """
    if isinstance(value, str):
        return (
            value
            if value.isprintable()
            else "".join(c if c.isprintable() or c in kept else "\ufffd" for c in value)
        )
    if isinstance(value, dict):
        return {printable(key, kept): printable(item, kept) for key, item in value.items()}
    return [printable(item, kept) for item in value] if isinstance(value, list | tuple) else value
