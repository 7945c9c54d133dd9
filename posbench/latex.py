"""Tables for a paper: plain LaTeX that needs no package."""

from __future__ import annotations

from collections.abc import Iterable

from posbench.tables import METHOD, Table

ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"$\sim$", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": r"\textbar{}", '"': "''",
    "[": "{[}", "*": "{*}",  # at the start of a row they would belong to the line break before it
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def escape(text: str) -> str:
    """`text` as LaTeX prints it: every character that means something to LaTeX is itself, +- is one sign."""
    spaced = "".join(character if character.isprintable() else " " for character in text)
    return "".join(ESCAPES.get(character, character) for character in spaced).replace(" +- ", r" $\pm$ ")


def number(cell: str) -> str:
    """A cell of numbers: as `escape`, with a minus sign that is none of a hyphen's width."""
    escaped = escape(cell)
    return f"$-${escaped[1:]}" if escaped[:1] == "-" and len(escaped) > 1 else escaped


def latex(table: Table) -> str:
    """One table, with its title as the caption."""
    lines = [" & ".join(escape(column) for column in table.columns), r"\hline"]
    for row in table.rows:
        cells = [escape(cell) if index < len(METHOD) else number(cell) for index, cell in enumerate(row)]
        lines.append(" & ".join(cells))
    body = "\n".join(line if line.startswith("\\hline") else f"{line} \\\\" for line in lines)
    columns = "l" * len(METHOD) + "r" * (len(table.columns) - len(METHOD))
    return (
        f"\\begin{{table}}[tbp]\n\\centering\\small\n\\caption{{{escape(table.title)}}}\n"
        f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n\\end{{table}}"
    )


def comments(lines: Iterable[str]) -> str:
    """Lines that LaTeX does not print; one that holds a line break stays one line."""
    return "\n".join("% " + "".join(character if character.isprintable() else " " for character in line) for line in lines)
