"""Tables of scores, and the lines below them."""

from collections.abc import Callable, Iterable

from posbench.report.records import Score, tick_lengths
from posbench.report.tables import EMPTY, METHOD, Table, TableCell, by_method, heading, plus_minus

NEVER = "never learned"


def by_task(section: Iterable[Score]) -> dict[str, dict[tuple, dict[int, Score]]]:
    """Scores over all depths by task, method and length, in the given order."""
    found: dict[str, dict[tuple, dict[int, Score]]] = {}
    for score in section:
        if score.depth is None:
            found.setdefault(score.task, {}).setdefault(score.method, {})[score.length] = score
    return found


def tables(section: list[Score]) -> list[Table]:
    """Tables of each part of a task: accuracy, that of the choice in the text, and -ln p of an answer."""
    lengths = tick_lengths(score.length for score in section)
    heads = [*METHOD, *(heading(length, section[0].train_len) for length in lengths)]

    def accuracy(score: Score) -> TableCell:
        return TableCell(f"{score.accuracy:.3f}", score.accuracy, f" ({score.low:.2f}-{score.high:.2f})")

    def choice(score: Score) -> TableCell:
        return EMPTY if score.choice is None else TableCell(f"{score.choice:.3f}", score.choice)

    def loss(score: Score) -> TableCell:
        return TableCell("not finite" if score.nll is None else f"{score.nll:.2f}", score.nll, plus_minus(score.half_width, 2))

    def rows(cells: dict[tuple, dict[int, Score]], shown: Callable[[Score], TableCell]) -> list[list[TableCell]]:
        return by_method(cells, lengths, lambda score: shown(score) if score.shown else TableCell(NEVER))

    result = []
    for task, cells in by_task(section).items():
        result.append(Table(f"Accuracy: {task}", heads, rows(cells, accuracy)))
        if any(score.choice is not None for cell in cells.values() for score in cell.values()):
            result.append(Table(f"Accuracy of the choice among the answers in the text: {task}", heads, rows(cells, choice)))
        result.append(Table(f"-ln p of an answer (nats): {task}", heads, rows(cells, loss)))
    return result
