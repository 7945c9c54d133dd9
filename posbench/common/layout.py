"""Paragraphs and tables of plain text for a terminal of 80 characters."""

import textwrap
from collections.abc import Sequence

TERMINAL = 80  # characters


def wrapped(text: str, indent: str = "", width: int = TERMINAL) -> str:
    """Text in lines of at most `width` characters."""
    fold = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, **fold)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns, the first aligned left and the others right."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]).rstrip()
        for row in rows
    )
