"""Escaping of text from other people's files: spreadsheets run some cells as formulas, Markdown viewers render some words as HTML."""

import re

FORMULA = re.compile(r"'*[=+\-@\t\r]")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def cell(text: str) -> str:
    """Text for a CSV cell, with an apostrophe in front if a spreadsheet would read it as a formula. Not for numbers."""
    return f"'{text}" if FORMULA.match(text) else text


def uncell(text: str) -> str:
    """Inverse of `cell`: the original text."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def markdown(text: str) -> str:
    """Markdown with the < of every HTML tag escaped. A < before a space or a number stays."""
    return TAG.sub("&lt;", text)
