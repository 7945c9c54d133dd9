"""Table of `scripts/runs.py list`, for terminals, pipes and scripts."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

from posbench.common.defuse import printable
from posbench.runs.inventory import Entry

RIGHT = {"seed", "steps", "val. loss", "evals", "size", "age"}
FOLDED = ("encoding", "state")
EXPENDABLE = ("seed", "age", "evals", "size", "encoding")
STYLES = {"finished": "green", "running": "cyan", "failed": "red", "damaged": "red", "interrupted": "yellow", "unstarted": "dim"}
HEAD = {name: name for name in ("run", "encoding", "seed", "steps", "state", "val. loss", "evals", "size", "age")}


def entry_cells(entry: Entry) -> dict[str, str]:
    """Cells of one run as text, by column."""
    shown = (
        printable(entry.path.name),
        entry.encoding,
        "-" if entry.seed is None else entry.seed,
        entry.steps if entry.total is None else f"{entry.steps}/{entry.total}",
        entry.told,
        f"{entry.loss:.3f}" if isinstance(entry.loss, float) else "-",
        entry.evaluations,
        size(entry.size),
        age(entry.age),
    )
    return dict(zip(HEAD, map(str, shown), strict=True))


def show(found: Sequence[Entry]) -> None:
    """Print the table: fitted to the terminal, or one aligned line per run without one."""
    table = [entry_cells(entry) for entry in found]
    widths = {name: max(len(line[name]) for line in (HEAD, *table)) for name in HEAD}
    if sys.stdout.isatty():
        _draw(found, table, widths)
        return
    for line in (HEAD, *table):
        aligned = (line[name].rjust(width) if name in RIGHT else line[name].ljust(width) for name, width in widths.items())
        print("  ".join(aligned).rstrip())


def _draw(found: Sequence[Entry], table: list[dict[str, str]], widths: dict[str, int]) -> None:
    """Draw the table on a terminal. A narrow one omits the least important columns and folds long texts."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    kept = {name: min(width, 24) if name in FOLDED else width for name, width in widths.items()}
    for name in EXPENDABLE:
        if sum(width + 3 for width in kept.values()) > console.width:
            del kept[name]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in kept:
        shown.add_column(name, justify="right" if name in RIGHT else "left", no_wrap=name not in FOLDED, overflow="fold")
    for entry, line in zip(found, table, strict=True):
        shown.add_row(*(Text(line[name], style=STYLES[entry.state] if name == "state" else "") for name in kept))
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
