"""Commands of scripts/run.py and scripts/report.py."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError
from posbench.config.command_line import list_files
from posbench.config.compose import Request, check_effect
from posbench.config.names import INSTALLED, as_command
from posbench.results.search import Found, find_results, inside, short_path
from posbench.runs.directory import Run
from posbench.sweep.child_processes import check_resources
from posbench.sweep.jobs import Job, Result, plan_existing, plan_jobs
from posbench.sweep.launch import launch
from posbench.sweep.ledger import failure_lines, record
from posbench.sweep.verdict import already_done, left_out

if TYPE_CHECKING:
    from posbench.report.report import Report

FIRST_SECONDS = 2.0
BESIDE_RUNS = (
    "runs",
    "experiment",
    "report_dir",
    "results_dir",
    "cache_dir",
)  # words of a report that pools folders
STATUS_WORDS = {
    "done": "evaluated",
    "exists": "there already",
    "noop": "no-op",
    "refused": "refused",
    "failed": "failed",
}


def run(request: Request) -> int:
    """Command of scripts/run.py: train and evaluate what is missing, and print the outcome of each
    job. Returns the exit code.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if os.environ["RANK"] != "0":
            return 2  # only rank 0 prints the error
        n = os.environ["WORLD_SIZE"]
        raise ConfigError(
            f"torchrun started {n} copies of this command: start it once, without torchrun, with"
            f" processes={n} to share each training."
        )
    if request.cfgs[0]["runs"] is not None:
        raise ConfigError(
            "runs= names what scripts/report.py compares: give one training as run=DIR."
        )
    jobs = plan_jobs(request.cfgs)
    from posbench.model.build import check_methods

    if request.cfgs[0]["dry"]:
        check_methods(request.cfgs)
        return show_plan(request, jobs)
    there, command = [already_done(job) for job in jobs], shlex.join(sys.orig_argv)
    if all(there):
        record(there, command)
        made = (
            f"{_number_of(len(jobs), 'training')} and"
            f" {_number_of(sum(len(job.cells) for job in jobs), 'evaluation')}"
        )
        print(f"nothing to do: {made} are there already")
        for job in jobs:
            print(f"  {job.run.path}")
        _show_tables(request, jobs)
        return 0
    from posbench.sweep.dry_run import check_devices, cost_of, planned

    check_methods(request.cfgs)
    # A sweep passes over cells that are refused; a device that is not there is a mistake of the
    # whole command.
    check_devices(
        [job for job, done in zip(jobs, there, strict=True) if not done], request.launcher
    )
    if first := request.experiment.get("first"):
        print(*cost_of(planned(jobs), first), sep="\n", file=sys.stderr, flush=True)
    with _first_report(jobs, first):
        results = launch(jobs, {"n_jobs": request.cfgs[0]["jobs"], **request.launcher}, command)
    _print_outcomes(results, request.sweep)
    if any(result.failures for result in results):
        if request.sweep:
            # Printed last, so that they are read.
            print("\n".join(failure_lines(results)), file=sys.stderr)
            print(
                f"once the cause is removed, this goes on with what is missing:\n  {command}",
                file=sys.stderr,
            )
        return 1
    _show_tables(request, jobs)
    refused = [
        outcome for result in results for outcome in result.outcomes if outcome.status == "refused"
    ]
    return 2 if refused and not request.sweep else 0


@contextlib.contextmanager
def _first_report(jobs: list[Job], number: int | None) -> Iterator[None]:
    """Report by the words of this command as soon as `number` of the jobs have the first of their
    evaluations, while the rest goes on.
    """
    ended = threading.Event()

    def watch() -> None:
        firsts = [next(cell for cell in job.cells if not cell.reference) for job in jobs]
        while sum(cell.path.exists() and not cell.missing() for cell in firsts) < number:
            if ended.wait(FIRST_SECONDS):
                return
        words, few = (
            [sys.executable, "-m", "posbench", "report", *sys.argv[1:]],
            {**os.environ, "OMP_NUM_THREADS": "1"},
        )
        made = subprocess.run(
            words, capture_output=True, text=True, env=few, stdin=subprocess.DEVNULL
        )
        pictures = [
            line.split(maxsplit=1)[1]
            for line in made.stdout.splitlines()
            if line.startswith("png ")
        ]
        if pictures and not ended.is_set():
            print(
                f"a first picture, of {number} of {len(jobs)} models: {pictures[0]}",
                file=sys.stderr,
                flush=True,
            )

    watching = threading.Thread(target=watch)
    if number and number < len(jobs):
        watching.start()
    try:
        yield
    finally:
        ended.set()
        if watching.ident:
            watching.join()  # the next report goes to the same folder


def show_plan(request: Request, jobs: list[Job]) -> int:
    """Print the work that dry=true plans. Returns the exit code: 2 where a single job is refused,
    as without dry=true.

    Raises ConfigError where its trainings could not start.
    """
    from posbench.sweep.dry_run import check_devices, describe_plans, planned

    check_resources([job for job in jobs if not already_done(job)], request.launcher)
    plans = planned(jobs)
    check_devices([plan.job for plan in plans if plan.work], request.launcher)
    print("\n".join(describe_plans(plans)))
    refused = [] if request.sweep else [reason for plan in plans for reason in plan.refusals]
    for reason in dict.fromkeys(refused):
        print(f"refused: {reason}", file=sys.stderr)
    return 2 if refused else 0


