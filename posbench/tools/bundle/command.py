"""Command of scripts/bundle.py: a report's folder or runs to one file, or the check of a folder."""

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.config.command_line import read_options
from posbench.config.identity import quoted_word
from posbench.results.bundle import ENDING, contents_by_name, name_folder, write_bundle
from posbench.results.hashes import HASHES, has_hashes, hashes_of
from posbench.tools.explore.command import collected_reports, named_results

if TYPE_CHECKING:
    from posbench.report.report import Report

BUNDLE_OPTIONS = {"out": "FOLDER.posbench.zip", "check": False}


def bundle_command(words: list[str]) -> None:
    """Write the bundle that the words ask for, or check a folder of evidence."""
    # The path of a folder may hold "=" too.
    names = [word for word in words if "=" not in word or Path(word).exists()]
    chosen = read_options([word for word in words if word not in names], BUNDLE_OPTIONS)
    if len(names) != 1:
        raise ConfigError(
            f"A bundle is of one folder of runs or of a report, and {len(names)} are named: give"
            " one."
        )
    path = names[0]
    results = named_results(path)
    if results.csvs:
        raise ConfigError(
            f"{results.csvs[0]} is a CSV of losses without sums: give runs, or a report's folder"
            " with evidence."
        )
    reports, _ = collected_reports({path: results}, Path(path).resolve().name)
    report = reports[""]  # the only one, which has no name of its own
    # The files of a report's folder are bundled as they are; of runs a report is made first.
    one_report = len(results.evidence) == 1 and not results.paths
    folder = results.evidence[0] if one_report else None
    if chosen["check"]:
        _print_check(folder, path, report)
    else:
        _write_bundle_file(folder, path, report, chosen["out"])


def _write_bundle_file(folder: Path | None, path: str, report: "Report", out: str) -> None:
    """Write the bundle of what `path` names, and print how to read it.

    `folder` is the folder of evidence there; None for runs.
    """
    if Path(path).is_file():
        raise ConfigError(
            f"{path} is a bundle already: give a folder of runs or of a report, or check=true."
        )
    name = Path(path).resolve().name
    file = Path(f"{name}.posbench.zip" if out == BUNDLE_OPTIONS["out"] else out)
    if file.suffix.lower() != ENDING:
        raise ConfigError(f"out={file} is no bundle: give it the ending .zip.")
    if folder:
        # Without hashes it is of an earlier version, whose tables had other words.
        _check_whole(folder, path, report, checks_table=has_hashes(folder))
    write_bundle(_bundle_contents(report, name, folder), file)
    print(f"{file} ({file.stat().st_size / 1e6:.1f} MB); it is read like a folder:")
    print(f"  posbench explore {shlex.quote(str(file))}")
    print(f"  posbench report {quoted_word('runs', file)}")


def _bundle_contents(report: "Report", name: str, folder: Path | None) -> dict[str, bytes]:
    """{file name: bytes} of a bundle: the files of a report, or those of its folder.

    The pages are made anew, so that they name no folder of this machine.
    """
    from posbench.report.write_report import EXPLORE, PAGE, write_report

    for origin in report.origins:
        name_folder(origin.parent, name)  # the pages call the folder of its runs so
    with tempfile.TemporaryDirectory(prefix="posbench-") as temporary:
        write_report(report, temporary)
        contents = contents_by_name(Path(temporary))
    if folder:
        pages = {page: contents[page] for page in (EXPLORE, PAGE)}
        contents = contents | contents_by_name(folder) | pages
    del contents[HASHES]  # of files as they were, before the pages were replaced
    return contents | {HASHES: hashes_of(contents)}


def _print_check(folder: Path | None, name: str, report: "Report") -> None:
    """Print what a folder of evidence holds.

    Raises ConfigError without one, and RunError if something does not follow from its rows and
    sums.
    """
    from posbench.report.published.leaderboard import leaderboard_tables, read_folder

    if folder is None:
        raise ConfigError(
            f"{name} is no folder of evidence: name the folder of one report, with rows.csv,"
            " sums.npz, configs.jsonl."
        )
    _check_whole(folder, name, report)
    commits = {row["commit"] for row in report.rows}
    n_changed = 0
    for origin in report.origins.values():
        commit = origin.provenance.get("commit")
        commits.add(commit)
        if not commit or origin.provenance.get("dirty_diff"):
            n_changed += 1
    print(
        f"{name}: {len(report.rows):,} rows of {len(report.origins)} trainings; all tables are"
        " those of rows and sums."
    )
    if not has_hashes(folder):
        print(
            f"It has no {HASHES}, as folders of earlier versions have none: nothing vouches for"
            " commits, machines and the like."
        )
    listed = ", ".join(sorted({str(commit)[:12] for commit in commits if commit})) or "none"
    print(f"Commits: {listed}; {n_changed} trainings of changed or unknown code.")
    print("Of it, the leaderboard (results/reported/leaderboard.md) would show:")
    print()
    print(leaderboard_tables([read_folder(folder)]) or "nothing")


def _check_whole(folder: Path, name: str, report: "Report", checks_table: bool = True) -> None:
    """Raise RunError if a folder was altered, or if something does not follow from rows and sums.

    Without `checks_table`, table.md may be another, as that of an earlier version.
    """
    from posbench.report.write_report import disagreements

    faults = disagreements(folder, report)
    if not checks_table:
        faults = [fault for fault in faults if not fault.startswith("table.md")]
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise RunError(
            f"{name} does not hold together ({faults[0]}{more}): recreate it with"
            " scripts/report.py."
        )
