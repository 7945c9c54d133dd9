"""Tables for a paper in plain LaTeX. A table longer than a page needs the package longtable, which every LaTeX has."""

from collections.abc import Iterable

from posbench.report.tables import Table

PAGE = 40  # rows

ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"$\sim$", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": r"\textbar{}", '"': "''",
    "[": "{[}", "*": "{*}",  # at the start of a row they would belong to the line break before it
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def escape(text: str) -> str:
    """Escape `text` for LaTeX: special characters print as themselves, and +- as one sign."""
    return "".join(ESCAPES.get(character, character) for character in _spaced(text)).replace(" +- ", r" $\pm$ ")


def _spaced(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def latex(table: Table) -> str:
    """LaTeX of a table, with its title as the caption. A long one continues over pages and repeats its head on each."""
    rows = []
    for row in table.rows:
        cells = [escape(str(cell)) for cell in row]
        numbers = [f"$-${cell[1:]}" if cell[:1] == "-" and len(cell) > 1 else cell for cell in cells[table.names :]]  # with a real minus
        rows.append(_row([*cells[: table.names], *numbers]))
    head = _row(map(escape, table.columns)) + "\n\\hline"
    caption = f"\\caption{{{escape(table.title)}}}"
    columns = "l" * table.names + "r" * (len(table.columns) - table.names)
    if long(table):
        top = [f"\\begin{{longtable}}{{{columns}}}", f"{caption} \\\\", head, "\\endfirsthead", head, "\\endhead"]
        return "\n".join(["{\\small", *top, *rows, "\\end{longtable}}"])
    top = ["\\begin{table}[tbp]", "\\centering\\small", caption, f"\\begin{{tabular}}{{{columns}}}", head]
    return "\n".join([*top, *rows, "\\end{tabular}", "\\end{table}"])


def long(table: Table) -> bool:
    """True if a table is longer than a page, and so needs the package longtable."""
    return len(table.rows) > PAGE


def _row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def comments(lines: Iterable[str]) -> str:
    """LaTeX comments, one for each line; a line break inside a line becomes a space."""
    return "\n".join(f"% {_spaced(line)}" for line in lines)
