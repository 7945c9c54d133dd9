"""Tables of a report (losses, contexts, scores), with the same cells for the terminal, Markdown,
LaTeX and the page.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from posbench.report.method_words import source_suffix
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    Record,
    Score,
    by_task,
    methods,
    tick_lengths,
)
from posbench.report.seed_marks import Seeds, record_mark, row_mark, usual_seeds

METHOD = ("encoding", "extension", "scale_attention")
GAINS, FAILS, LEVEL, UNTESTED = " <", " >", " ~", " *"
NEVER = "never learned"
PAGE = 40  # rows of a table in LaTeX
ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"$\sim$", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": r"\textbar{}", '"': "''",
    "[": "{[}", "*": "{*}",  # at the start of a row they would belong to the line break before it
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip
STYLES = {GAINS: "green", FAILS: "red"}
Difference = Callable[[CurvePoint], tuple[float | None, float | None]]  # and half of its interval


@dataclass(frozen=True)
class TableCell:
    """Cell of a table: its text, the number that it shows, the text of its interval, a mark behind
    it, and its seeds if they are others.
    """

    text: str
    value: float | None = None
    interval: str = ""
    mark: str = ""
    seeds: str = ""

    def __str__(self) -> str:
        return self.text + self.interval + self.mark + self.seeds


EMPTY = TableCell("-")


@dataclass(frozen=True)
class Table:
    """Heading, column names and rows of cells or text. The first `names` columns name the method,
    the others hold numbers.
    """

    title: str
    columns: list[str]
    rows: list[list[TableCell | str]]
    names: int = len(METHOD)

    def markdown(self) -> str:
        rule = [":---"] * self.names + ["---:"] * (len(self.columns) - self.names)
        return "\n".join(
            [f"**{self.title}**", "", *map(markdown_row, (self.columns, rule, *self.rows))]
        )

    @property
    def long(self) -> bool:
        """True if it is longer than a page, and so needs LaTeX's package longtable."""
        return len(self.rows) > PAGE

    def latex(self) -> str:
        """Table for a paper in plain LaTeX, its title as the caption. A long one continues over
        pages and repeats its head on each.
        """
        rows = []
        for row in self.rows:
            cells = [escape(str(cell)) for cell in row]
            numbers = [
                f"$-${cell[1:]}" if cell[:1] == "-" and len(cell) > 1 else cell
                for cell in cells[self.names :]
            ]  # real minus signs
            rows.append(" & ".join([*cells[: self.names], *numbers]) + " \\\\")
        head = " & ".join(map(escape, self.columns)) + " \\\\\n\\hline"
        caption = f"\\caption{{{escape(self.title)}}}"
        columns = "l" * self.names + "r" * (len(self.columns) - self.names)
        if self.long:
            top = [
                f"\\begin{{longtable}}{{{columns}}}",
                f"{caption} \\\\",
                head,
                "\\endfirsthead",
                head,
                "\\endhead",
            ]
            return "\n".join(["{\\small", *top, *rows, "\\end{longtable}}"])
        top = [
            "\\begin{table}[tbp]",
            "\\centering\\small",
            caption,
            f"\\begin{{tabular}}{{{columns}}}",
            head,
        ]
        return "\n".join([*top, *rows, "\\end{tabular}", "\\end{table}"])

    def rich(self, tight: bool = False):
        """Table for a terminal: gains are green, failures red. `tight` has heads of two lines and
        folds long names.
        """
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        style = {
            "title_justify": "left",
            "title_style": "bold",
            "box": box.SIMPLE_HEAD,
            "pad_edge": False,
        }
        table = RichTable(title=self.title, **style, padding=(0, 0) if tight else (0, 1))
        for index, column in enumerate(self.columns):
            is_name, head = index < self.names, _tight(column) if tight else column
            table.add_column(
                head,
                justify="left" if is_name else "right",
                no_wrap=not (tight and is_name),
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(
                *(Text(str(cell), style=STYLES.get(getattr(cell, "mark", ""), "")) for cell in row)
            )
        return table

    def pieces(self, width: int) -> "list[Table]":
        """Divide the table, without intervals, into several of as many columns of numbers as fit
        into `width` characters when tight.
        """
        rows = [
            [replace(cell, interval="") if isinstance(cell, TableCell) else cell for cell in row]
            for row in self.rows
        ]
        columns = zip(map(_tight, self.columns), *rows, strict=True)
        wide = [
            max(len(line) for cell in column for line in str(cell).split("\n")) + 1
            for column in columns
        ]
        left = width - min(sum(wide[: self.names]), 2 * width // 3)
        apart: list[list[int]] = [[]]
        for index in range(self.names, len(self.columns)):
            if apart[-1] and sum(wide[other] for other in [*apart[-1], index]) > left:
                apart.append([])
            apart[-1].append(index)
        kept = [[*range(self.names), *chosen] for chosen in apart]
        return [
            replace(
                self,
                columns=[self.columns[i] for i in own],
                rows=[[row[i] for i in own] for row in rows],
            )
            for own in kept
        ]


def _tight(column: str) -> str:
    return column.replace(" ", "\n", 1).replace("_", "_\n")


def escape(text: str) -> str:
    """Escape `text` for LaTeX: special characters print as themselves, and +- as one sign."""
    return "".join(ESCAPES.get(character, character) for character in printed(text)).replace(
        " +- ", r" $\pm$ "
    )


def printed(text: str) -> str:
    """Text with spaces for characters that cannot be printed, line breaks too."""
    return "".join(character if character.isprintable() else " " for character in text)


def markdown_row(cells: Iterable[TableCell | str]) -> str:
    """Record line of a Markdown table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def verdict(difference: float | None, half_width: float | None) -> str:
    """Mark of a 95 % interval: below zero, above zero, or across it; "" without an interval."""
    if difference is None or half_width is None:
        return ""
    if abs(difference) <= half_width:
        return LEVEL
    return GAINS if difference < 0 else FAILS


def tables(curve: list[CurvePoint]) -> list[Table]:
    """Tables of loss, difference to the floor, and other units at the longest length."""
    train_len = curve[0].train_len
    heads = {
        length: heading(length, train_len)
        for length in tick_lengths(point.length for point in curve)
    }
    floor = (
        f"Loss minus the floor, which is the loss with exactly {train_len} tokens of context"
        " (nats/token)"
    )
    titles = "Loss (nats/token)", floor, f"At {heads[max(heads)]} tokens"
    return of_methods(
        methods(curve), heads, titles, lambda point: (point.difference, point.half_width)
    )


def position_tables(stretches: Sequence[CurvePoint]) -> list[Table]:
    """Tables of loss, change and last units by stretch of positions, and of the perplexity of whole
    texts if several lengths were read.
    """
    texts, stretches = (
        [point for point in stretches if point.window is None],
        [point for point in stretches if point.window],
    )
    ends = sorted({point.length for point in stretches})
    heads = {end: f"{start + 1} to {end}" for start, end in itertools.pairwise([0, *ends])}
    change = "Loss minus that of the same tokens without an extension (nats/token)"
    titles = (
        f"Loss by position in windows of {stretches[0].window} tokens (nats/token)",
        change,
        f"At positions {heads[ends[-1]]}",
    )
    loss, *changed, last = of_methods(
        methods(stretches), heads, titles, lambda one: (one.change, one.change_half_width)
    )
    for table in changed:  # the methods without an extension have none
        table.rows[:] = [
            row for row in table.rows if any(cell.value is not None for cell in row[table.names :])
        ]
    heads = {
        length: heading(length, stretches[0].train_len)
        for length in tick_lengths(point.length for point in texts)
    }
    rows = by_method(methods(texts), heads, perplexity)
    whole = Table(
        "Perplexity over every token of texts of each length", [*METHOD, *heads.values()], rows
    )
    return [loss, *changed, last, *[whole] * bool(texts)]


def score_tables(section: list[Score]) -> list[Table]:
    """Tables of each part of a task: accuracy, that of the choice in the text, and -ln p of an
    answer.
    """
    lengths = tick_lengths(score.length for score in section)
    heads = [*METHOD, *(heading(length, section[0].train_len) for length in lengths)]

    def accuracy(score: Score) -> TableCell:
        return TableCell(
            f"{score.accuracy:.3f}", score.accuracy, f" ({score.low:.2f}-{score.high:.2f})"
        )

    def choice(score: Score) -> TableCell:
        return EMPTY if score.choice is None else TableCell(f"{score.choice:.3f}", score.choice)

    def loss(score: Score) -> TableCell:
        return TableCell(
            "not finite" if score.nll is None else f"{score.nll:.2f}",
            score.nll,
            plus_minus(score.half_width, 2),
        )

    def rows(
        cells: dict[tuple, dict[int, Score]], shown: Callable[[Score], TableCell]
    ) -> list[list[TableCell]]:
        return by_method(
            cells, lengths, lambda score: shown(score) if score.shown else TableCell(NEVER)
        )

    result = []
    for task, cells in by_task(section).items():
        result.append(Table(f"Accuracy: {task}", heads, rows(cells, accuracy)))
        if any(score.choice is not None for cell in cells.values() for score in cell.values()):
            result.append(
                Table(
                    f"Accuracy of the choice among the answers in the text: {task}",
                    heads,
                    rows(cells, choice),
                )
            )
        result.append(Table(f"-ln p of an answer (nats): {task}", heads, rows(cells, loss)))
    return result


def context_table(section: list[ContextPoint]) -> Table:
    """Table of the loss by encoding and context, and G."""
    contexts, train_len = sorted({step.context for step in section}), section[0].train_len
    rows = []
    by_encoding = methods(section)
    usual = usual_seeds(by_encoding.values())
    for (encoding, *_, source), own in by_encoding.items():
        losses = (
            with_seeds(number_cell(own[c].nll), own[c], own, usual) if c in own else EMPTY
            for c in contexts
        )
        rows.append(
            [
                TableCell(encoding + source_suffix(source), seeds=row_mark(own, usual)),
                *losses,
                gain_cell(own.get(train_len)),
            ]
        )
    columns = ["encoding", *map(str, contexts), f"G ({train_len // 2} -> {train_len})"]
    return Table("Loss with exactly c tokens of context (nats/token)", columns, rows, names=1)


def gain_cell(last: ContextPoint | None) -> TableCell:
    """Cell of G, the doubling of the step with train_len tokens; marked if its interval contains
    zero.
    """
    if last is None or last.doubling is None:
        return EMPTY
    mark = verdict(last.doubling, last.doubling_half_width)
    return TableCell(
        number(last.doubling),
        last.doubling,
        plus_minus(last.doubling_half_width),
        mark if mark == LEVEL else "",
    )


def of_methods(
    cells: dict[tuple, dict[int, CurvePoint]],
    heads: dict[int, str],
    titles: tuple[str, str, str],
    difference: Difference,
) -> list[Table]:
    """Three tables with a row for each method: the loss, a difference (if there is any), and other
    units at the last of `heads`.
    """
    columns = [*METHOD, *heads.values()]
    result = [
        Table(titles[0], columns, by_method(cells, heads, lambda point: number_cell(point.nll)))
    ]
    if any(difference(point)[0] is not None for cell in cells.values() for point in cell.values()):
        result.append(
            Table(
                titles[1],
                columns,
                by_method(cells, heads, lambda point: marked_difference(*difference(point))),
            )
        )
    last = []
    usual = usual_seeds(cells.values())
    for cell in cells.values():
        point = cell.get(max(heads))
        others = (
            [
                EMPTY if point.foreign else number_cell(value)
                for value in (point.bpb, point.accuracy)
            ]
            if point
            else [EMPTY] * 2
        )
        first = with_seeds(perplexity(point), point, cell, usual) if point else EMPTY
        last.append([*method_cells(cell, usual), first, *others])
    return [*result, Table(titles[2], [*METHOD, "perplexity", "bits per byte", "accuracy"], last)]


def by_method(
    cells: dict[tuple, dict[int, Record]],
    lengths: Iterable[int],
    shown: Callable[[Record], TableCell],
) -> list[list[TableCell]]:
    """Row of each method: its name, and at each length the cell of its point or score. Means over
    other seeds than most are marked.
    """
    rows, usual = [], usual_seeds(cells.values())
    for cell in cells.values():
        values = (
            with_seeds(shown(cell[at]), cell[at], cell, usual) if at in cell else EMPTY
            for at in lengths
        )
        rows.append([*method_cells(cell, usual), *values])
    return rows


def with_seeds(
    shown: TableCell, record: Record, cell: dict[int, Record], usual: Seeds
) -> TableCell:
    """The cell of a record, marked if it is a mean over other seeds than usual and its row is not
    marked; text stays.
    """
    return shown if shown.value is None else replace(shown, seeds=record_mark(record, cell, usual))


def perplexity(point: CurvePoint) -> TableCell:
    """Cell of the perplexity at a point."""
    return number_cell(
        math.exp(point.nll) if point.nll is not None and point.nll < 709 else None, 4
    )


def method_cells(cell: dict[int, Record], usual: Seeds) -> list[TableCell]:
    """Cells that name a method; * marks an untested pair, and seeds in brackets means that are all
    over other seeds than usual.
    """
    first = next(iter(cell.values()))
    extension = TableCell(first.extension, mark=UNTESTED if first.untested else "")
    scale = TableCell(first.scale_attention, seeds=row_mark(cell, usual))
    return [TableCell(first.encoding + source_suffix(first.source)), extension, scale]


def heading(length: int, train_len: int) -> str:
    """Heading of a length: 2x (128), with its multiple of the training length; a shorter length is
    the plain number.
    """
    return f"{length / train_len:g}x ({length})" if length >= train_len else str(length)


def number(value: float | None, digits: int | None = None) -> str:
    """Text of a number with three decimals, or `digits` significant ones; None is "not finite"."""
    if value is None:
        return "not finite"
    return f"{value:.3f}" if digits is None else f"{value:#.{digits}g}"


def number_cell(value: float | None, digits: int | None = None) -> TableCell:
    """Cell of a number as `number` writes it."""
    return TableCell(number(value, digits), value)


def plus_minus(half_width: float | None, digits: int = 3) -> str:
    """Text of half an interval; "" for None."""
    return "" if half_width is None else f" +- {half_width:.{digits}f}"


def marked_difference(difference: float | None, half_width: float | None) -> TableCell:
    """Cell of a difference with half its interval and its mark; empty for None."""
    if difference is None:
        return EMPTY
    return TableCell(
        f"{difference:+.3f}", difference, plus_minus(half_width), verdict(difference, half_width)
    )