def _show_tables(request: Request, jobs: list[Job]) -> None:
    """Print the tables of a single job. For a sweep, which may have many, print the command that
    shows them.
    """
    if not any(cell.path.exists() for job in jobs for cell in job.user_cells):
        return
    if request.sweep:
        script = str(Path(sys.argv[0]).with_name("report.py"))
        words = ["posbench", "report"] if INSTALLED else [sys.orig_argv[0], script]
        print(f"tables and figures:\n  {shlex.join([*words, *sys.argv[1:]])}")
        return
    from posbench.report.report import collect

    (job,) = jobs
    found = collect([cell.path for cell in job.cells], job.run.id, "")
    print(_table_text(found))
    if not (
        found.sections or found.contexts or found.scores
    ):  # recompute_window alone: tables only show what is compared with it
        for row in found.rows:
            window = row["extension_args"]["window"] or row["train_len"]
            print(
                f"{row['extension']} {window} at length {row['length']}: {row['nll']:.3f} +-"
                f" {row['nll_sem']:.3f} nats/token (s.e.)"
            )


def _table_text(found: "Report") -> str:
    terminal = sys.stdout.isatty()
    return found.table_text(
        shutil.get_terminal_size().columns if terminal else None, colour=terminal
    )


def _print_outcomes(results: list[Result], sweep: bool) -> None:
    for result in results:
        for outcome in result.outcomes:
            if outcome.reason and not (sweep and outcome.status == "failed"):
                label = (
                    ""
                    if not sweep or not outcome.label
                    else f" ({result.job.run.id}: {outcome.label})"
                )
                file = f" ({result.file})" if result.file else ""
                print(
                    f"{STATUS_WORDS[outcome.status]}{label}: {outcome.reason}{file}",
                    file=sys.stderr,
                )
    counted = Counter(outcome.status for result in results for outcome in result.outcomes)
    print(", ".join(f"{number} {STATUS_WORDS[status]}" for status, number in counted.items()))
    for path in dict.fromkeys(result.job.run.path for result in results if result.job.run.finished):
        print(f"  {path}")


def _number_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def report(request: Request) -> None:
    """Command of scripts/report.py: tables, figures and a page of an experiment, a sweep (-m),
    run=DIR, runs= or all of results_dir.

    With runs= an experiment is its title and the name of the folder. Works from files alone: code
    named in a results folder is never executed."""
    from posbench.report.report import collect
    from posbench.report.write_report import write

    cfg, experiment = request.cfgs[0], request.experiment
    given = cfg["runs"] is not None
    if given:  # an experiment only gives the title and the name then
        if cfg["run"] or (request.sweep and "grid" not in experiment):
            raise ConfigError(
                "runs= names what to report, and so do -m and run=: give one of them."
            )
        check_effect(
            request.words,
            BESIDE_RUNS,
            "beside runs=, which names what to report: leave one of them out",
        )
    jobs, elsewhere = plan_existing(request.cfgs) if request.sweep and not given else ([], "")
    csvs, evidence = [], []
    if jobs:
        name = (
            experiment["name"] or cfg["log"]["group"]
        )  # an unnamed sweep is named by its hash: other reports stay
        never = left_out(jobs)
        paths = [cell.path for job in jobs for cell in job.cells if cell.path not in never]
        said = (
            f"{_number_of(len(never), 'evaluation')} of the grid left out: refused, or without"
            " effect (run.py says why, with dry=true)"
        )
        notes = [said] * bool(never) + [elsewhere] * bool(elsewhere)
        command = as_command(f"python scripts/run.py {shlex.join(sys.argv[1:])}")
        title = experiment.get("title") or experiment["name"] or "Sweep"
    else:
        name = (
            Path(cfg["run"]).resolve().name
            if cfg["run"]
            else (experiment["name"] or "runs")
            if given
            else "all"
        )
        command = as_command("python scripts/run.py") + (" run=DIR" if given else "")
        paths, csvs, evidence, title, notes = _named_results(cfg)
        if given:
            title = experiment.get("title") or experiment["name"] or title
    if not csvs and not evidence and not any(path.exists() for path in paths):
        why = f" ({'; '.join(notes)})" if notes else ""
        raise ConfigError(f"There is nothing to report yet{why}: run '{command}' first.")
    out_dir = Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "report" / name)
    lengths = {cell.path: cell.evaluate.lengths for job in jobs for cell in job.cells}
    made = collect(
        paths, title, command, csvs, skip_damaged=True, lengths=lengths, evidence=evidence
    )
    made.notes.extend(notes)
    print(_table_text(made))
    list_files(write(made, out_dir))
    for line in experiment.get("next", []) if jobs else []:
        print(f"next: {as_command(line.format(run=jobs[0].run.path))}")


def run_and_report(request: Request) -> int:
    """Command of scripts/demo.py: run what is missing, then report on it. Returns the exit code of
    the first.
    """
    code = run(request)
    if code == 0 and not request.cfgs[0]["dry"]:
        report(request)
    return code


def _named_results(cfg: dict) -> tuple[list[Path], list[Path], list[Path], str, list[str]]:
    """(eval files, CSVs, folders of evidence, title, notes) of run=DIR, runs= or all of
    results_dir.
    """
    if cfg["runs"] is not None:
        named, title = (
            find_results(cfg["runs"]),
            f"Runs of {', '.join(short_path(name) for name in cfg['runs'])}",
        )
    elif cfg["run"]:
        named, title = Found([Path(cfg["run"])], [], []), short_path(cfg["run"])
    else:
        named, title = (
            Found(inside(Path(cfg["results_dir"])), [], []),
            f"Everything in {short_path(cfg['results_dir'])}",
        )
    files = [Run(folder).eval_files() for folder in named.runs]
    empty = [
        printable(folder.name) for folder, found in zip(named.runs, files, strict=True) if not found
    ]
    notes = (
        [f"{len(empty)} of {len(named.runs)} runs have no evaluation: {', '.join(empty)}"]
        if empty
        else []
    )
    return (
        [path for found in files for path in found],
        named.csvs,
        named.evidence,
        printable(title),
        notes,
    )
