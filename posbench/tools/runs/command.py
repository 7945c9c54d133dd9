"""Command of scripts/runs.py: list the runs of a folder, or delete files that are no longer needed."""

import itertools
import json
import sys
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from rich.filesize import pick_unit_and_suffix

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError
from posbench.common.files import write_json
from posbench.config.command_line import options
from posbench.results.inventory import STATES, Entry, list_runs

HEAD = ("run", "encoding", "seed", "steps", "val. loss", "evals", "size", "age", "state")
LEFT = ("run", "encoding", "state")
SHARED = {"results_dir": "results/runs", "runs": "*"}
LIST = {**SHARED, "state": "", "encoding": "*", "sort": "run", "json": ""}
GC = {
    **SHARED,
    "failed": False,
    "interrupted": False,
    "older": timedelta(),
    "cache": "",
    "delete": False,
}
SORT = {
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
    chosen = options(rest, LIST if word == "list" else GC)
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
    found = [entry for entry in list_runs(folder) if fnmatchcase(entry.path.name, chosen["runs"])]
    if word == "list":
        _list(found, chosen)
    else:
        _gc(folder, found, chosen)


def _list(found: list[Entry], chosen: dict) -> None:
    if chosen["state"] not in ("", *STATES):
        raise ConfigError(f"state={chosen['state']} must be one of {', '.join(STATES)}.")
    if chosen["sort"] not in SORT:
        raise ConfigError(f"sort={chosen['sort']} is unknown: choose from {', '.join(SORT)}.")
    found = [
        entry
        for entry in found
        if chosen["state"] in ("", entry.state)
        and fnmatchcase(entry.encoding.split(" ")[0], chosen["encoding"])
    ]
    found.sort(key=SORT[chosen["sort"]])
    if chosen["json"] == "-":
        print(json.dumps([entry.values for entry in found], indent=1))
        return
    if chosen["json"]:
        write_json(chosen["json"], [entry.values for entry in found])
    lines = [HEAD]
    for one in found:
        steps = str(one.steps) if one.total is None else f"{one.steps}/{one.total}"
        seed, loss = (
            "-" if one.seed is None else str(one.seed),
            "-" if one.loss is None else f"{one.loss:.3f}",
        )
        name = str(printable(one.path.name))
        lines.append(
            (
                name,
                one.encoding,
                seed,
                steps,
                loss,
                str(one.evaluations),
                _size(one.size),
                _age(one.age),
                one.state_in_words,
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(HEAD, line, widths, strict=True)
        print(
            "  ".join(
                cell.ljust(width) if name in LEFT else cell.rjust(width)
                for name, cell, width in cells
            ).rstrip()
        )
    counted = ", ".join(
        f"{n} {state}" for state in STATES if (n := sum(entry.state == state for entry in found))
    )
    total = f"{len(found)} run{'s' * (len(found) != 1)}{f' ({counted})' if counted else ''}"
    print(f"{total}, {_size(sum(entry.size for entry in found))}", file=sys.stderr)


def _size(n: int) -> str:
    """Text of `n` bytes in units of 1024, as of dry=true."""
    unit, name = pick_unit_and_suffix(n, ["bytes", "KiB", "MiB", "GiB", "TiB"], 1024)
    return f"{n / unit:.{0 if unit == 1 else 1}f} {name}"


def _age(seconds: float) -> str:
    """Text of a duration in seconds, in one unit: 40s, 12m, 5h, 3d."""
    unit, length = next(
        (one for one in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= one[1]), ("s", 1)
    )
    return f"{seconds / length:.0f}{unit}"


def _gc(folder: Path, found: list[Entry], chosen: dict) -> None:
    from posbench.results.cleanup import find_waste, unused_tokens

    cache, delete = chosen["cache"], chosen["delete"]
    if cache and not Path(cache).is_dir():
        raise ConfigError(
            f"cache={cache} is not a folder: name the one that holds the tokens, such as"
            " results/cache."
        )
    unfinished = [state for state in ("failed", "interrupted") if chosen[state]]
    wastes = find_waste(folder, found, unfinished, chosen["older"].total_seconds(), delete)
    listed = gone = 0
    for waste in itertools.chain(
        wastes, unused_tokens(Path(cache), folder, delete) if cache else ()
    ):
        listed, gone = listed + 1, gone + (0 if waste.not_deleted else waste.size)
        print(
            printable(
                f"{_size(waste.size):>11}  {waste.path} "
                f" {waste.why}{f' (kept: {waste.not_deleted})' if waste.not_deleted else ''}"
            )
        )
    left_alone = sum(entry.state == "running" for entry in found)
    notes = [f"{left_alone} run{'s' * (left_alone != 1)} at work left alone"] * bool(left_alone)
    notes += ["nothing was deleted: add delete=true"] * bool(listed and not delete)
    print(
        "; ".join([f"{_size(gone)} {'freed' if delete else 'could go'}", *notes]), file=sys.stderr
    )
