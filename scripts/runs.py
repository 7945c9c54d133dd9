"""List the runs of a results folder, or delete files that are no longer needed.

python scripts/runs.py list [results_dir=results/runs] [runs='rope-*'] [state=failed] [encoding=rope] [sort=loss] [json=FILE]
python scripts/runs.py gc [results_dir=results/runs] [runs='rope-*'] [failed=true] [interrupted=true] [older=30d] [cache=DIR] [delete=true]

gc deletes nothing without delete=true. It lists partly written files, checkpoints of finished trainings, runs without any progress, and
wandb folders that were uploaded. failed=true and interrupted=true add trainings that did not finish. cache=results/cache adds the token
files that no run of this results folder was trained on.
"""

import json
import sys
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from posbench.cli.key_values import options, run_main
from posbench.common.defuse import printable
from posbench.common.errors import ConfigError
from posbench.runs.inventory import STATES, Entry, list_runs
from posbench.runs.inventory_table import show, size, values

SHARED = {"results_dir": "results/runs", "runs": "*"}
LIST = {**SHARED, "state": "", "encoding": "*", "sort": "run", "json": ""}
GC = {**SHARED, "failed": False, "interrupted": False, "older": timedelta(), "cache": "", "delete": False}
SORT = {
    "run": lambda entry: entry.path.name,
    "age": lambda entry: entry.age,
    "size": lambda entry: -entry.size,
    "loss": lambda entry: (entry.loss is None, entry.loss or 0),
    "state": lambda entry: (STATES.index(entry.state), entry.path.name),
}


def main(arguments: list[str]) -> None:
    """Run the command that the first word names: list or gc."""
    word, *rest = arguments or ["help"]
    if word in ("help", "-h", "--help"):
        print(__doc__, end="")
        return
    if word not in ("list", "gc"):
        raise ConfigError(f"{word} is neither list nor gc: python scripts/runs.py list, or gc.")
    chosen = options(rest, LIST if word == "list" else GC)
    folder = Path(chosen["results_dir"])
    if not folder.is_dir():
        raise ConfigError(f"results_dir={folder} is not a folder: name the one that holds the runs, such as results/runs.")
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
        entry for entry in found if chosen["state"] in ("", entry.state) and fnmatchcase(entry.encoding.split(" ")[0], chosen["encoding"])
    ]
    found.sort(key=SORT[chosen["sort"]])
    if chosen["json"]:
        text = json.dumps([values(entry) for entry in found], indent=1) + "\n"
        if chosen["json"] == "-":
            print(text, end="")
            return
        from posbench.common.files import write_atomic

        write_atomic(chosen["json"], text)
    show(found)
    counted = ", ".join(f"{n} {state}" for state in STATES if (n := sum(entry.state == state for entry in found)))
    total = f"{len(found)} run{'s' * (len(found) != 1)}{f' ({counted})' if counted else ''}"
    print(f"{total}, {size(sum(entry.size for entry in found))}", file=sys.stderr)


def _gc(folder: Path, found: list[Entry], chosen: dict) -> None:
    from posbench.runs.cleanup import delete, find_waste, unused_tokens

    unfinished = [state for state in ("failed", "interrupted") if chosen[state]]
    deleting, older = chosen["delete"], chosen["older"].total_seconds()
    wastes = list(find_waste(folder, [entry for entry in found if entry.age >= older], unfinished))
    if chosen["cache"]:
        if not Path(chosen["cache"]).is_dir():
            raise ConfigError(f"cache={chosen['cache']} is not a folder: name the one that holds the tokens, such as results/cache.")
        wastes += unused_tokens(Path(chosen["cache"]), folder)
    gone = 0
    for waste in wastes:
        kept = delete(waste) if deleting else ""
        gone += 0 if kept else waste.size
        print(printable(f"{size(waste.size):>9}  {waste.path}  {waste.why}{f' (kept: {kept})' if kept else ''}"))
    left_alone = sum(entry.state == "running" for entry in found)
    notes = [f"{left_alone} run{'s' * (left_alone != 1)} at work left alone"] * bool(left_alone)
    notes += ["nothing was deleted: add delete=true"] * bool(wastes and not deleting)
    print("; ".join([f"{size(gone)} {'freed' if deleting else 'could go'}", *notes]), file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
