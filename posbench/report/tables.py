"""Tables of a report: losses, contexts and scores by method."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from posbench.report.method_words import source_suffix
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    Record,
    Score,
    StepPoint,
    grouped,
    records_by_method,
    scores_by_task,
    tick_lengths,
)
from posbench.report.seed_marks import Seeds, record_mark, row_mark, usual_seeds
from posbench.report.table_formats import (
    EMPTY_CELL,
    FAILS_MARK,
    GAINS_MARK,
    LEVEL_MARK,
    METHOD_COLUMNS,
    UNTESTED_MARK,
    Table,
    TableCell,
)

NEVER_LEARNED = "never learned"
OVERFLOW_NATS = 709  # nats, above which exp() overflows
ByMethod = dict[tuple, dict[int, Record]]  # {method: {length: record}}


def curve_tables(curve: list[CurvePoint]) -> list[Table]:
    """Tables of loss, difference to the floor, and other units at the longest length."""
    train_len = curve[0].train_len
    heads = _length_headings((point.length for point in curve), train_len)
    columns = [*METHOD_COLUMNS, *heads.values()]
    by_method = records_by_method(curve)
    result = [Table("Loss (nats/token)", columns, method_rows(by_method, heads, loss_cell))]
    if any(point.difference is not None for point in curve):
        title = (
            f"Loss minus the floor, which is the loss with exactly {train_len} tokens of context"
            " (nats/token)"
        )
        result.append(Table(title, columns, method_rows(by_method, heads, floor_cell)))
    longest = max(heads)
    result.append(units_table(f"At {heads[longest]} tokens", by_method, longest))
    return result


def position_tables(points: Sequence[CurvePoint]) -> list[Table]:
    """Tables of loss, change and last units by stretch of positions, and of the perplexity of whole
    texts if several lengths were read.
    """
    texts = [point for point in points if point.window is None]
    stretches = [point for point in points if point.window is not None]
    ends = sorted({point.length for point in stretches})
    heads = {end: f"{start + 1} to {end}" for start, end in itertools.pairwise([0, *ends])}
    columns = [*METHOD_COLUMNS, *heads.values()]
    by_method = records_by_method(stretches)
    title = f"Loss by position in windows of {stretches[0].window} tokens (nats/token)"
    result = [Table(title, columns, method_rows(by_method, heads, loss_cell))]
    if any(point.change is not None for point in stretches):
        # The methods without an extension have no change.
        rows = [row for row in method_rows(by_method, heads, change_cell) if _has_number(row)]
        title = "Loss minus that of the same tokens without an extension (nats/token)"
        result.append(Table(title, columns, rows))
    result.append(units_table(f"At positions {heads[ends[-1]]}", by_method, ends[-1]))
    if texts:
        heads = _length_headings((point.length for point in texts), texts[0].train_len)
        rows = method_rows(records_by_method(texts), heads, perplexity_cell)
        title = "Perplexity over every token of texts of each length"
        result.append(Table(title, [*METHOD_COLUMNS, *heads.values()], rows))
    return result


def _length_headings(lengths: Iterable[int], train_len: int) -> dict[int, str]:
    """{length: heading} of the lengths that have a column."""
    return {
        length: length_heading(length, train_len) for length in tick_lengths(lengths, train_len)
    }


def _has_number(row: list[TableCell]) -> bool:
    return any(cell.value is not None for cell in row[len(METHOD_COLUMNS) :])


def score_tables(section: list[Score]) -> list[Table]:
    """Tables of each part of a task: accuracy, that of the choice in the text, and -ln p of an
    answer.
    """
    heads = _length_headings((score.length for score in section), section[0].train_len)
    columns = [*METHOD_COLUMNS, *heads.values()]
    result = []

    def add(title: str, by_method: ByMethod, cell_of: Callable[[Score], TableCell]) -> None:
        rows = method_rows(
            by_method,
            heads,
            lambda score: cell_of(score) if score.shown else TableCell(NEVER_LEARNED),
        )
        result.append(Table(title, columns, rows))

    for task, by_method in scores_by_task(section).items():
        add(f"Accuracy: {task}", by_method, accuracy_cell)
        scores = [score for by_length in by_method.values() for score in by_length.values()]
        if any(score.choice is not None for score in scores):
            title = f"Accuracy of the choice among the answers in the text: {task}"
            add(title, by_method, choice_cell)
        add(f"-ln p of an answer (nats): {task}", by_method, answer_loss_cell)
    return result


def validation_table(section: list[StepPoint]) -> Table:
    """Table of the losses at the last step of training by length, with an earlier lower one."""
    by_line = grouped(section, lambda point: (point.method, point.length))
    lowest = {line: min(points, key=_loss_or_inf) for line, points in by_line.items()}
    last = [points[-1] for points in by_line.values()]
    heads = _length_headings((point.length for point in last), section[0].train_len)

    def cell(point: StepPoint) -> TableCell:
        best = lowest[point.method, point.length]
        text = number_cell(point.nll)
        if best.step == point.step or best.nll is None:
            return text
        return replace(text, interval=f" ({number_text(best.nll)} at step {best.step})")

    title = "Loss of the validation split at the last step, and the lowest before it (nats/token)"
    return Table(
        title, [*METHOD_COLUMNS, *heads.values()], method_rows(records_by_method(last), heads, cell)
    )


def _loss_or_inf(point: StepPoint) -> float:
    return math.inf if point.nll is None else point.nll


def context_table(section: list[ContextPoint]) -> Table:
    """Table of the loss by encoding and context, and G, the gain of the second half of the context
    in training, which the step at train_len has.
    """
    train_len = section[0].train_len
    contexts = sorted({step.context for step in section})
    by_method = records_by_method(section)
    usual = usual_seeds(by_method.values())
    rows = []
    for (encoding, *_, source), steps in by_method.items():
        name = TableCell(encoding + source_suffix(source), seeds=row_mark(steps, usual))
        losses = _cells_at_lengths(steps, contexts, loss_cell, usual)
        rows.append([name, *losses, gain_cell(steps.get(train_len))])
    columns = ["encoding", *map(str, contexts), f"G ({train_len // 2} -> {train_len})"]
    return Table(
        "Loss with exactly c tokens of context (nats/token)", columns, rows, name_columns=1
    )


def units_table(title: str, by_method: ByMethod, length: int) -> Table:
    """Table of other units of the losses at a length."""
    usual = usual_seeds(by_method.values())
    rows = []
    for points in by_method.values():
        point = points.get(length)
        units = [EMPTY_CELL, EMPTY_CELL]
        if point and not point.foreign:
            units = [number_cell(point.bpb), number_cell(point.accuracy)]
        perplexity = _cells_at_lengths(points, [length], perplexity_cell, usual)
        rows.append([*method_cells(points, usual), *perplexity, *units])
    return Table(title, [*METHOD_COLUMNS, "perplexity", "bits per byte", "accuracy"], rows)


def method_rows(
    by_method: ByMethod, lengths: Iterable[int], cell_of: Callable[[Record], TableCell]
) -> list[list[TableCell]]:
    """Row of each method: its name, and at each length the cell of its record. Means over other
    seeds than most are marked.
    """
    usual = usual_seeds(by_method.values())
    return [
        [*method_cells(records, usual), *_cells_at_lengths(records, lengths, cell_of, usual)]
        for records in by_method.values()
    ]


def _cells_at_lengths(
    records: dict[int, Record],
    lengths: Iterable[int],
    cell_of: Callable[[Record], TableCell],
    usual: Seeds,
) -> list[TableCell]:
    """Cells of {length: record} at each length. Those of a mean over other seeds than usual are
    marked, unless the whole row is; text stays as it is.
    """
    cells = []
    for length in lengths:
        record = records.get(length)
        cell = EMPTY_CELL if record is None else cell_of(record)
        if cell.value is not None:
            cell = replace(cell, seeds=record_mark(record, records, usual))
        cells.append(cell)
    return cells


def method_cells(records: dict[int, Record], usual: Seeds) -> list[TableCell]:
    """Cells that name a method; * marks an untested pair, and seeds in brackets means that are all
    over other seeds than usual.
    """
    first = next(iter(records.values()))
    extension = TableCell(first.extension, mark=UNTESTED_MARK if first.untested else "")
    scale = TableCell(first.scale_attention, seeds=row_mark(records, usual))
    return [TableCell(first.encoding + source_suffix(first.source)), extension, scale]


def loss_cell(record: CurvePoint | ContextPoint) -> TableCell:
    """Cell of the loss in nats/token."""
    return number_cell(record.nll)


def floor_cell(point: CurvePoint) -> TableCell:
    """Cell of the loss minus the floor."""
    return marked_difference(point.difference, point.half_width)


def change_cell(point: CurvePoint) -> TableCell:
    """Cell of the loss minus that without an extension."""
    return marked_difference(point.change, point.change_half_width)


def perplexity_cell(point: CurvePoint) -> TableCell:
    """Cell of the perplexity at a point."""
    if point.nll is None or point.nll >= OVERFLOW_NATS:
        return number_cell(None)
    return number_cell(math.exp(point.nll), 4)


def accuracy_cell(score: Score) -> TableCell:
    """Cell of the share of right answers, with its interval: 0.512 (0.45-0.57)."""
    interval = f" ({score.low:.2f}-{score.high:.2f})"
    return TableCell(f"{score.accuracy:.3f}", score.accuracy, interval)


def choice_cell(score: Score) -> TableCell:
    """Cell of the share of answers that were likelier than all other choices in the text."""
    return EMPTY_CELL if score.choice is None else number_cell(score.choice)


def answer_loss_cell(score: Score) -> TableCell:
    """Cell of -ln p of an answer."""
    text = "not finite" if score.nll is None else f"{score.nll:.2f}"
    return TableCell(text, score.nll, plus_minus(score.half_width, 2))


def gain_cell(last: ContextPoint | None) -> TableCell:
    """Cell of G in nats/token: the loss with half of train_len tokens of context minus that with
    train_len, the context of `last`. Marked if its interval contains zero.
    """
    # No point at train_len was measured, or none at half of it.
    if last is None or last.doubling is None:
        return EMPTY_CELL
    is_level = mark_of_difference(last.doubling, last.doubling_half_width) == LEVEL_MARK
    interval = plus_minus(last.doubling_half_width)
    return TableCell(
        number_text(last.doubling), last.doubling, interval, mark=LEVEL_MARK if is_level else ""
    )


def marked_difference(difference: float | None, half_width: float | None) -> TableCell:
    """Cell of a difference with half its interval and its mark; empty for None."""
    if difference is None:
        return EMPTY_CELL
    mark = mark_of_difference(difference, half_width)
    return TableCell(f"{difference:+.3f}", difference, plus_minus(half_width), mark)


def number_cell(value: float | None, digits: int | None = None) -> TableCell:
    """Cell of a number as `number_text` writes it."""
    return TableCell(number_text(value, digits), value)


def mark_of_difference(difference: float | None, half_width: float | None) -> str:
    """Mark of a 95 % interval: below zero, above zero, or across it; "" without an interval."""
    if difference is None or half_width is None:
        return ""
    if abs(difference) <= half_width:
        return LEVEL_MARK
    return GAINS_MARK if difference < 0 else FAILS_MARK


def length_heading(length: int, train_len: int) -> str:
    """Heading of a length, with its multiple of the training length unless it is shorter.

    >>> length_heading(128, 64), length_heading(32, 64)
    ('2x (128)', '32')
    """
    return f"{length / train_len:g}x ({length})" if length >= train_len else str(length)


def number_text(value: float | None, digits: int | None = None) -> str:
    """Text of a number with three decimals, or `digits` significant ones.

    >>> number_text(2.5), number_text(12.5, 4), number_text(None)
    ('2.500', '12.50', 'not finite')
    """
    if value is None:
        return "not finite"
    return f"{value:.3f}" if digits is None else f"{value:#.{digits}g}"


def plus_minus(half_width: float | None, digits: int = 3) -> str:
    """Text of half an interval; "" for None.

    >>> plus_minus(0.25)
    ' +- 0.250'
    """
    return "" if half_width is None else f" +- {half_width:.{digits}f}"
