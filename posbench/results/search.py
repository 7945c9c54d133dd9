"""Search for run directories and files: in a results folder, and by paths and globs."""

import contextlib
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.results.bundle import ENDING, unpacked_folder
from posbench.runs.directory import Run

# Files of a report whose rows can be pooled with others.
ROWS = "rows.csv"
SUMS = "sums.npz"
CONFIGS = "configs.jsonl"
WAY_OUT = (
    "give run directories, a folder of them, the folder or bundle of a report, a CSV of losses,"
    " or a quoted glob of these."
)
# as posbench.config.identity.run_id makes it
RUN_ID = re.compile(r"\w[\w.+-]*-(\d+to)?\d+(\+\d+)*(at\d+)?-s\d+-[0-9a-f]{10}")


@dataclass(frozen=True)
class Results:
    """Results that were named: run directories, CSVs of losses, and folders of reports that hold
    evidence.
    """

    runs: list[Path]
    csvs: list[Path]
    evidence: list[Path]

    def eval_files(self) -> list[Path]:
        """Eval files of the runs."""
        return [path for folder in self.runs for path in Run(folder).eval_files()]

    def without_csvs(self, why: str) -> "Results":
        """Itself. Raises ConfigError with the reason `why` if a CSV was named."""
        if self.csvs:
            raise ConfigError(f"{self.csvs[0]} {why}: give run directories, or folders of reports.")
        return self


def find_results(names: Iterable[object]) -> Results:
    """Results named by paths and globs: a run itself, a folder of runs, the folder of a report, its
    bundle, a CSV.

    Raises ConfigError for a name that leads to none of them, RunError for a .zip that is no sound
    bundle."""
    runs: dict[Path, Path] = {}  # {resolved path: path}, so that each is there once
    csvs: dict[Path, Path] = {}
    evidence: dict[Path, Path] = {}
    for name in names:
        named = _results_of_name(os.path.expanduser(str(name)))
        for path in named.runs:
            runs.setdefault(path.resolve(), path)
        for path in named.csvs:
            csvs.setdefault(path.resolve(), path)
        for path in named.evidence:
            evidence.setdefault(path.resolve(), path)
    if not (runs or csvs or evidence):
        raise ConfigError(f"runs=[] names nothing: {WAY_OUT}")
    return Results(list(runs.values()), list(csvs.values()), list(evidence.values()))


def _results_of_name(name: str) -> Results:
    """Results of one path or glob. Raises as `find_results`."""
    paths = [_folder_of_bundle(path) for path in _matching_paths(name)]
    csvs = [path for path in paths if path.is_file() and path.suffix.lower() == ".csv"]
    evidence = [path for path in paths if is_evidence(path)]
    runs = []
    for path in paths:
        runs += [path] if Run(path).has_config else runs_inside(path)
    if not (runs or csvs or evidence):
        # Reports of before there was evidence have their rows alone.
        csvs = [path / ROWS for path in paths if os.path.isfile(path / ROWS)]
    if not (runs or csvs or evidence):
        raise ConfigError(f"{printable(name)} matches neither a training nor a CSV: {WAY_OUT}")
    return Results(runs, csvs, evidence)


def _matching_paths(name: str) -> list[Path]:
    """The path of this name, or those that match it as a glob."""
    if name and Path(name).exists():
        return [Path(name)]
    return [Path(path) for path in sorted(glob.glob(name))]


def _folder_of_bundle(path: Path) -> Path:
    """The folder of a bundle; any other path itself."""
    is_bundle = path.suffix.lower() == ENDING and path.is_file()
    return unpacked_folder(path) if is_bundle else path


def is_evidence(folder: Path) -> bool:
    """True for the folder of a report that holds evidence (see posbench/results/evidence.py), and
    that can be read.
    """
    return all(os.path.isfile(folder / name) for name in (ROWS, SUMS, CONFIGS))


def runs_inside(folder: Path) -> list[Path]:
    """Run directories in a results folder, sorted."""
    return sorted(path.parent for path in folder.glob("*/config.yaml"))


def short_path(path: Path | str) -> str:
    """Last two parts of a path, so that a page names no folder of the machine.

    >>> short_path("/home/me/results/runs")
    'results/runs'
    """
    return "/".join(Path(str(path)).parts[-2:])


def shortest_endings(paths: Sequence[Path]) -> dict[Path, str]:
    """{path: its shortest ending that differs from the others}."""
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return {path: str(printable("/".join(path.parts[-depth:]))) for path in paths}


def run_directories(folder: Path) -> list[Path]:
    """Run directories in a results folder, without links. Raises RunError when the folder cannot be
    read.
    """
    try:
        with os.scandir(folder) as entries:
            folders = [
                Path(entry)
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(
            f"{folder} cannot be read ({error.strerror}): fix this, or give another results folder."
        ) from error
    return sorted(path for path in folders if RUN_ID.fullmatch(path.name) or Run(path).has_config)


def files_below(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield (path, status) of every file below a directory. Links and files deleted meanwhile are
    skipped.

    Raises OSError for a directory that cannot be read.
    """

    def unreadable(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, onerror=unreadable):
        for item in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                status = item.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield item, status
