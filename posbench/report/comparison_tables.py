"""Tables and rows of comparisons."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from posbench.common.errors import ConfigError, did_you_mean
from posbench.report.comparison import ACCURACY, BEST, Compared, Comparison, SectionName
from posbench.report.comparison_words import BPB, MARK_OF_VERDICT, UNITS, Scale
from posbench.report.table_formats import Table, TableCell

# Characters.
ANY_WIDTH = 10_000
FOLDED_NAME_WIDTH = 16  # least width of names that are folded


def check_unit(unit: str | None, comparisons: Sequence[Comparison]) -> None:
    """Raise ConfigError for a unit that is unknown, or that no comparison has a use for."""
    if unit is None:  # none was typed
        return
    if unit not in UNITS:
        near = did_you_mean(str(unit), UNITS)
        raise ConfigError(f"unit={unit} must be one of {', '.join(UNITS)}{near}.")
    if all(comparison.measure == ACCURACY for comparison in comparisons):
        raise ConfigError(
            f"unit={unit} is a unit of losses, and accuracy is a share of answers: leave unit= out."
        )
    for comparison in comparisons:
        for row in comparison.lines:
            if unit == BPB and Scale(unit, comparison.measure).value(row) is None:
                raise ConfigError(
                    f"unit={unit} needs the bytes of the targets, which are not known of"
                    f" {row.line.name} in {section_words(comparison.section)}: leave unit= out."
                )


def ranking_table(comparison: Comparison, scale: Scale, title: str | None = None) -> Table:
    """Lines of a comparison, the best first, with the difference of each to the reference."""
    head = "the best" if comparison.reference.verdict == BEST else comparison.reference.line.name
    columns = [
        "line",
        scale.words,
        f"over {head}" if scale.is_ratio else f"minus {head}",
        "p, by Holm" if comparison.correction == "holm" else "p",
        "seeds",
        "gate",
    ]
    rows = []
    for row in comparison.lines:
        value = scale.value(row)
        shown = scale.difference(row)
        difference = "" if shown is None else scale.interval(shown)
        rows.append(
            [
                row.line.name,
                "-" if value is None else f"{value:z.3f}",
                TableCell(difference, mark=MARK_OF_VERDICT[row.verdict]),
                "" if row.p_corrected is None else p_text(row.p_corrected),
                seed_count_text(row, comparison),
                row.line.gate or "unknown",
            ]
        )
    return Table(title or ranking_title(comparison), columns, rows, name_columns=1)


def seed_count_text(row: Compared, comparison: Comparison) -> str:
    """Number of the seeds of a difference, of the reference those of its value; "-" if unknown."""
    seeds = row.seeds or comparison.common_seeds or row.line.seeds
    return str(len(seeds)) if row.line.seeds else "-"


def p_text(p: float) -> str:
    """p in three digits; never rounded across 0.05.

    >>> p_text(0.0497), p_text(0.04999), p_text(0.05), p_text(0.0001)
    ('0.0497', '0.0499', '0.050', '<0.001')
    """
    if p < 0.001:
        return "<0.001"
    if 0.0495 <= p < 0.05:
        return f"{math.floor(p * 10_000) / 10_000:.4f}"  # rounded it could read as 0.05
    return f"{p:.3f}"


def section_words(section: SectionName) -> str:
    """Such as "pysource, trained at 64 tokens, fixed_targets"."""
    task = f", {section.task}" if section.task not in (None, section.data) else ""
    return f"{section.data}{task}, trained at {section.train_len:,} tokens, {section.protocol}"


def ranking_title(comparison: Comparison) -> str:
    """Such as "pysource, trained at 64 tokens, fixed_targets: at 8x (512 tokens)"."""
    return f"{section_words(comparison.section)}: at {_multiple_words(comparison)}"


def _multiple_words(comparison: Comparison) -> str:
    return f"{comparison.multiple:g}x ({comparison.length:,} tokens)"


def table_by_column(comparisons: Sequence[Comparison], column: str, scale: Scale) -> Table:
    """Differences of lines to the reference by length, training length or data."""
    columns = sorted(comparisons, key=lambda comparison: _column_value(comparison, column))
    cells = [{row.line.name: row for row in comparison.lines} for comparison in columns]
    references = list(dict.fromkeys(comparison.reference.line.name for comparison in columns))
    names = [*references, *(name for of_column in cells for name in of_column)]
    rows = []
    for name in dict.fromkeys(names):
        rows.append([name, *(_cell(of_column.get(name), scale) for of_column in cells)])
    one_multiple = len({comparison.multiple for comparison in columns}) == 1
    headings = [column_heading(comparison, column, not one_multiple) for comparison in columns]
    reference = references[0] if len(references) == 1 else "the best of each column"
    title = [f"{scale.words} {'over' if scale.is_ratio else 'minus'} that of {reference}"]
    title.append("its own value in brackets")
    section = columns[0].section
    if column == "length":
        title.append(section_words(section))
    else:
        title.append(section.data if column == "train_len" else f"trained at {section.train_len:,}")
        title += [section.task] if section.task not in (None, section.data) else []
        title.append(section.protocol)
        if one_multiple:
            title.append(f"at {columns[0].multiple:g}x")
    return Table("; ".join(title), ["line", *headings], rows, name_columns=1)


def _column_value(comparison: Comparison, column: str) -> int | str:
    return comparison.length if column == "length" else getattr(comparison.section, column)


def column_heading(comparison: Comparison, column: str, with_multiple: bool = False) -> str:
    """Heading of a column: "8x (512)" of a length, "128" or "128 at 8x" of a training length."""
    if column == "length":
        return f"{comparison.multiple:g}x ({comparison.length:,})"
    key = _column_value(comparison, column)
    text = f"{key:,}" if isinstance(key, int) else key
    return f"{text} at {comparison.multiple:g}x" if with_multiple else text


def table_of_all_pairs(comparisons: Sequence[Comparison], scale: Scale) -> Table:
    """Difference of each line to each other one: the row minus the column."""
    names = [comparison.reference.line.name for comparison in comparisons]
    cells = [{row.line.name: row for row in comparison.lines} for comparison in comparisons]
    rows = []
    for name in names:
        rows.append([name, *(_cell(of_column.get(name), scale) for of_column in cells)])
    first = comparisons[0]
    title = (
        f"{scale.words} of each line {'over' if scale.is_ratio else 'minus'} that of each column,"
        f" each line's own value in brackets; {ranking_title(first)}"
    )
    return Table(title, ["line", *names], rows, name_columns=1)


def _cell(row: Compared | None, scale: Scale) -> TableCell | str:
    """Difference with half of its interval, of a ratio both ends; the reference's own value."""
    if row is None:
        return "-"
    if row.line.name == row.against:
        value = scale.value(row)
        return "-" if value is None else f"({value:z.3f})"
    shown = scale.difference(row)
    if shown is None:
        return "-"
    interval = ""
    if shown.low is not None and scale.is_ratio:
        interval = f" [{shown.low:.3f}, {shown.high:.3f}]"
    elif shown.low is not None:
        interval = f" +- {(shown.high - shown.low) / 2:.3f}"
    return TableCell(scale.number(shown.value), shown.value, interval, MARK_OF_VERDICT[row.verdict])


