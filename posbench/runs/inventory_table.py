"""Table of `scripts/runs.py list`, for terminals, pipes and scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from posbench.runs.inventory import Entry
from posbench.runs.origins import clean

COLUMNS = ("run", "encoding", "seed", "steps", "state", "val. loss", "evals", "size", "age")
RIGHT = {"seed", "steps", "val. loss", "evals", "size", "age"}
FOLDED = ("encoding", "state")
EXPENDABLE = ("seed", "age", "evals", "size", "encoding")
STYLES = {"finished": "green", "running": "cyan", "failed": "red", "damaged": "red", "interrupted": "yellow", "unstarted": "dim"}


def cells(entry: Entry) -> list[str]:
    """Cells of one run as text."""
    steps = str(entry.steps) if entry.total is None else f"{entry.steps}/{entry.total}"
    loss = f"{entry.loss:.3f}" if isinstance(entry.loss, float) else "-"
    seed = "-" if entry.seed is None else str(entry.seed)
    return [
        str(clean(entry.path.name)),
        entry.encoding,
        seed,
        steps,
        entry.told,
        loss,
        str(entry.evaluations),
        size(entry.size),
        age(entry.age),
    ]


def show(found: Sequence[Entry]) -> None:
    """Print the table: fitted to the terminal, or one aligned line per run without one."""
    table = [cells(entry) for entry in found]
    if sys.stdout.isatty():
        _draw(found, table)
        return
    widths = [max(map(len, column)) for column in zip(COLUMNS, *table, strict=True)]
    for line in (COLUMNS, *table):
        aligned = (
            cell.rjust(width) if name in RIGHT else cell.ljust(width) for name, cell, width in zip(COLUMNS, line, widths, strict=True)
        )
        print("  ".join(aligned).rstrip())


def _draw(found: Sequence[Entry], table: list[list[str]]) -> None:
    """Draw the table on a terminal. A narrow one omits the least important columns and folds long texts."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = {name: max(map(len, column)) for name, column in zip(COLUMNS, zip(COLUMNS, *table, strict=True), strict=True)}
    widths |= {name: min(widths[name], 24) for name in FOLDED}
    kept = list(COLUMNS)
    for name in EXPENDABLE:
        if sum(widths[name] + 3 for name in kept) > console.width:
            kept.remove(name)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in kept:
        shown.add_column(name, justify="right" if name in RIGHT else "left", no_wrap=name not in FOLDED, overflow="fold")
    for entry, line in zip(found, table, strict=True):
        style = {"state": STYLES[entry.state]}
        shown.add_row(*(Text(cell, style=style.get(name, "")) for name, cell in zip(COLUMNS, line, strict=True) if name in kept))
    console.print(shown)


def values(entry: Entry) -> dict:
    """Values of one run for a script: sizes in bytes, ages in seconds."""
    return {"run": entry.path.name, **asdict(entry), "path": str(entry.path), "age": round(entry.age)}


def size(n: int) -> str:
    """Text of a size, in the largest unit of which it has at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit in ("B", "KiB") or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def age(seconds: float) -> str:
    """Text of a duration in seconds, in one unit: 40s, 12m, 5h, 3d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
