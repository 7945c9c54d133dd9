"""Command of scripts/runs.py: list the runs of a folder, or delete files that nobody needs."""

import itertools
import json
import sys
from collections import Counter
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.files import write_json
from posbench.common.quantities import age, plural, size_words
from posbench.config.command_line import read_options
from posbench.results.inventory import STATES, Entry, list_runs

COLUMNS = ("run", "name", "encoding", "seed", "steps", "val. loss", "evals", "size", "age", "state")
ALIGNED_LEFT = ("run", "name", "encoding", "state")
SHARED_OPTIONS = {"results_dir": "results/runs", "runs": "*", "name": ""}
LIST_OPTIONS = {**SHARED_OPTIONS, "state": "", "encoding": "*", "sort": "run", "json": ""}
GC_OPTIONS = {
    **SHARED_OPTIONS,
    "failed": False,
    "interrupted": False,
    "older": timedelta(),
    "cache": "",
    "delete": False,
}
SORT_KEYS = {
    "run": lambda entry: entry.path.name,
    "age": lambda entry: entry.age,
    "size": lambda entry: -entry.size,
    "loss": lambda entry: (entry.loss is None, entry.loss or 0),
    "state": lambda entry: (STATES.index(entry.state), entry.path.name),
}


def runs(arguments: list[str]) -> None:
    """Run the command that the first word names: list or gc."""
    word, *rest = arguments or ["help"]
    if word == "help":
        print(sys.modules["__main__"].__doc__, end="")
        return
    if word not in ("list", "gc"):
        raise ConfigError(f"{word} is neither list nor gc: python scripts/runs.py list, or gc.")
    chosen = read_options(rest, LIST_OPTIONS if word == "list" else GC_OPTIONS)
    folder = Path(chosen["results_dir"])
    if "/" in chosen["runs"]:
        raise ConfigError(
            f"runs={chosen['runs']} must be a pattern of names, without /: name the folder of the"
            " runs with results_dir=."
        )
    if not folder.is_dir():
        raise ConfigError(
            f"results_dir={folder} is not a folder: name the one that holds the runs, such as"
            " results/runs."
        )
    entries = [entry for entry in list_runs(folder) if fnmatchcase(entry.path.name, chosen["runs"])]
    if chosen["name"]:
        entries = _entries_of_sweeps(entries, chosen["name"])
    if word == "list":
        _print_list(entries, chosen)
    else:
        _print_waste(folder, entries, chosen)


def _entries_of_sweeps(entries: list[Entry], pattern: str) -> list[Entry]:
    """Entries of the sweeps whose name matches. Raises ConfigError if none does."""
    matching = [
        entry for entry in entries if any(fnmatchcase(name, pattern) for name in entry.names)
    ]
    if not matching:
        names = sorted({name for entry in entries for name in entry.names})
        listed = f"choose from {', '.join(names)}" if names else "no run here has one"
        raise ConfigError(
            f"name={pattern} is the name of no sweep{did_you_mean(pattern, names)}: {listed}."
        )
    return matching


def _print_list(entries: list[Entry], chosen: dict) -> None:
    """Print the table of the entries that the options choose, or write them as JSON."""
    state = chosen["state"]
    if state not in ("", *STATES):
        raise ConfigError(f"state={state} must be one of {', '.join(STATES)}.")
    if chosen["sort"] not in SORT_KEYS:
        raise ConfigError(f"sort={chosen['sort']} is unknown: choose from {', '.join(SORT_KEYS)}.")
    entries = [
        entry
        for entry in entries
        if state in ("", entry.state)
        and fnmatchcase(entry.encoding.split(" ")[0], chosen["encoding"])
    ]
    entries.sort(key=SORT_KEYS[chosen["sort"]])
    if chosen["json"] == "-":
        print(json.dumps([entry.values for entry in entries], indent=1))
        return
    if chosen["json"]:
        write_json(chosen["json"], [entry.values for entry in entries])
    print(_table_text([_row_cells(entry) for entry in entries]))
    print(_summary_line(entries), file=sys.stderr)


def _row_cells(entry: Entry) -> tuple[str, ...]:
    """Cells of a run below COLUMNS."""
    return (
        str(printable(entry.path.name)),
        ", ".join(entry.names),
        entry.encoding,
        "-" if entry.seed is None else str(entry.seed),
        str(entry.steps) if entry.total is None else f"{entry.steps}/{entry.total}",
        "-" if entry.loss is None else f"{entry.loss:.3f}",
        str(entry.evaluations),
        size_words(entry.size),
        age(entry.age),
        entry.state_in_words,
    )


def _table_text(rows: list[tuple[str, ...]]) -> str:
    """Rows below COLUMNS, without the column of names if no sweep has one."""
    columns = []
    for heading, *cells in zip(COLUMNS, *rows, strict=True):
        if heading == "name" and not any(cells):
            continue
        width = max(len(heading), *map(len, cells), 0)
        left = heading in ALIGNED_LEFT
        columns.append(
            [cell.ljust(width) if left else cell.rjust(width) for cell in (heading, *cells)]
        )
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _summary_line(entries: list[Entry]) -> str:
    """Number of runs by state, and their size: "3 runs (2 finished, 1 failed), 1.5 MiB"."""
    counts = Counter(entry.state for entry in entries)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    by_state = f" ({states})" if states else ""
    size = size_words(sum(entry.size for entry in entries))
    return f"{plural(len(entries), 'run')}{by_state}, {size}"


def _print_waste(folder: Path, entries: list[Entry], chosen: dict) -> None:
    """Print what may go, and with delete=true delete it."""
    from posbench.results.cleanup import find_waste, unused_tokens

    cache = chosen["cache"]
    delete = chosen["delete"]
    if cache and not Path(cache).is_dir():
        raise ConfigError(
            f"cache={cache} is not a folder: name the one that holds the tokens, such as"
            " results/cache."
        )
    states = [state for state in ("failed", "interrupted") if chosen[state]]
    wastes = find_waste(folder, entries, states, chosen["older"].total_seconds(), delete)
    if cache:
        wastes = itertools.chain(wastes, unused_tokens(Path(cache), folder, delete))
    n_wastes = 0
    freed = 0  # bytes
    for waste in wastes:
        n_wastes += 1
        reason = waste.why
        if waste.not_deleted:
            reason += f" (kept: {waste.not_deleted})"
        else:
            freed += waste.size
        print(printable(f"{size_words(waste.size):>11}  {waste.path}  {reason}"))
    parts = [f"{size_words(freed)} {'freed' if delete else 'could go'}"]
    running = sum(entry.state == "running" for entry in entries)
    if running:
        parts.append(f"{plural(running, 'run')} at work left alone")
    if n_wastes and not delete:
        parts.append("nothing was deleted: add delete=true")
    print("; ".join(parts), file=sys.stderr)