def csv_rows(comparisons: Iterable[Comparison], scale: Scale) -> list[dict]:
    """Rows of a comparison's CSV and DataFrame, in the unit that is shown."""
    rows = []
    for comparison in comparisons:
        for row in comparison.lines:
            record = row.line.record
            shown = scale.difference(row)
            rows.append(
                {
                    **comparison.section._asdict(),
                    "length": comparison.length,
                    "rank": row.rank,
                    "line": row.line.name,
                    "encoding": record.encoding,
                    "extension": record.extension,
                    "scale_attention": record.scale_attention,
                    "measure": comparison.measure,
                    "unit": "share" if comparison.measure == ACCURACY else scale.unit,
                    "value": scale.value(row),
                    "against": row.against,
                    "difference": None if shown is None else shown.value,
                    "low": None if shown is None else shown.low,
                    "high": None if shown is None else shown.high,
                    "p": row.p,
                    "p_corrected": row.p_corrected,
                    "correction": comparison.correction,
                    "verdict": row.verdict,
                    # of the difference; of the mean where there is none
                    "seeds": " ".join(map(str, row.seeds or sorted(row.line.seeds))),
                    "n_documents": row.difference.n_documents if row.difference else None,
                    "interval_of": row.interval_source,
                    "gate": row.line.gate,
                    "reason": row.reason,
                }
            )
    return rows


def _fitted_tables(table: Table, width: int) -> list:
    """The table as rich draws it; where it is too wide tight, with folded names, or in pieces."""
    from rich.console import Console

    measuring = Console(width=ANY_WIDTH)  # a console measures nothing beyond its own width
    if measuring.measure(table.rich()).maximum <= width:
        return [table.rich()]
    names = max(len(str(row[0])) for row in table.rows)
    # Tight, names are folded, but no narrower than FOLDED_NAME_WIDTH.
    tight = measuring.measure(table.rich(tight=True)).maximum
    if tight - names + min(names, FOLDED_NAME_WIDTH) <= width:
        return [table.rich(tight=True)]
    return [piece.rich(tight=True) for piece in table.pieces(width)]


def terminal_text(tables: Sequence[Table], lines: Sequence[str], width: int | None = None) -> str:
    """Tables, then lines of text, for a terminal of `width` characters (None: any, and no colours).

    Tables that do not fit are drawn tight, or else lose their intervals and are divided."""
    from rich.console import Console

    console = Console(width=width or ANY_WIDTH, highlight=False, no_color=width is None)
    with console.capture() as captured:
        for table in tables:
            for piece in _fitted_tables(table, width or ANY_WIDTH):
                console.print(piece)
        for line in lines:
            console.print(line, markup=False, soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


class Block(NamedTuple):
    """A table, its result in sentences, and lines on how it was made."""

    table: Table
    result: list[str]
    how: list[str]


def blocks_text(blocks: Sequence[Block], width: int | None = None) -> str:
    """Tables with their sentences for a terminal, as `terminal_text`; lines on how all of them were
    made stand once, at the end.
    """
    of_all = [line for line in blocks[0].how if all(line in block.how for block in blocks)]
    texts = []
    for block in blocks:
        of_block = [line for line in block.how if line not in of_all]
        texts.append(terminal_text([block.table], [*block.result, *of_block], width))
    if of_all:
        texts.append(terminal_text([], of_all, width))
    # An empty line divides tables; below a single one its sentences follow at once.
    return "\n\n".join(texts) if len(blocks) > 1 else "\n".join(texts)
