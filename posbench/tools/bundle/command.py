"""Command of scripts/bundle.py: a report's folder, or runs, to one file; and the check of a folder
of evidence.
"""

import tempfile
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.config.command_line import options
from posbench.results.bundle import ENDING, contents_of, name_folder, write_bundle
from posbench.results.hashes import HASHES, has_hashes, hashes_of
from posbench.tools.explore.command import collected, named

OPTIONS = {"out": "FOLDER.posbench.zip", "check": False}


def bundle_command(words: list[str]) -> None:
    """Write the bundle that the words ask for, or check a folder of evidence."""
    names = [word for word in words if "=" not in word or Path(word).exists()]
    chosen = options([word for word in words if word not in names], OPTIONS)
    if len(names) != 1:
        raise ConfigError(
            f"A bundle is of one folder of runs or of a report, and {len(names)} are named: give"
            " one."
        )
    (given,) = names
    found, name = named(given), Path(given).resolve().name
    if found.get("csvs"):
        raise ConfigError(
            f"{found['csvs'][0]} is a CSV of losses without sums: give runs, or a report's folder"
            " with evidence."
        )
    evidence = found.get("evidence", ())
    kept = evidence[0] if len(evidence) == 1 and not found.get("paths") else None
    report = collected({given: found}, name)[0][""]
    if chosen["check"]:
        if kept is None:
            raise ConfigError(
                f"{given} is no folder of evidence: name the folder of one report, with rows.csv,"
                " sums.npz, configs.jsonl."
            )
        return _check(kept, given, report)
    if Path(given).is_file():
        raise ConfigError(
            f"{given} is a bundle already: give a folder of runs or of a report, or check=true."
        )
    out = Path(f"{name}.posbench.zip" if chosen["out"] == OPTIONS["out"] else chosen["out"])
    if out.suffix.lower() != ENDING:
        raise ConfigError(f"out={out} is no bundle: give it the ending .zip.")
    from posbench.report.write_report import EXPLORE, PAGE, write

    if kept:
        _check_whole(
            kept, given, report, tables=has_hashes(kept)
        )  # an earlier version's tables had other words
    for origin in report.origins:
        name_folder(origin.parent, name)
    with tempfile.TemporaryDirectory(prefix="posbench-") as made:
        write(report, made)
        fresh = contents_of(Path(made))
    pages = {
        page: fresh[page] for page in (EXPLORE, PAGE)
    }  # made anew, since they name no folder of the machine then
    contents = fresh | (contents_of(kept) if kept else {}) | pages
    contents.pop(HASHES)
    write_bundle(contents | {HASHES: hashes_of(contents)}, out)
    print(
        f"{out} ({out.stat().st_size / 1e6:.1f} MB); it is read like a folder:",
        f"posbench explore {out}",
        sep="\n  ",
    )
    print(f"  posbench report runs={out}")


def _check(folder: Path, name: str, report: object) -> None:
    """Print what a folder of evidence holds. Raises RunError if something does not follow from its
    rows and sums.
    """
    from posbench.report.published.leaderboard import read_folder, tables

    _check_whole(folder, name, report)
    commits = {row["commit"] for row in report.rows} | {
        origin.provenance.get("commit") for origin in report.origins.values()
    }
    changed = sum(
        not one.provenance.get("commit") or bool(one.provenance.get("dirty_diff"))
        for one in report.origins.values()
    )
    print(
        f"{name}: {len(report.rows):,} rows of {len(report.origins)} trainings; all tables are"
        " those of rows and sums."
    )
    if not has_hashes(folder):
        print(
            f"It has no {HASHES}, as folders of earlier versions have none: nothing vouches for"
            " commits, machines and the like."
        )
    listed = ", ".join(sorted({str(one)[:12] for one in commits if one})) or "none"
    print(f"Commits: {listed}; {changed} trainings of changed or unknown code.")
    print(
        "Of it, the leaderboard (results/reported/leaderboard.md) would"
        f" show:\n\n{tables([read_folder(folder)]) or 'nothing'}"
    )


def _check_whole(folder: Path, name: str, report: object, tables: bool = True) -> None:
    """Raise RunError if a folder of evidence was altered, or if something does not follow from its
    rows and sums.

    Without `tables`, table.md may be another.
    """
    from posbench.report.write_report import disagreements

    if wrong := [
        fault
        for fault in disagreements(folder, report)
        if tables or not fault.startswith("table.md")
    ]:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise RunError(
            f"{name} does not hold together ({wrong[0]}{more}): recreate it with scripts/report.py."
        )
