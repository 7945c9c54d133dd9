"""Table of `scripts/runs.py list`, for terminals, pipes and scripts."""

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from posbench.common.defuse import printable
from posbench.runs.inventory import Entry

FOLDED = ("encoding", "state")
LEFT = ("run", *FOLDED)
EXPENDABLE = ("seed", "age", "evals", "size", "encoding")
STYLES = {"finished": "green", "running": "cyan", "failed": "red", "damaged": "red", "interrupted": "yellow", "unstarted": "dim"}


def show(found: Sequence[Entry]) -> None:
    """Print the table: one aligned line per run. A narrow terminal omits the least important columns and folds long texts."""
    columns = {
        "run": [str(printable(entry.path.name)) for entry in found],
        "encoding": [entry.encoding for entry in found],
        "seed": ["-" if entry.seed is None else str(entry.seed) for entry in found],
        "steps": [str(entry.steps) if entry.total is None else f"{entry.steps}/{entry.total}" for entry in found],
        "state": [Text(entry.told, style=STYLES[entry.state]) for entry in found],
        "val. loss": ["-" if entry.loss is None else f"{entry.loss:.3f}" for entry in found],
        "evals": [str(entry.evaluations) for entry in found],
        "size": [decimal(entry.size) for entry in found],
        "age": [age(entry.age) for entry in found],
    }
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 10_000, markup=False, highlight=False)
    widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    for name in EXPENDABLE:
        if sum(3 + (min(widths[kept], 24) if kept in FOLDED else widths[kept]) for kept in columns) > console.width:
            del columns[name]
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=name not in FOLDED, overflow="fold")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    with console.capture() as drawn:  # rich's own output does not tell a reader that is gone
        console.print(table)
    print(drawn.get(), end="")


def age(seconds: float) -> str:
    """Text of a duration in seconds, in one unit: 40s, 12m, 5h, 3d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
