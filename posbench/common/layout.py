"""Paragraphs and tables of plain text for a terminal of 80 characters."""

import textwrap
from collections.abc import Sequence

TERMINAL = 80  # characters


def wrapped(text: str, indent: str = "", width: int = TERMINAL) -> str:
    """Text in lines of at most `width` characters."""
    fold = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, **fold)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns, the first aligned left and the others right.

    >>> print(aligned([["length", "nll"], ["64", "10.5"]]))
    length   nll
    64      10.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
