"""A table of numbers and its text in Markdown, LaTeX and a terminal."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

METHOD_COLUMNS = ("encoding", "extension", "scale_attention")  # columns that name a method
GAINS_MARK, FAILS_MARK, LEVEL_MARK, UNTESTED_MARK = " <", " >", " ~", " *"  # marks behind a number
MARK_COLOURS = {GAINS_MARK: "green", FAILS_MARK: "red"}
MOST_ROWS_OF_PAGE = 40  # rows, above which a table in LaTeX is divided over pages
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"$\sim$",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    '"': "''",
    # At the start of a row these would belong to the line break before it.
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class TableCell:
    """Cell of a table, such as "+0.105 +- 0.004 > [seed 0]"."""

    text: str
    value: float | None = None  # the number that the text shows
    interval: str = ""
    mark: str = ""
    seeds: str = ""  # if they are others than those of most cells

    def __str__(self) -> str:
        return self.text + self.interval + self.mark + self.seeds


EMPTY_CELL = TableCell("-")


@dataclass(frozen=True)
class Table:
    """Heading, column names and rows of cells or text. The first `name_columns` columns name the
    method, the others hold numbers.
    """

    title: str
    columns: list[str]
    rows: list[list[TableCell | str]]
    name_columns: int = len(METHOD_COLUMNS)

    def markdown(self) -> str:
        """Text in Markdown, the title in bold above it."""
        rule = [":---"] * self.name_columns + ["---:"] * (len(self.columns) - self.name_columns)
        lines = map(markdown_row, (self.columns, rule, *self.rows))
        return "\n".join([f"**{self.title}**", "", *lines])

    @property
    def long(self) -> bool:
        """True if it is longer than a page, and so needs LaTeX's package longtable."""
        return len(self.rows) > MOST_ROWS_OF_PAGE

    def latex(self) -> str:
        """Table for a paper in plain LaTeX, its title as the caption. A long one continues over
        pages and repeats its head on each.
        """
        rows = [self._latex_row(row) for row in self.rows]
        head = " & ".join(map(latex_escaped, self.columns)) + " \\\\\n\\hline"
        caption = f"\\caption{{{latex_escaped(self.title)}}}"
        columns = "l" * self.name_columns + "r" * (len(self.columns) - self.name_columns)
        if self.long:
            top = [
                f"{{\\small\n\\begin{{longtable}}{{{columns}}}",
                f"{caption} \\\\",
                f"{head}\n\\endfirsthead",
                f"{head}\n\\endhead",
            ]
            bottom = ["\\end{longtable}}"]
        else:
            top = [
                "\\begin{table}[tbp]\n\\centering\\small",
                caption,
                f"\\begin{{tabular}}{{{columns}}}",
                head,
            ]
            bottom = ["\\end{tabular}", "\\end{table}"]
        return "\n".join([*top, *rows, *bottom])

    def _latex_row(self, row: list[TableCell | str]) -> str:
        """Row with real minus signs before negative numbers."""
        cells = [latex_escaped(str(cell)) for cell in row]
        for index in range(self.name_columns, len(cells)):
            cell = cells[index]
            if cell.startswith("-") and cell != "-":
                cells[index] = f"$-${cell[1:]}"
        return " & ".join(cells) + " \\\\"

    def rich(self, tight: bool = False):
        """Table for a terminal: gains are green, failures red. `tight` has heads of two lines and
        folds long names.
        """
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 0) if tight else (0, 1),
        )
        for index, column in enumerate(self.columns):
            is_name = index < self.name_columns
            table.add_column(
                _heading_in_lines(column) if tight else column,
                justify="left" if is_name else "right",
                no_wrap=not (tight and is_name),
                overflow="fold",
            )
        for row in self.rows:
            colours = [MARK_COLOURS.get(getattr(cell, "mark", ""), "") for cell in row]
            cells = [
                Text(str(cell), style=colour) for cell, colour in zip(row, colours, strict=True)
            ]
            table.add_row(*cells)
        return table

    def pieces(self, width: int) -> "list[Table]":
        """Divide the table, without intervals, into several of as many columns of numbers as fit
        into `width` characters when tight.
        """
        rows = [[_without_interval(cell) for cell in row] for row in self.rows]
        widths = _column_widths([[_heading_in_lines(column) for column in self.columns], *rows])
        # Rich wraps names; a third of the width stays for numbers.
        names_width = min(sum(widths[: self.name_columns]), 2 * width // 3)
        groups: list[list[int]] = [[]]  # indices of columns of numbers
        for index in range(self.name_columns, len(self.columns)):
            group_width = sum(widths[other] for other in (*groups[-1], index))
            if groups[-1] and names_width + group_width > width:
                groups.append([])
            groups[-1].append(index)
        tables = []
        for group in groups:
            indices = [*range(self.name_columns), *group]
            columns = [self.columns[index] for index in indices]
            chosen = [[row[index] for index in indices] for row in rows]
            tables.append(replace(self, columns=columns, rows=chosen))
        return tables


def _without_interval(cell: TableCell | str) -> TableCell | str:
    return replace(cell, interval="") if isinstance(cell, TableCell) else cell


def _column_widths(rows: list[list[object]]) -> list[int]:
    """Characters of the longest line of each column, and a space."""
    widths = []
    for column in zip(*rows, strict=True):
        lines = [line for cell in column for line in str(cell).split("\n")]
        widths.append(max(map(len, lines)) + 1)
    return widths


def _heading_in_lines(column: str) -> str:
    return column.replace(" ", "\n", 1).replace("_", "_\n")


def latex_escaped(text: str) -> str:
    """Escape `text` for LaTeX: special characters print as themselves, and +- as one sign.

    >>> print(latex_escaped("50 % of a_b +- 3"))
    50 \\% of a\\_b $\\pm$ 3
    """
    escaped = "".join(LATEX_ESCAPES.get(character, character) for character in printable_line(text))
    return escaped.replace(" +- ", r" $\pm$ ")


def printable_line(text: str) -> str:
    """Text with spaces for characters that cannot be printed, line breaks too."""
    return "".join(character if character.isprintable() else " " for character in text)


def markdown_row(cells: Iterable[TableCell | str]) -> str:
    """Record line of a Markdown table.

    >>> markdown_row(["rope", "a|b"])
    '| rope | a\\\\|b |'
    """
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
