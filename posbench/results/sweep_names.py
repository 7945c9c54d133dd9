"""Names of the sweeps that the runs of a results folder belong to.

A run's config.yaml has the name of the sweep that trained it. The ledger also has those of later
sweeps that found the training there."""

import re
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.common.files import read_bytes, read_lines
from posbench.results.run_metadata import RunMetadata
from posbench.results.search import runs_inside
from posbench.runs.directory import Run

LEDGER = "ledger.jsonl"
STATUSES_WITHOUT_RESULT = ("refused", "noop")  # statuses of a line without a result


def names_in_ledger(folder: Path) -> dict[str, list[str]]:
    """{run_id: names of its sweeps, the first sweep first}, as the ledger of a folder has them; no
    names for a run whose lines all lack a result.
    """
    names: dict[str, list[str]] = {}
    for line in read_lines(folder / LEDGER):
        name = line.get("name")
        run_id = line.get("run_id")
        if not isinstance(name, str) or not isinstance(run_id, str):
            continue
        names_of_run = names.setdefault(run_id, [])
        if name not in names_of_run and line.get("status") not in STATUSES_WITHOUT_RESULT:
            names_of_run.append(name)
    return names


def names_of_run(metadata: RunMetadata, in_ledger: dict[str, list[str]]) -> list[str]:
    """Names of a run's sweeps; the one that trained it comes first."""
    names = [sweep_name(metadata), *in_ledger.get(metadata.path.name, [])]
    return list(dict.fromkeys(name for name in names if name))


def sweep_name(metadata: RunMetadata) -> str:
    """Name of the sweep that trained a run; "" without one."""
    name = metadata.config.get("name")
    return name if isinstance(name, str) else ""


def runs_of_sweep(folder: Path, name: str) -> list[Path]:
    """Run directories in a results folder that belong to the sweep of a name, sorted.

    Raises ConfigError for a name that no sweep has."""
    runs = runs_of_sweeps(folder)
    if name not in runs:
        listed = f"choose from {', '.join(runs)}" if runs else "no run there has one"
        raise ConfigError(
            f"name={name} is the name of no sweep in {folder}{did_you_mean(name, runs)}: {listed}."
        )
    return runs[name]


def runs_of_sweeps(folder: Path) -> dict[str, list[Path]]:
    """{name of a sweep: its run directories in a results folder}, both sorted."""
    in_ledger = names_in_ledger(folder)
    runs: dict[str, list[Path]] = {}
    for path in runs_inside(folder):
        names = set(printable([_name_in_config(path), *in_ledger.get(path.name, [])]))
        for name in names - {""}:
            runs.setdefault(name, []).append(path)
    return dict(sorted(runs.items()))


def _name_in_config(path: Path) -> str:
    """Name of the sweep that trained a run, "" without one: a line of config.yaml, which is not
    parsed, since a folder may have thousands."""
    try:
        text = read_bytes(Run(path).config).decode()
    except (OSError, RunError, UnicodeDecodeError):
        return ""
    line = re.search(r"^name: (.*)$", text, re.MULTILINE)
    name = line[1].strip().strip("'\"") if line else ""
    return "" if name == "null" else name
