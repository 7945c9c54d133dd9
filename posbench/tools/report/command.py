"""Command of scripts/report.py: stored evaluations to tables, figures and a page."""

import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError
from posbench.common.quantities import plural
from posbench.config.command_line import print_files
from posbench.config.compose import (
    PLACE_KEYS,
    Request,
    check_words_have_effect,
    hash_name,
    words_beside,
)
from posbench.config.names import with_command_names
from posbench.position.trusted import trained_config
from posbench.results.search import Results, find_results, runs_inside, short_path
from posbench.results.sweep_names import runs_of_sweep
from posbench.runs.directory import Run
from posbench.sweep.jobs import Job, plan_existing
from posbench.sweep.kept_steps import check_whole
from posbench.sweep.verdict import left_out

if TYPE_CHECKING:
    from posbench.report.report import Report

# words of a report that pools folders
KEYS_BESIDE_RUNS = ("runs", "name", "experiment", "report_dir", "results_dir", "cache_dir", "bars")
# words that choose no job
KEYS_WITHOUT_JOB = (*PLACE_KEYS, *KEYS_BESIDE_RUNS, "run", "step")


@dataclass
class Selection:
    """Results that a report is made of."""

    name: str  # of the report's folder
    title: str
    command: str  # that makes such results
    paths: list[Path]  # eval files
    csvs: list[Path] = field(default_factory=list)
    evidence: list[Path] = field(default_factory=list)  # folders of reports
    notes: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)  # of a sweep

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to report."""
        return not (self.csvs or self.evidence or any(path.exists() for path in self.paths))


def report(request: Request) -> None:
    """Report on the jobs of run.py's words, on run=DIR, runs= or all of results_dir.

    With runs= an experiment is its title and the name of the folder. Works from files alone: code
    named in a results folder is never executed."""
    from posbench.report.figures.uncertainty import INTERVAL, checked_bars
    from posbench.report.report import collect_report
    from posbench.report.write_report import write_report

    # demo reports with the keys of run.py, which has no figures
    bars = checked_bars(request.raw_configs[0].get("bars", INTERVAL))
    selection = _selection(request)
    if selection.is_empty:
        reasons = f" ({'; '.join(selection.notes)})" if selection.notes else ""
        raise ConfigError(
            f"There is nothing to report yet{reasons}: run '{selection.command}' first."
        )
    made_report = collect_report(
        selection.paths,
        selection.title,
        selection.command,
        selection.csvs,
        skip_damaged=True,
        lengths={cell.path: cell.evaluate.lengths for job in selection.jobs for cell in job.cells},
        evidence=selection.evidence,
    )
    made_report.notes.extend(selection.notes)
    print(table_text(made_report))
    raw = request.raw_configs[0]
    folder = raw["report_dir"] or Path(raw["results_dir"]).parent / "report" / selection.name
    print_files(write_report(made_report, Path(folder), bars))
    if selection.jobs:
        for line in request.experiment.get("next", []):
            print(f"next: {with_command_names(line.format(run=selection.jobs[0].run.path))}")


def table_text(made_report: "Report") -> str:
    """Tables of a report as standard output shows them."""
    if not sys.stdout.isatty():
        return made_report.table_text(None, colour=False)
    return made_report.table_text(shutil.get_terminal_size().columns, colour=True)


def _selection(request: Request) -> Selection:
    """Results that a request names: runs=, the jobs of its words, or all of a folder."""
    raw = request.raw_configs[0]
    experiment = request.experiment
    if raw["runs"] is not None:
        # A grid in the experiment's yaml makes a sweep without -m.
        typed_sweep = request.sweep and "grid" not in experiment
        if raw["run"] or typed_sweep:
            raise ConfigError(
                "runs= names what to report, and so do -m and run=: give one of them."
            )
        reason = "beside runs=, which names what to report: leave one of them out"
        check_words_have_effect(request.words, KEYS_BESIDE_RUNS, reason)
        named = _named_results(raw)
        named.name = request.name or "runs"
        named.title = request.title or named.title
        return named
    jobs: list[Job] = []
    note = ""  # on jobs that have no results here
    if request.sweep or words_beside(request.words, KEYS_WITHOUT_JOB):
        jobs, note = plan_existing(request.raw_configs)
    return _results_of_jobs(request, jobs, note) if jobs else _named_results(raw)


def _results_of_jobs(request: Request, jobs: list[Job], elsewhere: str) -> Selection:
    """Results of jobs; `elsewhere` notes those that are in other folders."""
    never = left_out(jobs)
    notes = []
    if never:
        notes.append(
            f"{plural(len(never), 'evaluation')} of the grid left out: refused, or without effect"
            " (run.py says why, with dry=true)"
        )
    if elsewhere:
        notes.append(elsewhere)
    title = request.title
    if not title:
        words = words_beside(request.words, KEYS_WITHOUT_JOB)
        title = "Sweep" if request.sweep else " ".join(words)
    group = request.raw_configs[0]["log"]["group"]  # None of a job without -m
    return Selection(
        # unnamed jobs are named by their hash: other reports stay
        name=request.name or group or hash_name(request.raw_configs),
        title=printable(title),
        command=_run_command(sys.argv[1:]),
        paths=[cell.path for job in jobs for cell in job.cells if cell.path not in never],
        notes=notes,
        jobs=jobs,
    )


def _run_command(words: list[str]) -> str:
    """Command that makes the results of a report's words, whose figures are no matter of it."""
    of_run = [word for word in words if not word.startswith("bars=")]
    return with_command_names(f"python scripts/run.py {shlex.join(of_run)}")


def _named_results(raw: dict) -> Selection:
    """Results of run=DIR, runs=, the sweep of name=, or all of results_dir."""
    command = with_command_names("python scripts/run.py")  # to call where there is no result yet
    if raw["runs"] is not None:
        command += " run=DIR"  # the folders hold trainings, which it evaluates
        name = "runs"
        results = find_results(raw["runs"])
        title = f"Runs of {', '.join(short_path(folder) for folder in raw['runs'])}"
    elif raw["run"]:
        if raw["step"] is not None:
            run = Run(raw["run"])
            check_whole(run, trained_config(run), raw["step"])
        name = Path(raw["run"]).resolve().name
        results = Results(runs=[Path(raw["run"])], csvs=[], evidence=[])
        title = short_path(raw["run"])
    elif raw.get("name"):
        name = title = raw["name"]
        results = Results(runs=runs_of_sweep(Path(raw["results_dir"]), name), csvs=[], evidence=[])
    else:
        name = "all"
        results = Results(runs=runs_inside(Path(raw["results_dir"])), csvs=[], evidence=[])
        title = f"Everything in {short_path(raw['results_dir'])}"
    paths = []
    empty = []  # names of runs
    for folder in results.runs:
        files = Run(folder).eval_files()
        paths.extend(files)
        if not files:
            empty.append(printable(folder.name))
    notes = []
    if empty:
        notes.append(
            f"{len(empty)} of {len(results.runs)} runs have no evaluation: {', '.join(empty)}"
        )
    return Selection(name, printable(title), command, paths, results.csvs, results.evidence, notes)
