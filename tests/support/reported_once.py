"""Reports of committed evidence, remembered: the same folders of results/reported give the same
report, of which each caller gets a copy with a title and notes of its own.

Dozens of tests of figures, frames and pages read the same few folders, and one of five seeds takes
a second. Folders that a test wrote or copied are read each time."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from posbench.common.defuse import printable
from posbench.report import report

REPORTED = Path(__file__).parents[2] / "results" / "reported"  # which no test changes
MOST_REPORTS = 8  # in memory
_collect = report.collect_report


def install() -> None:
    """Remember reports, for modules that import collect_report later."""
    report.collect_report = _remembered_report


def _remembered_report(
    paths: Iterable[Path | str],
    title: str,
    command: str,
    csvs: Sequence[Path] = (),
    skip_damaged: bool = False,
    lengths: dict | None = None,
    evidence: Sequence[Path] = (),
) -> report.Report:
    paths = list(paths)
    places = [Path(folder).absolute() for folder in evidence]
    committed = bool(places) and all(place.is_relative_to(REPORTED) for place in places)
    if paths or csvs or not committed:
        return _collect(paths, title, command, csvs, skip_damaged, lengths, evidence)
    # Command, damage and lengths are of paths.
    remembered = _report_of_folders(tuple(evidence), tuple(places))
    return replace(remembered, title=printable(title), notes=[*remembered.notes])


@functools.lru_cache(MOST_REPORTS)
def _report_of_folders(folders: tuple[Path, ...], places: tuple[Path, ...]) -> report.Report:
    """The report of folders as they are called, which are at `places`."""
    return _collect([], "", "", evidence=folders)
